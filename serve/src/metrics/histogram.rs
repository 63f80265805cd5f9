//! Latency histograms with fixed buckets: two relaxed adds per value, no memory that grows, nothing to tend.

use std::time::Duration;

use super::counter::Counter;

/// Upper bounds in microseconds, inclusive; the last bucket has none.
pub(super) const BOUNDS: [u64; 16] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000, 30_000_000, 60_000_000,
];

/// The bounds as they are written, in seconds.
pub(super) const LABELS: [&str; 16] = [
    "0.0005", "0.001", "0.0025", "0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5",
    "10", "30", "60",
];

/// How many values fell into each bucket, and their sum.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    buckets: [Counter; BOUNDS.len() + 1],
    nanoseconds: Counter,
}

impl Histogram {
    /// Enters one value.
    #[inline]
    pub(super) fn record(&self, value: Duration) {
        let nanoseconds = u64::try_from(value.as_nanos()).unwrap_or(u64::MAX);
        // Rounded up, as a bound is inclusive.
        let microseconds = nanoseconds.div_ceil(1_000);
        let bucket = BOUNDS.iter().position(|&bound| microseconds <= bound).unwrap_or(BOUNDS.len());
        self.buckets[bucket].add(1);
        self.nanoseconds.add(nanoseconds);
    }
}

/// What several histograms have counted together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Snapshot {
    /// Not cumulative.
    pub(super) buckets: [u64; BOUNDS.len() + 1],
    pub(super) nanoseconds: u64,
}

impl Snapshot {
    pub(super) fn add(&mut self, histogram: &Histogram) {
        for (sum, bucket) in self.buckets.iter_mut().zip(&histogram.buckets) {
            *sum += bucket.value();
        }
        self.nanoseconds = self.nanoseconds.wrapping_add(histogram.nanoseconds.value());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let histogram = Histogram::default();
        for nanoseconds in [0, 500_000, 500_001, 60_000_000_000, 60_000_000_001] {
            histogram.record(Duration::from_nanos(nanoseconds));
        }
        let mut snapshot = Snapshot::default();
        snapshot.add(&histogram);
        assert_eq!((snapshot.buckets[0], snapshot.buckets[1]), (2, 1));
        assert_eq!((snapshot.buckets[15], snapshot.buckets[16]), (1, 1));
        assert_eq!(snapshot.nanoseconds, 120_001_000_002);
    }

    #[test]
    fn the_labels_are_the_bounds() {
        for (bound, label) in BOUNDS.iter().zip(LABELS) {
            assert_eq!(label.parse::<f64>().unwrap(), *bound as f64 / 1e6);
        }
    }
}
