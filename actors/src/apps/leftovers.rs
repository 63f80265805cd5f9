//! What a site that was killed has left behind: processes whose output nobody reads any more. A record for each says which
//! they are, and the next start ends them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::group;
use crate::control::process::Process;

/// A process that was started.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    pid: u32,
    /// When it started, so that no other process is taken for it.
    started: u64,
}

/// Where the record of the process in this place is.
pub fn path(directory: &Path, app: &str, place: u32) -> PathBuf {
    directory.join(format!("{app}-{place}{SUFFIX}"))
}

/// Writes a process down. Without its record it would be left if the site were killed, and nothing else.
pub fn note(path: &Path, process: &Process) {
    let record = Record { pid: process.pid(), started: process.started() };
    let written =
        serde_json::to_vec(&record).map_err(io::Error::other).and_then(|text| fs::write(path, text));
    if let Err(error) = written {
        tracing::warn!(path = %path.display(), %error, "the process of an app cannot be written down");
    }
}

/// Ends what the records beneath `directory` name and is still the same, and removes all files there. Must be called within
/// a runtime, by whoever has the state directory's lock.
///
/// # Errors
/// The directory cannot be read.
pub fn end_all(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(SUFFIX)
            && let Ok(text) = fs::read(&path)
            && let Ok(record) = serde_json::from_slice::<Record>(&text)
            && let Some(process) = Process::open(record.pid, record.started)
        {
            tracing::warn!(
                pid = record.pid,
                "a process of an app has outlived the site that started it; it is ended"
            );
            // It lives, so its number, which is its group's, is its own.
            group::signal(process.pid(), Signal::KILL);
        }
        if let Err(error) = fs::remove_file(&path) {
            tracing::warn!(path = %path.display(), %error, "not removed");
        }
    }
    Ok(())
}

const SUFFIX: &str = ".process";

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    #[tokio::test]
    async fn what_was_left_is_ended_and_nothing_that_only_has_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let start = || Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
        let (mut left, mut other) = (start(), start());
        let process = Process::of_child(&left).unwrap();
        note(&path(dir.path(), "blog", 1), &process);
        let stranger = Record { pid: other.id(), started: process.started() + 1_000_000 };
        fs::write(path(dir.path(), "blog", 2), serde_json::to_vec(&stranger).unwrap()).unwrap();
        fs::write(path(dir.path(), "blog", 3), "garbage").unwrap();
        fs::write(dir.path().join("blog-1.sock"), "").unwrap();
        end_all(dir.path()).unwrap();
        left.wait().unwrap();
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        end_all(&dir.path().join("none")).unwrap();
    }
}
