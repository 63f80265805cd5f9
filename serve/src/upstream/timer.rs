//! A deadline that is cheap to move.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until};

/// A deadline that is cheap to move. Nearly every deadline of a proxied request is passed long before it is due; so the
/// runtime's timer is left where it was when a deadline moves back, and is only set anew when it has fired too early.
/// It stays with its connection from one request to the next.
#[derive(Debug, Default)]
pub(crate) struct Timer {
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    /// Ready once it is `at`.
    pub(crate) fn poll(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if sleep.deadline() > at {
            sleep.as_mut().reset(at);
        }
        loop {
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if sleep.deadline() >= at {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_moves_is_kept_in_either_direction() {
        let start = Instant::now();
        let mut timer = Timer::default();
        let mut wait = async |seconds| {
            let at = start + Duration::from_secs(seconds);
            poll_fn(|cx| timer.poll(at, cx)).await;
            start.elapsed().as_secs()
        };
        assert_eq!(wait(5).await, 5);
        assert_eq!(wait(9).await, 9);
        let now = Instant::now();
        let mut timer = Timer::default();
        poll_fn(|cx| {
            assert!(timer.poll(now + Duration::from_secs(60), cx).is_pending());
            assert!(timer.poll(now + Duration::from_secs(2), cx).is_pending());
            Poll::Ready(())
        })
        .await;
        poll_fn(|cx| timer.poll(now + Duration::from_secs(3), cx)).await;
        assert_eq!(now.elapsed().as_secs(), 3);
    }
}
