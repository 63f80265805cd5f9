//! A site with a controller and several instances, under the load of [`Stage`]: what dies, and what that costs.

mod admin;
mod adoption;
mod crash;
mod death;
mod full_disk;
mod health;
mod ledger;
mod limits;
mod reload;
mod scaling;
mod status;
mod tickets;
mod upgrade;

use playhouse_chaos::{Class, Report};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::stage::{IN_FLIGHT, Stage};
use crate::harness::{Site, eventually, full};

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

/// Nothing was lost while instances drained. A stream that an HTTP/2 client had queued behind its acknowledgement may be
/// beyond the last one that GOAWAY names: the client knows that it was not processed, and sends it again (RFC 9113 §6.8).
#[track_caller]
fn drained_without_loss(report: &Report) {
    for failure in &report.failures {
        let told = failure.class == Class::Unsent && failure.stream.starts_with("h2");
        assert!(told, "{failure}\n{report}");
    }
    let counts = report.counts;
    assert_eq!(counts.failed(), counts.unsent, "{report}");
}

/// How often a fault is repeated; in CI the least that means something.
fn rounds() -> usize {
    if full() { 50 } else { 3 }
}

/// What one instance may have in flight under the load of a stage.
const MOST_LOST: u64 = IN_FLIGHT;
