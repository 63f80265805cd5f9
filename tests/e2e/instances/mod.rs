//! A site with a controller and several instances, under the load of [`Stage`]: what dies, and what that costs.

mod admin;
mod adoption;
mod apps;
mod crash;
mod death;
mod full_disk;
mod health;
mod http3;
mod ledger;
mod limits;
mod reload;
mod scaling;
mod status;
mod tickets;
mod upgrade;
mod upgrade_crash;
mod websockets;

use playhouse_chaos::Report;
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::stage::{Stage, told_to_go};
use crate::harness::{Running, Site, eventually, full};

/// A site with so many instances, at least and at most, and deadlines that are short enough for a test.
fn stage(min: u32, max: u32) -> Stage {
    Stage::with(|site| with_instances(site, min, max))
}

fn with_instances(site: Site, min: u32, max: u32) -> Site {
    // Slower than any machine, so that no test scales by accident.
    let never = r#"scaling: (up_at: 1.0, down_at: 0.0)"#;
    site.field(format!(
        "instances: (min: {min}, max: {max}, heartbeat_timeout: \"3s\", ready_timeout: \"30s\", {never})"
    ))
}

/// A process that was read from the site's own status.
fn signal(pid: Pid, signal: Signal) {
    kill_process(pid, signal).expect("a process of the site can be signalled");
}

/// Waits until a process is gone, its parent having heard of it.
#[track_caller]
fn gone(pid: Pid) {
    eventually("the process has been reaped", || {
        !std::path::Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists()
    });
}

/// Nothing was lost while instances drained.
#[track_caller]
fn drained_without_loss(report: &Report) {
    assert!(report.is_clean(), "{report}");
}

/// The same, where every instance that was there at the begin has been drained: its WebSockets were told to go.
#[track_caller]
fn all_drained_without_loss(report: &Report) {
    drained_without_loss(report);
    told_to_go(report);
}

/// Processes that were started as instances of this site, by their command lines.
fn processes_of(site: &Running) -> Vec<i32> {
    let state_dir = site.state_dir().display().to_string();
    let mut pids = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        if line.contains(&state_dir) && line.contains("--slot") {
            pids.push(pid);
        }
    }
    pids
}

/// Children of a process that have ended, and that it does not reap.
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

/// No process is there but those that the status knows, none of them waits to be reaped, and nothing in the state directory
/// is anybody's who is gone.
#[track_caller]
fn nothing_is_left(site: &Running) {
    eventually("as many processes as the controller knows of", || {
        let known: Vec<_> =
            site.instances().iter().map(|instance| instance.pid.as_raw_nonzero().get()).collect();
        !known.is_empty() && processes_of(site).iter().all(|pid| known.contains(pid))
    });
    let controller = site.process.pid();
    eventually("every child has been reaped", || zombies_of(controller).is_empty());
    eventually("no file is left of those who are gone", || {
        let known: Vec<_> = site.instances().into_iter().map(|instance| instance.name).collect();
        files_of_instances(site).iter().all(|(instance, _)| known.contains(instance))
    });
}

/// Files in the state directory that are about one instance, and whose.
fn files_of_instances(site: &Running) -> Vec<(String, String)> {
    let files = std::fs::read_dir(site.state_dir()).expect("the state directory").flatten();
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    let of = |name: String| {
        let slot = name.strip_prefix("instance-").or_else(|| name.strip_prefix("ledger-"))?;
        let slot: String = slot.chars().take_while(char::is_ascii_digit).collect();
        Some((format!("instance-{slot}"), name))
    };
    names.filter_map(of).collect()
}

/// Resident memory in bytes.
fn resident(pid: Pid) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{}/statm", pid.as_raw_nonzero())).expect("its statm");
    let pages: u64 = statm.split(' ').nth(1).expect("resident pages").parse().expect("a number");
    pages * rustix::param::page_size() as u64
}

/// How often a fault is repeated; in CI the least that means something.
fn rounds() -> usize {
    if full() { 50 } else { 3 }
}

/// Runs a whole test, with a site of its own, again and again; in CI once.
fn repeated(test: impl Fn()) {
    (0..if full() { 20 } else { 1 }).for_each(|_| test());
}
