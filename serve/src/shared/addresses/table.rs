//! The table's cells: sets of a few entries, each with a key, a time and a count of leases per slot.
//!
//! The first page has the keys, the times, and the leases of the first slots; further pages, each with the leases of further
//! slots for the same entries, come with the slots. Who holds a table opens them when the first page says that there are more.
//!
//! An entry belongs to its key while it holds a lease or its time lies ahead; after that anybody may give it to another. Who
//! does so first puts a mark in the key's place, then looks again whether it is idle; who adds to an entry afterwards looks
//! again whether it is still its own. In whatever order the two run, one of them sees the other, and gives way.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use playhouse_sys::SharedPage;

use super::rate::SECOND;

#[derive(Debug)]
pub(super) struct Table {
    /// Where the pages are; `None` for those of one process, which has the first page only.
    path: Option<PathBuf>,
    first: SharedPage,
    further: [OnceLock<SharedPage>; FURTHER],
    /// Whether it was said that a further page cannot be opened.
    warned: AtomicBool,
    /// Whose leases are taken here.
    slot: usize,
}

struct Entry<'a> {
    /// 0 for none, [`LIVE`] and a hash, or the mark of the slot that is about to change it.
    key: &'a AtomicU64,
    /// Up to when it is in use, whatever it holds besides.
    time: &'a AtomicU64,
    /// The leases of the first slots, four to a word.
    leases: &'a [AtomicU64],
}

impl Table {
    /// A table without a file, for slot 0.
    pub(super) fn anonymous() -> io::Result<Self> {
        Ok(Self::over(None, SharedPage::anonymous(FIRST_WORDS)?, 0))
    }

    /// Opens the table for a process in `slot`. `InvalidData` where it has no such slot.
    pub(super) fn open(path: &Path, slot: u32) -> io::Result<Self> {
        let table = Self::over(Some(path.to_owned()), SharedPage::open(path, FIRST_WORDS)?, slot);
        match table.leases_of(0, slot as usize) {
            Some(_) => Ok(table),
            None => Err(io::Error::new(io::ErrorKind::InvalidData, "no table of addresses with this slot")),
        }
    }

    /// Opens the table, or makes it, for whoever makes the pages.
    pub(super) fn open_or_create(path: &Path) -> io::Result<Self> {
        let table = Self::over(Some(path.to_owned()), SharedPage::open_or_create(path, FIRST_WORDS)?, 0);
        for number in 0..table.further_pages() {
            let page = SharedPage::open_or_create(&further_path(path, number), FURTHER_WORDS)?;
            let _ = table.further[number].set(page);
        }
        Ok(table)
    }

    fn over(path: Option<PathBuf>, first: SharedPage, slot: u32) -> Self {
        let further = std::array::from_fn(|_| OnceLock::new());
        Table { path, first, further, warned: AtomicBool::new(false), slot: slot as usize }
    }

    /// Makes the pages for slots up to this one. For the one process that makes them.
    pub(super) fn reserve(&self, slots: u32) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let needed = (slots as usize + 1).saturating_sub(FIRST_SLOTS).div_ceil(FURTHER_SLOTS);
        if needed > FURTHER {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "more slots than a table has"));
        }
        for number in self.further_pages()..needed {
            let path = further_path(path, number);
            // Nobody has it open: the first page says nothing of it yet. Its leases would be those of the dead.
            remove_if_there(&path)?;
            let _ = self.further[number].set(SharedPage::create(&path, FURTHER_WORDS)?);
            self.first.cells()[PAGES].store(number as u64 + 1, SeqCst);
        }
        Ok(())
    }

    /// Where the key of the hash is kept: 0 until there is one.
    pub(super) fn secret(&self) -> [&AtomicU64; 2] {
        let cells = self.first.cells();
        [&cells[0], &cells[1]]
    }

    /// The entry of a key, a new one if need be; `None` where its set is full.
    pub(super) fn entry(&self, key: u64, now: u64) -> Option<usize> {
        let first = key as usize % SETS * WAYS;
        let set = first..first + WAYS;
        let key = key | LIVE;
        for _ in 0..super::TRIES {
            if let Some(entry) = self.find(set.clone(), key) {
                return Some(entry);
            }
            let is_free = |entry: &usize| self.at(*entry).key.load(SeqCst) == 0;
            let claimed =
                set.clone().filter(is_free).chain(set.clone()).find(|entry| self.claim(*entry, key, now))?;
            // Another thread or process may have done the same at the same time.
            if set.clone().all(|entry| entry == claimed || self.at(entry).key.load(SeqCst) != key) {
                return Some(claimed);
            }
            self.claim(claimed, 0, now);
        }
        None
    }

    /// The entry that has the key. A mark may stand where it was and will be again, and is gone in a moment, unless its
    /// process was ended or is not running.
    fn find(&self, set: Range<usize>, key: u64) -> Option<usize> {
        for _ in 0..MARKED_LOOKS {
            let mut is_marked = false;
            for entry in set.clone() {
                let found = self.at(entry).key.load(SeqCst);
                if found == key {
                    return Some(entry);
                }
                is_marked |= is_mark(found);
            }
            if !is_marked {
                return None;
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Whether the entry is that of the key.
    #[inline]
    pub(super) fn is(&self, entry: usize, key: u64) -> bool {
        self.at(entry).key.load(SeqCst) == key | LIVE
    }

    /// Changes the time of an entry, unless `change` gives an error.
    pub(super) fn update_time(
        &self,
        entry: usize,
        change: impl Fn(u64) -> Result<u64, u64>,
    ) -> Result<(), u64> {
        let time = self.at(entry).time;
        let mut before = time.load(SeqCst);
        loop {
            match time.compare_exchange_weak(before, change(before)?, SeqCst, SeqCst) {
                Ok(_) => return Ok(()),
                Err(now) => before = now,
            }
        }
    }

    /// Adds a lease of our slot. `false` where it has as many as can be counted.
    pub(super) fn add(&self, entry: usize) -> bool {
        let Some((word, shift)) = self.leases_of(entry, self.slot) else { return false };
        let add = |word| (word >> shift & MASK < MASK).then(|| word + (1 << shift));
        word.fetch_update(SeqCst, SeqCst, add).is_ok()
    }

    /// Takes a lease of our slot back.
    pub(super) fn subtract(&self, entry: usize) {
        let Some((word, shift)) = self.leases_of(entry, self.slot) else { return };
        // Were it 0, the slot had been released beneath us, and the word's other counts are not ours.
        let subtract = |word| (word >> shift & MASK > 0).then(|| word - (1 << shift));
        let _ = word.fetch_update(SeqCst, SeqCst, subtract);
    }

    /// The leases of all slots.
    pub(super) fn leases(&self, entry: usize) -> u64 {
        let further = (0..self.further_pages()).filter_map(|number| self.further(number));
        let further = further.map(|page| sum(&page.cells()[entry * STRIDE..(entry + 1) * STRIDE]));
        sum(self.at(entry).leases) + further.sum::<u64>()
    }

    /// Gives back all leases of a slot, and what it was about to change.
    pub(super) fn release_slot(&self, slot: u32) {
        let slot = slot as usize;
        for entry in 0..ENTRIES {
            let Some((word, shift)) = self.leases_of(entry, slot) else { return };
            if word.load(SeqCst) >> shift & MASK != 0 {
                word.fetch_and(!(MASK << shift), SeqCst);
            }
            let _ = self.at(entry).key.compare_exchange(mark(slot), 0, SeqCst, SeqCst);
        }
    }

    /// Gives an idle entry to `key`, or to nobody. Whether it was idle, or free.
    fn claim(&self, entry: usize, key: u64, now: u64) -> bool {
        let cells = self.at(entry);
        let before = cells.key.load(SeqCst);
        if is_mark(before) || !self.is_idle(entry, now) {
            return false;
        }
        if cells.key.compare_exchange(before, mark(self.slot), SeqCst, SeqCst).is_err() {
            return false;
        }
        // From here on nobody adds to it for long: who looks whether it is still its own sees the mark.
        if !self.is_idle(entry, now) {
            cells.key.store(before, SeqCst);
            return false;
        }
        cells.time.store(0, SeqCst);
        cells.key.store(key, SeqCst);
        true
    }

    #[cfg(test)]
    pub(super) fn key(&self, entry: usize) -> u64 {
        self.at(entry).key.load(SeqCst)
    }

    #[cfg(test)]
    pub(super) fn set_key(&self, entry: usize, key: u64) {
        self.at(entry).key.store(key, SeqCst);
    }

    fn is_idle(&self, entry: usize, now: u64) -> bool {
        let time = self.at(entry).time.load(SeqCst);
        // What lies that far ahead was written before the host was started again.
        (time <= now || time - now > FARTHEST) && self.leases(entry) == 0
    }

    /// The word with a slot's leases, and their place in it; `None` where there is no such slot.
    fn leases_of(&self, entry: usize, slot: usize) -> Option<(&AtomicU64, usize)> {
        let shift = slot % PER_WORD * BITS;
        if slot < FIRST_SLOTS {
            return Some((&self.at(entry).leases[slot / PER_WORD], shift));
        }
        let slot = slot - FIRST_SLOTS;
        let number = Some(slot / FURTHER_SLOTS).filter(|number| *number < self.further_pages())?;
        let word = entry * STRIDE + slot % FURTHER_SLOTS / PER_WORD;
        Some((&self.further(number)?.cells()[word], shift))
    }

    #[inline]
    fn at(&self, entry: usize) -> Entry<'_> {
        let start = HEADER + entry * STRIDE;
        let cells = &self.first.cells()[start..start + STRIDE];
        Entry { key: &cells[0], time: &cells[1], leases: &cells[2..] }
    }

    fn further_pages(&self) -> usize {
        (self.first.cells()[PAGES].load(SeqCst) as usize).min(FURTHER)
    }

    fn further(&self, number: usize) -> Option<&SharedPage> {
        self.further[number].get().or_else(|| self.open_further(number))
    }

    /// The site has more slots than when this table was opened.
    #[cold]
    fn open_further(&self, number: usize) -> Option<&SharedPage> {
        match SharedPage::open(&further_path(self.path.as_ref()?, number), FURTHER_WORDS) {
            Ok(page) => Some(self.further[number].get_or_init(|| page)),
            Err(error) => {
                if !self.warned.swap(true, SeqCst) {
                    tracing::error!(%error, "what clients have in some instances is not counted here");
                }
                None
            }
        }
    }
}

/// Removes the files of a table that nobody has open, as far as there are any.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let further = (0..FURTHER).map(|number| remove_if_there(&further_path(path, number)));
    further.fold(remove_if_there(path), Result::and)
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// `limits-2` beside `limits`, and so on.
fn further_path(path: &Path, number: usize) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!("-{}", number + 2));
    name.into()
}

fn sum(leases: &[AtomicU64]) -> u64 {
    let words = leases.iter().map(|word| word.load(SeqCst));
    words.map(|word| (0..64).step_by(BITS).map(|shift| word >> shift & MASK).sum::<u64>()).sum()
}

fn mark(slot: usize) -> u64 {
    slot as u64 + 1
}

fn is_mark(key: u64) -> bool {
    key != 0 && key & LIVE == 0
}

/// 4 MiB a page.
pub(super) const ENTRIES: usize = 65_536;
/// Words of an entry in a page: a cache line.
const STRIDE: usize = 8;
/// Entries of a set: where an address can be.
pub(super) const WAYS: usize = 8;
const SETS: usize = ENTRIES / WAYS;
/// Words before the first entry of the first page: two cache lines.
const HEADER: usize = 16;
/// Where the first page says how many further ones there are.
const PAGES: usize = 2;
const FIRST_WORDS: usize = HEADER + ENTRIES * STRIDE;
const FURTHER_WORDS: usize = ENTRIES * STRIDE;
/// Slots 0 to 23 are in the first page.
const FIRST_SLOTS: usize = (STRIDE - 2) * PER_WORD;
const FURTHER_SLOTS: usize = STRIDE * PER_WORD;
/// For 255 slots, more than there can be.
const FURTHER: usize = 8;
/// A few microseconds.
const MARKED_LOOKS: usize = 100;
/// Set in every key that is one.
const LIVE: u64 = 1 << 63;
const BITS: usize = 16;
const PER_WORD: usize = 64 / BITS;
const MASK: u64 = (1 << BITS) - 1;
/// Longer than any burst lasts: see the limits of the site file.
const FARTHEST: u64 = 2 * 3600 * SECOND;
