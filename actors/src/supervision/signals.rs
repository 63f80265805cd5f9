//! What an incarnation is told by other ways than its mailbox: to stop, and faults.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;

use super::Fault;

/// Signals to the current incarnation. Raising one wakes its task.
#[derive(Default)]
pub(super) struct Signals {
    raised: AtomicU8,
    stall_ms: AtomicU64,
    /// Stays here when it is called: who polls registers once, not at every poll.
    waker: Mutex<Option<Waker>>,
    by_operator: AtomicBool,
}

impl Signals {
    /// For a new incarnation.
    pub fn clear(&self) {
        self.raised.store(0, Ordering::Release);
        self.by_operator.store(false, Ordering::Release);
    }

    pub fn stop(&self) {
        self.raise(STOP);
    }

    pub fn panic(&self) {
        self.raise(PANIC);
    }

    pub fn stall(&self, duration: Duration) {
        self.stall_ms.store(duration.as_millis() as u64, Ordering::Relaxed);
        self.raise(STALL | STALLED);
    }

    /// Whether it has been asked to stop.
    pub fn stop_requested(&self) -> bool {
        self.raised.load(Ordering::Acquire) & STOP != 0
    }

    /// Whether a fault waits to be taken. Without one this costs one relaxed load.
    pub fn has_fault(&self) -> bool {
        self.raised.load(Ordering::Relaxed) & (PANIC | STALL) != 0
    }

    pub fn take_fault(&self) -> Option<Fault> {
        let raised = self.raised.fetch_and(!(PANIC | STALL), Ordering::AcqRel);
        if raised & PANIC != 0 {
            return Some(Fault::Panic);
        }
        let millis = self.stall_ms.load(Ordering::Relaxed);
        (raised & STALL != 0).then(|| Fault::Stall(Duration::from_millis(millis)))
    }

    /// Whether a stall that an operator asked for goes on.
    pub fn is_stalled(&self) -> bool {
        self.raised.load(Ordering::Acquire) & STALLED != 0
    }

    pub fn stall_over(&self) {
        self.raised.fetch_and(!STALLED, Ordering::AcqRel);
    }

    /// The incarnation's end, when it comes, is an operator's doing.
    pub fn mark_by_operator(&self) {
        self.by_operator.store(true, Ordering::Release);
    }

    pub fn take_by_operator(&self) -> bool {
        self.by_operator.swap(false, Ordering::AcqRel)
    }

    /// The task to wake from now on. Flags are to be looked at behind this.
    pub fn register(&self, waker: Waker) {
        *self.waker.lock() = Some(waker);
    }

    /// The task is no more.
    pub fn deregister(&self) {
        *self.waker.lock() = None;
    }

    fn raise(&self, signal: u8) {
        self.raised.fetch_or(signal, Ordering::AcqRel);
        let waker = self.waker.lock().clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

const STOP: u8 = 1;
const PANIC: u8 = 2;
const STALL: u8 = 4;
/// Raised with `STALL`, and until the stall is over.
const STALLED: u8 = 8;
