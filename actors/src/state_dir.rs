//! The state directory: one running site at a time, found by whoever knows the directory.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::control::process;

/// A locked state directory. Unlocked when dropped, or by the kernel when the process ends.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    _lock: File,
}

/// Why a state directory could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// Another process has it.
    #[error(
        "{}: a site is running here already, as process {pid}; stop it, or give this one another name or state directory",
        .path.display()
    )]
    Taken {
        /// The directory.
        path: PathBuf,
        /// Who has it, as far as it has said so.
        pid: String,
    },
    /// It cannot be made or written.
    #[error("the state directory cannot be used: {}: {error}; name another by --state-dir or state_dir", .path.display())]
    Io {
        /// The directory or the lock in it.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
}

impl StateDir {
    /// Makes the directory (mode 0700) where there is none, and takes its lock. Directories above it that are missing are
    /// made too, open to all as `mkdir -p` makes them: sites of other users may have theirs beside it.
    pub fn take(path: &Path) -> Result<Self, StateDirError> {
        let io_error = |path: &Path| {
            let path = path.to_owned();
            move |error: io::Error| StateDirError::Io { path, error }
        };
        if let Some(parent) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(io_error(path))?;
        }
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io_error(path))?;
        let lock_path = path.join(LOCK);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut lock = options.open(&lock_path).map_err(io_error(&lock_path))?;
        if let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(StateDirError::Io { path: lock_path, error: error.into() });
            }
            let mut owner = String::new();
            // It is for the message alone.
            let _ = lock.read_to_string(&mut owner);
            let pid = owner.lines().next().unwrap_or("unknown").to_owned();
            return Err(StateDirError::Taken { path: path.to_owned(), pid });
        }
        let pid = std::process::id();
        let started = process::start_time(pid).unwrap_or(0);
        lock.set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| lock.write_all(format!("{pid}\n{started}\n").as_bytes()))
            .map_err(io_error(&lock_path))?;
        Ok(StateDir { path: path.to_owned(), _lock: lock })
    }

    /// Whether the process that took it last lives, or another takes it at this moment. It may have let go of it: while it
    /// becomes another program, until that takes it again.
    pub fn is_somebodys(path: &Path) -> bool {
        let Ok(owner) = fs::read_to_string(path.join(LOCK)) else { return false };
        let mut lines = owner.lines().map(str::parse);
        match (lines.next(), lines.next()) {
            (Some(Ok(pid)), Some(Ok(started))) => {
                u32::try_from(pid).is_ok_and(|pid| process::lives(pid, started))
            }
            // Emptied, and about to be written.
            _ => true,
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the admin socket is.
    pub fn admin_socket(&self) -> PathBuf {
        self.path.join(ADMIN_SOCKET)
    }
}

/// Whose it is: a file with the number of the process and, in the next line, when it started (as
/// [`process::start_time`]), and the lock on it.
const LOCK: &str = "lock";

/// The admin socket's name in its state directory.
pub const ADMIN_SOCKET: &str = "admin.sock";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_directory_is_private_and_those_above_it_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let _taken = StateDir::take(&path).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        // As far as the umask of whoever runs the test lets it.
        assert_eq!(mode(&dir.path().join("a")) & 0o700, 0o700);
        let made = dir.path().join("other");
        std::fs::create_dir(&made).unwrap();
        assert_eq!(mode(&dir.path().join("a")), mode(&made) & 0o755);
    }

    #[test]
    fn a_second_owner_is_told_who_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let first = StateDir::take(&path).unwrap();
        let error = StateDir::take(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("as process {}", std::process::id())), "{error}");
        drop(first);
        StateDir::take(&path).unwrap();
    }

    #[test]
    fn it_is_somebodys_as_long_as_the_process_lives_that_took_it_last() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!StateDir::is_somebodys(dir.path()), "nobody has ever taken it");
        drop(StateDir::take(dir.path()).unwrap());
        assert!(StateDir::is_somebodys(dir.path()), "the lock is free, and this process lives");
        let lock = dir.path().join(LOCK);
        fs::write(&lock, "").unwrap();
        assert!(StateDir::is_somebodys(dir.path()), "somebody is about to write who it is");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let started = process::start_time(child.id()).unwrap();
        fs::write(&lock, format!("{}\n{}\n", std::process::id(), started + 1)).unwrap();
        assert!(!StateDir::is_somebodys(dir.path()), "another process had the number");
        fs::write(&lock, format!("{}\n{started}\n", child.id())).unwrap();
        child.wait().unwrap();
        assert!(!StateDir::is_somebodys(dir.path()), "it has ended");
    }
}
