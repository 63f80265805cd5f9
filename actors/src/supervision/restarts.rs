//! How often a supervisor restarts its children, and how soon. Pure decisions over a given time.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// More than `restarts` within `period` end the supervisor: the failure climbs to its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intensity {
    /// How many restarts are borne.
    pub restarts: usize,
    /// Within what time. Also the stable time after which a child's backoff begins anew.
    pub period: Duration,
    /// The delays before the second and later restarts.
    pub backoff: Backoff,
}

impl Default for Intensity {
    fn default() -> Self {
        Intensity { restarts: 10, period: Duration::from_secs(30), backoff: Backoff::default() }
    }
}

/// Exponential delays with jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The delay before the second restart in a row; doubled each time.
    pub min: Duration,
    /// The longest delay.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff { min: Duration::from_millis(20), max: Duration::from_secs(5) }
    }
}

impl Backoff {
    /// The delay before the `row`-th restart in a row (1 is the first), between three quarters and all of its nominal
    /// value; `jitter` is in `0.0..1.0`.
    pub fn delay(&self, row: u32, jitter: f64) -> Duration {
        if row <= 1 {
            return Duration::ZERO;
        }
        let nominal = self.min.saturating_mul(1 << (row - 2).min(20)).min(self.max);
        nominal.mul_f64(0.75 + 0.25 * jitter.clamp(0.0, 1.0))
    }
}

/// What follows from one more failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    RestartAfter(Duration),
    Escalate,
}

/// The failures of a supervisor's children within the period.
#[derive(Debug, Default)]
pub(super) struct History {
    failures: VecDeque<Instant>,
}

/// The failures of one child in a row.
#[derive(Debug, Default)]
pub(super) struct Row {
    count: u32,
    last: Option<Instant>,
}

impl History {
    /// Enters a failure at `now` of the child with this `row`.
    pub fn failed(&mut self, row: &mut Row, intensity: &Intensity, now: Instant, jitter: f64) -> Verdict {
        while self.failures.front().is_some_and(|at| now.duration_since(*at) > intensity.period) {
            self.failures.pop_front();
        }
        self.failures.push_back(now);
        if self.failures.len() > intensity.restarts {
            return Verdict::Escalate;
        }
        if row.last.is_none_or(|at| now.duration_since(at) > intensity.period) {
            row.count = 0;
        }
        row.count = row.count.saturating_add(1);
        row.last = Some(now);
        Verdict::RestartAfter(intensity.backoff.delay(row.count, jitter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTENSITY: Intensity = Intensity {
        restarts: 3,
        period: Duration::from_secs(10),
        backoff: Backoff { min: Duration::from_millis(100), max: Duration::from_millis(300) },
    };

    #[tokio::test(start_paused = true)]
    async fn the_first_crash_restarts_at_once_and_later_ones_wait_longer_up_to_the_most() {
        let backoff = INTENSITY.backoff;
        let delays: Vec<_> = (1..=5).map(|row| backoff.delay(row, 1.0).as_millis()).collect();
        assert_eq!(delays, [0, 100, 200, 300, 300]);
        assert_eq!(backoff.delay(2, 0.0), Duration::from_millis(75));
        assert_eq!(backoff.delay(u32::MAX, 1.0), backoff.max);
    }

    #[tokio::test(start_paused = true)]
    async fn the_intensity_counts_only_failures_within_the_period() {
        let (mut history, mut row) = (History::default(), Row::default());
        let start = Instant::now();
        for second in [0, 1, 2] {
            let now = start + Duration::from_secs(second);
            assert!(matches!(history.failed(&mut row, &INTENSITY, now, 0.5), Verdict::RestartAfter(_)));
        }
        let verdict = history.failed(&mut row, &INTENSITY, start + Duration::from_secs(3), 0.5);
        assert_eq!(verdict, Verdict::Escalate);

        let (mut history, mut row) = (History::default(), Row::default());
        for second in [0, 11, 22, 33, 44] {
            let now = start + Duration::from_secs(second);
            let verdict = history.failed(&mut row, &INTENSITY, now, 0.5);
            assert_eq!(verdict, Verdict::RestartAfter(Duration::ZERO), "stable for longer than the period");
        }
    }
}
