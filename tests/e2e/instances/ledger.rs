//! Nothing is left over, however often processes come and go, and the sums are right to the request.

use std::collections::BTreeSet;

use rustix::process::{Pid, Signal};

use super::{gone, signal, stage};
use crate::harness::{curl, eventually, full};

#[test]
fn the_sums_have_every_request_of_every_process_that_was() {
    let mut stage = stage(2, 3);
    let url = stage.site.url("http", "/hello.txt");
    let mut sent = 0;
    for round in 0..6 {
        for _ in 0..10 {
            assert_eq!(curl([&*url]).status, 200);
            sent += 1;
        }
        match round % 3 {
            0 => stage.site.replace(),
            1 => {
                let victim = stage.site.active(2)[0];
                signal(victim, Signal::KILL);
                gone(victim);
                stage.site.active(2);
            }
            _ => {
                let name = stage.site.instances()[0].name.clone();
                let pids = stage.site.active(2);
                assert!(stage.site.playhouse(&["drain", &name]).status.success());
                eventually("another has taken its place", || {
                    let now = stage.site.instances();
                    now.len() == 2
                        && now.iter().all(|instance| instance.state == "active")
                        && now.iter().any(|instance| !pids.contains(&instance.pid))
                });
            }
        }
        let ledger = stage.site.admin.settled_ledger();
        assert_eq!((ledger.accepted, ledger.answered), (sent, sent), "{ledger:?}");
    }
}

#[test]
fn descriptors_processes_and_files_do_not_grow() {
    let mut stage = stage(2, 3);
    stage.site.active(2);
    let cycles = if full() { 200 } else { 8 };
    let mut flat = None;
    for cycle in 0..cycles {
        let victim = stage.site.active(2)[cycle % 2];
        match cycle % 4 {
            0 => signal(victim, Signal::KILL),
            1 => signal(victim, Signal::TERM),
            2 => stage.site.replace(),
            _ => stage.site.reload(),
        }
        if cycle % 4 < 2 {
            gone(victim);
        }
        stage.site.active(2);
        // The first rounds fill what is kept.
        if cycle == 3 {
            flat = Some(measured(&stage.site));
        }
    }
    let (descriptors, files) = flat.expect("more than three cycles");
    eventually("as many descriptors and files as before", || {
        let (now, files_now) = measured(&stage.site);
        now <= descriptors + 4 && files_now == files
    });
    let controller = stage.site.process.pid();
    assert_eq!(zombies_of(controller), Vec::<i32>::new());
}

/// Open descriptors of the controller, and the kinds of files in the state directory.
fn measured(site: &crate::harness::Running) -> (usize, BTreeSet<String>) {
    let pid = site.process.pid().as_raw_nonzero();
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("our own child").count();
    let kind = |name: String| {
        name.trim_matches(|c: char| c.is_ascii_digit()).replace(|c: char| c.is_ascii_digit(), "")
    };
    let files = std::fs::read_dir(site.state_dir()).expect("the state directory").flatten();
    (descriptors, files.map(|entry| kind(entry.file_name().to_string_lossy().into_owned())).collect())
}

fn zombies_of(parent: Pid) -> Vec<i32> {
    let mut zombies = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((head, rest)) = stat.rsplit_once(')') else { continue };
        let mut fields = rest.split_whitespace();
        let (state, ppid) = (fields.next(), fields.next());
        if state == Some("Z") && ppid == Some(&*parent.as_raw_nonzero().to_string()) {
            zombies.extend(head.split(' ').next().and_then(|pid| pid.parse::<i32>().ok()));
        }
    }
    zombies
}
