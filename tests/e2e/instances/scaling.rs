//! More and fewer instances.

use super::{drained_without_loss, rounds, stage, with_instances};
use crate::harness::stage::{Stage, balances, moves, stop};
use crate::harness::{H2load, Wire, eventually};

#[test]
fn scaling_up_and_down_by_hand_loses_nothing() {
    comes_and_goes(&stage(1, 3));
}

#[test]
fn instances_with_sockets_of_their_own_come_and_go_without_a_loss() {
    comes_and_goes(&Stage::with(|site| {
        with_instances(site, 1, 3).listener("http", r#"(bind: "127.0.0.1:0", sharing: ReusePort)"#)
    }));
}

/// From one to three and back, again and again under load.
#[track_caller]
fn comes_and_goes(stage: &Stage) {
    stage.site.active(1);
    let before = stage.site.admin.settled_ledger();
    let load = stage.load();
    for _ in 0..rounds() {
        for count in [3, 1] {
            assert!(stage.site.playhouse(&["scale", &count.to_string()]).status.success());
            stage.site.active(count);
            moves(&load, 100);
        }
    }
    let report = stop(load);
    drained_without_loss(&report);
    balances(&stage.site, before, &report, "scale");
}

#[test]
fn long_connections_are_spread_over_the_instances() {
    let stage = stage(4, 4);
    stage.site.active(4);
    let address = stage.site.address("http");
    let connections: Vec<_> = (0..200)
        .map(|_| {
            let mut wire = Wire::connect(address);
            wire.send("GET /hello.txt HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(wire.response().status, 200);
            wire
        })
        .collect();
    eventually("no instance has more than twice its share", || {
        let status = stage.site.admin.status();
        let counts: Vec<u64> = status["instances"]
            .as_array()
            .expect("instances")
            .iter()
            .map(|instance| instance["connections"].as_u64().expect("a number"))
            .collect();
        counts.iter().sum::<u64>() >= 200 && counts.iter().all(|count| *count <= 100)
    });
    drop(connections);
}

#[test]
fn beyond_the_bounds_is_refused_with_a_clear_answer() {
    let stage = stage(2, 3);
    for (count, bound) in [("4", "max"), ("1", "min")] {
        let output = stage.site.playhouse(&["scale", count]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(bound), "{said}");
    }
    stage.site.active(2);
}

#[test]
fn load_adds_instances_and_its_end_takes_them_away() {
    let stage = Stage::with(|site| {
        site.field(
            r#"instances: (min: 1, max: 2, scaling: (up_at: 0.2, down_at: 0.1, up_after: "500ms", down_after: "1s", cooldown: "500ms"))"#,
        )
    });
    stage.site.active(1);
    let url = stage.site.url("http", "/hello.txt");
    let load = H2load::start_for(&url, 20, 4, 16);
    eventually("a second instance is active", || {
        stage.site.instances().iter().filter(|instance| instance.state == "active").count() == 2
    });
    let counted = load.finish();
    assert_eq!((counted.failed, counted.errored, counted.timeout), (0, 0, 0), "{counted:?}");
    stage.site.active(1);
}

#[test]
fn no_memory_for_another_is_said_and_those_that_are_there_serve() {
    let stage = Stage::with(|site| site.field(r#"instances: (min: 1, max: 2, min_free_memory: "1000TiB")"#));
    stage.site.active(1);
    let load = stage.load();
    assert!(stage.site.playhouse(&["scale", "2"]).status.success());
    eventually("the pressure is said", || stage.site.admin.events().to_lowercase().contains("memory"));
    moves(&load, 200);
    let report = stop(load);
    assert!(report.is_clean(), "{report}");
    stage.site.active(1);
}
