//! The signal to end gracefully.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The signal that a connection is to end gracefully, and since when it has been there. It may be asked again after it
/// has come.
#[derive(Debug)]
pub struct Drain<D> {
    /// `None` once it has come.
    signal: Option<D>,
    since: Option<Instant>,
}

/// For how long of a connection's `drain_idle` its next request is waited for. What is left is for a client that does not
/// close where we have: its next request may have crossed our end, and is to meet no reset.
pub(super) fn waiting(drain_idle: Duration) -> Duration {
    drain_idle - lingering(drain_idle)
}

/// For how long of a connection's `drain_idle` it is still read once our side is closed.
pub(super) fn lingering(drain_idle: Duration) -> Duration {
    drain_idle / 4
}

impl<D: Future<Output = ()> + Unpin> Drain<D> {
    /// Comes when `signal` completes.
    pub fn new(signal: D) -> Self {
        Drain { signal: Some(signal), since: None }
    }

    /// Since when it has been there; else the task is woken when it comes.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Option<Instant> {
        if let Some(signal) = &mut self.signal
            && Pin::new(signal).poll(cx).is_ready()
        {
            self.signal = None;
            self.since = Some(Instant::now());
        }
        self.since
    }

    /// What `future` gives; `None` where it has not by a while after the signal.
    pub(super) async fn grace<T>(&mut self, grace: Duration, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let early = poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.poll(cx).is_some() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        });
        match early.await {
            Some(output) => Some(output),
            // Boxed, so that a connection does not hold a timer for its whole life.
            None => {
                Box::pin(async {
                    tokio::select! {
                        biased;
                        output = future => Some(output),
                        () = sleep(grace) => None,
                    }
                })
                .await
            }
        }
    }
}

impl<D: Future<Output = ()> + Unpin> Future for Drain<D> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match Drain::poll(self.get_mut(), cx) {
            Some(_) => Poll::Ready(()),
            None => Poll::Pending,
        }
    }
}
