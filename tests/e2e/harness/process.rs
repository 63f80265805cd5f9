//! A child process whose output is kept, and which is ended and reaped with its value.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::wait::{PATIENCE, eventually, eventually_some};

/// A running child process.
pub struct Process {
    name: String,
    child: Child,
    stdout: Lines,
    stderr: Lines,
    readers: [JoinHandle<()>; 2],
}

impl Process {
    /// Starts `command` with its output kept; `name` is for messages.
    #[track_caller]
    pub fn start(name: &str, command: &mut Command) -> Self {
        Self::start_reading(name, command, Stdio::null())
    }

    /// The same, with a standard input of its own.
    #[track_caller]
    pub fn start_reading(name: &str, command: &mut Command, stdin: Stdio) -> Self {
        let mut child = command
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{name} does not start: {error} ({command:?})"));
        let (stdout, out) = Lines::follow(child.stdout.take().expect("stdout is piped"));
        let (stderr, err) = Lines::follow(child.stderr.take().expect("stderr is piped"));
        Process { name: name.to_owned(), child, stdout, stderr, readers: [out, err] }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: Signal) {
        // Our own child, not yet reaped: the pid cannot be another's.
        rustix::process::kill_process(self.pid(), signal).expect("our own child can be signalled");
    }

    /// The exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("our own child can be waited for")
    }

    /// Waits until it ends by itself, and all that it has said has been read.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let Some(status) = self.wait_within(PATIENCE) else {
            panic!("{} has not ended within {PATIENCE:?}\n{}", self.name, self.output());
        };
        eventually("its output has been read", || self.readers.iter().all(JoinHandle::is_finished));
        status
    }

    /// Waits until it ends by itself; its children may go on, and write where it wrote.
    #[track_caller]
    pub fn wait_alone(&mut self) -> ExitStatus {
        let patience = self.wait_within(PATIENCE);
        patience
            .unwrap_or_else(|| panic!("{} has not ended within {PATIENCE:?}\n{}", self.name, self.output()))
    }

    /// Kills it (SIGKILL) and reaps it.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The first line on either stream, past or to come, for which `pick` gives something.
    #[track_caller]
    pub fn line<T>(&mut self, what: &str, pick: impl Fn(&str) -> Option<T>) -> T {
        eventually_some(&format!("{} prints {what}", self.name), || {
            let found = self.stdout.find(&pick).or_else(|| self.stderr.find(&pick));
            if found.is_none() && self.ended().is_some() {
                panic!("{} has ended before it printed {what}\n{}", self.name, self.output());
            }
            found
        })
    }

    pub fn stdout(&self) -> Vec<String> {
        self.stdout.0.lock().unwrap().clone()
    }

    pub fn stderr(&self) -> Vec<String> {
        self.stderr.0.lock().unwrap().clone()
    }

    /// Both streams, for messages.
    pub fn output(&self) -> String {
        let (stdout, stderr) = (self.stdout(), self.stderr());
        let tail = |lines: &[String]| lines[lines.len().saturating_sub(200)..].join("\n");
        format!("--- {} stdout\n{}\n--- {} stderr\n{}", self.name, tail(&stdout), self.name, tail(&stderr))
    }

    /// Resident memory in bytes, as the kernel counts it.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line =
            status.lines().find(|line| line.starts_with("VmRSS:")).expect("a running process has VmRSS");
        let kilobytes = line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
        kilobytes.expect("VmRSS is in kB") * 1024
    }

    /// Asks it to end (TERM) and reaps it, by force (KILL) if it does not within ten seconds.
    pub fn end(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::TERM);
            if self.wait_within(Duration::from_secs(10)).is_none() {
                eprintln!("{} ignores TERM; killing it", self.name);
                self.kill();
            }
        }
    }

    fn wait_within(&mut self, patience: Duration) -> Option<ExitStatus> {
        let begun = Instant::now();
        while begun.elapsed() < patience {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
        if std::thread::panicking() {
            eprintln!("{}", self.output());
        }
    }
}

/// The lines of one stream so far, read by a thread that ends with the stream.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn follow(stream: impl Read + Send + 'static) -> (Self, JoinHandle<()>) {
        let lines = Lines::default();
        let kept = lines.clone();
        let reader = std::thread::spawn(move || {
            let mut reader = BufReader::new(stream);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                let text = String::from_utf8_lossy(&line);
                kept.0.lock().unwrap().push(text.trim_end_matches(['\n', '\r']).to_owned());
                line.clear();
            }
        });
        (lines, reader)
    }

    fn find<T>(&self, pick: impl Fn(&str) -> Option<T>) -> Option<T> {
        self.0.lock().unwrap().iter().find_map(|line| pick(line))
    }
}

/// The path of an installed program; panics with the package that has it. Python programs come from the virtual
/// environment that `scripts/test` makes, where there is one.
#[track_caller]
pub fn tool(program: &str, package: &str) -> PathBuf {
    let environment = std::env::var_os("PLAYHOUSE_TEST_VENV")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/test-venv"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::iter::once(environment.join("bin"))
        .chain(std::env::split_paths(&path))
        .chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
        .unwrap_or_else(|| panic!("{program} is missing: install {package} (scripts/test does)"))
}
