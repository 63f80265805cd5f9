//! Something that comes once, and that many tunnels wait for.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::Context;

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::time::Instant;

/// Comes once, and stays.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    since: OnceLock<Instant>,
    notify: Arc<Notify>,
}

impl Signal {
    /// It has come; again it changes nothing.
    pub(crate) fn raise(&self) {
        if self.since.set(Instant::now()).is_ok() {
            self.notify.notify_waiters();
        }
    }

    /// Since when it has been there.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.since.get().copied()
    }
}

/// One who waits for a signal, always in the same task.
#[derive(Debug)]
pub(crate) struct Watch {
    signal: Arc<Signal>,
    waiting: Pin<Box<OwnedNotified>>,
    /// It is in the list of those who wait: that is behind one lock for all, and each goes there once.
    registered: bool,
}

impl Watch {
    pub(crate) fn new(signal: Arc<Signal>) -> Self {
        let waiting = Box::pin(signal.notify.clone().notified_owned());
        Watch { signal, waiting, registered: false }
    }

    /// Since when it has been there; else the task is woken when it comes.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Option<Instant> {
        if !self.registered {
            self.registered = true;
            // Ready only where it has come meanwhile, which is looked at next.
            let _ = self.waiting.as_mut().poll(cx);
        }
        self.signal.since()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use super::*;

    #[tokio::test]
    async fn a_signal_reaches_who_waits_and_who_comes_later() {
        let signal = Arc::<Signal>::default();
        let mut early = Watch::new(signal.clone());
        let waits =
            tokio::spawn(
                async move { poll_fn(|cx| early.poll(cx).map_or(Poll::Pending, Poll::Ready)).await },
            );
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        signal.raise();
        let since = waits.await.unwrap();
        signal.raise();
        let mut late = Watch::new(signal.clone());
        assert_eq!(poll_fn(|cx| Poll::Ready(late.poll(cx))).await, Some(since));
    }
}
