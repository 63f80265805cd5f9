//! The accounts: what all instances of a site have counted in their ledgers, those that are gone among them.
//!
//! A live instance counts in a page of the state directory (`ledger-SLOT.GENERATION`). When it is gone, its page is
//! *folded*: added to the archive (`ledger`), what was in flight as killed, and removed. The archive says which page it
//! has taken last, so that a controller which ends in the middle of that neither counts a page twice nor loses one.

mod archive;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::control::crash::crash_point;
use parking_lot::Mutex;
use playhouse_serve::ledger::{self, Totals};
use playhouse_sys::SharedPage;

use self::archive::Archive;

/// The accounts of a site, in its state directory. For the one process that has the directory's lock.
#[derive(Debug)]
pub struct Accounts {
    dir: PathBuf,
    /// Held over the files' changes. Readers need only `state`, and wait for no disk.
    changing: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    archive: Archive,
    /// Those that are not in the archive.
    pages: BTreeMap<Process, Page>,
}

#[derive(Debug)]
struct Page {
    page: SharedPage,
    /// Its process is gone: what it has in flight is killed.
    closed: bool,
}

impl Page {
    fn totals(&self) -> Totals {
        let totals = ledger::totals_of(&self.page);
        if self.closed { totals.closed() } else { totals }
    }
}

/// Slot and generation of an instance process.
type Process = (u32, u64);

impl Accounts {
    /// Reads the archive and opens every page that is there: those of processes that are gone are to be folded, see
    /// [`Accounts::pages`]. What a process was ended in the middle of is brought to its end. An archive or a page that
    /// cannot be read is put aside or removed, and the log says so.
    pub fn open(dir: impl Into<PathBuf>) -> io::Result<Self> {
        let dir = dir.into();
        let archive = Archive::read(&dir)?;
        let mut pages = BTreeMap::new();
        for entry in std::fs::read_dir(&dir)? {
            let path = entry?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let Some(process) = process_of(name) else { continue };
            if archive.last_folded == Some(process) {
                remove(&path)?;
                continue;
            }
            match SharedPage::open(&path, ledger::WORDS) {
                Ok(page) => {
                    pages.insert(process, Page { page, closed: false });
                }
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    tracing::warn!(%error, "a page of the ledger cannot be read; what is in it is not counted");
                    remove(&path)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Accounts { dir, changing: Mutex::default(), state: Mutex::new(State { archive, pages }) })
    }

    /// Makes the page of an instance that is to be started, and gives its path: the instance counts in there. Asked
    /// again for the same process, it gives the same page. `StorageFull` where there is no room for it.
    pub fn page_for(&self, slot: u32, generation: u64) -> io::Result<PathBuf> {
        let path = page_path(&self.dir, (slot, generation));
        let _changing = self.changing.lock();
        let known = self.state.lock().pages.contains_key(&(slot, generation));
        if !known {
            // Without the lock that readers need.
            let page = Page { page: SharedPage::create(&path, ledger::WORDS)?, closed: false };
            self.state.lock().pages.insert((slot, generation), page);
        }
        Ok(path)
    }

    /// Slot and generation of each page that is not folded.
    pub fn pages(&self) -> Vec<(u32, u64)> {
        self.state.lock().pages.keys().copied().collect()
    }

    /// The site's totals: of every process that is, and every one that was since the site was started. No sum is ever
    /// less than at an earlier call, but `in_flight`.
    pub fn totals(&self) -> Totals {
        let state = self.state.lock();
        state.archive.totals + state.pages.values().map(Page::totals).sum()
    }

    /// The totals of one process; zero when it has no page, or none any more.
    pub fn live(&self, slot: u32, generation: u64) -> Totals {
        self.state.lock().pages.get(&(slot, generation)).map(Page::totals).unwrap_or_default()
    }

    /// Takes over what a process that is gone has counted, and removes its page. To be called only after its end.
    ///
    /// Idempotent: a process without a page is done with. On an error the totals are right all the same, and it is to
    /// be called again.
    pub fn fold(&self, slot: u32, generation: u64) -> io::Result<()> {
        self.fold_while((slot, generation), |step| {
            crash_point(match step {
                Step::UnlinkLast => "fold-unlink-last",
                Step::Write => "fold-write",
                Step::Rename => "fold-rename",
                Step::Unlink => "fold-unlink",
            });
            true
        })
    }

    /// Removes all that was counted: the site has stopped, and begins with nothing when it is started again.
    pub fn forget(&self) -> io::Result<()> {
        let _changing = self.changing.lock();
        let pages = std::mem::take(&mut *self.state.lock()).pages;
        for process in pages.into_keys() {
            remove(&page_path(&self.dir, process))?;
        }
        Archive::remove(&self.dir)
    }

    /// Folds, and stops before the first step for which `go_on` is false, as if the process had ended there.
    fn fold_while(&self, process: Process, mut go_on: impl FnMut(Step) -> bool) -> io::Result<()> {
        let _changing = self.changing.lock();
        let archive = {
            let mut state = self.state.lock();
            if let Some(page) = state.pages.get_mut(&process) {
                page.closed = true;
            }
            state.archive.clone()
        };
        // The archive knows only the last one: before it takes another, the page of that one has to be gone.
        if let Some(last) = archive.last_folded {
            if !go_on(Step::UnlinkLast) {
                return Ok(());
            }
            remove(&page_path(&self.dir, last))?;
        }
        let Some(page) = self.state.lock().pages.get(&process).map(Page::totals) else { return Ok(()) };
        let archive = Archive { totals: archive.totals + page, last_folded: Some(process) };
        if !go_on(Step::Write) {
            return Ok(());
        }
        archive.write(&self.dir)?;
        if !go_on(Step::Rename) {
            return Ok(());
        }
        Archive::commit(&self.dir)?;
        // Both at once, for readers.
        let folded = {
            let mut state = self.state.lock();
            state.archive = archive;
            state.pages.remove(&process)
        };
        drop(folded);
        if go_on(Step::Unlink) { remove(&page_path(&self.dir, process)) } else { Ok(()) }
    }
}

/// What a fold changes, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The page before this one, which is gone already unless a fold has failed to remove it.
    UnlinkLast,
    /// The new archive, under another name.
    Write,
    /// The new archive in place of the old one: from here on the page is counted in there.
    Rename,
    /// The page.
    Unlink,
}

fn page_path(dir: &Path, (slot, generation): Process) -> PathBuf {
    dir.join(format!("{PAGE_PREFIX}{slot}.{generation}"))
}

fn process_of(name: &str) -> Option<Process> {
    let (slot, generation) = name.strip_prefix(PAGE_PREFIX)?.split_once('.')?;
    let process = (slot.parse().ok()?, generation.parse().ok()?);
    // Only as we write it: no sign, no zeros in front.
    (name == format!("{PAGE_PREFIX}{}.{}", process.0, process.1)).then_some(process)
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

const PAGE_PREFIX: &str = "ledger-";
