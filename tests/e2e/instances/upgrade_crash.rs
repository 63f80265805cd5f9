//! A controller ends in the middle of an upgrade, before and after it has become the new build, and while the instances are
//! rolled: nothing is lost, the next one adopts, and nobody is left over.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use super::crash::{crashes, ready};
use super::{all_drained_without_loss, nothing_is_left, stage};
use crate::harness::stage::{Stage, balances, moves, stop, untouched};
use crate::harness::{BINARY, called, eventually, program_of, with_crash_at};

/// Two instances are active that were not there before, and no others.
#[track_caller]
fn rolled(stage: &Stage, old: &[rustix::process::Pid]) {
    eventually("two others are active, and nobody else is there", || {
        let instances = stage.site.instances();
        instances.len() == 2
            && instances.iter().all(|instance| instance.state == "active" && !old.contains(&instance.pid))
    });
    let own = |pid| program_of(pid).as_deref() == Some(Path::new(BINARY));
    assert!(own(stage.site.process.pid()) && stage.site.active(2).into_iter().all(own));
    nothing_is_left(&stage.site);
}

#[test]
fn while_the_new_build_is_tried() {
    let mut stage = stage(2, 3);
    let pids = stage.site.active(2);
    let before = stage.site.admin.settled_ledger();
    let next = called(&stage.site, "9.9.9-next").display().to_string();
    let load = stage.load();
    for place in ["upgrade-start", "upgrade-noted", "upgrade-ready", "upgrade-over"] {
        moves(&load, 50);
        crashes(&mut stage, place, |stage| {
            ready(stage);
            assert!(!stage.site.playhouse(&["upgrade", &next]).status.success());
        });
        // Nothing has been decided: all is as it was.
        assert_eq!(stage.site.active(2), pids, "{place}");
        nothing_is_left(&stage.site);
    }
    moves(&load, 100);
    let report = stop(load);
    untouched(&report, "crashes in a trial");
    balances(&stage.site, before, &report, "crashes in a trial");
}

#[test]
fn before_it_becomes_the_new_build() {
    let mut stage = stage(2, 3);
    let before = stage.site.admin.settled_ledger();
    let next = called(&stage.site, "9.9.9-next").display().to_string();
    let load = stage.load();
    for place in ["upgrade-memo", "upgrade-exec"] {
        moves(&load, 50);
        let pids = stage.site.active(2);
        crashes(&mut stage, place, |stage| {
            ready(stage);
            // It has been answered by then.
            assert!(stage.site.playhouse(&["upgrade", &next]).status.success());
        });
        // The roll that was to follow the upgrade follows the crash.
        rolled(&stage, &pids);
    }
    moves(&load, 100);
    let report = stop(load);
    all_drained_without_loss(&report);
    balances(&stage.site, before, &report, "crashes before exec");
}

/// Upgrades to a build whose controllers end at these places; whoever comes then is the build that was there before.
#[track_caller]
fn becomes_one_that_crashes(places: &[&str]) {
    let mut stage = stage(2, 3);
    let before = stage.site.admin.settled_ledger();
    let load = stage.load();
    for place in places {
        moves(&load, 50);
        let pids = stage.site.active(2);
        let next = with_crash_at(&stage.site, place).display().to_string();
        assert!(stage.site.playhouse(&["upgrade", &next]).status.success());
        let status = stage.site.process.wait_alone();
        assert_eq!(status.signal(), Some(9), "{place}: {}", stage.site.process.output());
        moves(&load, 50);
        stage.site.start_again();
        rolled(&stage, &pids);
    }
    moves(&load, 100);
    let report = stop(load);
    all_drained_without_loss(&report);
    balances(&stage.site, before, &report, "crashes after exec");
}

#[test]
fn after_it_has_become_the_new_build_and_before_it_has_the_lock_and_the_sockets() {
    becomes_one_that_crashes(&["open-start", "open-lock", "open-adopt"]);
}

#[test]
fn after_it_has_become_the_new_build_and_has_the_sockets() {
    becomes_one_that_crashes(&["memo-write", "memo-rename", "open-end"]);
}

#[test]
fn while_the_first_is_replaced() {
    becomes_one_that_crashes(&["start", "configure", "activate", "drain"]);
}

#[test]
fn while_those_after_the_first_are_replaced() {
    becomes_one_that_crashes(&["fold-write", "fold-rename", "fold-unlink", "drained"]);
}
