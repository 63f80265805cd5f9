//! The board: how many connections each instance has, so that those who accept from the same socket take about equally
//! many.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use playhouse_sys::SharedPage;

use crate::sockets::{Peers, Share};

/// A gauge per slot of a site, in a page that the controller makes and every instance opens. Clones are the same board.
#[derive(Clone, Debug)]
pub struct Board {
    page: Arc<SharedPage>,
}

/// One instance's place on the board: what it writes there itself. Clones are the same place.
#[derive(Clone, Debug)]
pub struct Place {
    board: Board,
    slot: u32,
}

impl Board {
    /// Opens the board of a site, or makes it. For the controller: what is there and is no board is replaced.
    pub fn open_or_create(path: &Path) -> io::Result<Self> {
        Ok(Self::on(SharedPage::open_or_create(path, WORDS)?))
    }

    /// Opens the board that the controller has made.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self::on(SharedPage::open(path, WORDS)?))
    }

    /// A board without a file.
    pub fn anonymous() -> io::Result<Self> {
        Ok(Self::on(SharedPage::anonymous(WORDS)?))
    }

    fn on(page: SharedPage) -> Self {
        Board { page: Arc::new(page) }
    }

    /// The place of an instance, which is there from now on; `None` for a slot that is not among 1 to [`SLOTS`].
    pub fn mine(&self, slot: u32) -> Option<Place> {
        self.cells(slot)?.present.store(1, Ordering::Release);
        self.highest().fetch_max(slot.into(), Ordering::AcqRel);
        Some(Place { board: self.clone(), slot })
    }

    /// Open connections of the instance in `slot`; 0 for a slot that is not.
    pub fn connections(&self, slot: u32) -> u64 {
        self.cells(slot).map_or(0, |cells| cells.connections.load(Ordering::Relaxed))
    }

    /// Connections of the instance in `slot` so far, and of those that have had the slot before; 0 for a slot that is
    /// not.
    pub fn accepted(&self, slot: u32) -> u64 {
        self.cells(slot).map_or(0, |cells| cells.accepted.load(Ordering::Relaxed))
    }

    /// Whether the instance in `slot` accepts.
    pub fn is_active(&self, slot: u32) -> bool {
        self.cells(slot).is_some_and(|cells| cells.active.load(Ordering::Relaxed) != 0)
    }

    /// Whether there is a process in `slot`: one that accepts, one that will, or one that drains.
    pub fn is_present(&self, slot: u32) -> bool {
        self.cells(slot).is_some_and(|cells| cells.present.load(Ordering::Acquire) != 0)
    }

    /// Takes a process that is gone off the board. For the controller, before the slot is used again.
    pub fn clear(&self, slot: u32) {
        if let Some(cells) = self.cells(slot) {
            cells.active.store(0, Ordering::Relaxed);
            cells.connections.store(0, Ordering::Relaxed);
            cells.present.store(0, Ordering::Release);
        }
    }

    /// The highest slot that anyone has had: no slot beyond needs to be looked at.
    fn highest(&self) -> &AtomicU64 {
        &self.page.cells()[0]
    }

    /// The slots whose instances accept.
    fn accepting(&self) -> impl Iterator<Item = Cells<'_>> {
        let used = self.highest().load(Ordering::Acquire) as usize;
        let slots = self.page.cells().chunks_exact(STRIDE).skip(1).take(used).map(cells);
        slots.filter(|slot| slot.active.load(Ordering::Relaxed) != 0)
    }

    fn cells(&self, slot: u32) -> Option<Cells<'_>> {
        let slot = (1..=SLOTS).contains(&slot).then_some(slot as usize)?;
        Some(cells(&self.page.cells()[slot * STRIDE..]))
    }
}

impl Place {
    /// Whether this instance accepts from now on.
    pub fn set_active(&self, active: bool) {
        self.cells().active.store(active.into(), Ordering::Relaxed);
    }

    /// The slot of this instance.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// The board it is on.
    pub fn board(&self) -> &Board {
        &self.board
    }

    fn cells(&self) -> Cells<'_> {
        // `Board::mine` gives no place for a slot that is not there.
        self.board.cells(self.slot).expect("a slot of the board")
    }
}

impl Peers for Place {
    fn opened(&self) {
        let cells = self.cells();
        cells.connections.fetch_add(1, Ordering::Relaxed);
        cells.accepted.fetch_add(1, Ordering::Relaxed);
    }

    fn closed(&self) {
        self.cells().connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Costs a load per slot that was ever used.
    fn share(&self) -> Share {
        let mut share = Share { mine: self.cells().connections.load(Ordering::Relaxed), ..Share::default() };
        for slot in self.board.accepting() {
            share.active += 1;
            share.total = share.total.saturating_add(slot.connections.load(Ordering::Relaxed));
        }
        share
    }

    fn taken_behind(&self, share: Share) -> u64 {
        let is_behind = |slot: &Cells<'_>| {
            slot.connections.load(Ordering::Relaxed).saturating_mul(share.active) < share.total
        };
        let accepted = |slot: Cells<'_>| slot.accepted.load(Ordering::Relaxed);
        self.board.accepting().filter(is_behind).map(accepted).fold(0, u64::wrapping_add)
    }

    fn set_active(&self, active: bool) {
        Place::set_active(self, active);
    }

    fn is_active(&self, slot: u32) -> bool {
        self.board.is_active(slot)
    }
}

struct Cells<'a> {
    connections: &'a AtomicU64,
    active: &'a AtomicU64,
    /// Connections so far, of all processes that have had the slot.
    accepted: &'a AtomicU64,
    present: &'a AtomicU64,
}

fn cells(slot: &[AtomicU64]) -> Cells<'_> {
    Cells { connections: &slot[0], active: &slot[1], accepted: &slot[2], present: &slot[3] }
}

/// Slots are numbered from 1 to this: more than a site file can ask for, whatever is changed in it while instances run.
pub const SLOTS: u32 = 255;
/// The highest slot, then each slot's cells.
const WORDS: usize = (SLOTS as usize + 1) * STRIDE;
/// From one slot to the next: two cache lines, since each is written by another process.
const STRIDE: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_process_writes_the_others_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("board");
        let controller = Board::open_or_create(&path).unwrap();
        let one = Board::open(&path).unwrap().mine(1).unwrap();
        let two = Board::open(&path).unwrap().mine(2).unwrap();
        one.set_active(true);
        two.set_active(true);
        (0..5).for_each(|_| one.opened());
        (0..3).for_each(|_| two.opened());
        one.closed();
        assert_eq!(one.share(), Share { mine: 4, active: 2, total: 7 });
        assert_eq!(two.share(), Share { mine: 3, active: 2, total: 7 });
        two.set_active(false);
        assert_eq!(one.share(), Share { mine: 4, active: 1, total: 4 }, "it drains");
        assert_eq!(two.share(), Share { mine: 3, active: 1, total: 4 });
        assert_eq!((controller.connections(2), controller.is_active(2)), (3, false));
        assert!(controller.is_present(1) && !controller.is_present(3));
        controller.clear(1);
        assert!(!two.board().is_present(1));
        assert_eq!((controller.connections(1), controller.is_active(1)), (0, false));
    }

    #[test]
    fn it_is_seen_that_those_behind_accept() {
        let board = Board::anonymous().unwrap();
        let places = [1, 2, 3].map(|slot| board.mine(slot).unwrap());
        places.iter().for_each(|place| place.set_active(true));
        (0..8).for_each(|_| places[0].opened());
        (0..4).for_each(|_| places[1].opened());
        let share = places[0].share();
        let before = places[0].taken_behind(share);
        // Those at the mean and above do not count.
        places[0].opened();
        places[1].opened();
        assert_eq!(places[0].taken_behind(share), before);
        places[2].opened();
        assert_ne!(places[0].taken_behind(share), before);
        // One that has closed a connection meanwhile has come all the same.
        places[2].closed();
        assert_ne!(places[0].taken_behind(share), before);
    }

    #[test]
    fn a_controller_that_starts_again_finds_the_board_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("board");
        let place = Board::open_or_create(&path).unwrap().mine(4).unwrap();
        place.set_active(true);
        place.opened();
        let again = Board::open_or_create(&path).unwrap();
        assert_eq!((again.connections(4), again.is_active(4)), (1, true));
    }

    #[test]
    fn there_is_no_place_for_a_slot_that_is_not() {
        let board = Board::anonymous().unwrap();
        assert!(board.mine(0).is_none() && board.mine(SLOTS + 1).is_none() && board.mine(u32::MAX).is_none());
        assert_eq!((board.connections(SLOTS + 1), board.is_active(0)), (0, false));
        board.clear(SLOTS + 1);
        let last = board.mine(SLOTS).unwrap();
        last.set_active(true);
        last.opened();
        assert_eq!(board.mine(1).unwrap().share(), Share { mine: 0, active: 1, total: 1 });
    }
}
