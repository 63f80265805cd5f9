//! Latencies in log-linear buckets: exact below 64 µs, within 1/32 above.

use std::time::Duration;

use serde::{Serialize, Serializer, ser::SerializeMap};

const LINEAR: u64 = 64;
const SUB_BITS: u32 = 5;
const SUB: usize = 1 << SUB_BITS;
/// Up to 2^40 µs, twelve days; what is longer counts as that.
const BUCKETS: usize = LINEAR as usize + (40 - 6) * SUB;

/// A histogram of durations with microsecond resolution.
#[derive(Clone, Debug)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: vec![0; BUCKETS], count: 0, max: 0 }
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&mut self, value: Duration) {
        let micros = value.as_micros().min(u128::from(u64::MAX)) as u64;
        self.buckets[index(micros)] += 1;
        self.count += 1;
        self.max = self.max.max(micros);
    }

    /// Adds what another one counted.
    pub fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    /// How many durations were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest, exactly.
    pub fn max(&self) -> Duration {
        Duration::from_micros(self.max)
    }

    /// The duration that a share `q` (0 to 1) of all did not exceed, as the upper end of its bucket.
    pub fn quantile(&self, q: f64) -> Duration {
        let rank = ((self.count as f64 * q).ceil() as u64).max(1);
        let mut seen = 0;
        for (i, n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return Duration::from_micros(upper(i).min(self.max));
            }
        }
        self.max()
    }
}

impl Serialize for Histogram {
    /// A map in microseconds: `count`, `p50`, `p90`, `p99`, `p999`, `max`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(6))?;
        map.serialize_entry("count", &self.count)?;
        for (name, q) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)] {
            map.serialize_entry(name, &(self.quantile(q).as_micros() as u64))?;
        }
        map.serialize_entry("max", &self.max)?;
        map.end()
    }
}

fn index(micros: u64) -> usize {
    if micros < LINEAR {
        return micros as usize;
    }
    let exponent = 63 - micros.leading_zeros();
    let sub = (micros >> (exponent - SUB_BITS)) as usize - SUB;
    (LINEAR as usize + (exponent as usize - 6) * SUB + sub).min(BUCKETS - 1)
}

fn upper(index: usize) -> u64 {
    let Some(above) = index.checked_sub(LINEAR as usize) else {
        return index as u64;
    };
    let exponent = 6 + (above / SUB) as u32;
    let sub = (above % SUB + SUB) as u64;
    ((sub + 1) << (exponent - SUB_BITS)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_its_value_and_is_narrow() {
        for micros in
            (0..2_000).chain((0..39).map(|e| (1u64 << e) + 1)).chain((6..39).map(|e| (1u64 << e) - 1))
        {
            let upper = upper(index(micros));
            assert!(upper >= micros, "{micros} in a bucket up to {upper}");
            assert!(upper - micros <= micros / 32, "{micros} in a bucket up to {upper}");
        }
        assert_eq!(index(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_follow_the_ranks() {
        let mut histogram = Histogram::default();
        for micros in 1..=50 {
            histogram.record(Duration::from_micros(micros));
        }
        assert_eq!(histogram.quantile(0.5), Duration::from_micros(25));
        assert_eq!(histogram.quantile(1.0), Duration::from_micros(50));
        assert_eq!(histogram.quantile(0.0), Duration::from_micros(1));
        let mut both = histogram.clone();
        both.merge(&histogram);
        assert_eq!((both.count(), both.quantile(0.5)), (100, Duration::from_micros(25)));
        assert_eq!(Histogram::default().quantile(0.99), Duration::ZERO);
    }
}
