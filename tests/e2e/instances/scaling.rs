//! More and fewer instances.

use std::net::SocketAddr;

use super::{all_drained_without_loss, drained_without_loss, repeated, rounds, stage, with_instances};
use crate::harness::stage::{Stage, balances, moves, stop, untouched};
use crate::harness::{H2load, Running, Wire, eventually, eventually_some};

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

/// From one to three and back, again and again under load. Whoever has the most leaves as well: else what lives long would stay
/// where it is, since those leave first that have the least.
#[track_caller]
fn comes_and_goes(stage: &Stage) {
    stage.site.active(1);
    let before = stage.site.admin.settled_ledger();
    let load = stage.load();
    for _ in 0..rounds() {
        for count in [3, 1] {
            assert!(stage.site.playhouse(&["scale", &count.to_string()]).status.success());
            let pids = stage.site.active(count);
            moves(&load, 100);
            if count == 1 {
                let name = stage.site.instances()[0].name.clone();
                assert!(stage.site.playhouse(&["drain", &name]).status.success());
                eventually("another is alone in its place", || stage.site.active(1) != pids);
            }
        }
    }
    let report = stop(load);
    all_drained_without_loss(&report);
    balances(&stage.site, before, &report, "scale");
}

#[test]
fn long_h2_connections_are_spread_evenly_over_the_instances() {
    let stage = stage(4, 4);
    stage.site.active(4);
    let address = stage.site.address("http");
    let one_by_one = || (0..200).map(|_| long(address)).collect::<Vec<_>>();
    spreads(&stage.site, one_by_one);
    let at_once = || {
        let mut all: Vec<_> = (0..200).map(|_| opened(address)).collect();
        all.iter_mut().for_each(greeted);
        all
    };
    spreads(&stage.site, at_once);
    let under_load = || {
        let load = stage.load();
        moves(&load, 50);
        let all = one_by_one();
        let report = stop(load);
        assert!(report.is_clean(), "{report}");
        all
    };
    spreads(&stage.site, under_load);
}

#[test]
fn an_instance_that_comes_late_gets_more_of_the_new_connections() {
    let stage = Stage::with(|site| {
        with_instances(site, 1, 2).listener("http", r#"(bind: "127.0.0.1:0", sharing: ReusePort)"#)
    });
    stage.site.active(1);
    let address = stage.site.address("http");
    let mut held: Vec<_> = (0..60).map(|_| long(address)).collect();
    assert!(stage.site.playhouse(&["scale", "2"]).status.success());
    stage.site.active(2);
    // The kernel alone would give each half of them, and leave the second behind by sixty.
    for _ in 0..20 {
        held.extend((0..5).map(|_| long(address)));
        let open = held.len() as u64;
        eventually("they are counted", || stage.site.admin.connections() == open);
    }
    let counts = connections(&stage.site);
    assert!(counts[0].abs_diff(counts[1]) <= 40, "{counts:?}");
}

/// Opens connections three times over. Twice at least, the most and the fewest of an instance differ by no more than three
/// tenths of the mean: one that does not get the CPU for long is not waited for.
#[track_caller]
fn spreads(site: &Running, open: impl Fn() -> Vec<Wire>) {
    let mut rounds = [(); 3].map(|()| {
        let held = open();
        let counts = eventually_some("all connections are counted", || {
            Some(connections(site)).filter(|counts| counts.iter().sum::<u64>() == held.len() as u64)
        });
        drop(held);
        eventually("they are gone", || site.admin.connections() == 0);
        counts
    });
    let spread = |counts: &Vec<u64>| counts.iter().max().expect("one") - counts.iter().min().expect("one");
    rounds.sort_by_key(spread);
    let mean = rounds[1].iter().sum::<u64>() / rounds[1].len() as u64;
    assert!(spread(&rounds[1]) * 10 <= mean * 3, "{rounds:?}");
}

fn connections(site: &Running) -> Vec<u64> {
    let status = site.admin.status();
    let instances = status["instances"].as_array().expect("instances");
    instances.iter().map(|instance| instance["connections"].as_u64().expect("a number")).collect()
}

/// An HTTP/2 connection without a stream.
#[track_caller]
fn long(address: SocketAddr) -> Wire {
    let mut wire = opened(address);
    greeted(&mut wire);
    wire
}

#[track_caller]
fn opened(address: SocketAddr) -> Wire {
    let mut wire = Wire::connect(address);
    // The preface, and an empty SETTINGS frame (RFC 9113 §3.4, §6.5).
    wire.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    wire
}

#[track_caller]
fn greeted(wire: &mut Wire) {
    let head = wire.take(9).expect("the server's SETTINGS");
    assert_eq!(head[3], 4, "{head:?}");
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
    repeated(|| {
        let stage = Stage::with(|site| {
            site.field(
            r#"instances: (min: 1, max: 2, scaling: (up_at: 0.2, down_at: 0.1, up_after: "500ms", down_after: "1s", cooldown: "500ms"))"#,
        )
        });
        stage.site.active(1);
        let calm = stage.calm_load();
        let url = stage.site.url("http", "/hello.txt");
        let load = H2load::start_for(&url, 20, 4, 16);
        eventually("a second instance is active", || {
            stage.site.instances().iter().filter(|instance| instance.state == "active").count() == 2
        });
        let counted = load.finish();
        assert_eq!((counted.failed, counted.errored, counted.timeout), (0, 0, 0), "{counted:?}");
        stage.site.active(1);
        moves(&calm, 20);
        drained_without_loss(&stop(calm));
    });
}

#[test]
fn no_memory_for_another_is_said_and_those_that_are_there_serve() {
    repeated(|| {
        let stage =
            Stage::with(|site| site.field(r#"instances: (min: 1, max: 2, min_free_memory: "1000TiB")"#));
        stage.site.active(1);
        let load = stage.load();
        assert!(stage.site.playhouse(&["scale", "2"]).status.success());
        eventually("the pressure is said", || stage.site.admin.events().to_lowercase().contains("memory"));
        moves(&load, 200);
        let report = stop(load);
        untouched(&report, "no memory for another");
        stage.site.active(1);
    });
}

#[test]
fn memory_that_stays_short_takes_one_away_and_loses_nothing() {
    repeated(|| {
        let instances = |free| {
            format!(r#"instances: (min: 1, max: 2, min_free_memory: "{free}", scaling: (down_at: 0))"#)
        };
        let mut stage = Stage::with(|site| site.field(instances("1MiB")));
        assert!(stage.site.playhouse(&["scale", "2"]).status.success());
        stage.site.active(2);
        assert!(stage.site.playhouse(&["scale", "auto"]).status.success());
        let before = stage.site.admin.settled_ledger();
        let load = stage.load();
        moves(&load, 200);
        stage.site.edit(|site| site.field(instances("1000TiB"))).reload();
        stage.site.active(1);
        moves(&load, 200);
        let report = stop(load);
        drained_without_loss(&report);
        balances(&stage.site, before, &report, "memory that stays short");
        let status = stage.site.admin.status();
        assert_eq!(status["memory"]["pressure"], true, "{status}");
    });
}
