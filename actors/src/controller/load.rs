//! How busy instances are, from what they say of themselves.

use std::time::Duration;

use playhouse_protocol::control::{Sample, State};
use tokio::time::Instant;

/// An instance and what it has said.
#[derive(Clone, Debug)]
pub struct Sampled {
    /// Its place.
    pub slot: u32,
    /// Where it is in its life.
    pub state: State,
    /// It is active, but has not been heard from within its deadline.
    pub stuck: bool,
    /// Since when it is in its state.
    pub since: Instant,
    /// The last samples with the time at which they came, newest last.
    pub samples: Vec<(Instant, Sample)>,
}

impl Sampled {
    /// Whether it answers clients.
    pub fn serves(&self) -> bool {
        self.state == State::Active && !self.stuck
    }

    /// Whether it has memory of its own to live with, now or soon: it starts, waits or is active, stuck or not.
    pub fn is_kept(&self) -> bool {
        !matches!(self.state, State::Draining | State::Gone)
    }
}

/// How busy one instance is.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Load {
    /// Its place.
    pub slot: u32,
    /// How near it is to where there should be another: from 1 on, another is wanted.
    pub pressure: f64,
    /// Share of the CPU time that its threads could have used, 0 to 1, over the last two seconds or so.
    pub cpu: f64,
    /// How late its runtime woke sleepers up, in microseconds; the worst of its last sample.
    pub lag_us: u64,
    /// Open connections.
    pub connections: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// Clients that it has accepted and not begun with.
    pub waiting: u64,
    /// Clients that the kernel has queued for all instances together, as it saw them: the same for all.
    pub queued: u64,
    /// Clients that the kernel has queued for it alone.
    pub queued_alone: u64,
}

impl Load {
    /// The load of one that serves. `None` until it has sent two samples since it became active, and where its last one
    /// is too old to say anything of now.
    pub fn of(instance: &Sampled, threads: u32, up_at: f64, now: Instant) -> Option<Load> {
        if !instance.serves() {
            return None;
        }
        let age = |at: &Instant| now.saturating_duration_since(*at);
        let samples = instance.samples.iter();
        let recent: Vec<_> = samples.filter(|(at, _)| *at >= instance.since && age(at) <= WINDOW).collect();
        let [first, later @ ..] = &recent[..] else { return None };
        let last = later.last()?;
        if age(&last.0) > FRESH {
            return None;
        }
        let cpu = share(first, later, last, threads);
        let sample = &last.1;
        let mut load = Load {
            slot: instance.slot,
            pressure: 0.0,
            cpu,
            lag_us: sample.lag_us,
            connections: sample.connections,
            in_flight: sample.in_flight,
            waiting: sample.waiting,
            queued: 0,
            queued_alone: sample.queued_alone,
        };
        // Its own: before the queue that it shares with the others is noted.
        load.pressure = Signs::of(&[&load], 1, up_at).pressure();
        load.queued = sample.queued;
        Some(load)
    }
}

/// Between the first sample and the last one, clamped: what other threads of the process have used is no reason for more.
fn share(
    first: &(Instant, Sample),
    later: &[&(Instant, Sample)],
    last: &(Instant, Sample),
    threads: u32,
) -> f64 {
    let used = last.1.cpu_us.saturating_sub(first.1.cpu_us) as f64;
    let complete = last.1.number.checked_sub(first.1.number) == Some(later.len() as u64);
    let wall = if complete {
        // By the instance's own clock: exact, however late the samples came.
        later.iter().map(|(_, sample)| sample.interval_us as f64).sum()
    } else {
        last.0.saturating_duration_since(first.0).as_micros() as f64
    };
    // What is no number, because no time has passed, is no load either.
    (used / (wall * f64::from(threads.max(1)))).clamp(0.0, 1.0).max(0.0)
}

/// What says that there is too much for those that serve. Each is 1 where another instance is wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Signs {
    /// Mean share of CPU time.
    pub mean: f64,
    /// Lag of the middle instance.
    pub lag: Duration,
    /// Clients that wait to be begun with.
    pub backlog: u64,
    cpu_sign: f64,
    lag_sign: f64,
    backlog_sign: f64,
}

impl Signs {
    /// Of those that were measured, at least one, among `serving` that serve.
    pub fn of(loads: &[&Load], serving: u32, up_at: f64) -> Signs {
        let count = loads.len().max(1);
        let mean = loads.iter().map(|load| load.cpu).sum::<f64>() / count as f64;
        // So that one that does blocking work does not speak for all: at least half of them are as late as this.
        let mut lags: Vec<u64> = loads.iter().map(|load| load.lag_us).collect();
        lags.sort_unstable_by(|a, b| b.cmp(a));
        let lag = Duration::from_micros(lags.get(count.div_ceil(2) - 1).copied().unwrap_or(0));
        // What they share is the same queue, which each has looked at; what each has of its own adds up.
        let queued = loads.iter().map(|load| load.queued).max().unwrap_or(0);
        let own = loads.iter().flat_map(|load| [load.queued_alone, load.waiting]);
        let backlog = own.fold(queued, u64::saturating_add);
        Signs {
            mean,
            lag,
            backlog,
            cpu_sign: mean / up_at,
            lag_sign: lag.as_secs_f64() / LAG.as_secs_f64(),
            backlog_sign: backlog as f64 / (BACKLOG * u64::from(serving.max(1))) as f64,
        }
    }

    /// The strongest.
    pub fn pressure(&self) -> f64 {
        self.cpu_sign.max(self.lag_sign).max(self.backlog_sign)
    }

    /// Whether more than one says so: the CPU alone cannot tell just enough from far too much.
    pub fn is_far_over(&self) -> bool {
        [self.cpu_sign, self.lag_sign, self.backlog_sign].iter().filter(|sign| **sign >= 1.0).count() > 1
    }
}

impl std::fmt::Display for Signs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (cpu, lag) = (self.mean * 100.0, self.lag.as_millis());
        write!(f, "CPU {cpu:.0}%, lag {lag}ms, {} waiting", self.backlog)
    }
}

/// The most connections of one instance by those of the mean: 1 is an even spread. 1 where there are none.
pub(super) fn spread(loads: &[Load]) -> f64 {
    let sum: u64 = loads.iter().map(|load| load.connections).sum();
    let most = loads.iter().map(|load| load.connections).max().unwrap_or(0);
    if sum == 0 { 1.0 } else { most as f64 * loads.len() as f64 / sum as f64 }
}

/// How far back a load looks: four or five samples, so that one of them alone changes little.
const WINDOW: Duration = Duration::from_millis(2_600);
/// A last sample that is older than four heartbeats says nothing of now.
const FRESH: Duration = Duration::from_secs(2);
/// A runtime that is so late keeps clients waiting for more than what they came for.
const LAG: Duration = Duration::from_millis(50);
/// Clients per instance that wait to be begun with, at every look for a while: nobody empties the queue.
const BACKLOG: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(500);

    fn sample(number: u64, cpu_us: u64) -> Sample {
        Sample { number, cpu_us, interval_us: 500_000, ..Sample::default() }
    }

    /// An active one with these samples half a second apart, the last just now.
    fn active(samples: Vec<Sample>) -> (Sampled, Instant) {
        let since = Instant::now();
        let samples: Vec<_> =
            samples.into_iter().enumerate().map(|(n, sample)| (since + TICK * n as u32, sample)).collect();
        let now = samples.last().map_or(since, |(at, _)| *at);
        (Sampled { slot: 1, state: State::Active, stuck: false, since, samples }, now)
    }

    fn load(samples: Vec<Sample>, threads: u32) -> Option<Load> {
        let (instance, now) = active(samples);
        Load::of(&instance, threads, 0.5, now)
    }

    #[test]
    fn a_load_is_the_share_of_what_the_threads_could_use() {
        let samples = vec![sample(1, 1_000_000), sample(2, 1_250_000), sample(3, 1_500_000)];
        assert_eq!(load(samples.clone(), 1).unwrap().cpu, 0.5);
        assert_eq!(load(samples.clone(), 2).unwrap().cpu, 0.25);
        assert_eq!(load(samples, 1).unwrap().pressure, 1.0);
    }

    #[test]
    fn the_instance_s_own_clock_counts_unless_samples_are_missing() {
        let slow = Sample { interval_us: 1_000_000, ..sample(2, 500_000) };
        assert_eq!(load(vec![sample(1, 0), slow.clone()], 1).unwrap().cpu, 0.5);
        assert_eq!(load(vec![sample(1, 0), Sample { number: 3, ..slow }], 1).unwrap().cpu, 1.0);
    }

    #[test]
    fn one_sample_is_none() {
        assert_eq!(load(vec![], 1), None);
        assert_eq!(load(vec![sample(1, 0)], 1), None);
    }

    #[test]
    fn what_it_did_before_it_was_active_does_not_count() {
        let (mut instance, now) = active(vec![sample(1, 0), sample(2, 500_000), sample(3, 500_000)]);
        instance.since = now - TICK;
        assert_eq!(Load::of(&instance, 1, 0.5, now).unwrap().cpu, 0.0);
        instance.since = now;
        assert_eq!(Load::of(&instance, 1, 0.5, now), None);
    }

    #[test]
    fn old_samples_and_those_that_do_not_serve_are_not_measured() {
        let (mut instance, now) = active(vec![sample(1, 0), sample(2, 1)]);
        assert!(Load::of(&instance, 1, 0.5, now + FRESH).is_some());
        assert_eq!(Load::of(&instance, 1, 0.5, now + FRESH + Duration::from_millis(1)), None);
        instance.stuck = true;
        assert_eq!(Load::of(&instance, 1, 0.5, now), None);
        instance.stuck = false;
        instance.state = State::Draining;
        assert_eq!(Load::of(&instance, 1, 0.5, now), None);
    }

    #[test]
    fn nonsense_is_clamped() {
        let cpu = |first: Sample, second: Sample| load(vec![first, second], 0).unwrap().cpu;
        assert_eq!(cpu(sample(1, u64::MAX), sample(2, 0)), 0.0);
        assert_eq!(cpu(sample(1, 0), sample(2, u64::MAX)), 1.0);
        assert_eq!(cpu(sample(1, 0), Sample { interval_us: 0, ..sample(2, 0) }), 0.0);
        assert_eq!(cpu(sample(2, 0), sample(1, 100)), 0.0002);
        let all = Sample {
            waiting: u64::MAX,
            queued: u64::MAX,
            queued_alone: u64::MAX,
            lag_us: u64::MAX,
            ..sample(2, 0)
        };
        assert!(load(vec![sample(1, 0), all], 1).unwrap().pressure.is_finite());
    }

    #[test]
    fn one_late_instance_of_three_is_not_a_late_site() {
        let load = |lag_us| Load { lag_us, ..Load::default() };
        let (late, fine) = (load(80_000), load(1_000));
        assert!(Signs::of(&[&late, &fine, &fine], 3, 0.75).pressure() < 1.0);
        assert!(Signs::of(&[&late, &late, &fine], 3, 0.75).pressure() > 1.0);
        assert!(Signs::of(&[&late, &fine], 2, 0.75).pressure() > 1.0);
    }

    #[test]
    fn a_queue_that_instances_share_counts_once_and_what_each_has_of_its_own_adds_up() {
        let load = Load { queued: 20, waiting: 5, ..Load::default() };
        assert_eq!(Signs::of(&[&load, &load], 2, 0.75).backlog, 30);
        let load = Load { queued_alone: 20, waiting: 5, ..Load::default() };
        assert_eq!(Signs::of(&[&load, &load], 2, 0.75).backlog, 50);
    }

    #[test]
    fn what_waits_for_one_instance_alone_is_its_own_pressure() {
        let with = |sample: Sample| load(vec![Sample::default(), Sample { number: 1, ..sample }], 1).unwrap();
        let shared = with(Sample { queued: 2 * BACKLOG, ..sample(1, 0) });
        assert_eq!((shared.pressure, shared.queued), (0.0, 2 * BACKLOG));
        let alone = with(Sample { queued_alone: 2 * BACKLOG, ..sample(1, 0) });
        assert_eq!((alone.pressure, alone.queued_alone), (2.0, 2 * BACKLOG));
    }

    #[test]
    fn a_spread_is_the_most_by_the_mean() {
        let load = |connections| Load { connections, ..Load::default() };
        assert_eq!(spread(&[load(30), load(10)]), 1.5);
        assert_eq!(spread(&[load(0), load(0)]), 1.0);
        assert_eq!(spread(&[]), 1.0);
    }
}
