//! What is written down of each process, so that whoever comes after this process finds it: a site in one process ends what
//! a site before has left, a controller goes on with it.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use playhouse_config::model::{self, Address};
use playhouse_protocol::control::AppProcess;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::group;
use super::place::Phase;
use crate::control::process::{self, Process};

/// A process, and where it was in its life. Fields are added, never renamed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// The app's name.
    pub app: String,
    /// Its place among those of its app.
    pub place: u32,
    /// Its number; 0 where it was about to be started.
    pub pid: u32,
    /// When it started, as [`process::start_time`].
    pub started: u64,
    /// The run of the kernel in which these two mean something.
    pub boot: String,
    /// The Unix socket that it listens on; else it listens on `port`.
    pub socket: Option<PathBuf>,
    /// The port of 127.0.0.1 that it listens on.
    pub port: u16,
    /// What it was started by, see [`fingerprint`].
    pub fingerprint: String,
    /// The rolling restart that it was started in or after.
    pub generation: u64,
    /// Where it was.
    pub stage: Stage,
}

/// Where a process was in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Not ready yet.
    #[default]
    Starting,
    /// Requests went to it.
    Serving,
    /// It was to end.
    Leaving,
}

impl Stage {
    pub(super) fn of(phase: Phase) -> Stage {
        match phase {
            Phase::New | Phase::Launching | Phase::Starting => Stage::Starting,
            Phase::Serving => Stage::Serving,
            Phase::Leaving | Phase::Ending | Phase::Gone => Stage::Leaving,
        }
    }
}

impl Record {
    /// Which process that is.
    pub fn identity(&self) -> AppProcess {
        let Record { app, place, pid, started, .. } = self;
        AppProcess { app: app.clone(), place: *place, pid: *pid, started: *started }
    }

    /// Where it listens.
    pub fn address(&self) -> Address {
        address(self.socket.as_deref(), self.port)
    }

    /// The process, where it is still there, ended or not. To be called within a runtime.
    pub fn process(&self) -> Option<Process> {
        (self.pid > 1 && self.boot == process::boot_id()).then(|| Process::open(self.pid, self.started))?
    }

    /// Writes it, whole or not at all.
    ///
    /// # Errors
    /// What the file system says.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        let path = path(directory, &self.app, self.place);
        let new = path.with_extension("new");
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        drop(file);
        fs::rename(&new, path)
    }
}

/// Where a process listens.
pub fn address(socket: Option<&Path>, port: u16) -> Address {
    match socket {
        Some(path) => Address::Unix(path.to_owned()),
        None => Address::Tcp((std::net::Ipv4Addr::LOCALHOST, port).into()),
    }
}

/// The parts of an address, for a record or a message.
pub fn parts(address: &Address) -> (Option<PathBuf>, u16) {
    match address {
        Address::Unix(path) => (Some(path.clone()), 0),
        Address::Tcp(address) => (None, address.port()),
        // No process of an app is told to listen on a name.
        Address::Name(_, port) => (None, *port),
    }
}

/// Names what of an app's settings a process is started by. What it says is compared, never taken apart; another build may
/// say it otherwise, which costs a rolling restart.
pub fn fingerprint(app: &model::App) -> String {
    let model::App { command, dir, env, listen, user, group, limits, .. } = app;
    let said = format!("{:?}", (command, dir, env, listen, user, group, limits));
    // FNV-1a: against accidents, not against anybody.
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let hash = said.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    format!("{hash:016x}-{}", said.len())
}

/// Where the record of the process in this place is.
pub fn path(directory: &Path, app: &str, place: u32) -> PathBuf {
    directory.join(format!("{app}-{place}.process"))
}

/// All records. What is none is passed over.
///
/// # Errors
/// The directory cannot be read.
pub fn all(directory: &Path) -> io::Result<Vec<Record>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut records = Vec::new();
    for entry in entries {
        let found = entry?.path();
        let is_record = found.extension().is_some_and(|extension| extension == "process");
        if is_record
            && let Ok(text) = fs::read(&found)
            && let Ok(record) = serde_json::from_slice::<Record>(&text)
            && path(directory, &record.app, record.place) == found
        {
            records.push(record);
        }
    }
    records.sort_by(|one, other| (&one.app, one.place).cmp(&(&other.app, other.place)));
    Ok(records)
}

/// Ends what a record names and is still the same, with its whole group; and where a process was about to be started, what
/// came of that. To be called within a runtime, by whoever has the state directory's lock.
pub fn end(record: &Record, directory: &Path) {
    if let Some(process) = record.process() {
        tracing::warn!(
            pid = record.pid,
            app = record.app,
            "a process of an app has outlived what started it; it is ended"
        );
        // It is there, ended or not, so its number, which is its group's, is its own.
        group::signal(process.pid(), Signal::KILL);
        // A child from before an `exec` is reaped.
        tokio::spawn(async move { process.wait().await });
    } else if record.pid == 0 && record.boot == process::boot_id() {
        for leader in group::leaders_with(&marks(record, directory)) {
            tracing::warn!(
                pid = leader,
                app = record.app,
                "a process of an app is not written down; it is ended"
            );
            group::signal(leader, Signal::KILL);
        }
    }
}

/// What is in the environment of a process and of no other.
fn marks(record: &Record, directory: &Path) -> [String; 3] {
    [
        format!("{DIRECTORY_VARIABLE}={}", directory.display()),
        format!("PLAYHOUSE_APP={}", record.app),
        format!("PLAYHOUSE_PLACE={}", record.place),
    ]
}

/// Ends what the records beneath `directory` name, and removes all files there.
///
/// # Errors
/// The directory cannot be read.
pub fn end_all(directory: &Path) -> io::Result<()> {
    all(directory)?.iter().for_each(|record| end(record, directory));
    remove_files(directory, &[])
}

/// Removes all files but these.
///
/// # Errors
/// The directory cannot be read.
pub fn remove_files(directory: &Path, but: &[PathBuf]) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        if !but.contains(&path)
            && let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %error, "not removed");
        }
    }
    Ok(())
}

/// Says that a process is about to be started, or how far it is. Without it the process would be left if this one were
/// killed, and nothing else.
pub fn note(record: &Record, directory: &Path) {
    if let Err(error) = record.write(directory) {
        tracing::warn!(app = record.app, place = record.place, %error, "the process of an app cannot be written down");
    }
}

/// In the environment of each process: where it is written down.
pub const DIRECTORY_VARIABLE: &str = "PLAYHOUSE_APPS";

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn record(place: u32, pid: u32, started: u64) -> Record {
        let boot = process::boot_id();
        Record { app: "blog".into(), place, pid, started, boot, stage: Stage::Serving, ..Record::default() }
    }

    fn sleeper() -> Command {
        let mut command = Command::new("sleep");
        command.arg("600").process_group(0).stdin(Stdio::null());
        command
    }

    fn started(child: &Child) -> u64 {
        process::start_time(child.id()).unwrap()
    }

    #[tokio::test]
    async fn what_was_left_is_ended_and_nothing_that_only_has_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let (mut left, mut other) = (sleeper().spawn().unwrap(), sleeper().spawn().unwrap());
        record(1, left.id(), started(&left)).write(dir.path()).unwrap();
        record(2, other.id(), started(&other) + 1_000_000).write(dir.path()).unwrap();
        Record { boot: "another".into(), ..record(4, other.id(), started(&other)) }
            .write(dir.path())
            .unwrap();
        fs::write(path(dir.path(), "blog", 3), "garbage").unwrap();
        fs::write(dir.path().join("blog-1.sock"), "").unwrap();
        assert_eq!(all(dir.path()).unwrap().iter().map(|record| record.place).collect::<Vec<_>>(), [1, 2, 4]);
        let process = Process::of_child(&left).unwrap();
        end_all(dir.path()).unwrap();
        process.ended().await;
        let _ = left.wait();
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        end_all(&dir.path().join("none")).unwrap();
    }

    #[tokio::test]
    async fn what_was_started_and_not_yet_written_down_is_found_by_its_environment() {
        let dir = tempfile::tempdir().unwrap();
        let start = |place: &str| {
            let mut command = sleeper();
            command
                .env(DIRECTORY_VARIABLE, dir.path())
                .env("PLAYHOUSE_APP", "blog")
                .env("PLAYHOUSE_PLACE", place);
            command.spawn().unwrap()
        };
        let (mut stray, mut other) = (start("1"), start("2"));
        let process = Process::of_child(&stray).unwrap();
        record(1, 0, 0).write(dir.path()).unwrap();
        end_all(dir.path()).unwrap();
        process.ended().await;
        stray.wait().unwrap();
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_fingerprint_is_of_what_a_process_is_started_by_and_of_nothing_else() {
        let of = |fields: &str| {
            let text = format!(
                r#"(name: "s", listeners: {{"h": "127.0.0.1:0"}}, apps: {{"blog": (command: ["x"], {fields})}})"#
            );
            fingerprint(&playhouse_config::parse(&text, Path::new("/srv/site.ron")).unwrap().apps[0])
        };
        assert_eq!(of(""), of("processes: 3, stop_timeout: \"1s\""));
        for other in ["dir: \"y\"", "env: {\"A\": \"b\"}", "listen: Socket", "limits: (open_files: 99)"] {
            assert_ne!(of(""), of(other), "{other}");
        }
    }
}
