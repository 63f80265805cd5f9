//! The table's cells: sets of a few entries, each with a key, a time and a count of leases per slot.
//!
//! An entry belongs to its key while it holds a lease or its time lies ahead; after that anybody may give it to another. Who
//! does so first puts a mark in the key's place, then looks again whether it is idle; who adds to an entry afterwards looks
//! again whether it is still its own. In whatever order the two run, one of them sees the other, and gives way.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use playhouse_sys::SharedPage;

use super::rate::SECOND;

#[derive(Debug)]
pub(super) struct Table {
    page: SharedPage,
    /// Words of an entry.
    stride: usize,
    /// Whose leases are taken here.
    slot: usize,
}

struct Entry<'a> {
    /// 0 for none, [`LIVE`] and a hash, or the mark of the slot that is about to change it.
    key: &'a AtomicU64,
    /// Up to when it is in use, whatever it holds besides.
    time: &'a AtomicU64,
    /// The leases of each slot, four to a word.
    leases: &'a [AtomicU64],
}

impl Table {
    /// The table in a page that has this slot.
    pub(super) fn new(page: SharedPage, slot: u32) -> Self {
        let stride = (page.cells().len() - HEADER) / ENTRIES;
        Table { page, stride, slot: slot as usize }
    }

    /// Where the key of the hash is kept: 0 until there is one.
    pub(super) fn secret(&self) -> [&AtomicU64; 2] {
        let cells = self.page.cells();
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
        let (word, shift) = self.leases_of(entry, self.slot);
        let add = |word| (word >> shift & MASK < MASK).then(|| word + (1 << shift));
        word.fetch_update(SeqCst, SeqCst, add).is_ok()
    }

    /// Takes a lease of our slot back.
    pub(super) fn subtract(&self, entry: usize) {
        let (word, shift) = self.leases_of(entry, self.slot);
        // Were it 0, the slot had been released beneath us, and the word's other counts are not ours.
        let subtract = |word| (word >> shift & MASK > 0).then(|| word - (1 << shift));
        let _ = word.fetch_update(SeqCst, SeqCst, subtract);
    }

    /// The leases of all slots.
    pub(super) fn leases(&self, entry: usize) -> u64 {
        let words = self.at(entry).leases.iter().map(|word| word.load(SeqCst));
        words.map(|word| (0..64).step_by(BITS).map(|shift| word >> shift & MASK).sum::<u64>()).sum()
    }

    /// Gives back all leases of a slot, and what it was about to change.
    pub(super) fn release_slot(&self, slot: u32) {
        let slot = slot as usize;
        if slot / PER_WORD >= self.stride - 2 {
            return;
        }
        for entry in 0..ENTRIES {
            let (word, shift) = self.leases_of(entry, slot);
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

    fn leases_of(&self, entry: usize, slot: usize) -> (&AtomicU64, usize) {
        (&self.at(entry).leases[slot / PER_WORD], slot % PER_WORD * BITS)
    }

    #[inline]
    fn at(&self, entry: usize) -> Entry<'_> {
        let start = HEADER + entry * self.stride;
        let cells = &self.page.cells()[start..start + self.stride];
        Entry { key: &cells[0], time: &cells[1], leases: &cells[2..] }
    }
}

/// Cells of a page for slots 0 to `slots`.
pub(super) fn words(slots: u32) -> usize {
    HEADER + ENTRIES * stride(slots)
}

/// Opens the page of a table that has at least the slots 0 to `slots`.
pub(super) fn open(path: &Path, slots: u32) -> io::Result<SharedPage> {
    // The page itself says of which size it is.
    for stride in (stride(slots)..=MAX_STRIDE).step_by(8) {
        match SharedPage::open(path, HEADER + ENTRIES * stride) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
            opened => return opened,
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "no table of addresses, or one for fewer slots"))
}

/// Whole cache lines, of which one holds a key, a time and 24 slots.
fn stride(slots: u32) -> usize {
    (2 + (slots as usize + 1).div_ceil(PER_WORD)).next_multiple_of(8)
}

fn mark(slot: usize) -> u64 {
    slot as u64 + 1
}

fn is_mark(key: u64) -> bool {
    key != 0 && key & LIVE == 0
}

/// 4 MiB for up to 23 slots.
pub(super) const ENTRIES: usize = 65_536;
/// For 255 slots, more than there can be.
const MAX_STRIDE: usize = 72;
/// Entries of a set: where an address can be.
pub(super) const WAYS: usize = 8;
const SETS: usize = ENTRIES / WAYS;
/// Words before the first entry: two cache lines.
const HEADER: usize = 16;
/// A few microseconds.
const MARKED_LOOKS: usize = 100;
/// Set in every key that is one.
const LIVE: u64 = 1 << 63;
const BITS: usize = 16;
const PER_WORD: usize = 64 / BITS;
const MASK: u64 = (1 << BITS) - 1;
/// Longer than any burst lasts: see the limits of the site file.
const FARTHEST: u64 = 2 * 3600 * SECOND;
