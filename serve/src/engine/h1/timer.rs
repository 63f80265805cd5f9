//! One timer for all deadlines of a connection.

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use tokio::time::{Instant, Sleep, sleep_until};

/// Wakes at whatever deadline is asked for. It is armed anew only for an earlier deadline, or when it has fired too
/// early for a later one: deadlines that move on with every request cost nothing.
#[derive(Debug)]
pub(super) struct Timer {
    sleep: Option<Pin<Box<Sleep>>>,
    /// Whom it wakes.
    waker: Option<Waker>,
}

impl Timer {
    pub(super) fn new() -> Self {
        Timer { sleep: None, waker: None }
    }

    /// Ready once the deadline has passed.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if deadline < sleep.deadline() {
            sleep.as_mut().reset(deadline);
        }
        if self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) && !sleep.is_elapsed() {
            return Poll::Pending;
        }
        self.waker = Some(cx.waker().clone());
        loop {
            ready!(sleep.as_mut().poll(cx));
            if sleep.deadline() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_moves_either_way_is_met_exactly() {
        let start = Instant::now();
        let mut timer = Timer::new();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(poll_fn(|cx| Poll::Ready(timer.poll(cx, at(10)))).await.is_pending());
        poll_fn(|cx| timer.poll(cx, at(5))).await;
        assert_eq!(Instant::now().duration_since(start).as_secs(), 5);
        poll_fn(|cx| timer.poll(cx, at(7))).await;
        assert_eq!(Instant::now().duration_since(start).as_secs(), 7);
        poll_fn(|cx| timer.poll(cx, at(6))).await;
        assert_eq!(Instant::now().duration_since(start).as_secs(), 7);
    }
}
