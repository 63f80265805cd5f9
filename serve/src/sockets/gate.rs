//! Whether accepting has begun.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Open at first.
#[derive(Debug, Default)]
pub(super) struct Gate {
    shut: AtomicBool,
    opening: Notify,
}

impl Gate {
    pub(super) fn shut(&self) {
        self.shut.store(true, Ordering::Release);
    }

    pub(super) fn open(&self) {
        self.shut.store(false, Ordering::Release);
        self.opening.notify_waiters();
    }

    pub(super) fn is_open(&self) -> bool {
        !self.shut.load(Ordering::Acquire)
    }

    /// Completes when it is open.
    pub(super) async fn opened(&self) {
        if self.is_open() {
            return;
        }
        let opening = self.opening.notified();
        tokio::pin!(opening);
        opening.as_mut().enable();
        if !self.is_open() {
            opening.await;
        }
    }
}
