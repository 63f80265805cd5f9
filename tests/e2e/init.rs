//! `playhouse run` as process 1, or as if it were (`--init`).

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Running, Site, eventually, eventually_some};

#[test]
fn a_process_that_is_killed_is_started_again_and_a_stop_is_a_stop() {
    let site = site();
    let mut command = site.command();
    command.arg("--init");
    let mut site = site.start_by(&mut command, Stdio::null());
    for _ in 0..3 {
        let pid = runs(&site);
        assert_ne!(pid, site.process.pid());
        kill_process(pid, Signal::KILL).expect("the site's own process");
        eventually("another one has its place", || {
            let now = lock(&site);
            now.is_some_and(|now| now != pid) && site.admin.ready()
        });
        assert!(!exists(pid), "it was not reaped");
    }
    site.stop();
    assert_eq!(site.process.wait().code(), Some(0));
}

#[test]
fn it_ends_with_the_status_of_a_site_that_cannot_start() {
    let site = site();
    let path = site.write();
    std::fs::write(&path, "( broken").expect("a file");
    let mut command = crate::harness::playhouse();
    command.arg("run").arg(&path).arg("--init");
    let mut process = crate::harness::Process::start("playhouse", &mut command);
    assert_eq!(process.wait().code(), Some(1));
    assert!(process.output().contains("not a valid site"));
}

#[test]
fn a_reload_and_a_stop_by_command_go_through_it() {
    let site = site();
    let mut command = site.command();
    command.arg("--init");
    let mut site = site.start_by(&mut command, Stdio::null());
    site.process.signal(Signal::HUP);
    site.process.line("that it has reloaded", |line| line.contains("reloaded").then_some(()));
    assert!(site.playhouse(&["stop"]).status.success());
    assert_eq!(site.process.wait().code(), Some(0));
}

#[test]
fn as_process_1_of_a_namespace_it_reaps_orphans() {
    let site = site();
    let command = site.command();
    let mut namespace = std::process::Command::new("unshare");
    let options = ["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"];
    namespace.args(options).arg(command.get_program()).args(command.get_args());
    let supported = std::process::Command::new("unshare").args(options).arg("true").output();
    if !supported.is_ok_and(|output| output.status.success()) {
        eprintln!("no PID namespace is to be had here; the test of --init stands for this one");
        return;
    }
    let mut site = site.start_by(&mut namespace, Stdio::null());
    // As seen from within.
    assert_eq!(lock(&site).map(|pid| pid.as_raw_nonzero().get() > 1), Some(true));
    let init = only_child(site.process.pid());
    let serving = only_child(init);
    kill_process(serving, Signal::KILL).expect("the site's own process");
    eventually("another one has its place", || {
        children(init).iter().any(|pid| *pid != serving) && site.admin.ready()
    });
    eventually("the killed one was reaped", || !exists(serving));
    // TERM means something to a process 1 only where it has a handler.
    kill_process(init, Signal::TERM).expect("process 1 of the namespace");
    assert_eq!(site.process.wait().code(), Some(0));
}

fn site() -> Site {
    Site::new().route(r#"(path: "/", to: Respond(status: 200, body: "ok\n"))"#)
}

#[track_caller]
fn runs(site: &Running) -> Pid {
    eventually_some("the site has its process", || lock(site).filter(|pid| exists(*pid)))
}

/// Who holds the state directory.
fn lock(site: &Running) -> Option<Pid> {
    let text = std::fs::read_to_string(site.state_dir().join("lock")).ok()?;
    Pid::from_raw(text.trim().parse().ok()?)
}

fn exists(pid: Pid) -> bool {
    std::path::Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists()
}

#[track_caller]
fn only_child(of: Pid) -> Pid {
    eventually_some("it has one child", || children(of).first().copied())
}

fn children(of: Pid) -> Vec<Pid> {
    let pid = of.as_raw_nonzero();
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}
