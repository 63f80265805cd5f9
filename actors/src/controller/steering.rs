//! How many of the new clients each instance gets, where a listener has a socket per instance.
//!
//! The kernel chooses at random, which leaves to chance how connections that live long are spread, and an instance that
//! has just started behind for as long as they live. So whoever has fewer gets more.

/// An instance that new clients are sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    /// Its place.
    pub slot: u32,
    /// Its open connections.
    pub connections: u64,
}

/// The slots with their weights, after which `arrivals` new clients would be spread evenly. Nobody gets less than a quarter
/// of an even share, so that it is seen to serve.
///
/// There may come more than is expected, all at once, and then what is behind would be ahead: so at least half of the
/// connections that there are, are expected.
pub(super) fn weights(loads: &[Load], arrivals: u64) -> Vec<(u32, u32)> {
    let count = loads.len() as f64;
    let total = loads.iter().map(|load| load.connections as f64).sum::<f64>();
    let mean = total / count;
    let even = (arrivals as f64).max(total / 2.0).max(1.0) / count;
    let wants = |load: &Load| (even + mean - load.connections as f64).max(even / 4.0);
    let all = loads.iter().map(wants).sum::<f64>();
    // In steps, so that not every connection changes them.
    let weight = |load: &Load| (wants(load) / all * count * STEPS).round().max(1.0) as u32;
    loads.iter().map(|load| (load.slot, weight(load))).collect()
}

/// Of an even share.
const STEPS: f64 = 32.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(connections: &[u64], arrivals: u64) -> Vec<u32> {
        let loads: Vec<_> = (1..)
            .zip(connections)
            .map(|(slot, connections)| Load { slot, connections: *connections })
            .collect();
        weights(&loads, arrivals).into_iter().map(|(_, weight)| weight).collect()
    }

    #[test]
    fn who_has_as_many_as_the_others_gets_as_many() {
        assert_eq!(of(&[0, 0, 0], 0), [32; 3]);
        assert_eq!(of(&[500; 4], 7), [32; 4]);
        assert_eq!(of(&[9], 0), [32]);
        assert!(of(&[], 3).is_empty());
    }

    #[test]
    fn who_has_fewer_gets_more_and_nobody_nothing() {
        let [busy, other, new] = of(&[200, 200, 0], 0)[..] else { panic!("three") };
        assert!(busy == other && new > 3 * busy && busy > 0, "{busy} {other} {new}");
        let least = of(&[1_000_000, 0], 0);
        assert!(least[0] >= 1 && least[1] > 3 * least[0], "{least:?}");
    }

    #[test]
    fn what_is_chance_among_many_that_come_and_go_changes_nothing() {
        assert_eq!(of(&[18, 15, 14, 17], 5_000), [32; 4]);
    }

    #[test]
    fn connections_that_stay_are_spread_more_evenly_than_by_chance() {
        // Each client goes to the middle of what is chosen from, as chance would on the average.
        let mut connections = vec![300.0_f64, 300.0, 0.0];
        for _ in 0..60 {
            let now: Vec<_> = connections.iter().map(|count| *count as u64).collect();
            let weights = of(&now, 20);
            let sum: u32 = weights.iter().sum();
            for (count, weight) in connections.iter_mut().zip(weights) {
                *count += 20.0 * f64::from(weight) / f64::from(sum);
            }
        }
        assert!(connections.iter().all(|count| (count - 600.0).abs() < 60.0), "{connections:?}");
    }
}
