//! How many instances there should be.
//!
//! Pure: the time, what the instances say and what the host has come in, a [`Decision`] goes out. More come quickly and
//! fewer come slowly; after each change that has come into effect, the next one waits for the cool-down.

use std::path::Path;
use std::time::Duration;

use playhouse_config::model::Instances;
use playhouse_protocol::control::State;
use tokio::time::Instant;

use super::cpus;
use super::load::{self, Load, Sampled, Signs};
use super::memory::Memory;

/// What is decided about.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The site's own limits and settings.
    pub limits: Instances,
    /// Threads of an instance.
    pub threads: u32,
    /// How many an operator has asked for; `None` leaves it to the load.
    pub asked: Option<u32>,
    /// How many have been wanted so far: what goes on where nothing has been decided yet.
    pub wanted: u32,
    /// All instances, those that drain included.
    pub instances: Vec<Sampled>,
}

/// What there is for them.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// CPUs that may be used.
    pub cpus: u32,
    /// Memory that is left.
    pub memory: Memory,
}

impl Host {
    /// Reads it. `root` is `/`, but in tests.
    pub fn read(root: &Path) -> Host {
        Host { cpus: cpus::usable(root), memory: Memory::read(root) }
    }
}

/// How many there should be, and why.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Decision {
    /// So many are to be active; always within the site's limits once there was a decision. 0 is none yet.
    pub wanted: u32,
    /// Whether an operator has said so.
    pub asked: bool,
    /// What is so just now, for people.
    pub reason: String,
    /// The last change, and why.
    pub last_change: Option<Change>,
    /// How near those that serve are to where another is wanted: from 1 on, it is.
    pub pressure: f64,
    /// The most connections of one instance by the mean.
    pub spread: f64,
    /// Why no instance can be started now, for people: there is too little memory. An instance that is missing below
    /// `min` is started all the same, so this is never set while fewer than `min` processes are there.
    pub refused: Option<String>,
    /// Memory keeps the number down, or is about to.
    pub memory_pressure: bool,
    /// Memory that is left.
    pub memory: Memory,
    /// How busy each is that was measured.
    pub loads: Vec<Load>,
}

/// A change of the number that is wanted.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Change {
    /// From so many.
    pub from: u32,
    /// To so many.
    pub to: u32,
    /// Why, for people.
    pub reason: String,
}

/// An answer to an operator who has asked for a number that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScaleError {
    /// More than the site file allows.
    #[error("{asked} is beyond max {max}")]
    BeyondMax {
        /// What was asked for.
        asked: u32,
        /// What is allowed.
        max: u32,
    },
    /// Fewer than the site file allows.
    #[error("{asked} is below min {min}")]
    BelowMin {
        /// What was asked for.
        asked: u32,
        /// What is needed.
        min: u32,
    },
}

/// Whether an operator may ask for so many.
///
/// # Errors
/// Outside of the site's limits; then nothing is to change.
pub fn check(asked: u32, limits: &Instances) -> Result<(), ScaleError> {
    let (min, max) = (limits.min.get(), limits.max.get());
    match asked {
        asked if asked > max => Err(ScaleError::BeyondMax { asked, max }),
        asked if asked < min => Err(ScaleError::BelowMin { asked, min }),
        _ => Ok(()),
    }
}

/// Decides, and remembers what a decision rests on.
#[derive(Clone, Debug, Default)]
pub struct Autoscaler {
    wanted: Option<u32>,
    /// The number last wanted was an operator's.
    asked: bool,
    over_since: Option<Instant>,
    under_since: Option<Instant>,
    /// When a load was last measured.
    measured: Option<Instant>,
    /// Less memory is free than must be.
    low_since: Option<Instant>,
    /// When memory last kept the number down.
    pressed: Option<Instant>,
    changed: Option<Changed>,
    last_change: Option<Change>,
    overloaded: Option<Overloaded>,
    /// Resident bytes of the largest instance.
    largest: Option<u64>,
}

/// The last change, on its way into effect.
#[derive(Clone, Copy, Debug)]
struct Changed {
    at: Instant,
    up: bool,
    effective: Option<Instant>,
}

/// So many were once too few for this: what the load was, in CPUs of an instance. While the load is much the same, the
/// number does not go down to them again, whatever else (lag, queues) had made them too few.
#[derive(Clone, Copy, Debug)]
struct Overloaded {
    count: u32,
    demand: f64,
    at: Instant,
}

impl Autoscaler {
    /// The decision for now.
    pub fn decide(&mut self, now: Instant, facts: &Facts, host: &Host) -> Decision {
        let Facts { limits, instances, .. } = facts;
        let (min, max) = (limits.min.get(), limits.max.get());
        let up_at = limits.scaling.up_at;
        let kept = count(instances, Sampled::is_kept);
        let serving = count(instances, Sampled::serves);
        let loads: Vec<Load> =
            instances.iter().filter_map(|one| Load::of(one, facts.threads, up_at, now)).collect();
        let signs = (!loads.is_empty()).then(|| Signs::of(&loads.iter().collect::<Vec<_>>(), serving, up_at));
        let room = self.room(now, facts, host);
        let view = View { now, facts, serving, measured: loads.len() as u32, signs, room, cpus: host.cpus };

        let before = self.wanted;
        let (wanted, reason) = match facts.asked {
            Some(asked) => (asked.clamp(min, max), format!("an operator has asked for {asked}")),
            None => self.by_load(&view),
        };
        if before != Some(wanted) || self.asked != facts.asked.is_some() {
            let before = before.unwrap_or_else(|| count(instances, |one| one.state == State::Active));
            self.note_change(now, before, wanted, &reason, facts.asked.is_some());
        }
        // Below `min`, or where one that is wanted is missing, it is tried: at worst it fails as it would have later.
        let refused = view.refusal().filter(|_| kept >= min);
        if refused.is_some() && kept < wanted {
            self.pressed = Some(now);
        }
        let memory_pressure = self.is_low(now) || self.is_pressed(now);
        Decision {
            wanted,
            asked: self.asked,
            reason,
            last_change: self.last_change.clone(),
            pressure: signs.map_or(0.0, |signs| signs.pressure()),
            spread: load::spread(&loads),
            refused,
            memory_pressure,
            memory: host.memory,
            loads,
        }
    }

    fn by_load(&mut self, view: &View<'_>) -> (u32, String) {
        let Facts { limits, .. } = view.facts;
        let now = view.now;
        let ceiling = view.ceiling();
        // One that was started just now begins with what there was: a controller's successor ends nobody, and what it
        // starts itself, to replace others, is no reason for more.
        let held = self.wanted.unwrap_or(view.facts.wanted);
        let wanted = held.clamp(limits.min.get(), ceiling);
        match self.wanted {
            Some(held) if held > ceiling => return (wanted, format!("{held} are beyond {}", view.bound())),
            Some(held) if held < wanted => return (wanted, format!("{held} are below min {wanted}")),
            Some(_) => {}
            None => return (wanted, "the site starts".to_owned()),
        }
        self.settle(view, wanted);
        let Some(signs) = view.signs else {
            self.under_since = None;
            if self.measured.is_none_or(|at| now.saturating_duration_since(at) > limits.heartbeat_timeout) {
                self.over_since = None;
            }
            return (wanted, "nothing is known of the load yet".to_owned());
        };
        self.measured = Some(now);
        self.look(view, &signs, wanted);

        let over = self.over_since.map(|since| now.saturating_duration_since(since));
        let under = self.under_since.map(|since| now.saturating_duration_since(since));
        let scaling = &limits.scaling;
        let settled = self.is_settled(now, scaling.cooldown);
        let done = self.changed.is_none_or(|changed| changed.effective.is_some());
        let draining = view.facts.instances.iter().any(|one| one.state == State::Draining);
        if self.is_low(now) && done && !draining && wanted > limits.min.get() {
            self.pressed = Some(now);
            return (wanted - 1, format!("{}; one fewer", view.shortage()));
        }
        if over.is_some_and(|over| over >= scaling.up_after) {
            return self.more(view, &signs, wanted, settled);
        }
        if settled && under.is_some_and(|under| under >= scaling.down_after) {
            return (wanted - 1, format!("too little for {:?}: {signs}", scaling.down_after));
        }
        (wanted, signs.to_string())
    }

    /// It has been too much for long enough.
    fn more(&mut self, view: &View<'_>, signs: &Signs, wanted: u32, settled: bool) -> (u32, String) {
        let ceiling = view.ceiling();
        if wanted >= ceiling {
            return (wanted, format!("too much ({signs}), but {wanted} is {}", view.bound()));
        }
        if view.serving < wanted {
            return (wanted, format!("too much ({signs}), but only {} of {wanted} serve", view.serving));
        }
        if !settled {
            return (wanted, format!("too much ({signs}), waiting for the last change to show"));
        }
        let step = if signs.is_far_over() { wanted.div_ceil(2) } else { 1 };
        let step = step.min(ceiling - wanted).min(view.room.unwrap_or(u32::MAX));
        if step == 0 {
            self.pressed = Some(view.now);
            return (wanted, format!("too much ({signs}), but {}", view.shortage()));
        }
        let demand = signs.mean * f64::from(view.serving);
        self.overloaded = Some(Overloaded { count: wanted, demand, at: view.now });
        (wanted + step, format!("too much for {:?}: {signs}", view.facts.limits.scaling.up_after))
    }

    /// Looks whether the last change has come into effect: until then what is measured is not yet what it was for.
    fn settle(&mut self, view: &View<'_>, wanted: u32) {
        let Some(changed) = &mut self.changed else { return };
        if changed.effective.is_some() {
            return;
        }
        (self.over_since, self.under_since, self.low_since) = (None, None, None);
        let served = view.facts.instances.iter().filter(|one| one.serves());
        if !changed.up && view.serving <= wanted {
            changed.effective = Some(view.now);
        } else if changed.up && view.serving >= wanted {
            // From when the new one was active, not from when it was seen.
            let since = served.map(|one| one.since).max().unwrap_or(view.now);
            changed.effective = Some(since.clamp(changed.at, view.now.max(changed.at)));
        } else if view.now.saturating_duration_since(changed.at) > view.facts.limits.ready_timeout {
            // What does not come must not hold up everything else.
            changed.effective = Some(view.now);
        }
    }

    fn is_settled(&self, now: Instant, cooldown: Duration) -> bool {
        self.changed.is_none_or(|changed| {
            changed.effective.is_some_and(|at| now.saturating_duration_since(at) >= cooldown)
        })
    }

    /// Notes since when it has been too much or too little.
    fn look(&mut self, view: &View<'_>, signs: &Signs, wanted: u32) {
        if self.changed.is_some_and(|changed| changed.effective.is_none()) {
            return;
        }
        let scaling = &view.facts.limits.scaling;
        let over = signs.pressure() >= 1.0;
        self.over_since = over.then(|| self.over_since.unwrap_or(view.now));
        let sustained = self
            .over_since
            .is_some_and(|since| view.now.saturating_duration_since(since) >= scaling.up_after);
        let under = !sustained && self.is_under(view, signs, wanted);
        self.under_since = under.then(|| self.under_since.unwrap_or(view.now));
    }

    /// Whether one fewer would do, with room to spare.
    fn is_under(&self, view: &View<'_>, signs: &Signs, wanted: u32) -> bool {
        let limits = &view.facts.limits;
        // Who was not measured may have all the load.
        if wanted <= limits.min.get() || view.measured < view.serving || view.serving > wanted {
            return false;
        }
        let demand = signs.mean * f64::from(view.serving);
        let fewer = wanted - 1;
        let known_as_too_few = self.overloaded.is_some_and(|then| {
            fewer <= then.count
                && demand >= then.demand * MARGIN
                && view.now.saturating_duration_since(then.at) < REMEMBERED
        });
        demand / f64::from(wanted) < limits.scaling.down_at
            && demand / f64::from(fewer) < limits.scaling.up_at * MARGIN
            && !known_as_too_few
    }

    /// For how many more there is memory; `None` is without limit.
    fn room(&mut self, now: Instant, facts: &Facts, host: &Host) -> Option<u32> {
        let sizes =
            facts.instances.iter().filter_map(|one| one.samples.last()).map(|(_, last)| last.rss_bytes);
        self.largest = sizes.max().filter(|&size| size > 0).or(self.largest);
        let must_stay = facts.limits.min_free_memory;
        let Some(available) = host.memory.available().filter(|_| must_stay > 0) else {
            self.low_since = None;
            return None;
        };
        self.low_since = (available < must_stay).then(|| self.low_since.unwrap_or(now));
        if self.low_since.is_some() && self.is_pressed(now) {
            // It goes on, whatever has changed meanwhile.
            self.pressed = Some(now);
        }
        let each = self.largest.unwrap_or(EXPECTED_SIZE).max(1);
        Some((available.saturating_sub(must_stay) / each).try_into().unwrap_or(u32::MAX))
    }

    fn is_low(&self, now: Instant) -> bool {
        self.low_since.is_some_and(|since| now.saturating_duration_since(since) >= MEMORY_AFTER)
    }

    fn is_pressed(&self, now: Instant) -> bool {
        self.pressed.is_some_and(|at| now.saturating_duration_since(at) < MEMORY_AFTER)
    }

    fn note_change(&mut self, now: Instant, from: u32, to: u32, reason: &str, asked: bool) {
        self.wanted = Some(to);
        self.asked = asked;
        (self.over_since, self.under_since, self.low_since) = (None, None, None);
        self.changed = Some(Changed { at: now, up: to > from, effective: None });
        if from != to {
            self.last_change = Some(Change { from, to, reason: reason.to_owned() });
        }
    }
}

/// What one decision is made from.
struct View<'a> {
    now: Instant,
    facts: &'a Facts,
    serving: u32,
    measured: u32,
    signs: Option<Signs>,
    room: Option<u32>,
    cpus: u32,
}

impl View<'_> {
    /// As many as the load may lead to: not more than find a CPU, but `min` in any case.
    fn ceiling(&self) -> u32 {
        let (min, max) = (self.facts.limits.min.get(), self.facts.limits.max.get());
        self.cpus.div_ceil(self.facts.threads.max(1)).clamp(min, max)
    }

    /// What the ceiling is.
    fn bound(&self) -> String {
        let max = self.facts.limits.max.get();
        match self.ceiling() {
            ceiling if ceiling == max => format!("max {max}"),
            ceiling => format!("{ceiling}, as many as have a CPU ({})", self.cpus),
        }
    }

    /// Why none can be started, if so.
    fn refusal(&self) -> Option<String> {
        (self.room == Some(0)).then(|| self.shortage())
    }

    fn shortage(&self) -> String {
        let must_stay = match self.facts.limits.min_free_memory {
            bytes if bytes % (1 << 20) == 0 => format!("{}MiB", bytes >> 20),
            bytes => format!("{}KiB", bytes.div_ceil(1 << 10)),
        };
        format!("memory is short: with another instance less than {must_stay} would stay free")
    }
}

fn count(instances: &[Sampled], which: impl Fn(&Sampled) -> bool) -> u32 {
    instances.iter().filter(|one| which(one)).count() as u32
}

/// Resident bytes of an instance before one was seen.
const EXPECTED_SIZE: u64 = 64 << 20;
/// Too little free memory for so long takes one away. A peak is shorter.
const MEMORY_AFTER: Duration = Duration::from_secs(10);
/// Those that stay are to be so far below what would bring another one.
const MARGIN: f64 = 0.8;
/// How long it is held against a number that it was too few.
const REMEMBERED: Duration = Duration::from_secs(30 * 60);

#[cfg(test)]
mod tests;
