//! How the processes of an app have done so far, and what follows from that: when the next is started, which are to be
//! replaced, and how many there are to be.

use std::sync::atomic::Ordering;
use std::time::Duration;

use playhouse_config::model;
use tokio::time::Instant;

use super::place::Place;
use crate::supervision::Backoff;

/// How its processes have done so far.
#[derive(Debug)]
pub(super) struct History {
    pub(super) started: u64,
    /// Ends that nobody asked for.
    pub(super) failures: u64,
    /// Ends in a row of processes that had hardly been ready, if at all.
    pub(super) in_a_row: u32,
    pub(super) not_before: Option<Instant>,
    pub(super) last_failure: Option<String>,
    /// Processes in a row that have had enough memory or requests hardly after they were ready.
    worn_in_a_row: u32,
    /// Until then what has had enough goes on.
    worn_until: Option<Instant>,
    /// Counts rolling restarts.
    pub(super) generation: u64,
    /// The oldest that need not be replaced.
    pub(super) oldest: u64,
    /// Requests to processes that are gone.
    pub(super) past_requests: u64,
    pub(super) seen_requests: u64,
    pub(super) active_at: Instant,
    pub(super) idle: bool,
    /// Processes that there are to be, between the fewest and the most.
    pub(super) scaled: usize,
    pub(super) busy_since: Option<Instant>,
    pub(super) calm_since: Option<Instant>,
}

impl History {
    /// Of an app that so many processes are to serve, and none does yet.
    pub(super) fn new(scaled: usize) -> Self {
        History {
            started: 0,
            failures: 0,
            in_a_row: 0,
            not_before: None,
            last_failure: None,
            worn_in_a_row: 0,
            worn_until: None,
            generation: 0,
            oldest: 0,
            past_requests: 0,
            seen_requests: 0,
            active_at: Instant::now(),
            idle: false,
            scaled,
            busy_since: None,
            calm_since: None,
        }
    }

    /// Nothing is left of a process.
    pub(super) fn gone(&mut self, place: &Place, jitter: f64, told: &mut Vec<String>) {
        self.past_requests += place.requests();
        let account = place.account();
        match account.failure {
            // Counted, and free of charge.
            Some(why) if account.by_operator => {
                self.failures += 1;
                told.push(format!("place {}: {why} (by an operator)", place.number));
            }
            Some(why) => {
                // Who cannot be replaced goes on as it is.
                if account.served.is_none() && place.generation >= self.oldest && self.oldest > 0 {
                    self.oldest = 0;
                }
                self.failed(format!("place {}: {why}", place.number), account.served, jitter, told);
            }
            None => told.push(format!("place {} has ended", place.number)),
        }
    }

    pub(super) fn failed(
        &mut self,
        why: String,
        served: Option<Duration>,
        jitter: f64,
        told: &mut Vec<String>,
    ) {
        self.failures += 1;
        if served.is_some_and(|served| served >= STABLE) {
            self.in_a_row = 0;
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        let delay = BACKOFF.delay(self.in_a_row, jitter);
        self.not_before = (!delay.is_zero()).then(|| Instant::now() + delay);
        let next = if delay.is_zero() { "at once".to_owned() } else { format!("in {delay:.1?}") };
        told.push(format!("{why}; the next is started {next}"));
        self.last_failure = Some(why);
    }

    /// Why a process is to be replaced, where it is.
    pub(super) fn outdated(
        &mut self,
        place: &Place,
        settings: &model::App,
        fingerprint: &str,
        jitter: f64,
        told: &mut Vec<String>,
    ) -> Option<String> {
        if place.generation < self.oldest {
            return Some("a restart was asked for".to_owned());
        }
        if place.fingerprint != fingerprint {
            return Some("the site file starts it in another way now".to_owned());
        }
        let (why, setting, soon) = worn(place, settings)?;
        if !place.is_worn.swap(true, Ordering::AcqRel) {
            self.note_worn(place, &why, setting, soon, jitter, told);
        }
        // What it does meanwhile it does well; only its successor would be no better.
        self.worn_until.is_none_or(|until| until <= Instant::now()).then_some(why)
    }

    /// A process has had enough. One that has so right after its start is followed by others that have, each of which costs a
    /// start: they come less and less often.
    fn note_worn(
        &mut self,
        place: &Place,
        why: &str,
        setting: &str,
        soon: Duration,
        jitter: f64,
        told: &mut Vec<String>,
    ) {
        let ready_for = place.ready_for().unwrap_or_default();
        if ready_for >= soon {
            self.worn_in_a_row = 0;
            return;
        }
        self.worn_in_a_row = self.worn_in_a_row.saturating_add(1);
        let delay = BACKOFF.delay(self.worn_in_a_row, jitter);
        self.worn_until = (!delay.is_zero()).then(|| Instant::now() + delay);
        let next = if delay.is_zero() { "at once".to_owned() } else { format!("in {delay:.1?}") };
        let number = place.number;
        told.push(format!(
            "place {number}: {why} {ready_for:.1?} after it was ready: {setting} is less than it needs; it is \
             replaced {next}"
        ));
    }

    /// When something is due that nobody tells of.
    pub(super) fn due(&self) -> Option<Instant> {
        let now = Instant::now();
        [self.not_before, self.worn_until].into_iter().flatten().filter(|at| *at > now).min()
    }

    /// How many processes there are to be.
    pub(super) fn wanted(
        &mut self,
        settings: &model::App,
        in_flight: usize,
        requests: u64,
        now: Instant,
        told: &mut Vec<String>,
    ) -> usize {
        let requests = self.past_requests + requests;
        // Fewer are counted where a process is gone that had some.
        if requests > self.seen_requests || in_flight > 0 {
            self.active_at = now;
            self.idle = false;
        }
        self.seen_requests = requests;
        match settings.idle_stop {
            Some(limit) if !self.idle && now.duration_since(self.active_at) >= limit => {
                self.idle = true;
                told.push(format!("stopped after {limit:?} without a request"));
            }
            None => self.idle = false,
            _ => {}
        }
        self.scale(settings, in_flight, now, told);
        if self.idle { 0 } else { self.scaled }
    }

    fn scale(&mut self, settings: &model::App, in_flight: usize, now: Instant, told: &mut Vec<String>) {
        let (min, max) = (settings.processes.min.get() as usize, settings.processes.max.get() as usize);
        let busy_at = settings.busy_at.get() as usize;
        let before = self.scaled;
        self.scaled = before.clamp(min, max);
        if self.scaled < max && in_flight >= busy_at * self.scaled {
            self.calm_since = None;
            if now.duration_since(*self.busy_since.get_or_insert(now)) >= BUSY {
                self.busy_since = None;
                self.scaled += 1;
            }
        } else if self.scaled > min && in_flight * 2 < busy_at * (self.scaled - 1) {
            self.busy_since = None;
            if now.duration_since(*self.calm_since.get_or_insert(now)) >= CALM {
                self.calm_since = Some(now);
                self.scaled -= 1;
            }
        } else {
            (self.busy_since, self.calm_since) = (None, None);
        }
        if self.scaled != before {
            let scaled = self.scaled;
            told.push(format!("{scaled} processes are wanted, with {in_flight} requests in flight"));
        }
    }
}

/// What a process has had enough of, where it has: with the setting that says so, and for how long it should last.
fn worn(place: &Place, settings: &model::App) -> Option<(String, &'static str, Duration)> {
    let requests = place.requests();
    if settings.max_requests.is_some_and(|most| requests >= most.get()) {
        return Some((format!("it has had {requests} requests"), "max_requests", STABLE));
    }
    let rss = place.rss_bytes.load(Ordering::Relaxed);
    if settings.max_memory.is_some_and(|most| rss > most.get()) {
        return Some((format!("it has {} MiB of memory", rss >> 20), "max_memory", SETTLED));
    }
    None
}

/// Before the second and later starts in a row of what does not stay.
const BACKOFF: Backoff = Backoff { min: Duration::from_millis(100), max: Duration::from_secs(30) };
/// Who has been ready for so long is started again at once: that is as often as the host can bear.
pub(super) const STABLE: Duration = Duration::from_secs(1);
/// Who has more memory than it may before that has been too small from the start: programs load what they need over their first
/// seconds, and memory is looked at once a second.
pub(super) const SETTLED: Duration = Duration::from_secs(10);
/// How long there must be too much to do for one more process,
pub(super) const BUSY: Duration = Duration::from_secs(1);
/// and too little for one fewer.
pub(super) const CALM: Duration = Duration::from_secs(30);
