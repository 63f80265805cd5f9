//! Loads over simulated minutes.

use proptest::prelude::*;

use super::super::simulation::{SIZE, Simulation, TICK, limits};
use super::*;

/// A site over which time passes.
struct Run {
    site: Simulation,
    scaler: Autoscaler,
    now: Instant,
    /// Each number that was wanted, with when it began.
    wanted: Vec<(Duration, u32)>,
    began: Instant,
    last: Decision,
}

impl Run {
    fn new(min: u32, max: u32, load: f64) -> Self {
        let now = Instant::now();
        let site = Simulation::new(min, max, load);
        Run {
            site,
            scaler: Autoscaler::default(),
            now,
            wanted: vec![],
            began: now,
            last: Decision::default(),
        }
    }

    /// Lets time pass, and gives the last decision.
    fn pass(&mut self, seconds: u64) -> &Decision {
        for _ in 0..seconds * 2 {
            self.now += TICK;
            self.site.tick(self.now);
            let decision = self.scaler.decide(self.now, &self.site.facts(), &self.site.host());
            let wanted = decision.wanted;
            assert!((self.site.limits.min.get()..=self.site.limits.max.get()).contains(&wanted));
            self.site.want(wanted, decision.refused.is_some(), self.now);
            if self.wanted.last().is_none_or(|(_, last)| *last != wanted) {
                self.wanted.push((self.now - self.began, wanted));
            }
            self.last = decision;
        }
        &self.last
    }

    fn numbers(&self) -> Vec<u32> {
        self.wanted.iter().map(|(_, wanted)| *wanted).collect()
    }
}

#[test]
fn what_a_successor_starts_to_replace_others_is_no_reason_for_more() {
    let mut site = Simulation::new(1, 4, 0.0);
    let mut scaler = Autoscaler::default();
    let now = Instant::now();
    site.want(2, false, now);
    // One of them serves, the other is the first of a roll that has begun before anything was decided.
    site.instances[0].state = State::Active;
    site.instances[1].state = State::Starting;
    let facts = Facts { wanted: 1, ..site.facts() };
    let decision = scaler.decide(now, &facts, &site.host());
    assert_eq!((decision.wanted, decision.last_change), (1, None));
}

#[test]
fn a_site_begins_with_min_and_stays_there_while_idle() {
    let mut run = Run::new(2, 4, 0.0);
    run.pass(600);
    assert_eq!((run.numbers(), run.site.serving()), (vec![2], 2));
}

#[test]
fn a_load_brings_one_more_after_up_after_and_not_before() {
    let mut run = Run::new(1, 4, 0.1);
    run.pass(60);
    run.site.load = 0.85;
    run.pass(2);
    assert_eq!(run.numbers(), [1]);
    let decision = run.pass(5).clone();
    assert_eq!(run.numbers(), [1, 2]);
    let change = decision.last_change.unwrap();
    assert_eq!((change.from, change.to), (1, 2));
    assert!(change.reason.starts_with("too much for 3s: CPU "), "{}", change.reason);
    run.pass(600);
    assert_eq!(run.numbers(), [1, 2], "0.85 is enough for two");
}

#[test]
fn a_short_peak_brings_none() {
    let mut run = Run::new(1, 4, 0.1);
    run.pass(30);
    for _ in 0..20 {
        run.site.load = 0.9;
        run.pass(2);
        run.site.load = 0.1;
        run.pass(4);
    }
    assert_eq!(run.numbers(), [1]);
}

#[test]
fn a_flood_brings_half_as_many_more_each_time() {
    let mut run = Run::new(4, 16, 40.0);
    run.pass(120);
    assert_eq!(run.numbers(), [4, 6, 9, 14, 16]);
    assert!(run.last.reason.ends_with("16 is max 16"), "{}", run.last.reason);
}

#[test]
fn each_change_waits_for_the_cool_down_after_the_new_one_is_active() {
    let mut run = Run::new(1, 8, 8.0);
    run.pass(120);
    for pair in run.wanted[1..].windows(2) {
        assert!(pair[1].0 - pair[0].0 >= Duration::from_millis(10_800), "{:?}", run.wanted);
    }
}

#[test]
fn a_load_that_has_gone_takes_one_away_a_minute() {
    let mut run = Run::new(1, 4, 3.9);
    run.pass(120);
    assert_eq!(run.site.serving(), 4);
    run.site.load = 0.05;
    run.pass(58);
    assert_eq!(run.site.serving(), 4);
    run.pass(6);
    assert_eq!(run.site.serving(), 3);
    run.pass(180);
    assert_eq!(run.site.serving(), 1);
}

#[test]
fn lateness_alone_brings_more_and_is_remembered() {
    let mut run = Run::new(1, 4, 0.1);
    run.site.late_up_to = 1;
    run.pass(20 * 60);
    assert_eq!(run.numbers(), [1, 2], "one of them was late under this load before");
    run.site.load = 0.02;
    run.site.late_up_to = 0;
    run.pass(90);
    assert_eq!(run.numbers(), [1, 2, 1], "but not under this one");
}

#[test]
fn the_load_brings_no_more_than_there_are_cpus_and_an_operator_may() {
    let mut run = Run::new(1, 4, 3.9);
    run.site.cpus = 2;
    run.pass(120);
    assert_eq!(run.numbers(), [1, 2]);
    assert!(run.last.reason.ends_with("but 2 is 2, as many as have a CPU (2)"), "{}", run.last.reason);
    run.site.asked = Some(4);
    run.pass(5);
    assert_eq!(run.site.serving(), 4);
    run.site.asked = None;
    run.pass(5);
    assert_eq!(run.site.serving(), 2);
}

#[test]
fn an_operator_s_number_holds_until_it_is_taken_back() {
    let mut run = Run::new(1, 4, 0.0);
    run.site.asked = Some(3);
    let decision = run.pass(300).clone();
    assert_eq!((run.numbers(), decision.asked), (vec![3], true));
    assert_eq!(decision.reason, "an operator has asked for 3");
    run.site.asked = None;
    run.pass(30);
    assert_eq!(run.numbers(), [3], "the load begins where the operator was");
    run.pass(240);
    assert_eq!(run.numbers(), [3, 2, 1]);
}

#[test]
fn a_number_outside_of_the_limits_is_refused() {
    let limits = limits(2, 4);
    assert_eq!(check(9, &limits).unwrap_err().to_string(), "9 is beyond max 4");
    assert_eq!(check(1, &limits).unwrap_err().to_string(), "1 is below min 2");
    assert!((2..=4).all(|asked| check(asked, &limits).is_ok()));
}

#[test]
fn other_limits_take_effect_at_once() {
    let mut run = Run::new(1, 8, 6.0);
    run.pass(180);
    assert_eq!(run.last.wanted, 8);
    run.site.limits = limits(1, 3);
    run.pass(1);
    assert_eq!(run.last.wanted, 3);
    run.site.limits = limits(5, 6);
    run.pass(1);
    assert_eq!(run.last.wanted, 5);
    assert_eq!(run.last.last_change.as_ref().unwrap().reason, "3 are below min 5");
}

#[test]
fn those_that_are_silent_change_nothing() {
    let mut run = Run::new(1, 4, 1.5);
    run.pass(60);
    let before = run.numbers();
    run.site.silent = true;
    run.site.load = 0.0;
    run.pass(600);
    assert_eq!(run.numbers(), before);
    assert_eq!(run.last.reason, "nothing is known of the load yet");
}

#[test]
fn a_successor_begins_with_those_that_are_there() {
    let mut run = Run::new(1, 4, 2.0);
    run.pass(120);
    let there = run.site.serving();
    assert!(there > 1);
    run.scaler = Autoscaler::default();
    assert_eq!(run.pass(1).wanted, there);
}

#[test]
fn a_crash_under_load_does_not_add_to_what_is_missing() {
    let mut run = Run::new(1, 4, 2.5);
    run.pass(120);
    assert_eq!(run.last.wanted, 4);
    run.site.load = 1.6;
    run.site.instances.truncate(2);
    run.pass(30);
    assert_eq!((run.last.wanted, run.site.serving()), (4, 4));
}

#[test]
fn without_memory_none_is_added_and_it_is_said() {
    let mut run = Run::new(1, 4, 3.9);
    // Room for two, and what is to stay free.
    run.site.memory = Some(2 * SIZE + run.site.limits.min_free_memory + SIZE / 2);
    let decision = run.pass(120).clone();
    assert_eq!(run.numbers(), [1, 2]);
    assert!(decision.memory_pressure);
    assert_eq!(
        decision.refused.as_deref(),
        Some("memory is short: with another instance less than 64MiB would stay free")
    );
    run.site.memory = None;
    run.pass(60);
    assert_eq!(run.site.serving(), 4);
    assert!(!run.last.memory_pressure && run.last.refused.is_none());
}

#[test]
fn memory_that_stays_short_takes_one_away_but_never_below_min() {
    let mut run = Run::new(2, 4, 3.9);
    run.pass(120);
    assert_eq!(run.site.serving(), 4);
    let must_stay = run.site.limits.min_free_memory;
    run.site.memory = Some(4 * SIZE + must_stay - 1);
    run.pass(8);
    assert_eq!(run.site.serving(), 4);
    run.pass(4);
    assert_eq!(run.site.serving(), 3);
    run.pass(120);
    assert_eq!(run.numbers(), [2, 3, 4, 3], "what was given back is enough, but not for another");
    assert!(run.last.memory_pressure);
    run.site.memory = Some(0);
    run.pass(120);
    assert_eq!(run.last.wanted, 2);
    run.site.instances.clear();
    run.pass(5);
    assert_eq!(run.site.serving(), 2, "what is missing below min is started all the same");
}

#[test]
fn memory_pressure_is_said_as_long_as_it_lasts() {
    let mut run = Run::new(1, 2, 1.9);
    run.pass(120);
    assert_eq!(run.site.serving(), 2);
    run.site.memory = Some(0);
    run.pass(12);
    assert_eq!(run.last.wanted, 1);
    for second in 0..60 {
        assert!(run.pass(1).memory_pressure, "{second} s after the last could be taken away");
    }
    run.site.memory = None;
    run.pass(11);
    assert!(!run.last.memory_pressure);
}

#[test]
fn a_guard_that_is_off_does_not_look() {
    let mut run = Run::new(1, 4, 3.9);
    run.site.limits.min_free_memory = 0;
    run.site.memory = Some(0);
    run.pass(120);
    assert_eq!(run.site.serving(), 4);
    assert!(!run.last.memory_pressure);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever constant load, and wherever it begins: up or down for a while, and then still.
    #[test]
    fn a_constant_load_leads_to_one_number(
        min in 1u32..4, more in 0u32..8, load in 0.0f64..10.0, before in 0.0f64..10.0,
        cpus in 1u32..12, noise in proptest::collection::vec(0.9f64..1.1, 7), late_up_to in 0u32..3,
    ) {
        let mut run = Run::new(min, min + more, before);
        (run.site.cpus, run.site.late_up_to) = (cpus, late_up_to);
        run.pass(90);
        run.wanted.clear();
        for second in 0..20 * 60 {
            run.site.load = load * noise[second % noise.len()];
            run.pass(1);
        }
        let numbers = run.numbers();
        let steps: Vec<bool> = numbers.windows(2).map(|pair| pair[1] > pair[0]).collect();
        let turns = steps.windows(2).filter(|pair| pair[0] != pair[1]).count();
        prop_assert!(turns <= 1, "{:?}", run.wanted);
        let quiet = Duration::from_secs(90 + 15 * 60);
        prop_assert!(run.wanted.last().is_none_or(|(at, _)| *at < quiet), "{:?}", run.wanted);
        // Enough, where there may be enough.
        let ceiling = cpus.clamp(min, min + more);
        let serving = run.site.serving();
        prop_assert!(load * 0.9 / f64::from(serving) < 0.8 || serving == ceiling, "{serving}: {:?}", run.wanted);
    }

    /// Whatever instances say, the number is within the limits.
    #[test]
    fn nonsense_stays_within_the_limits(
        samples in proptest::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>()), 1..40),
        asked in proptest::option::of(any::<u32>()), min in 1u32..5, more in 0u32..5, cpus in any::<u32>(),
        threads in any::<u32>(), memory in proptest::option::of(any::<u64>()),
    ) {
        let (mut scaler, mut now) = (Autoscaler::default(), Instant::now());
        let mut site = Simulation::new(min, min + more, 1.0);
        (site.asked, site.cpus) = (asked, cpus);
        for (number, cpu_us, interval_us, lag_us) in samples {
            now += TICK;
            site.tick(now);
            if let Some((_, last)) = site.instances.first_mut().and_then(|one| one.samples.last_mut()) {
                (last.number, last.cpu_us, last.interval_us, last.lag_us) = (number.min(u64::MAX / 2), cpu_us / 2, interval_us, lag_us);
                (last.rss_bytes, last.queued, last.waiting) = (cpu_us, lag_us, number);
            }
            let facts = Facts { threads, ..site.facts() };
            let host = Host { memory: Memory { host: memory, group: None }, ..site.host() };
            let decision = scaler.decide(now, &facts, &host);
            prop_assert!((min..=min + more).contains(&decision.wanted));
            prop_assert!(!decision.pressure.is_nan() && !decision.spread.is_nan());
            site.want(decision.wanted, decision.refused.is_some(), now);
        }
    }
}
