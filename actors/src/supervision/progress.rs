//! Whether an incarnation gets on with its work: read from what it notes itself, nobody asks it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Mailbox depth and progress stamp of the current incarnation. Times are milliseconds of the tree's clock.
#[derive(Default)]
pub(super) struct Progress {
    mailbox: AtomicUsize,
    busy: AtomicBool,
    last_ms: AtomicU64,
    stall_after_ms: AtomicU64,
}

impl Progress {
    /// For a new incarnation.
    pub fn clear(&self, now_ms: u64) {
        self.mailbox.store(0, Ordering::Relaxed);
        self.busy.store(false, Ordering::Relaxed);
        self.note(now_ms);
    }

    /// The work goes on.
    pub fn note(&self, now_ms: u64) {
        self.last_ms.store(now_ms, Ordering::Relaxed);
    }

    /// A message is on its way. One to an idle actor begins to wait now.
    pub fn sent(&self, now_ms: u64) {
        self.mailbox.fetch_add(1, Ordering::Relaxed);
        if !self.busy.load(Ordering::Relaxed) {
            self.note(now_ms);
        }
    }

    /// The message could not be delivered.
    pub fn returned(&self) {
        self.mailbox.fetch_sub(1, Ordering::Relaxed);
    }

    /// The actor takes its next message.
    pub fn received(&self, now_ms: u64) {
        let take = |depth: usize| depth.checked_sub(1);
        let _ = self.mailbox.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        self.busy.store(true, Ordering::Relaxed);
        self.note(now_ms);
    }

    /// The actor is back at its mailbox.
    pub fn idle(&self, now_ms: u64) {
        self.busy.store(false, Ordering::Relaxed);
        self.note(now_ms);
    }

    /// Messages sent and not yet begun.
    pub fn mailbox(&self) -> usize {
        self.mailbox.load(Ordering::Relaxed)
    }

    /// How long it may be without progress; `None` is without end.
    pub fn limit(&self) -> Option<Duration> {
        match self.stall_after_ms.load(Ordering::Relaxed) {
            0 => None,
            millis => Some(Duration::from_millis(millis)),
        }
    }

    pub fn set_limit(&self, limit: Option<Duration>) {
        let millis = limit.map_or(0, |limit| limit.as_millis().max(1) as u64);
        self.stall_after_ms.store(millis, Ordering::Relaxed);
    }

    /// How long it has been without progress although there is work, when that is longer than it may be.
    pub fn stalled(&self, now_ms: u64) -> Option<Duration> {
        let (limit, waiting) = (self.limit()?, self.waiting(now_ms));
        (waiting > limit).then_some(waiting)
    }

    /// How long it has been without progress although there is work.
    pub fn waiting(&self, now_ms: u64) -> Duration {
        let has_work = self.busy.load(Ordering::Relaxed) || self.mailbox() > 0;
        let since = if has_work { self.last_ms.load(Ordering::Relaxed) } else { now_ms };
        Duration::from_millis(now_ms.saturating_sub(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_work_that_stands_still_is_a_stall() {
        let progress = Progress::default();
        progress.clear(0);
        progress.received(0);
        assert_eq!(progress.stalled(10_000), None, "nobody has set a limit");
        progress.set_limit(Some(Duration::from_secs(1)));
        assert_eq!(progress.stalled(1_000), None);
        assert_eq!(progress.stalled(1_001), Some(Duration::from_millis(1_001)));
        progress.note(1_001);
        assert_eq!(progress.stalled(2_000), None);
        progress.idle(2_000);
        assert_eq!(progress.stalled(60_000), None, "idle is not stalled");
        progress.sent(60_000);
        assert_eq!(progress.stalled(61_001), Some(Duration::from_millis(1_001)), "a message waits");
    }
}
