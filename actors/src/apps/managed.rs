//! One app with its processes: the table that its actors decide about.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use playhouse_config::model;
use playhouse_serve::apps::{App, Expected};
use playhouse_serve::metrics::{Metrics, ServerMetrics};
use playhouse_serve::upstream::Server;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::decide::{View, decide};
use super::launch;
use super::place::{Phase, Place};
use crate::supervision::Backoff;

/// One app with its processes.
#[derive(Debug)]
pub struct Managed {
    /// What requests see of it.
    pub app: Arc<App>,
    metrics: Arc<Metrics>,
    places: Mutex<Vec<Arc<Place>>>,
    history: Mutex<History>,
    /// Tells its manager that there is something to be looked at.
    pub changed: Notify,
    /// The site file no longer has it.
    removed: AtomicBool,
    /// Keep the counters of a place while no process is in it.
    counters: Mutex<BTreeMap<u32, Arc<ServerMetrics>>>,
}

/// How its processes have done so far.
#[derive(Debug)]
struct History {
    started: u64,
    /// Ends that nobody asked for.
    failures: u64,
    /// Ends in a row of processes that had hardly been ready, if at all.
    in_a_row: u32,
    not_before: Option<Instant>,
    last_failure: Option<String>,
    /// Counts rolling restarts.
    generation: u64,
    /// The oldest that need not be replaced.
    oldest: u64,
    /// Requests to processes that are gone.
    past_requests: u64,
    seen_requests: u64,
    active_at: Instant,
    idle: bool,
    /// Processes that there are to be, between the fewest and the most.
    scaled: usize,
    busy_since: Option<Instant>,
    calm_since: Option<Instant>,
}

/// What [`Managed::step`] has done.
#[derive(Debug, Default)]
pub struct Stepped {
    /// For people.
    pub told: Vec<String>,
    /// Places that nothing is left of.
    pub gone: Vec<u32>,
    /// Nothing is left of an app that the site file no longer has.
    pub over: bool,
}

/// How an app does, for status and metrics.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub started: u64,
    pub failures: u64,
    pub last_failure: Option<String>,
    pub wanted: usize,
    pub idle: bool,
    pub failing: bool,
}

impl Managed {
    /// An app without a process.
    pub fn new(app: Arc<App>, metrics: Arc<Metrics>) -> Managed {
        let scaled = app.settings().processes.min.get() as usize;
        Managed {
            app,
            metrics,
            places: Mutex::default(),
            history: Mutex::new(History {
                started: 0,
                failures: 0,
                in_a_row: 0,
                not_before: None,
                last_failure: None,
                generation: 0,
                oldest: 0,
                past_requests: 0,
                seen_requests: 0,
                active_at: Instant::now(),
                idle: false,
                scaled,
                busy_since: None,
                calm_since: None,
            }),
            changed: Notify::new(),
            removed: AtomicBool::new(false),
            counters: Mutex::default(),
        }
    }

    /// Its processes, by place.
    pub fn places(&self) -> Vec<Arc<Place>> {
        self.places.lock().clone()
    }

    /// Whether the site file no longer has it.
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    pub(super) fn set_removed(&self, removed: bool) {
        self.removed.store(removed, Ordering::Release);
        self.changed.notify_one();
    }

    /// Takes a process into service, or out of it: requests go to those that serve.
    pub(super) fn publish(&self) {
        // Held, so that of two changes the later is published last.
        let places = self.places.lock();
        let serving = places.iter().filter(|place| place.phase() == Phase::Serving);
        self.app.serve_by(&serving.map(|place| place.server.clone()).collect::<Vec<_>>());
        drop(places);
        self.changed.notify_one();
    }

    /// A process is ready: what has failed before it is over.
    pub(super) fn note_ready(&self) {
        let mut history = self.history.lock();
        history.not_before = None;
        history.last_failure = None;
    }

    /// Somebody has come while no process served.
    pub(super) fn note_demand(&self) {
        let mut history = self.history.lock();
        history.idle = false;
        history.active_at = Instant::now();
    }

    /// Has every process that there is replaced, one after another. Gives the number of this restart.
    pub(super) fn restart(&self) -> u64 {
        let mut history = self.history.lock();
        history.generation += 1;
        history.oldest = history.generation;
        let generation = history.generation;
        drop(history);
        self.changed.notify_one();
        generation
    }

    /// What has become of a restart: `None` while it goes on; an error where it was given up.
    pub(super) fn restarted(&self, generation: u64) -> Option<Result<(), String>> {
        let history = self.history.lock();
        if history.oldest < generation {
            let why = history.last_failure.clone().unwrap_or_else(|| "it was given up".to_owned());
            return Some(Err(why));
        }
        let idle = history.idle;
        drop(history);
        let places = self.places();
        let current = |place: &&Arc<Place>| place.generation >= generation && place.phase() == Phase::Serving;
        let before = places.iter().any(|place| place.generation < generation && place.phase() != Phase::Gone);
        let serves = places.iter().any(|place| current(&place)) || idle;
        (!before && serves).then_some(Ok(()))
    }

    /// Decides what is due: takes note of what is gone, and starts and ends processes by what is wanted. New places have no
    /// actor yet. Costs no waiting.
    pub(super) fn step(&self, directory: &Path, record: bool, jitter: f64) -> Stepped {
        let (settings, now) = (self.app.settings(), Instant::now());
        let mut stepped = Stepped::default();
        let mut places = self.places.lock();
        let mut history = self.history.lock();
        places.retain(|place| {
            if place.phase() != Phase::Gone {
                return true;
            }
            stepped.gone.push(place.number);
            history.gone(place, jitter, &mut stepped.told);
            false
        });
        if self.is_removed() {
            self.app.expect(Expected::Nothing);
            places.iter().for_each(|place| place.ask("the site file no longer has the app"));
            stepped.over = places.is_empty();
            return stepped;
        }
        for place in places.iter() {
            let why = history.outdated(place, &settings);
            if place.set_outdated(why.clone()) {
                let why = why.unwrap_or_default();
                stepped.told.push(format!("place {} is to be replaced: {why}", place.number));
            }
        }
        let in_flight =
            places.iter().map(|place| place.server.in_flight()).sum::<usize>() + self.app.waiting();
        let requests = places.iter().map(|place| place.server.requests()).sum();
        // Who has just started has not been idle yet.
        if !history.idle && !places.iter().any(|place| place.phase() == Phase::Serving) {
            history.active_at = now;
        }
        let wanted = history.wanted(&settings, in_flight, requests, now, &mut stepped.told);
        let view = |place: &Arc<Place>| View {
            number: place.number,
            phase: place.phase(),
            outdated: place.is_outdated(),
            asked: place.asked().is_some(),
        };
        let decision = decide(&places.iter().map(view).collect::<Vec<_>>(), wanted);
        for number in decision.leave {
            let leaving = places.iter().find(|place| place.number == number && place.asked().is_none());
            if let Some(place) = leaving {
                place.ask(if wanted == 0 { "it is idle" } else { "it is not needed any more" });
            }
        }
        let waits = history.not_before.is_some_and(|at| at > now);
        if !waits {
            for _ in 0..decision.start {
                match self.make(&places, &settings, history.generation, directory, record) {
                    Ok(place) => {
                        history.started += 1;
                        places.push(place);
                    }
                    Err(error) => {
                        history.failed(format!("did not start: {error}"), None, jitter, &mut stepped.told);
                        break;
                    }
                }
            }
        }
        let coming =
            places.iter().any(|place| place.asked().is_none() && place.phase() != Phase::Gone) || wanted == 0;
        let waits = history.not_before.is_some_and(|at| at > now + SOON);
        self.app.expect(if coming || !waits { Expected::Soon } else { Expected::Nothing });
        stepped
    }

    /// When something is due that nobody tells of.
    pub(super) fn due(&self) -> Option<Instant> {
        self.history.lock().not_before.filter(|at| *at > Instant::now())
    }

    fn make(
        &self,
        places: &[Arc<Place>],
        settings: &Arc<model::App>,
        generation: u64,
        directory: &Path,
        record: bool,
    ) -> std::io::Result<Arc<Place>> {
        let taken = |number: &u32| places.iter().any(|place| place.number == *number);
        // One of so many numbers is free.
        let number = (1..).find(|number| !taken(number)).unwrap_or(u32::MAX);
        let address = launch::address(settings, number, directory)?;
        let name = format!("{}-{number}", settings.name);
        let server = Server::named(self.app.upstream().name(), address.clone(), &name, &self.metrics);
        self.counters.lock().insert(number, server.metrics().clone());
        let directory = record.then_some(directory);
        Ok(Place::new(number, settings.clone(), generation, address, server, directory))
    }

    /// How it does.
    pub fn report(&self) -> Report {
        let history = self.history.lock();
        Report {
            started: history.started,
            failures: history.failures,
            last_failure: history.last_failure.clone(),
            wanted: if history.idle { 0 } else { history.scaled },
            idle: history.idle,
            failing: history.not_before.is_some_and(|at| at > Instant::now()),
        }
    }
}

impl History {
    /// Nothing is left of a process.
    fn gone(&mut self, place: &Place, jitter: f64, told: &mut Vec<String>) {
        self.past_requests += place.server.requests();
        let account = place.account();
        match account.failure {
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

    fn failed(&mut self, why: String, served: Option<Duration>, jitter: f64, told: &mut Vec<String>) {
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
    fn outdated(&self, place: &Place, settings: &model::App) -> Option<String> {
        if place.generation < self.oldest {
            return Some("a restart was asked for".to_owned());
        }
        if !place.settings.same_process(settings) {
            return Some("the site file starts it in another way now".to_owned());
        }
        let requests = place.server.requests();
        if settings.max_requests.is_some_and(|most| requests >= most.get()) {
            return Some(format!("it has had {requests} requests"));
        }
        let rss = place.rss_bytes.load(Ordering::Relaxed);
        if settings.max_memory.is_some_and(|most| rss > most.get()) {
            return Some(format!("it has {} MiB of memory", rss >> 20));
        }
        None
    }

    /// How many processes there are to be.
    fn wanted(
        &mut self,
        settings: &model::App,
        in_flight: usize,
        requests: u64,
        now: Instant,
        told: &mut Vec<String>,
    ) -> usize {
        let requests = self.past_requests + requests;
        if requests != self.seen_requests || in_flight > 0 {
            self.seen_requests = requests;
            self.active_at = now;
            self.idle = false;
        }
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

/// Before the second and later starts in a row of what does not stay.
const BACKOFF: Backoff = Backoff { min: Duration::from_millis(100), max: Duration::from_secs(30) };
/// Who has been ready for so long is started again at once: that is as often as the host can bear.
const STABLE: Duration = Duration::from_secs(1);
/// Who comes so long before the next start waits for it.
const SOON: Duration = Duration::from_secs(1);
/// How long there must be too much to do for one more process,
const BUSY: Duration = Duration::from_secs(1);
/// and too little for one fewer.
const CALM: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    fn managed(fields: &str) -> Managed {
        let text = format!(
            r#"(name: "s", listeners: {{"h": "127.0.0.1:0"}}, apps: {{"blog": (command: ["x"], {fields})}})"#
        );
        let site = playhouse_config::parse(&text, Path::new("/srv/site.ron")).unwrap();
        let metrics = Arc::new(Metrics::default());
        Managed::new(Arc::new(App::new(&site.apps[0], &metrics)), metrics)
    }

    fn step(managed: &Managed) -> Vec<u32> {
        managed.step(Path::new("/nowhere"), false, 1.0);
        managed.places().iter().map(|place| place.number).collect()
    }

    fn end(managed: &Managed, number: u32, failure: Option<&str>) {
        let places = managed.places();
        let place = places.iter().find(|place| place.number == number).unwrap();
        match failure {
            Some(why) => place.note_failure(why.to_owned()),
            None => place.ask("test"),
        }
        place.enter(Phase::Gone);
    }

    fn ready(managed: &Managed) {
        managed.places().iter().for_each(|place| place.enter(Phase::Serving));
        managed.note_ready();
        managed.publish();
    }

    #[tokio::test(start_paused = true)]
    async fn what_crashes_at_once_is_started_less_and_less_often_and_says_why() {
        let managed = managed("processes: 1");
        assert_eq!(step(&managed), [1]);
        let mut delays = Vec::new();
        for _ in 0..4 {
            end(&managed, 1, Some("exit 1"));
            let began = Instant::now();
            while step(&managed).is_empty() {
                assert!(managed.report().failing);
                tokio::time::sleep_until(managed.due().unwrap()).await;
            }
            delays.push(began.elapsed().as_millis());
        }
        let bounds = [0..1, 100..110, 200..210, 400..410];
        assert!(delays.iter().zip(bounds).all(|(delay, bounds)| bounds.contains(delay)), "{delays:?}");
        let report = managed.report();
        assert_eq!((report.failures, report.last_failure.as_deref()), (4, Some("place 1: exit 1")));
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_served_for_a_while_is_started_again_at_once() {
        let managed = managed("processes: 2");
        assert_eq!(step(&managed), [1, 2]);
        for _ in 0..5 {
            ready(&managed);
            tokio::time::advance(STABLE).await;
            end(&managed, 1, Some("killed"));
            assert_eq!(step(&managed), [2, 1]);
            ready(&managed);
            tokio::time::advance(STABLE).await;
            end(&managed, 2, Some("killed"));
            assert_eq!(step(&managed), [1, 2]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_restart_is_given_up_when_the_new_process_fails() {
        let managed = managed("");
        step(&managed);
        ready(&managed);
        let generation = managed.restart();
        assert_eq!(step(&managed), [1, 2]);
        assert_eq!(managed.restarted(generation), None);
        end(&managed, 2, Some("exit 1"));
        assert_eq!(step(&managed), [1]);
        assert_eq!(managed.restarted(generation), Some(Err("place 2: exit 1".into())));
        assert!(managed.places()[0].asked().is_none(), "the old one goes on");

        let managed = self::managed("");
        step(&managed);
        ready(&managed);
        let generation = managed.restart();
        step(&managed);
        ready(&managed);
        step(&managed);
        assert!(managed.places()[0].asked().is_some());
        end(&managed, 1, None);
        assert_eq!(managed.restarted(generation), Some(Ok(())));
        assert_eq!(step(&managed), [2]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_app_is_stopped_and_started_when_somebody_comes() {
        let managed = managed("idle_stop: \"1m\"");
        step(&managed);
        ready(&managed);
        step(&managed);
        tokio::time::advance(Duration::from_secs(59)).await;
        drop(managed.places()[0].server.lease());
        step(&managed);
        tokio::time::advance(Duration::from_secs(59)).await;
        step(&managed);
        assert!(managed.places()[0].asked().is_none());
        tokio::time::advance(Duration::from_secs(1)).await;
        step(&managed);
        assert!(managed.places()[0].asked().is_some() && managed.report().idle);
        end(&managed, 1, None);
        assert!(step(&managed).is_empty());
        managed.note_demand();
        assert_eq!(step(&managed), [1]);
    }

    #[tokio::test(start_paused = true)]
    async fn there_are_more_processes_where_there_is_more_to_do() {
        let managed = managed("processes: (1, 3), busy_at: 2");
        step(&managed);
        ready(&managed);
        let server = managed.places()[0].server.clone();
        let leases: Vec<_> = (0..4).map(|_| server.lease()).collect();
        for wanted in [1, 2, 3, 3] {
            step(&managed);
            assert_eq!(managed.report().wanted, wanted);
            tokio::time::advance(BUSY).await;
            step(&managed);
            ready(&managed);
        }
        drop(leases);
        for wanted in [3, 2, 1, 1] {
            step(&managed);
            assert_eq!(managed.report().wanted, wanted);
            tokio::time::advance(CALM).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_had_enough_requests_or_memory_is_replaced() {
        let managed = managed("max_requests: 2, max_memory: \"64MiB\"");
        step(&managed);
        ready(&managed);
        let place = managed.places()[0].clone();
        drop(place.server.lease());
        assert_eq!(step(&managed), [1]);
        drop(place.server.lease());
        assert_eq!(step(&managed), [1, 2]);
        ready(&managed);
        step(&managed);
        end(&managed, 1, None);
        assert_eq!(step(&managed), [2]);
        managed.places()[0].rss_bytes.store(65 << 20, Ordering::Relaxed);
        assert_eq!(step(&managed), [2, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn of_what_the_site_file_no_longer_has_nothing_is_left() {
        let managed = managed("processes: 2");
        step(&managed);
        managed.set_removed(true);
        assert!(!managed.step(Path::new("/nowhere"), false, 1.0).over);
        assert!(managed.places().iter().all(|place| place.asked().is_some()));
        end(&managed, 1, None);
        end(&managed, 2, None);
        assert!(managed.step(Path::new("/nowhere"), false, 1.0).over);
    }
}
