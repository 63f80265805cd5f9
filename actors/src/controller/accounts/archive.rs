//! The archive's file: the sums of all folded pages, and which was folded last.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use playhouse_serve::ledger::Totals;

use super::{Process, remove};

/// The sums of all pages that were folded.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Archive {
    pub(super) totals: Totals,
    /// Slot and generation of the last one: where its page is still there, it is not to be folded again.
    pub(super) last_folded: Option<Process>,
}

impl Archive {
    /// The archive of a state directory; an empty one where there is none, or where it cannot be read.
    pub(super) fn read(dir: &Path) -> io::Result<Self> {
        remove(&dir.join(NEW_NAME))?;
        let path = dir.join(NAME);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Archive::default()),
            Err(error) => return Err(error),
        };
        let mut text = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(file, MAX_BYTES), &mut text)?;
        match serde_json::from_slice(&text) {
            Ok(archive) => Ok(archive),
            Err(error) => {
                let aside = dir.join(UNREADABLE_NAME);
                tracing::warn!(%error, aside = %aside.display(), "the ledger's archive cannot be read: it is put aside, and its counts begin at zero");
                std::fs::rename(&path, &aside)?;
                Ok(Archive::default())
            }
        }
    }

    /// Writes it beside the one in force.
    pub(super) fn write(&self, dir: &Path) -> io::Result<()> {
        let path = dir.join(NEW_NAME);
        let written =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path).and_then(
                |mut file| {
                    file.write_all(&serde_json::to_vec(self)?)?;
                    file.sync_data()
                },
            );
        written.inspect_err(|_| _ = remove(&path))
    }

    /// Puts what was written into force.
    pub(super) fn commit(dir: &Path) -> io::Result<()> {
        std::fs::rename(dir.join(NEW_NAME), dir.join(NAME))
    }

    pub(super) fn remove(dir: &Path) -> io::Result<()> {
        remove(&dir.join(NEW_NAME))?;
        remove(&dir.join(NAME))
    }
}

const NAME: &str = "ledger";
const NEW_NAME: &str = "ledger.new";
const UNREADABLE_NAME: &str = "ledger.unreadable";
/// Many times what it needs.
const MAX_BYTES: u64 = 64 << 10;
