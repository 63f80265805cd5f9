//! Processes that may not be our children, each told for good from any other that gets its number later.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::sync::OnceLock;
use std::time::Duration;

use playhouse_serve::net;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// One process, whatever becomes of its number.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    started: u64,
    pidfd: AsyncFd<OwnedFd>,
    /// Noted by the first that sees it: the kernel says it once.
    status: OnceLock<Option<ExitStatus>>,
}

/// How a child has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

impl Process {
    /// The process with this number, if it is the one that started then (see [`start_time`]); `None` where it is gone.
    /// Must be called within a runtime.
    pub fn open(pid: u32, started: u64) -> Option<Process> {
        let process = Self::opened(pid).ok()?;
        (process.started == started).then_some(process)
    }

    /// A child that has not been waited for. Its `Child` need not be kept: [`Process::wait`] reaps it.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn of_child(child: &Child) -> io::Result<Process> {
        Self::opened(child.id())
    }

    fn opened(pid: u32) -> io::Result<Process> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
        let pidfd = pidfd_open(raw, PidfdFlags::empty())?;
        // Only now: were it asked before, another process could have got the number in between.
        let started = start_time(pid).ok_or(Errno::SRCH)?;
        let pidfd = net::watch(pidfd, Interest::READABLE)?;
        Ok(Process { pid, started, pidfd, status: OnceLock::new() })
    }

    /// Completes when it has ended, with how where it is our child, which is reaped with it; asked again, it says the
    /// same. Cancel-safe.
    pub async fn wait(&self) -> Option<ExitStatus> {
        loop {
            if let Some(status) = self.status.get() {
                return *status;
            }
            // Fails only where the runtime is shutting down, and then nobody waits for an answer.
            if self.pidfd.readable().await.is_err() {
                return None;
            }
            if !self.reap() {
                tokio::time::sleep(REAP_AGAIN).await;
            }
        }
    }

    /// Completes when it has ended, and leaves it to be reaped: until then its number, and that of its process group, are
    /// nobody else's.
    pub async fn ended(&self) {
        if self.status.get().is_none() {
            // Fails only where the runtime is shutting down.
            let _ = self.pidfd.readable().await;
        }
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.status.get().is_some() || {
            let mut poll = [rustix::event::PollFd::new(self.pidfd.get_ref(), rustix::event::PollFlags::IN)];
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            rustix::event::poll(&mut poll, Some(&now)).is_ok_and(|ready| ready > 0)
        }
    }

    /// Notes its exit status; false where it cannot be had yet.
    fn reap(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let status = match waitid(WaitId::PidFd(self.pidfd.get_ref().as_fd()), options) {
            Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Some(ExitStatus::Exited(code)),
                (None, Some(signal)) => Some(ExitStatus::Killed(signal)),
                (None, None) => None,
            },
            Ok(None) | Err(Errno::INTR) => return false,
            // Not our child, or somebody else has waited for it.
            Err(_) => None,
        };
        let _ = self.status.set(status);
        true
    }

    /// Sends it a signal: never to another process that has its number now.
    ///
    /// # Errors
    /// `ESRCH` where it has ended, else what the kernel says.
    pub fn kill(&self, signal: Signal) -> io::Result<()> {
        Ok(pidfd_send_signal(self.pidfd.get_ref(), signal)?)
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// When it started, as [`start_time`].
    pub fn started(&self) -> u64 {
        self.started
    }
}

/// When a process started, in clock ticks after boot (field 22 of `/proc/PID/stat`, proc_pid_stat(5)); `None` where there
/// is none.
pub fn start_time(pid: u32) -> Option<u64> {
    started(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Whether the process with this number is the one that started then, and has not ended: one that nobody has waited for yet
/// has.
pub fn lives(pid: u32, start: u64) -> bool {
    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Z and X of proc_pid_stat(5).
    started(&stat) == Some(start)
        && !matches!(fields(&stat).and_then(|mut fields| fields.next()), Some("Z" | "X"))
}

/// Names this run of the kernel: numbers and start times of processes mean nothing beyond it. Empty where it cannot be read.
pub fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

fn started(stat: &[u8]) -> Option<u64> {
    fields(stat)?.nth(19)?.parse().ok()
}

/// The fields of `/proc/PID/stat` from the third on.
fn fields(stat: &[u8]) -> Option<std::str::SplitAsciiWhitespace<'_>> {
    // The second field is the program's name in parentheses, which may hold anything, these too.
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    Some(std::str::from_utf8(stat.get(name_end + 1..)?).ok()?.split_ascii_whitespace())
}

impl ExitStatus {
    /// Whether it has ended by itself, with code 0.
    pub fn is_success(self) -> bool {
        self == ExitStatus::Exited(0)
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExitStatus::Exited(code) => write!(f, "exited with status {code}"),
            ExitStatus::Killed(signal) => match Signal::from_named_raw(*signal) {
                Some(Signal::KILL) => f.write_str("killed by SIGKILL"),
                Some(Signal::ABORT) => f.write_str("killed by SIGABRT"),
                Some(Signal::SEGV) => f.write_str("killed by SIGSEGV"),
                Some(Signal::TERM) => f.write_str("killed by SIGTERM"),
                _ => write!(f, "killed by signal {signal}"),
            },
        }
    }
}

/// Between a pidfd that says that a process has ended, and a kernel that does not say how.
const REAP_AGAIN: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn child(program: &str, arguments: &[&str]) -> Child {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    }

    // What waits for it is what is tested.
    #[allow(clippy::zombie_processes)]
    fn process(program: &str, arguments: &[&str]) -> Process {
        Process::of_child(&child(program, arguments)).unwrap()
    }

    fn is_reaped(pid: u32) -> bool {
        !std::path::Path::new(&format!("/proc/{pid}")).exists()
    }

    #[test]
    fn the_start_is_found_behind_any_name() {
        let rest = "S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 10 11";
        for name in ["sh", "a b", ") S 1 2 3", "(((", "))", "\u{e9}", ""] {
            assert_eq!(started(format!("42 ({name}) {rest}").as_bytes()), Some(987_654), "{name}");
        }
        let mut bytes = b"42 (\xff\xfe) ".to_vec();
        bytes.extend(rest.as_bytes());
        assert_eq!(started(&bytes), Some(987_654));
        for broken in
            ["", "42", "42 (sh)", "42 (sh) S 1 2", "42 (sh) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 x"]
        {
            assert_eq!(started(broken.as_bytes()), None, "{broken}");
        }
    }

    #[tokio::test]
    async fn a_child_is_waited_for_and_reaped() {
        let process = process("sh", &["-c", "exit 7"]);
        assert_eq!(process.wait().await, Some(ExitStatus::Exited(7)));
        assert_eq!(process.wait().await, Some(ExitStatus::Exited(7)));
        assert!(process.has_ended() && is_reaped(process.pid()));
        assert_eq!(ExitStatus::Exited(7).to_string(), "exited with status 7");
        assert!(process.kill(Signal::TERM).is_err());
        assert!(Process::open(process.pid(), process.started()).is_none());
    }

    #[tokio::test]
    async fn a_killed_child_says_by_what() {
        let process = process("sleep", &["600"]);
        assert!(!process.has_ended());
        assert!(futures_util::poll!(Box::pin(process.wait())).is_pending());
        process.kill(Signal::KILL).unwrap();
        let status = process.wait().await.unwrap();
        assert_eq!((status.to_string(), status.is_success()), ("killed by SIGKILL".into(), false));
    }

    #[tokio::test]
    async fn a_number_is_no_identity() {
        let mut child = child("cat", &[]);
        let started = start_time(child.id()).unwrap();
        assert!(Process::open(child.id(), started + 1).is_none());
        assert!(Process::open(child.id(), started).is_some());
        assert!(Process::open(0, 0).is_none());
        assert!(Process::open(u32::MAX, 0).is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[tokio::test]
    async fn a_process_that_is_no_child_is_waited_for() {
        use std::io::{BufRead, BufReader};
        // The shell ends at once and leaves a grandchild behind, which ends with its input.
        let mut shell = child("sh", &["-c", "exec 3<&0; cat <&3 >/dev/null 2>&1 & echo $!"]);
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let pid: u32 = line.trim().parse().unwrap();
        let process = Process::open(pid, start_time(pid).unwrap()).unwrap();
        let input = shell.stdin.take();
        shell.wait().unwrap();
        assert!(!process.has_ended());
        drop(input);
        assert_eq!(process.wait().await, None);
        assert!(process.has_ended());
    }
}
