//! What a site's controllers leave each other in the state directory.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use playhouse_protocol::control::SiteText;
use serde::{Deserialize, Serialize};

use crate::control::crash::crash_point;

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
        let memo = Memo { site: Some(site), generation: 7, scale: Some(2), roll_before: 5 };
        memo.write(directory.path()).unwrap();
        fs::write(directory.path().join("site.json.new"), "{").unwrap();
        assert_eq!(Memo::read(directory.path()).unwrap(), Some(memo.clone()));
        memo.write(directory.path()).unwrap();
        Memo::remove(directory.path());
        assert_eq!(Memo::read(directory.path()).unwrap(), None);
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
