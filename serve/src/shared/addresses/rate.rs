//! A rate of requests: the generic cell rate algorithm, and the clock that processes have in common.

use playhouse_config::model;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// How many requests an address may make. Its whole state is one number: the time at which its next request would be due
/// if they came evenly.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// Nanoseconds from one request to the next.
    interval: u64,
    /// How far ahead of the time its requests may be.
    tolerance: u64,
}

impl Rate {
    pub(super) fn new(rate: model::Rate) -> Self {
        let interval = SECOND / u64::from(rate.per_second.get());
        Rate { interval, tolerance: interval * u64::from(rate.burst.get() - 1) }
    }

    /// The due time after a request at `now`, or how long it comes too early.
    pub(super) fn take(self, due: u64, now: u64) -> Result<u64, u64> {
        // What lies farther ahead was written under another rate, or before the host was started again.
        let due = due.clamp(now, now + self.tolerance + self.interval);
        match (due - now).checked_sub(self.tolerance) {
            None | Some(0) => Ok(due + self.interval),
            Some(early) => Err(early),
        }
    }
}

/// Nanoseconds of the monotonic clock, which are the same in all processes of a host.
#[derive(Debug)]
pub(super) struct Clock {
    /// One moment, as the runtime and as the kernel has it.
    anchor: (Instant, u64),
}

impl Clock {
    pub(super) fn new() -> Self {
        let now = clock_gettime(ClockId::Monotonic);
        let nanoseconds = now.tv_sec.cast_unsigned() * SECOND + now.tv_nsec.cast_unsigned();
        Clock { anchor: (Instant::now(), nanoseconds) }
    }

    pub(super) fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    pub(super) fn at(&self, moment: Instant) -> u64 {
        let (instant, nanoseconds) = self.anchor;
        match moment.checked_duration_since(instant) {
            Some(since) => nanoseconds + since.as_nanos() as u64,
            None => nanoseconds.saturating_sub((instant - moment).as_nanos() as u64),
        }
    }
}

pub(super) const SECOND: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use super::*;

    fn rate(per_second: u32, burst: u32) -> Rate {
        let number = |number| NonZeroU32::new(number).unwrap();
        Rate::new(model::Rate { per_second: number(per_second), burst: number(burst) })
    }

    /// How many of `count` requests at the same time are taken.
    fn at_once(rate: Rate, due: &mut u64, now: u64, count: usize) -> usize {
        let taken = (0..count).filter(|_| rate.take(*due, now).map(|next| *due = next).is_ok());
        taken.count()
    }

    #[test]
    fn a_burst_is_taken_at_once_and_then_the_rate() {
        let rate = rate(10, 5);
        let (mut due, start) = (0, 1000 * SECOND);
        assert_eq!(at_once(rate, &mut due, start, 20), 5);
        assert_eq!(rate.take(due, start), Err(SECOND / 10));
        assert_eq!(at_once(rate, &mut due, start + SECOND / 10, 20), 1);
        assert_eq!(at_once(rate, &mut due, start + SECOND / 10 + SECOND / 20, 20), 0);
        assert_eq!(at_once(rate, &mut due, start + SECOND / 2, 20), 4);
        assert_eq!(
            at_once(rate, &mut due, start + 100 * SECOND, 20),
            5,
            "an idle address has a burst, and no more"
        );
    }

    #[test]
    fn a_due_time_from_before_a_restart_of_the_host_holds_nobody_off_for_longer_than_a_burst() {
        let rate = rate(10, 5);
        assert_eq!(rate.take(u64::MAX, SECOND), Err(SECOND / 10));
        assert!(rate.take(u64::MAX - 1, SECOND).unwrap_err() <= SECOND / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_goes_with_the_runtime() {
        let clock = Clock::new();
        let (before, now) = (Instant::now(), clock.now());
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(clock.now() - now, 3 * SECOND);
        assert_eq!(clock.at(before), now);
        let later = Clock::new();
        assert!(later.at(before) < later.now());
    }
}
