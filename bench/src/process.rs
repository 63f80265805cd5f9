//! Child processes: pinned when they start, measured with all their descendants, gone when they are dropped.

use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};

/// How long a server may take to end before it is killed.
const GRACE: Duration = Duration::from_secs(3);

/// Makes this thread, and what it starts from here on, run on `cpu` alone.
///
/// # Errors
/// There is no such CPU.
pub fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("pinning to CPU {cpu}"))
}

/// Allows this process and its children as many descriptors as the hard limit does.
pub fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where it fails, the scenario that needs it will say so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// A child and what it starts. Dropping it ends them all, and waits.
pub struct Tree {
    name: String,
    child: Child,
}

impl Tree {
    /// Starts a command on `cpu`, while the caller stays on `own`. Its output is discarded, its errors are not.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(name: &str, mut command: Command, cpu: usize, own: usize) -> Result<Tree> {
        pin(cpu)?;
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        pin(own)?;
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = child.with_context(|| format!("starting {program} for {name}"))?;
        // Somebody must read what it prints, or it would block once the pipe is full; the idle client's is read by us.
        if name != "idle client"
            && let Some(mut out) = child.stdout.take()
        {
            std::thread::spawn(move || while matches!(out.read(&mut [0; 4096]), Ok(1..)) {});
        }
        Ok(Tree { name: name.to_owned(), child })
    }

    /// The pipes of the child.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Fails where it has ended already.
    ///
    /// # Errors
    /// It has.
    pub fn check(&mut self) -> Result<()> {
        let ended = self.child.try_wait()?;
        ensure!(ended.is_none(), "{} ended early: {}", self.name, ended.unwrap_or_default());
        Ok(())
    }

    /// CPU time that the child, its descendants and those of them that were waited for have used so far.
    ///
    /// # Errors
    /// The child has gone.
    pub fn cpu(&self) -> Result<Duration> {
        let ticks_per_second = rustix::param::clock_ticks_per_second();
        let processes = self.processes()?;
        let ticks: u64 = processes.iter().map(|process| process.ticks).sum();
        Ok(Duration::from_secs_f64(ticks as f64 / ticks_per_second as f64))
    }

    /// Resident memory of the child and its descendants, in bytes; what they share counts for each.
    ///
    /// # Errors
    /// The child has gone.
    pub fn resident(&self) -> Result<u64> {
        let pages: u64 = self.processes()?.iter().map(|process| process.resident_pages).sum();
        Ok(pages * rustix::param::page_size() as u64)
    }

    fn processes(&self) -> Result<Vec<Process>> {
        let root = self.child.id();
        let all: Vec<Process> = fs::read_dir("/proc")?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter_map(Process::read)
            .collect();
        let mut tree: Vec<Process> = all.iter().filter(|process| process.id == root).cloned().collect();
        ensure!(!tree.is_empty(), "{} has gone", self.name);
        let mut at = 0;
        while at < tree.len() {
            let parent = tree[at].id;
            tree.extend(all.iter().filter(|process| process.parent == parent).cloned());
            at += 1;
        }
        Ok(tree)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let descendants = self.processes().unwrap_or_default();
        let pid = |id: u32| i32::try_from(id).ok().and_then(Pid::from_raw);
        if let (Ok(None), Some(pid)) = (self.child.try_wait(), pid(self.child.id())) {
            // It is our child and not waited for, so that the number is still its own.
            let _ = kill_process(pid, Signal::TERM);
        }
        let until = Instant::now() + GRACE;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > until {
                let _ = self.child.kill();
                let _ = self.child.wait();
                break;
            }
            sleep(Duration::from_millis(5));
        }
        // A server that had to be killed leaves its workers behind; the start time tells them from a reused number.
        for process in descendants.iter().skip(1) {
            let same = Process::read(process.id).is_some_and(|now| now.started == process.started);
            if let (true, Some(pid)) = (same, pid(process.id)) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// One line of `/proc/PID/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Process {
    id: u32,
    parent: u32,
    /// Of its own and of the children that it has waited for.
    ticks: u64,
    started: u64,
    resident_pages: u64,
}

impl Process {
    fn read(id: u32) -> Option<Process> {
        Process::parse(id, &fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
    }

    fn parse(id: u32, stat: &str) -> Option<Process> {
        // The name may hold spaces and brackets; what follows the last bracket begins with field 3.
        let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        // A zombie that nobody waited for yet keeps its times.
        Some(Process {
            id,
            parent: field(4)? as u32,
            ticks: field(14)? + field(15)? + field(16)? + field(17)?,
            started: field(22)?,
            resident_pages: field(24)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_whatever_the_name_is() {
        let stat = "42 (a) b (c) S 7 42 42 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 999 5000 123 18446744073709551615";
        let process = Process::parse(42, stat).unwrap();
        assert_eq!(process, Process { id: 42, parent: 7, ticks: 100, started: 999, resident_pages: 123 });
        assert_eq!(Process::parse(1, "1 (x) S 1 2"), None);
    }

    #[test]
    fn a_tree_counts_its_descendants_and_leaves_none() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo started; while :; do :; done"]);
        let own = rustix::thread::sched_getcpu();
        let tree = Tree::start("test", command, own, own).unwrap();
        let processes = loop {
            let processes = tree.processes().unwrap();
            if processes.len() == 2 && tree.cpu().unwrap() > Duration::ZERO {
                break processes;
            }
        };
        assert!(tree.resident().unwrap() > 0);
        drop(tree);
        for process in processes {
            let gone = || Process::read(process.id).is_none_or(|now| now.started != process.started);
            // An orphan is waited for by whoever adopts it, in its own time: a zombie is gone enough.
            let stat = || fs::read_to_string(format!("/proc/{}/stat", process.id)).unwrap_or_default();
            while !gone() && !stat().contains(") Z ") {
                std::thread::yield_now();
            }
        }
    }
}
