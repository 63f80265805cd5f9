//! `playhouse run` as process 1, or as if it were (`--init`).

use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{BINARY, Running, Site, called, curl, eventually, eventually_some, program_of, script};

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
fn after_an_upgrade_it_is_the_new_build_and_starts_that_again() {
    let site = with_instances();
    let mut command = site.command();
    command.arg("--init");
    let site = site.start_by(&mut command, Stdio::null());
    let init = site.process.pid();
    upgraded(site, init);
}

#[test]
fn a_new_build_whose_controller_fails_leaves_the_build_before() {
    let site = with_instances();
    let mut command = site.command();
    command.arg("--init");
    let mut site = site.start_by(&mut command, Stdio::null());
    let pids = site.active(2);
    let controller = runs(&site);
    let text = format!("#!/bin/sh\n[ \"$1\" = run ] && kill -KILL $$\nexec {BINARY} \"$@\"\n");
    let broken = script(&site, "broken", &text).display().to_string();
    assert!(site.playhouse(&["upgrade", &broken]).status.success());
    eventually("the init has started a controller of its own build", || {
        lock(&site).is_some_and(|pid| pid != controller && exists(pid)) && site.admin.ready()
    });
    eventually("all are that build", || site.active(2).iter().all(|pid| !pids.contains(pid)));
    assert_eq!(program_of(site.process.pid()).as_deref(), Some(Path::new(BINARY)));
    site.stop();
    assert_eq!(site.process.wait().code(), Some(0));
}

#[test]
fn as_process_1_of_a_namespace_it_becomes_the_new_build_too() {
    let site = with_instances();
    let Some(mut namespace) = namespace(&site) else { return };
    let site = site.start_by(&mut namespace, Stdio::null());
    let init = only_child(site.process.pid());
    upgraded(site, init);
}

/// Upgrades a site beneath `init`, which is seen to be the new build then; and to be an init still, to its end.
#[track_caller]
fn upgraded(mut site: Running, init: Pid) {
    let before = site.instances();
    assert_eq!(before.len(), 2);
    let next = called(&site, "9.9.9-next");
    assert!(site.playhouse(&["upgrade", &next.display().to_string()]).status.success());
    let are_next = |site: &Running| {
        let instances = site.instances();
        instances.len() == 2
            && instances.iter().all(|instance| instance.state == "active" && instance.build == "9.9.9-next")
    };
    eventually("all instances are the new build", || are_next(&site));
    eventually("the init is", || program_of(init).as_ref() == Some(&next));
    let instances = site.instances();
    // What it starts again is that too, and adopts.
    let controller = eventually_some("the controller", || controller_of(init, &instances));
    kill_process(controller, Signal::KILL).expect("the controller");
    eventually("another one has its place", || {
        site.admin.ready() && controller_of(init, &instances).is_some_and(|now| now != controller)
    });
    assert_eq!(site.admin.status()["build"], "9.9.9-next");
    assert_eq!(site.instances(), instances);
    eventually("what has ended was reaped", || {
        children(init).into_iter().all(|pid| !is_zombie(pid)) && !exists(controller)
    });
    // Signals go through the new one.
    site.edit(|site| site.route(r#"(path: "/new", to: Respond(status: 200, body: "new\n"))"#));
    kill_process(init, Signal::HUP).expect("the init");
    let url = site.url("http", "/new");
    eventually("the new route is in force", || curl([&*url]).body == b"new\n");
    kill_process(init, Signal::TERM).expect("the init");
    assert_eq!(site.process.wait().code(), Some(0));
    assert!(children(init).is_empty() && !exists(init));
}

/// The child of `init` that runs the site: not one of the instances, which may have lost their first controller.
fn controller_of(init: Pid, instances: &[crate::harness::InstanceView]) -> Option<Pid> {
    // In a namespace the status has other numbers for them: what they are called tells them apart.
    let is_instance = |pid: Pid| {
        let line = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("--slot") || instances.iter().any(|known| known.pid == pid)
    };
    children(init).into_iter().find(|pid| !is_zombie(*pid) && !is_instance(*pid))
}

fn is_zombie(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('Z'))
}

/// The site as process 1 of a namespace of its own; `None`, and said so, where there is none to be had.
fn namespace(site: &Site) -> Option<std::process::Command> {
    let command = site.command();
    let mut namespace = std::process::Command::new("unshare");
    let options = ["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"];
    namespace.args(options).arg(command.get_program()).args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        namespace.current_dir(folder);
    }
    let supported = std::process::Command::new("unshare").args(options).arg("true").output();
    if !supported.is_ok_and(|output| output.status.success()) {
        eprintln!("no PID namespace is to be had here; the tests of --init stand for this one");
        return None;
    }
    Some(namespace)
}

#[test]
fn as_process_1_of_a_namespace_it_reaps_orphans() {
    let site = site();
    let Some(mut namespace) = namespace(&site) else { return };
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

fn with_instances() -> Site {
    site().field(r#"instances: (min: 2, max: 3, scaling: (up_at: 1.0, down_at: 0.0))"#)
}

#[track_caller]
fn runs(site: &Running) -> Pid {
    eventually_some("the site has its process", || lock(site).filter(|pid| exists(*pid)))
}

/// Who holds the state directory.
fn lock(site: &Running) -> Option<Pid> {
    let text = std::fs::read_to_string(site.state_dir().join("lock")).ok()?;
    Pid::from_raw(text.lines().next()?.parse().ok()?)
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
