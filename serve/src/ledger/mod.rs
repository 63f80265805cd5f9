//! The ledger: every request whose first byte was read ends in exactly one outcome.
//!
//! Its counters are in a page of memory that another process may have open too: what a process has counted outlives
//! it, and [`totals_of`] a page whose process is gone still says which requests were in flight.

mod totals;

pub use totals::Totals;

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use playhouse_sys::SharedPage;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The whole answer was handed to the kernel.
    Answered,
    /// Malformed, over a limit or too slow.
    Rejected,
    /// Refused to protect the rest.
    Shed,
    /// The client closed or reset before its answer was complete.
    ClientGone,
    /// 502, 504, or an answer cut by the upstream server.
    UpstreamFailed,
    /// Our own fault: a panic, or an actor or process that ended.
    Killed,
}

impl Outcome {
    /// Its name in metrics, logs and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Answered => "answered",
            Outcome::Rejected => "rejected",
            Outcome::Shed => "shed",
            Outcome::ClientGone => "client_gone",
            Outcome::UpstreamFailed => "upstream_failed",
            Outcome::Killed => "killed",
        }
    }
}

/// The outcomes in the order of their counters.
pub const OUTCOMES: [Outcome; 6] = [
    Outcome::Answered,
    Outcome::Rejected,
    Outcome::Shed,
    Outcome::ClientGone,
    Outcome::UpstreamFailed,
    Outcome::Killed,
];

/// Counters of requests, sharded by thread: one relaxed add per transition.
#[derive(Debug)]
pub struct Ledger {
    page: SharedPage,
}

impl Default for Ledger {
    /// A ledger of this process alone.
    fn default() -> Self {
        // A few KiB: where there is no memory for them, an allocation would abort as well.
        Ledger { page: SharedPage::anonymous(WORDS).expect("memory for the ledger") }
    }
}

impl Ledger {
    /// A ledger that counts in this page, on top of what the page has.
    ///
    /// # Errors
    /// `InvalidInput` for a page of fewer than [`WORDS`] cells.
    pub fn in_page(page: SharedPage) -> io::Result<Self> {
        if page.cells().len() < WORDS {
            return Err(io::Error::new(ErrorKind::InvalidInput, "the page is too small for a ledger"));
        }
        Ok(Ledger { page })
    }

    /// Enters a request whose first byte was read.
    pub fn accept(self: &Arc<Self>) -> Ticket {
        self.shard()[ACCEPTED].fetch_add(1, Ordering::Relaxed);
        Ticket { ledger: Some(self.clone()) }
    }

    /// As [`Ledger::accept`], for whoever borrows the ledger for longer than any of its requests.
    pub fn accept_borrowed(&self) -> Ticket<&Ledger> {
        self.shard()[ACCEPTED].fetch_add(1, Ordering::Relaxed);
        Ticket { ledger: Some(self) }
    }

    /// The sums over all threads, see [`totals_of`].
    pub fn totals(&self) -> Totals {
        totals_of(&self.page)
    }

    #[inline]
    fn shard(&self) -> &Shard {
        let start = thread_number() % SHARDS * STRIDE;
        // `in_page` has refused a page in which this could fail.
        self.page.cells()[start..].first_chunk().expect("a page of WORDS cells")
    }
}

/// The sums over all threads of the ledger in `page`, whoever counts in it. Requests that begin or end during the
/// reading may be in one sum and not yet in another; `in_flight` is never negative, and no sum is ever less than at
/// an earlier reading.
pub fn totals_of(page: &SharedPage) -> Totals {
    let shards = || page.cells().chunks_exact(STRIDE).filter_map(|shard| shard.first_chunk::<COUNTERS>());
    let read = |counter: &AtomicU64| counter.load(Ordering::Acquire);
    // Outcomes first: what ends after this was accepted before, so the difference cannot be negative.
    let mut totals: Totals = shards()
        .map(|[_, answered, rejected, shed, client_gone, upstream_failed, killed]| Totals {
            answered: read(answered),
            rejected: read(rejected),
            shed: read(shed),
            client_gone: read(client_gone),
            upstream_failed: read(upstream_failed),
            killed: read(killed),
            ..Totals::default()
        })
        .sum();
    totals.accepted = shards().map(|shard| read(&shard[ACCEPTED])).fold(0, u64::saturating_add);
    totals.in_flight = totals.accepted.saturating_sub(totals.ended());
    totals
}

/// A request in flight. Dropped without an outcome, it was killed.
#[derive(Debug)]
#[must_use = "dropping a ticket counts its request as killed"]
pub struct Ticket<L: Deref<Target = Ledger> = Arc<Ledger>> {
    ledger: Option<L>,
}

impl<L: Deref<Target = Ledger>> Ticket<L> {
    /// Enters the outcome.
    pub fn end(mut self, outcome: Outcome) {
        self.enter(outcome);
    }

    fn enter(&mut self, outcome: Outcome) {
        if let Some(ledger) = self.ledger.take() {
            ledger.shard()[FIRST_OUTCOME + outcome as usize].fetch_add(1, Ordering::Release);
        }
    }
}

impl<L: Deref<Target = Ledger>> Drop for Ticket<L> {
    fn drop(&mut self) {
        self.enter(Outcome::Killed);
    }
}

/// This thread's number: dense, in the order in which threads first count something.
#[inline]
pub(crate) fn thread_number() -> usize {
    THREAD.with(|thread| {
        if thread.get() == usize::MAX {
            thread.set(NEXT_THREAD.fetch_add(1, Ordering::Relaxed));
        }
        thread.get()
    })
}

/// Cells of a page that holds a ledger.
pub const WORDS: usize = SHARDS * STRIDE;

/// A thread's counters: what was accepted, then each outcome in the order of [`OUTCOMES`].
type Shard = [AtomicU64; COUNTERS];

const COUNTERS: usize = FIRST_OUTCOME + OUTCOMES.len();
const ACCEPTED: usize = 0;
const FIRST_OUTCOME: usize = 1;
/// From one thread's counters to the next: two cache lines, since processors fetch them in pairs.
const STRIDE: usize = 16;
/// More threads than this share counters.
const SHARDS: usize = 16;

static NEXT_THREAD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static THREAD: Cell<usize> = const { Cell::new(usize::MAX) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ticket_ends_in_exactly_one_outcome() {
        let ledger = Arc::new(Ledger::default());
        for outcome in OUTCOMES {
            ledger.accept().end(outcome);
        }
        let open = ledger.accept();
        let totals = ledger.totals();
        assert_eq!((totals.accepted, totals.ended(), totals.in_flight), (7, 6, 1));
        drop(open);
        assert_eq!(ledger.totals().killed, 2);
        assert_eq!(ledger.totals().in_flight, 0);
    }

    #[test]
    fn threads_add_up() {
        let ledger = Arc::new(Ledger::default());
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| (0..100).for_each(|_| ledger.accept().end(Outcome::Answered)));
            }
        });
        assert_eq!(ledger.totals().answered, 2000);
    }

    #[test]
    fn what_a_process_has_counted_outlives_its_ledger() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger-1.1");
        let seen = SharedPage::create(&path, WORDS).unwrap();
        let ledger = Arc::new(Ledger::in_page(SharedPage::open(&path, WORDS).unwrap()).unwrap());
        ledger.accept().end(Outcome::Answered);
        ledger.accept().end(Outcome::Shed);
        let lost = ledger.accept();
        assert_eq!(totals_of(&seen), ledger.totals());
        // As if the process had ended here: neither its ticket's nor its ledger's end is counted.
        std::mem::forget(lost);
        drop(ledger);
        let totals = totals_of(&seen);
        assert_eq!((totals.accepted, totals.in_flight, totals.killed), (3, 1, 0));
        let closed = totals.closed();
        assert_eq!((closed.accepted, closed.in_flight, closed.killed, closed.ended()), (3, 0, 1, 3));
    }

    #[test]
    fn a_page_that_is_too_small_is_refused() {
        let error = Ledger::in_page(SharedPage::anonymous(WORDS - 1).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn readers_never_see_less_than_before_while_others_count() {
        let ledger = Arc::new(Ledger::default());
        std::thread::scope(|scope| {
            let counting: Vec<_> = (0..2)
                .map(|_| scope.spawn(|| (0..20_000).for_each(|_| ledger.accept().end(Outcome::Answered))))
                .collect();
            let mut last = Totals::default();
            while counting.iter().any(|thread| !thread.is_finished()) {
                let totals = ledger.totals();
                assert!(totals.accepted >= last.accepted && totals.answered >= last.answered);
                assert_eq!(totals.accepted, totals.answered + totals.in_flight);
                last = totals;
            }
        });
    }
}
