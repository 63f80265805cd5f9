//! The ledger: every request whose first byte was read ends in exactly one outcome.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

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
    shards: [CachePadded<Shard>; SHARDS],
}

#[derive(Debug, Default)]
struct Shard {
    accepted: AtomicU64,
    outcomes: [AtomicU64; 6],
}

impl Default for Ledger {
    fn default() -> Self {
        Ledger { shards: std::array::from_fn(|_| CachePadded::default()) }
    }
}

impl Ledger {
    /// Enters a request whose first byte was read.
    pub fn accept(self: &Arc<Self>) -> Ticket {
        self.shard().accepted.fetch_add(1, Ordering::Relaxed);
        Ticket { ledger: Some(self.clone()) }
    }

    /// The sums over all threads. Requests that begin or end during the reading may be in one sum and not yet in
    /// another; `in_flight` is never negative.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        // Outcomes first: what ends after this was accepted before, so the difference cannot be negative.
        for shard in &self.shards {
            let [answered, rejected, shed, client_gone, upstream_failed, killed] = &shard.outcomes;
            totals.answered += answered.load(Ordering::Acquire);
            totals.rejected += rejected.load(Ordering::Acquire);
            totals.shed += shed.load(Ordering::Acquire);
            totals.client_gone += client_gone.load(Ordering::Acquire);
            totals.upstream_failed += upstream_failed.load(Ordering::Acquire);
            totals.killed += killed.load(Ordering::Acquire);
        }
        for shard in &self.shards {
            totals.accepted += shard.accepted.load(Ordering::Acquire);
        }
        totals.in_flight = totals.accepted.saturating_sub(totals.ended());
        totals
    }

    fn shard(&self) -> &Shard {
        &self.shards[thread_number() % SHARDS]
    }
}

/// The counters' sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Totals {
    /// Requests whose first byte was read.
    pub accepted: u64,
    /// Accepted, without an outcome yet.
    pub in_flight: u64,
    /// See [`Outcome::Answered`].
    pub answered: u64,
    /// See [`Outcome::Rejected`].
    pub rejected: u64,
    /// See [`Outcome::Shed`].
    pub shed: u64,
    /// See [`Outcome::ClientGone`].
    pub client_gone: u64,
    /// See [`Outcome::UpstreamFailed`].
    pub upstream_failed: u64,
    /// See [`Outcome::Killed`].
    pub killed: u64,
}

impl Totals {
    /// How many have ended in this outcome.
    pub fn ended_as(&self, outcome: Outcome) -> u64 {
        match outcome {
            Outcome::Answered => self.answered,
            Outcome::Rejected => self.rejected,
            Outcome::Shed => self.shed,
            Outcome::ClientGone => self.client_gone,
            Outcome::UpstreamFailed => self.upstream_failed,
            Outcome::Killed => self.killed,
        }
    }

    /// The sum of all outcomes.
    pub fn ended(&self) -> u64 {
        self.answered + self.rejected + self.shed + self.client_gone + self.upstream_failed + self.killed
    }
}

/// A request in flight. Dropped without an outcome, it was killed.
#[derive(Debug)]
#[must_use = "dropping a ticket counts its request as killed"]
pub struct Ticket {
    ledger: Option<Arc<Ledger>>,
}

impl Ticket {
    /// Enters the outcome.
    pub fn end(mut self, outcome: Outcome) {
        self.enter(outcome);
    }

    fn enter(&mut self, outcome: Outcome) {
        if let Some(ledger) = self.ledger.take() {
            ledger.shard().outcomes[outcome as usize].fetch_add(1, Ordering::Release);
        }
    }
}

impl Drop for Ticket {
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
}
