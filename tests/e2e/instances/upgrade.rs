//! Another build in the place of the one that runs.

use std::path::Path;

use rustix::process::{Pid, Signal};

use super::{
    all_drained_without_loss, drained_without_loss, nothing_is_left, repeated, rounds, signal, stage,
};
use crate::harness::stage::{Stage, balances, moves, stop, untouched};
use crate::harness::{BINARY, Process, Wire, build_of, called, eventually, playhouse, program_of, script};

#[track_caller]
fn all_run(stage: &Stage, program: &Path, build: &str, old: &[Pid]) {
    eventually("two instances of the new build are active, and nobody else is there", || {
        let instances = stage.site.instances();
        instances.len() == 2
            && instances.iter().all(|instance| {
                instance.state == "active"
                    && instance.build == build
                    && !old.contains(&instance.pid)
                    && program_of(instance.pid).as_deref() == Some(program)
            })
    });
    assert_eq!(program_of(stage.site.process.pid()).as_deref(), Some(program), "the controller");
    let admin = &stage.site.admin;
    assert_eq!(admin.status()["build"], build);
    // Of the controller and of two instances.
    let label = format!("version=\"{build}\"");
    eventually("metrics say so too", || admin.metric("playhouse_build_info", &[&label]) >= 3.0);
}

#[track_caller]
fn upgrade(stage: &Stage, program: &Path) {
    let output = stage.site.playhouse(&["upgrade", &program.display().to_string()]);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn an_upgrade_and_a_downgrade_lose_nothing_and_the_controller_keeps_its_process() {
    let stage = stage(2, 3);
    let controller = stage.site.process.pid();
    let before = stage.site.admin.settled_ledger();
    let next = called(&stage.site, "9.9.9-next");
    let load = stage.load();
    for _ in 0..rounds() {
        for (program, build) in [(&*next, "9.9.9-next"), (Path::new(BINARY), build_of())] {
            moves(&load, 100);
            let pids = stage.site.active(2);
            upgrade(&stage, program);
            all_run(&stage, program, build, &pids);
            nothing_is_left(&stage.site);
        }
    }
    // And once more by the signal: the file that it was started from.
    let pids = stage.site.active(2);
    signal(controller, Signal::USR2);
    all_run(&stage, Path::new(BINARY), build_of(), &pids);
    nothing_is_left(&stage.site);
    moves(&load, 200);
    let report = stop(load);
    all_drained_without_loss(&report);
    balances(&stage.site, before, &report, "upgrade");
}

#[test]
fn the_status_says_the_build_of_each_while_they_are_rolled() {
    let stage = stage(2, 3);
    stage.site.active(2);
    let next = called(&stage.site, "9.9.9-next");
    // Who reads slowly keeps an instance of the build before.
    let mut slow = Wire::connect(stage.site.address("http"));
    slow.send("POST /up/echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe");
    eventually("the request is in flight", || stage.site.admin.ledger().in_flight == 1);
    upgrade(&stage, &next);
    eventually("three builds are to be seen", || {
        let instances = stage.site.instances();
        let of = |state: &str, build: &str| {
            instances.iter().filter(|instance| instance.state == state && instance.build == build).count()
        };
        of("active", "9.9.9-next") == 2 && of("draining", build_of()) == 1 && instances.len() == 3
    });
    slow.send("llo");
    assert_eq!(slow.response().text(), "hello");
    stage.site.active(2);
    nothing_is_left(&stage.site);
}

#[test]
fn an_adopted_instance_of_another_build_serves_on_and_is_rolled_when_asked() {
    repeated(|| {
        let mut stage = stage(2, 3);
        let pids = stage.site.active(2);
        let before = stage.site.admin.settled_ledger();
        let next = called(&stage.site, "9.9.9-next");
        let load = stage.load();
        // The controller alone is another build; and the instances of it, which were started since.
        for (program, theirs) in [(&*next, build_of()), (Path::new(BINARY), "9.9.9-next")] {
            let pids = stage.site.active(2);
            stage.site.process.kill();
            stage.site.start_again_by(program);
            moves(&load, 100);
            assert_eq!(stage.site.active(2), pids);
            assert!(stage.site.instances().iter().all(|instance| instance.build == theirs));
            let own = if theirs == build_of() { "9.9.9-next" } else { build_of() };
            assert_eq!(stage.site.admin.status()["build"], own);
            // Reloads and scaling are understood by both.
            stage.site.reload();
            assert!(stage.site.playhouse(&["scale", "3"]).status.success());
            let three = stage.site.active(3);
            assert!(pids.iter().all(|pid| three.contains(pid)));
            assert!(stage.site.playhouse(&["scale", "2"]).status.success());
            stage.site.active(2);
            let pids = stage.site.active(2);
            assert!(stage.site.playhouse(&["upgrade"]).status.success());
            all_run(&stage, program, own, &pids);
            nothing_is_left(&stage.site);
        }
        assert!(stage.site.active(2).iter().all(|pid| !pids.contains(pid)));
        moves(&load, 100);
        let report = stop(load);
        drained_without_loss(&report);
        balances(&stage.site, before, &report, "controllers of other builds");
    });
}

/// An instance that speaks as one of a later build may, and a controller that is this one.
const LATER: &str = r#"#!/usr/bin/env python3
import json, os, socket, sys
if sys.argv[1] == "run":
    os.execv("BINARY", ["playhouse"] + sys.argv[1:])
option = lambda name: sys.argv[sys.argv.index(name) + 1]
link = socket.socket(fileno=0)
say = lambda **message: link.send(json.dumps(dict(message, later={"a": [1]})).encode())
say(type="hello", version={"major": MAJOR, "minor": 9, "patch": 1}, build="2.0.0", pid=os.getpid(), started=1,
    site=option("--site"), slot=int(option("--slot")), generation=int(option("--generation")), state="starting")
say(type="juggle", balls=3)
while True:
    bytes, descriptors, _, _ = socket.recv_fds(link, 1 << 16, 64)
    if not bytes:
        sys.exit(1)
    message = json.loads(bytes)
    if message["type"] == "configure":
        say(type="configured", revision=message["site"]["revision"], listeners_juggled=["http"])
        say(type="state", state="ready")
"#;

#[test]
fn what_a_later_build_adds_is_passed_over_and_what_it_has_changed_is_refused() {
    let stage = stage(2, 3);
    let pids = stage.site.active(2);
    let load = stage.load();
    let later = |major: &str, first: &str| {
        let text = LATER.replace("BINARY", BINARY).replace("MAJOR", major).replace("hello", first);
        script(&stage.site, &format!("later-{major}-{first}"), &text)
    };
    // Said all at once, before it is killed for the first word.
    for (other, why) in [
        (later("2", "hello"), "version 2.9 of the control protocol"),
        (later("1", "hallo"), "it does not say who it is"),
    ] {
        let other = other.display().to_string();
        let output = stage.site.playhouse(&["upgrade", &other]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(&other) && said.contains(why), "{said}");
    }
    assert_eq!(stage.site.active(2), pids);
    nothing_is_left(&stage.site);
    upgrade(&stage, &later("1", "hello"));
    all_run(&stage, Path::new(BINARY), build_of(), &pids);
    nothing_is_left(&stage.site);
    let report = stop(load);
    all_drained_without_loss(&report);
}

#[test]
fn a_build_that_does_not_work_changes_nothing() {
    repeated(|| {
        let mut stage = stage(2, 3);
        stage.site.edit(|site| {
            site.field(
                r#"instances: (min: 2, max: 3, ready_timeout: "2s", scaling: (up_at: 1.0, down_at: 0.0))"#,
            )
        });
        stage.site.reload();
        let pids = stage.site.active(2);
        let own = program_of(stage.site.process.pid());
        let load = stage.load();
        moves(&load, 100);
        let script = |name: &str, text: &str| script(&stage.site, name, text).display().to_string();
        let broken = [
            "/bin/false".to_owned(),
            "/no/such/file".to_owned(),
            script("hangs", "#!/bin/sh\nexec sleep 600\n"),
            script("garbage", "#!/bin/sh\necho garbage >&0\nexec sleep 600\n"),
        ];
        for program in &broken {
            let output = stage.site.playhouse(&["upgrade", program]);
            assert_eq!(output.status.code(), Some(1), "{program}: {output:?}");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(said.contains(program.as_str()), "{said}");
            eventually("the trial is over", || stage.site.instances().len() == 2);
            nothing_is_left(&stage.site);
        }
        assert_eq!(stage.site.active(2), pids);
        assert_eq!(program_of(stage.site.process.pid()), own);
        moves(&load, 100);
        let report = stop(load);
        untouched(&report, "upgrades to what is broken");
    });
}

#[test]
fn a_build_whose_instances_are_well_and_whose_controller_is_not_leaves_those_that_serve() {
    repeated(|| {
        let mut stage = stage(2, 3);
        let pids = stage.site.active(2);
        let load = stage.load();
        let text = format!("#!/bin/sh\n[ \"$1\" = run ] && exit 7\nexec {BINARY} \"$@\"\n");
        upgrade(&stage, &script(&stage.site, "no-controller", &text));
        assert_eq!(stage.site.process.wait_alone().code(), Some(7));
        moves(&load, 200);
        stage.site.start_again();
        all_run(&stage, Path::new(BINARY), build_of(), &pids);
        nothing_is_left(&stage.site);
        let report = stop(load);
        all_drained_without_loss(&report);
    });
}

/// A site whose controller will be another build so many seconds from now, and a client of it that is in the middle of a
/// request.
fn becoming_another(seconds: u32) -> (Stage, Wire) {
    let stage = stage(2, 3);
    stage.site.active(2);
    let mut slow = stage.site.wire();
    slow.send("POST /up/echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe");
    eventually("the request is in flight", || stage.site.admin.ledger().in_flight == 1);
    let text = format!("#!/bin/sh\n[ \"$1\" = run ] && sleep {seconds}\nexec {BINARY} \"$@\"\n");
    upgrade(&stage, &script(&stage.site, "slow", &text));
    let admin = stage.site.state_dir().join("admin.sock");
    eventually("nobody answers", || std::os::unix::net::UnixStream::connect(&admin).is_err());
    (stage, slow)
}

#[test]
fn a_stop_while_the_controller_becomes_the_new_build_stops_all() {
    repeated(|| {
        let (mut stage, slow) = becoming_another(1);
        drop(slow);
        let output = stage.site.playhouse(&["stop"]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(stage.site.process.wait().code(), Some(0));
        assert_eq!(super::processes_of(&stage.site), Vec::<i32>::new());
    });
}

#[test]
fn a_stop_does_not_wait_for_a_new_build_for_ever_and_then_lets_nobody_in() {
    repeated(|| {
        let (mut stage, slow) = becoming_another(5);
        // It drains until its deadline, and the new build comes meanwhile.
        let output = stage.site.playhouse(&["stop"]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(stage.site.process.wait().code(), Some(1));
        assert_eq!(super::processes_of(&stage.site), Vec::<i32>::new());
        drop(slow);
    });
}

#[test]
fn upgrades_that_do_not_wait_for_each_other_lose_nothing_and_leave_nobody() {
    repeated(|| {
        let stage = stage(2, 3);
        let pids = stage.site.active(2);
        let before = stage.site.admin.settled_ledger();
        let load = stage.load();
        let mut done = 0;
        for round in 0..8 {
            // One may come while another goes on, or be cut off with the program that was answering it.
            done += usize::from(stage.site.playhouse(&["upgrade"]).status.success());
            let scale = if round % 2 == 0 { "3" } else { "2" };
            let _ = stage.site.playhouse(&["scale", scale]);
        }
        assert!(done > 1, "{done}");
        eventually("two others are active", || {
            let _ = stage.site.playhouse(&["scale", "2"]);
            let instances = stage.site.instances();
            instances.len() == 2 && instances.iter().all(|instance| !pids.contains(&instance.pid))
        });
        stage.site.active(2);
        nothing_is_left(&stage.site);
        let report = stop(load);
        drained_without_loss(&report);
        balances(&stage.site, before, &report, "many upgrades");
    });
}

#[test]
fn a_candidate_that_hangs_does_not_outlive_the_controller_that_tries_it() {
    repeated(|| {
        let mut stage = stage(1, 2);
        let pids = stage.site.active(1);
        let pid = stage.site.path("pid");
        let text = format!("#!/bin/sh\necho $$ > {0}.new; mv {0}.new {0}\nexec sleep 600\n", pid.display());
        let hangs = script(&stage.site, "hangs", &text).display().to_string();
        let mut command = playhouse();
        command.arg("upgrade").arg(&hangs).arg("--state-dir").arg(stage.site.state_dir());
        let mut asking = Process::start("upgrade", &mut command);
        let candidate: i32 = crate::harness::eventually_some("the candidate runs", || {
            std::fs::read_to_string(&pid).ok()?.trim().parse().ok()
        });
        eventually("it is written down", || {
            let memo = std::fs::read_to_string(stage.site.state_dir().join("site.json")).unwrap_or_default();
            memo.contains("\"trial\"")
        });
        stage.site.replace();
        super::gone(Pid::from_raw(candidate).expect("a pid"));
        assert!(!asking.wait().success());
        assert_eq!(stage.site.active(1), pids);
        nothing_is_left(&stage.site);
    });
}
