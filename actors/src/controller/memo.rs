//! What a site's controllers leave each other in the state directory.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use playhouse_protocol::control::SiteText;
use serde::{Deserialize, Serialize};

use crate::control::crash::crash_point;
use crate::control::process::{self, Process};

/// The file's content. Fields are added, never renamed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memo {
    /// The configuration in force.
    #[serde(default)]
    pub site: Option<SiteText>,
    /// The generation of the last process that was started.
    #[serde(default)]
    pub generation: u64,
    /// How many instances an operator has asked for.
    #[serde(default)]
    pub scale: Option<u32>,
    /// Instances of an older generation than this are to be replaced.
    #[serde(default)]
    pub roll_before: u64,
    /// The process of another build that is being tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial: Option<Trial>,
}

/// A process that must not outlive the controller that has started it, whatever it is and does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// Its number.
    pub pid: u32,
    /// When it started, as [`process::start_time`].
    pub started: u64,
    /// Since when the kernel runs for which the other two mean something.
    pub boot: String,
}

impl Trial {
    /// Of a process of this controller's.
    pub fn of(process: &Process) -> Trial {
        Trial { pid: process.pid(), started: process.started(), boot: process::boot_id() }
    }

    /// The process, where it is still there. To be called within a runtime.
    pub fn process(&self) -> Option<Process> {
        (self.boot == process::boot_id()).then(|| Process::open(self.pid, self.started))?
    }
}

impl Memo {
    /// Reads it; `None` where there is none.
    ///
    /// # Errors
    /// It cannot be read, or is not what a controller writes.
    pub fn read(directory: &Path) -> io::Result<Option<Memo>> {
        let bytes = match fs::read(path(directory)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(serde_json::from_slice(&bytes)?))
    }

    /// Writes it whole: a reader, and a controller that follows one that was killed in the middle, sees the old one or the
    /// new one.
    ///
    /// # Errors
    /// What the file system says; the old one stays.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        crash_point("memo-write");
        let temporary = directory.join(format!("{NAME}.new"));
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        drop(file);
        crash_point("memo-rename");
        fs::rename(&temporary, path(directory))
    }

    /// Removes it, after a clean end.
    pub fn remove(directory: &Path) {
        // There may be none.
        let _ = fs::remove_file(path(directory));
    }
}

fn path(directory: &Path) -> PathBuf {
    directory.join(NAME)
}

const NAME: &str = "site.json";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memo_is_read_as_it_was_written_and_survives_a_torn_successor() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Memo::read(directory.path()).unwrap(), None);
        let site = SiteText { path: "/etc/site.ron".into(), text: "()".into(), revision: 3 };
        let trial = Trial { pid: 7, started: 8, boot: process::boot_id() };
        let memo =
            Memo { site: Some(site), generation: 7, scale: Some(2), roll_before: 5, trial: Some(trial) };
        memo.write(directory.path()).unwrap();
        fs::write(directory.path().join("site.json.new"), "{").unwrap();
        assert_eq!(Memo::read(directory.path()).unwrap(), Some(memo.clone()));
        memo.write(directory.path()).unwrap();
        Memo::remove(directory.path());
        assert_eq!(Memo::read(directory.path()).unwrap(), None);
    }

    #[tokio::test]
    async fn a_process_on_trial_is_found_again_and_no_other() {
        let me = Process::open(std::process::id(), process::start_time(std::process::id()).unwrap()).unwrap();
        let trial = Trial::of(&me);
        assert!(trial.process().is_some());
        assert!(Trial { started: trial.started + 1, ..trial.clone() }.process().is_none());
        assert!(Trial { boot: "another".into(), ..trial }.process().is_none());
    }

    #[test]
    fn fields_of_a_later_build_are_passed_over_and_garbage_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(path(directory.path()), r#"{"generation": 2, "new": [1]}"#).unwrap();
        assert_eq!(Memo::read(directory.path()).unwrap().unwrap().generation, 2);
        fs::write(path(directory.path()), "garbage").unwrap();
        assert!(Memo::read(directory.path()).is_err());
    }
}
