//! Which server is next.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use playhouse_config::model::{self, Balance};

use super::Server;

/// What requests go by. Replaced as a whole whenever a decision changes it.
#[derive(Debug)]
pub struct Snapshot {
    /// The upstream as the site file has it.
    pub settings: Arc<model::Upstream>,
    /// All servers, in the file's order.
    pub all: Vec<Member>,
    /// Those that requests go to: neither unhealthy nor ejected. When that leaves none, it is all of them: a wrong
    /// verdict about every server at once (a broken health path, a network cut seen from here) then costs nothing, and a
    /// right one costs no more than the 502 that would have been the answer anyway.
    pub eligible: Vec<Member>,
    /// Whether `eligible` is all servers because none was eligible.
    pub panic: bool,
    /// Indexes into `eligible`, one round of smooth weighted round robin.
    order: Vec<u16>,
}

/// A server with its share.
#[derive(Clone, Debug)]
pub struct Member {
    /// The server.
    pub server: Arc<Server>,
    /// Its share under either balance.
    pub weight: u32,
}

impl Snapshot {
    pub(super) fn new(settings: Arc<model::Upstream>, all: Vec<Member>) -> Self {
        let mut eligible: Vec<Member> =
            all.iter().filter(|member| member.server.is_eligible()).cloned().collect();
        let panic = eligible.is_empty();
        if panic {
            eligible.clone_from(&all);
        }
        let order = smooth_order(&eligible.iter().map(|member| member.weight).collect::<Vec<_>>());
        Snapshot { settings, all, eligible, panic, order }
    }

    /// Whether a new snapshot of the same servers would be another than this.
    pub(super) fn is_outdated(&self) -> bool {
        let now = || self.all.iter().filter(|member| member.server.is_eligible());
        let none = now().next().is_none();
        if none || self.panic {
            return none != self.panic;
        }
        now().count() != self.eligible.len()
            || now().zip(&self.eligible).any(|(a, b)| !Arc::ptr_eq(&a.server, &b.server))
    }

    pub(super) fn choose(&self, cursor: &AtomicUsize, tried: &[Arc<Server>]) -> Option<Arc<Server>> {
        let place = cursor.fetch_add(1, Ordering::Relaxed);
        if let ([only], []) = (&self.eligible[..], tried) {
            return Some(only.server.clone());
        }
        let round = self.order.iter().cycle().skip(place.checked_rem(self.order.len())?);
        let mut untried = round
            .take(self.order.len())
            .map(|index| &self.eligible[usize::from(*index)])
            .filter(|member| !is_tried(&member.server, tried));
        let first = match untried.next() {
            Some(first) => first,
            None => return self.all.iter().map(|m| &m.server).find(|s| !is_tried(s, tried)).cloned(),
        };
        match self.settings.balance {
            Balance::RoundRobin => Some(first.server.clone()),
            Balance::LeastConnections => Some(self.least_loaded(first, tried).server.clone()),
        }
    }

    /// The fewest requests in flight per weight; `first`, whose turn it is, among equals.
    fn least_loaded<'a>(&'a self, first: &'a Member, tried: &[Arc<Server>]) -> &'a Member {
        let mut best = (first, first.server.in_flight() as u64);
        for member in &self.eligible {
            let load = member.server.in_flight() as u64;
            let lighter = load * u64::from(best.0.weight) < best.1 * u64::from(member.weight);
            if lighter && !is_tried(&member.server, tried) {
                best = (member, load);
            }
        }
        best.0
    }
}

fn is_tried(server: &Arc<Server>, tried: &[Arc<Server>]) -> bool {
    tried.iter().any(|other| Arc::ptr_eq(other, server))
}

/// One round of smooth weighted round robin, as nginx has it: each step adds its weight to every server, takes the one
/// that has most, and takes the sum off it. `a: 5, b: 1, c: 1` gives `a a b a c a a`. Exact as long as the weights,
/// divided by what they have in common, add up to at most [`LONGEST_ROUND`]; scaled down to it beyond.
fn smooth_order(weights: &[u32]) -> Vec<u16> {
    let weights = reduced(weights);
    let total: i64 = weights.iter().sum();
    let mut current = vec![0; weights.len()];
    (0..total)
        .filter_map(|_| {
            current.iter_mut().zip(&weights).for_each(|(current, weight)| *current += weight);
            let mut best = 0;
            for index in 1..current.len() {
                if current[index] > current[best] {
                    best = index;
                }
            }
            *current.get_mut(best)? -= total;
            u16::try_from(best).ok()
        })
        .collect()
}

fn reduced(weights: &[u32]) -> Vec<i64> {
    let gcd = weights.iter().fold(0, |a, b| gcd(a, u64::from(*b))).max(1);
    let reduced: Vec<u64> = weights.iter().map(|weight| u64::from(*weight) / gcd).collect();
    let total: u64 = reduced.iter().sum();
    let scaled = |weight: u64| {
        if total <= LONGEST_ROUND { weight } else { ((weight * LONGEST_ROUND + total / 2) / total).max(1) }
    };
    reduced.into_iter().map(|weight| scaled(weight) as i64).collect()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Keeps a snapshot at some kilobytes whatever the weights.
const LONGEST_ROUND: u64 = 4096;

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::super::group::tests::{model, upstream};
    use super::*;

    fn weighted(weights: &[u32], balance: Balance) -> Arc<super::super::Upstream> {
        let addresses: Vec<String> = (1..=weights.len()).map(|port| format!("127.0.0.1:{port}")).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let mut model = model("u", &addresses);
        for (server, weight) in model.servers.iter_mut().zip(weights) {
            server.weight = NonZeroU32::new(*weight).unwrap();
        }
        model.balance = balance;
        upstream(&model)
    }

    #[test]
    fn the_order_is_smooth() {
        assert_eq!(smooth_order(&[5, 1, 1]), [0, 0, 1, 0, 2, 0, 0]);
        assert_eq!(smooth_order(&[10, 10]), [0, 1]);
        assert_eq!(smooth_order(&[]), Vec::<u16>::new());
    }

    #[test]
    fn weights_are_kept_exactly_over_each_round() {
        let upstream = weighted(&[6, 2, 4], Balance::RoundRobin);
        let snapshot = upstream.snapshot();
        for _ in 0..10 {
            let mut counts = [0; 3];
            for _ in 0..6 {
                let lease = upstream.choose(&snapshot, &[]).unwrap();
                let index = snapshot.all.iter().position(|m| Arc::ptr_eq(&m.server, lease.server())).unwrap();
                counts[index] += 1;
            }
            assert_eq!(counts, [3, 1, 2]);
        }
    }

    #[test]
    fn enormous_weights_are_scaled_and_nobody_is_left_out() {
        let order = smooth_order(&[u32::MAX, 1, u32::MAX]);
        assert!(order.len() as u64 <= LONGEST_ROUND + 3);
        assert_eq!(order.iter().filter(|index| **index == 1).count(), 1);
    }

    #[test]
    fn a_server_that_has_been_tried_is_not_chosen_again() {
        for balance in [Balance::RoundRobin, Balance::LeastConnections] {
            let upstream = weighted(&[3, 1], balance);
            let snapshot = upstream.snapshot();
            let tried = [snapshot.all[0].server.clone()];
            for _ in 0..8 {
                let lease = upstream.choose(&snapshot, &tried).unwrap();
                assert!(Arc::ptr_eq(lease.server(), &snapshot.all[1].server));
            }
            let all: Vec<_> = snapshot.all.iter().map(|member| member.server.clone()).collect();
            assert!(upstream.choose(&snapshot, &all).is_none());
        }
    }

    #[test]
    fn least_connections_evens_out_the_load_per_weight() {
        let upstream = weighted(&[2, 1], Balance::LeastConnections);
        let snapshot = upstream.snapshot();
        let mut leases: Vec<_> = (0..9).map(|_| upstream.choose(&snapshot, &[]).unwrap()).collect();
        let load = |index: usize| snapshot.all[index].server.in_flight();
        assert_eq!((load(0), load(1)), (6, 3));
        leases.retain(|lease| !Arc::ptr_eq(lease.server(), &snapshot.all[1].server));
        leases.extend((0..3).map(|_| upstream.choose(&snapshot, &[]).unwrap()));
        assert_eq!((load(0), load(1)), (6, 3));
        drop(leases);
        assert_eq!((load(0), load(1)), (0, 0));
    }

    #[test]
    fn least_connections_takes_turns_among_idle_servers() {
        let upstream = weighted(&[1, 1], Balance::LeastConnections);
        let snapshot = upstream.snapshot();
        let first = upstream.choose(&snapshot, &[]).unwrap().server().clone();
        let second = upstream.choose(&snapshot, &[]).unwrap().server().clone();
        assert!(!Arc::ptr_eq(&first, &second));
    }
}
