//! The controller ends, and the next one takes over.

use std::os::unix::net::UnixListener;

use rustix::process::Signal;
use serde_json::json;

use super::{gone, processes_of, rounds, signal, stage, with_instances};
use crate::harness::stage::{balances, moves, stop, untouched};
use crate::harness::{Process, Site, curl, eventually, exists, playhouse};

#[test]
fn a_killed_controller_loses_nothing_and_the_next_adopts_the_same_processes() {
    let mut stage = stage(2, 3);
    let pids = stage.site.active(2);
    let before = stage.site.admin.settled_ledger();
    let load = stage.load();
    for _ in 0..rounds() {
        moves(&load, 100);
        stage.site.replace();
        assert_eq!(stage.site.active(2), pids, "{}", stage.site.process.output());
        let now = stage.site.admin.ledger();
        assert!(
            now.accepted >= before.accepted && now.answered >= before.answered,
            "{now:?} after {before:?}"
        );
    }
    moves(&load, 200);
    let report = stop(load);
    untouched(&report, "SIGKILL of the controller");
    balances(&stage.site, before, &report, "SIGKILL of the controller");
}

#[test]
fn instances_serve_on_without_a_controller_and_the_commands_work() {
    let mut stage = stage(2, 3);
    let pids = stage.site.active(2);
    let load = stage.load();
    stage.site.process.kill();
    moves(&load, 500);
    let status = stage.site.playhouse(&["status"]);
    assert!(status.status.success(), "{status:?}");
    let tree = stage.site.playhouse(&["tree"]);
    assert!(tree.status.success(), "{tree:?}");
    let report = stop(load);
    untouched(&report, "without a controller");
    let output = stage.site.playhouse(&["stop"]);
    assert!(output.status.success(), "{output:?}");
    pids.into_iter().for_each(gone);
    let left = std::fs::read_dir(stage.site.state_dir()).expect("the state directory").flatten();
    let left: Vec<_> = left.map(|file| file.file_name()).filter(|name| name != "lock").collect();
    assert!(left.is_empty(), "{left:?} is left");
}

#[test]
fn a_second_controller_says_who_has_the_site() {
    let stage = stage(1, 2);
    let mut second = playhouse();
    second.arg("run").arg(stage.site.path("site.ron"));
    let mut second = Process::start("a second controller", &mut second);
    assert!(!second.wait().success());
    let said = second.stderr().join("\n");
    assert!(said.contains(&format!("process {}", stage.site.process.pid().as_raw_nonzero())), "{said}");
    stage.site.active(1);
}

#[test]
fn after_a_crash_of_everything_the_next_start_is_a_fresh_one() {
    let mut stage = stage(2, 3);
    let pids = stage.site.active(2);
    let load = stage.load();
    moves(&load, 100);
    stage.site.process.kill();
    pids.iter().for_each(|pid| signal(*pid, Signal::KILL));
    pids.iter().for_each(|pid| gone(*pid));
    drop(stop(load));
    stage.site.start_again();
    let fresh = stage.site.active(2);
    assert!(fresh.iter().all(|pid| !pids.contains(pid)));
    let ledger = stage.site.admin.settled_ledger();
    assert!(ledger.accepted >= 100, "what was counted before is not forgotten: {ledger:?}");
    let load = stage.load();
    moves(&load, 100);
    let report = stop(load);
    assert!(report.is_clean(), "{report}");
}

#[test]
fn a_record_that_lies_is_removed_and_never_trusted() {
    let mut stage = stage(1, 3);
    let pids = stage.site.active(1);
    stage.site.process.kill();
    let state = stage.site.state_dir();
    // One of no process, one of a living process that is no instance (this test), one of garbage.
    let own = std::process::id();
    let write = |slot: u32, content: &str| {
        std::fs::write(state.join(format!("instance-{slot}.json")), content).expect("a record is written");
    };
    let record = |slot: u32, pid: u32, started: u64| {
        json!({"pid": pid, "started": started, "slot": slot, "generation": 90 + slot, "build": "x"})
            .to_string()
    };
    write(5, &record(5, 0x3fff_ffff, 1));
    write(6, &record(6, own, 1));
    write(7, "garbage");
    let started = std::fs::read_to_string("/proc/self/stat").expect("our own stat");
    let started =
        started.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19)?.parse().ok());
    write(8, &record(8, own, started.expect("a start time")));
    let _nobody_who_speaks = UnixListener::bind(state.join("instance-8.control")).expect("a socket");
    stage.site.start_again();
    assert_eq!(stage.site.active(1), pids);
    for slot in 5..=8 {
        assert!(!exists(&state.join(format!("instance-{slot}.json"))), "the record of {slot} is left");
    }
    stage.site.process.line("what it has removed", |line| {
        (line.contains("instance-7") && line.contains("was removed")).then_some(())
    });
}

#[test]
fn a_controller_that_starts_with_a_broken_file_adopts_what_is_in_force() {
    let mut stage = stage(2, 3);
    let pids = stage.site.active(2);
    let good = std::fs::read(stage.site.path("site.ron")).expect("the site file");
    stage.site.write("site.ron", "( broken");
    stage.site.process.kill();
    let state = stage.site.state_dir().display().to_string();
    let mut command = playhouse();
    command.arg("run").arg(stage.site.path("site.ron")).args(["--state-dir", &state]);
    stage.site.process = Process::start("playhouse", &mut command);
    eventually("it is ready", || stage.site.admin.ready());
    assert_eq!(stage.site.active(2), pids);
    stage.site.process.line("that it goes on", |line| line.contains("stays in force").then_some(()));
    stage.site.write("site.ron", good);
    stage.site.reload();
    assert_eq!(stage.site.active(2), pids);
}

#[test]
fn a_controller_that_starts_with_another_file_puts_it_into_force_in_those_it_adopts() {
    let mut stage = stage(2, 3);
    let pids = stage.site.active(2);
    let load = stage.load();
    moves(&load, 50);
    stage.site.edit(|site| site.route(r#"(path: "/new", to: Respond(status: 200, body: "new\n"))"#));
    stage.site.replace();
    let url = stage.site.url("http", "/new");
    eventually("both answer with the new route", || (0..10).all(|_| curl([&*url]).body == b"new\n"));
    let report = stop(load);
    untouched(&report, "adoption with another file");
    assert_eq!(stage.site.active(2), pids);
}

#[test]
fn an_instance_that_was_never_active_ends_with_its_controller() {
    let mut site = with_instances(Site::new(), 1, 2)
        .route(r#"(path: "/", to: Respond(status: 200, body: "ok\n"))"#)
        .start();
    site.active(1);
    // The instance's record is there before it is ready; whatever the moment, nobody is left over.
    assert!(site.playhouse(&["scale", "2"]).status.success());
    site.replace();
    eventually("as many processes as the controller knows of", || {
        let known: Vec<_> =
            site.instances().iter().map(|instance| instance.pid.as_raw_nonzero().get()).collect();
        let there = processes_of(&site);
        !known.is_empty() && there.iter().all(|pid| known.contains(pid))
    });
}
