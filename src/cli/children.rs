//! Children of this process that it has not started.

use std::collections::HashSet;
use std::fs;
use std::process;

use playhouse::Controller;
use playhouse_actors::control::process::{Process, start_time};
use rustix::process::Pid;

/// The children of this process, whoever has started them: as an init it has those of others, and after `exec` those of
/// the program that it was.
pub(super) fn children() -> HashSet<Pid> {
    let me = process::id().to_string();
    let parent = |pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // After the name, which may have anything in it, and the state.
        Some(stat.rsplit_once(')')?.1.split_whitespace().nth(1)? == me)
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|pid| parent(*pid) == Some(true)).filter_map(Pid::from_raw).collect()
}

/// Reaps the children that are none of the controller's instances, when they end. To be called within a runtime, before
/// this process has started any.
pub(super) fn reap_strangers(controller: &Controller) {
    let instances: Vec<_> =
        controller.fleet().members().iter().map(|member| member.process().pid()).collect();
    for child in children() {
        let pid = child.as_raw_nonzero().get().unsigned_abs();
        if !instances.contains(&pid)
            && let Some(process) = start_time(pid).and_then(|started| Process::open(pid, started))
        {
            tokio::spawn(async move { process.wait().await });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::getpid;

    use super::*;

    #[test]
    fn a_child_is_found_and_a_stranger_is_not() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let found = children();
        assert!(found.contains(&Pid::from_child(&child)));
        assert!(!found.contains(&getpid()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
