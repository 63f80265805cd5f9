//! Another build in the place of the one that runs.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal};

use super::{drained_without_loss, signal, stage};
use crate::harness::eventually;
use crate::harness::stage::{Stage, balances, moves, stop};

/// A program that a process runs.
fn program_of(pid: Pid) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero())).ok()
}

/// The same build under another path: another one as far as processes go.
fn another_build(stage: &Stage) -> PathBuf {
    let path = stage.site.path("playhouse-next");
    std::fs::copy(env!("CARGO_BIN_EXE_playhouse"), &path).expect("a copy");
    path
}

#[track_caller]
fn all_run(stage: &Stage, program: &Path, old: &[Pid]) {
    eventually("two instances of the new build are active, and nobody else is there", || {
        let instances = stage.site.instances();
        instances.len() == 2
            && instances.iter().all(|instance| {
                instance.state == "active"
                    && !old.contains(&instance.pid)
                    && program_of(instance.pid).as_deref() == Some(program)
            })
    });
    assert_eq!(program_of(stage.site.process.pid()).as_deref(), Some(program), "the controller");
}

#[test]
fn an_upgrade_loses_nothing_and_the_controller_keeps_its_process() {
    let stage = stage(2, 3);
    let pids = stage.site.active(2);
    let before = stage.site.admin.settled_ledger();
    let next = another_build(&stage);
    let load = stage.load();
    moves(&load, 100);
    let output = stage.site.playhouse(&["upgrade", &next.display().to_string()]);
    assert!(output.status.success(), "{output:?}");
    all_run(&stage, &next, &pids);
    // And once more by the signal: the file that it was started from is the new one by now.
    let pids = stage.site.active(2);
    signal(stage.site.process.pid(), Signal::USR2);
    all_run(&stage, &next, &pids);
    moves(&load, 200);
    let report = stop(load);
    drained_without_loss(&report);
    balances(&stage.site, before, &report, "upgrade");
}

#[test]
fn a_build_that_does_not_work_changes_nothing() {
    let mut stage = stage(2, 3);
    stage.site.edit(|site| {
        site.field(r#"instances: (min: 2, max: 3, ready_timeout: "2s", scaling: (up_at: 1.0, down_at: 0.0))"#)
    });
    stage.site.reload();
    let pids = stage.site.active(2);
    let own = program_of(stage.site.process.pid());
    let load = stage.load();
    moves(&load, 100);
    let script = |name: &str, text: &str| {
        let path = stage.site.path(name);
        std::fs::write(&path, text).expect("a script");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
        path.display().to_string()
    };
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
    }
    assert_eq!(stage.site.active(2), pids);
    assert_eq!(program_of(stage.site.process.pid()), own);
    moves(&load, 100);
    let report = stop(load);
    assert!(report.is_clean(), "{report}");
}
