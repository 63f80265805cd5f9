//! The controller ends in the middle of what it does: nothing is counted twice, nothing is lost, nobody is left over.

use std::os::unix::process::ExitStatusExt;

use rustix::process::Signal;

use super::{drained_without_loss, gone, signal, stage};
use crate::harness::stage::{Stage, balances, moves, stop, untouched};
use crate::harness::{Process, curl, eventually, playhouse};

/// Starts the next controller so that it ends at `place`, lets `cause` bring it there, and starts one that does not.
#[track_caller]
pub(super) fn crashes(stage: &mut Stage, place: &str, cause: impl FnOnce(&Stage)) {
    stage.site.process.kill();
    let mut command = playhouse();
    command.arg("run").arg(stage.site.path("site.ron")).env("PLAYHOUSE_CRASH_AT", place);
    stage.site.process =
        Process::start("a controller that crashes", command.current_dir(stage.site.path(".")));
    let alive = stage.site.process.ended().is_none();
    if alive {
        cause(stage);
    }
    let status = stage.site.process.wait_alone();
    assert_eq!(status.signal(), Some(9), "{place}: {}", stage.site.process.output());
    stage.site.start_again();
}

pub(super) fn ready(stage: &Stage) {
    eventually("the controller is ready", || stage.site.admin.ready());
}

#[test]
fn while_it_adds_up_what_a_dead_instance_has_counted() {
    let mut stage = stage(2, 3);
    let url = stage.site.url("http", "/hello.txt");
    let mut sent = 0;
    // One fold before, so that there is a last one.
    for place in ["none", "fold-write", "fold-rename", "fold-unlink", "fold-unlink-last"] {
        for _ in 0..10 {
            assert_eq!(curl([&*url]).status, 200);
            sent += 1;
        }
        let victim = stage.site.active(2)[0];
        if place == "none" {
            signal(victim, Signal::KILL);
        } else {
            crashes(&mut stage, place, |_| signal(victim, Signal::KILL));
        }
        gone(victim);
        stage.site.active(2);
        let ledger = stage.site.admin.settled_ledger();
        assert_eq!((ledger.accepted, ledger.answered), (sent, sent), "{place}: {ledger:?}");
    }
}

#[test]
fn while_it_starts_configures_and_activates_an_instance() {
    let mut stage = stage(2, 3);
    let before = stage.site.admin.settled_ledger();
    let load = stage.load();
    for place in ["memo-write", "memo-rename", "start", "configure", "activate"] {
        moves(&load, 50);
        let pids = stage.site.active(2);
        crashes(&mut stage, place, |stage| {
            if !place.starts_with("memo") {
                ready(stage);
                let answered = stage.site.playhouse(&["scale", "3"]);
                drop(answered);
            }
        });
        assert!(stage.site.playhouse(&["scale", "3"]).status.success());
        let three = stage.site.active(3);
        assert!(pids.iter().all(|pid| three.contains(pid)), "{place}: those that served were replaced");
        assert!(stage.site.playhouse(&["scale", "2"]).status.success());
        stage.site.active(2);
    }
    moves(&load, 100);
    let report = stop(load);
    drained_without_loss(&report);
    balances(&stage.site, before, &report, "crashes");
}

#[test]
fn while_a_configuration_is_tried_and_not_yet_in_force() {
    let mut stage = stage(2, 3);
    let pids = stage.site.active(2);
    let load = stage.load();
    moves(&load, 50);
    let text = std::fs::read_to_string(stage.site.path("site.ron")).expect("the site file");
    crashes(&mut stage, "reload", |stage| {
        ready(stage);
        stage.site.write(
            "site.ron",
            text.replace(
                "routes: [",
                "routes: [\n        (path: \"/new\", to: Respond(status: 200, body: \"new\\n\")),",
            ),
        );
        drop(stage.site.playhouse(&["reload"]));
    });
    // The next one finds the file changed, and puts it into force in both.
    let url = stage.site.url("http", "/new");
    eventually("both answer with the new route", || (0..10).all(|_| curl([&*url]).body == b"new\n"));
    moves(&load, 50);
    let report = stop(load);
    untouched(&report, "a crash in a reload");
    assert_eq!(stage.site.active(2), pids);
}
