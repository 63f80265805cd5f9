//! Process groups: what an app's process has started is in its group, is counted with it, and ends with it.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process_group};

/// What the members of a group have together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Members that run, the leader among them.
    pub members: usize,
    /// Resident bytes. What several members share is counted once, where the kernel lets that be seen (`Pss`); else for each
    /// of them.
    pub rss_bytes: u64,
}

/// Sends a signal to every member of a group. To be called only while the leader, ended or not, has not been reaped: until
/// then the kernel gives its number to no other group.
pub fn signal(leader: u32, signal: Signal) {
    let leader = i32::try_from(leader).ok().filter(|leader| *leader > 1).and_then(Pid::from_raw);
    if let Some(leader) = leader {
        // A group that is gone needs no signal, and one that belongs to somebody else was never ours.
        let _ = kill_process_group(leader, signal);
    }
}

/// What the groups with these leaders have. Reads `/proc`, so it is to be called where one may block.
pub fn usage(leaders: &[u32]) -> HashMap<u32, Usage> {
    let usage = |members: Vec<(PathBuf, u64)>| {
        // One alone shares with nobody of the group, and its pages are counted already.
        let bytes: u64 = match &*members {
            [(_, rss_bytes)] => *rss_bytes,
            many => many.iter().map(|(process, rss_bytes)| share(process).unwrap_or(*rss_bytes)).sum(),
        };
        Usage { members: members.len(), rss_bytes: bytes }
    };
    members(leaders).into_iter().map(|(leader, members)| (leader, usage(members))).collect()
}

/// How many members of this leader's group run. Reads `/proc`.
pub fn count(leader: u32) -> usize {
    members(&[leader]).remove(&leader).map_or(0, |members| members.len())
}

/// The members that run of the groups with these leaders: where they are in `/proc`, and their resident bytes.
fn members(leaders: &[u32]) -> HashMap<u32, Vec<(PathBuf, u64)>> {
    let mut groups: HashMap<u32, Vec<_>> = leaders.iter().map(|leader| (*leader, Vec::new())).collect();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let is_process = entry.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit);
        if !is_process {
            continue;
        }
        let process = entry.path();
        let Ok(stat) = fs::read(process.join("stat")) else { continue };
        let Some(member) = Member::parse(&stat) else { continue };
        if let Some(group) = groups.get_mut(&member.group)
            && member.runs
        {
            group.push((process, member.rss_pages * rustix::param::page_size() as u64));
        }
    }
    groups
}

/// A process's share of the memory that is resident: of each page the part that falls to it, among all that have it.
/// `None` where it cannot be seen: of a process of another user, where this one is not root.
fn share(process: &Path) -> Option<u64> {
    parse_share(&fs::read_to_string(process.join("smaps_rollup")).ok()?)
}

fn parse_share(rollup: &str) -> Option<u64> {
    let kibibytes = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    kibibytes.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The groups that processes with all these entries in their environment lead. Reads `/proc`; what cannot be seen is not
/// found.
pub fn leaders_with(environment: &[String]) -> Vec<u32> {
    let mut leaders = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(stat) = fs::read(entry.path().join("stat")) else { continue };
        if !Member::parse(&stat).is_some_and(|member| member.group == pid && member.runs) {
            continue;
        }
        let Ok(has) = fs::read(entry.path().join("environ")) else { continue };
        let has: Vec<&[u8]> = has.split(|byte| *byte == 0).collect();
        if environment.iter().all(|wanted| has.contains(&wanted.as_bytes())) {
            leaders.push(pid);
        }
    }
    leaders
}

/// What `/proc/PID/stat` says (proc_pid_stat(5)).
#[derive(Debug, PartialEq)]
struct Member {
    runs: bool,
    group: u32,
    rss_pages: u64,
}

impl Member {
    fn parse(stat: &[u8]) -> Option<Member> {
        // The second field is the program's name in parentheses, which may hold anything, these too.
        let name_end = stat.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(stat.get(name_end + 1..)?).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        let runs = !matches!(fields.next()?, "Z" | "X" | "x");
        let group = fields.nth(1)?.parse().ok()?;
        let rss_pages = fields.nth(18)?.parse().unwrap_or(0);
        Some(Member { runs, group, rss_pages })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn group_and_memory_are_found_behind_any_name() {
        let rest = "1 77 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 10000 321 18446744073709551615";
        let parse = |name: &str, state: &str| Member::parse(format!("42 ({name}) {state} {rest}").as_bytes());
        for name in ["sh", "a b", ") S 1 2 3", "(((", ""] {
            assert_eq!(parse(name, "S"), Some(Member { runs: true, group: 77, rss_pages: 321 }), "{name}");
        }
        assert!(!parse("sh", "Z").unwrap().runs);
        assert_eq!(Member::parse(b"42 (sh) S 1"), None);
        assert_eq!(Member::parse(b""), None);
    }

    #[test]
    fn a_share_of_memory_is_read_where_there_is_one() {
        let rollup = "5581-7ffe ---p 00000000 00:00 0    [rollup]\nRss:     9000 kB\nPss:    1234 kB\nPss_Dirty:  7 kB\n";
        assert_eq!(parse_share(rollup), Some(1234 << 10));
        for none in ["", "Rss: 1 kB\nPss_Dirty: 7 kB\n", "Pss: x kB\n", "Pss: 99999999999999999999 kB\n"] {
            assert_eq!(parse_share(none), None, "{none:?}");
        }
        assert_eq!(share(Path::new("/proc/0")), None);
        assert!(share(Path::new("/proc/self")).unwrap() > 0);
    }

    #[test]
    fn what_a_parent_and_its_children_share_is_counted_once() {
        // Holds 32 MiB, forks four times, and says so.
        let script = "my $n = 32 << 20; my $held = 'x' x $n; for (1..4) { if (!fork) { sleep 600; exit } } \
                      $| = 1; print 'x'; sleep 600";
        let mut command = Command::new("perl");
        command.args(["-e", script]).process_group(0);
        let mut leader = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        std::io::Read::read_exact(leader.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let group = usage(&[leader.id()])[&leader.id()];
        signal(leader.id(), Signal::KILL);
        leader.wait().unwrap();
        assert_eq!(group.members, 5);
        assert!((32 << 20..64 << 20).contains(&group.rss_bytes), "{group:?}");
    }

    #[test]
    fn a_group_is_its_leader_and_what_that_has_started() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & sleep 600 & echo; wait"]).process_group(0);
        let mut leader = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut begun = [0];
        std::io::Read::read_exact(leader.stdout.as_mut().unwrap(), &mut begun).unwrap();
        let group = usage(&[leader.id()])[&leader.id()];
        assert_eq!((group.members, count(leader.id())), (3, 3));
        assert!(group.rss_bytes > 0);
        signal(leader.id(), Signal::KILL);
        // Ends with the last that can write to it.
        std::io::Read::read_to_end(leader.stdout.as_mut().unwrap(), &mut Vec::new()).unwrap();
        leader.wait().unwrap();
    }
}
