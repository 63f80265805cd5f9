//! One app with its processes: the table that its actors decide about.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use playhouse_config::model;
use playhouse_protocol::control::{AppProcess, AppState};
use playhouse_serve::apps::{App, Expected};
use playhouse_serve::metrics::{Metrics, ServerMetrics};
use playhouse_serve::upstream::Server;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::audience::Audience;
use super::decide::{View, decide};
use super::history::History;
use super::launch;
use super::place::{Phase, Place, Surroundings};
use super::record::fingerprint;

/// One app with its processes.
#[derive(Debug)]
pub struct Managed {
    /// What requests see of it.
    pub app: Arc<App>,
    metrics: Arc<Metrics>,
    /// Those who send requests from other processes, where there are such.
    audience: Option<Arc<Audience>>,
    places: Mutex<Vec<Arc<Place>>>,
    history: Mutex<History>,
    /// Tells its manager that there is something to be looked at.
    pub changed: Notify,
    /// The site file no longer has it.
    removed: AtomicBool,
    /// Keep the counters of a place while no process is in it.
    counters: Mutex<BTreeMap<u32, Arc<ServerMetrics>>>,
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
    pub fn new(app: Arc<App>, metrics: Arc<Metrics>, audience: Option<Arc<Audience>>) -> Managed {
        let scaled = app.settings().processes.min.get() as usize;
        Managed {
            app,
            metrics,
            audience,
            places: Mutex::default(),
            history: Mutex::new(History::new(scaled)),
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

    /// Takes a process into service, or out of it: requests go to those that serve. Gives the generation in which it is so
    /// for those who send requests from other processes.
    pub(super) fn publish(&self) -> u64 {
        // Held, so that of two changes the later is published last.
        let places = self.places.lock();
        let serving = places.iter().filter(|place| place.phase() == Phase::Serving);
        self.app.serve_by(&serving.map(|place| place.server.clone()).collect::<Vec<_>>());
        let generation = self.announce(&places);
        drop(places);
        self.changed.notify_one();
        generation
    }

    /// Says how it is to those who send requests from other processes; the same is not said again.
    fn announce(&self, places: &[Arc<Place>]) -> u64 {
        let Some(audience) = &self.audience else { return 0 };
        let serving = places.iter().filter(|place| place.phase() == Phase::Serving);
        let state = AppState {
            name: self.app.name().to_string(),
            expected: self.app.expected() == Expected::Soon,
            servers: serving.filter_map(|place| place.as_server()).collect(),
        };
        let processes: Vec<AppProcess> = places.iter().filter_map(|place| place.identity()).collect();
        audience.say(self.app.name(), Some((state, processes)))
    }

    /// Takes in a process that was started before this table was. To be called before its actors are there.
    pub(super) fn adopt(&self, place: Arc<Place>) {
        let mut history = self.history.lock();
        history.generation = history.generation.max(place.generation);
        // A rolling restart that was under way goes on.
        history.oldest = history.generation;
        drop(history);
        self.counters.lock().insert(place.number, place.server.metrics().clone());
        place.has_actor.store(true, Ordering::Release);
        self.places.lock().push(place);
    }

    /// A server for the process in this place.
    pub(super) fn server(&self, number: u32, address: playhouse_config::model::Address) -> Arc<Server> {
        let name = format!("{}-{number}", self.app.name());
        Server::named(self.app.upstream().name(), address, &name, &self.metrics)
    }

    /// Somebody in another process has come while no process served.
    pub(super) fn is_wanted_elsewhere(&self) {
        self.note_demand();
        self.changed.notify_one();
    }

    /// Requests that wait for a process, wherever they have come.
    pub fn waiting(&self) -> usize {
        let elsewhere = self.audience.as_ref().map_or(0, |audience| audience.waiting(self.app.name()));
        self.app.waiting() + elsewhere
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
    pub(super) fn step(&self, surroundings: &Surroundings<'_>, jitter: f64) -> Stepped {
        let (settings, now) = (self.app.settings(), Instant::now());
        let fingerprint = fingerprint(&settings);
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
            self.announce(&places);
            stepped.over = places.is_empty();
            return stepped;
        }
        for place in places.iter() {
            let why = history.outdated(place, &settings, &fingerprint, jitter, &mut stepped.told);
            if place.set_outdated(why.clone()) {
                let why = why.unwrap_or_default();
                stepped.told.push(format!("place {} is to be replaced: {why}", place.number));
            }
        }
        let in_flight = places.iter().map(|place| place.in_flight()).sum::<usize>() + self.waiting();
        let requests = places.iter().map(|place| place.requests()).sum();
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
                match self.make(&places, &settings, history.generation, surroundings) {
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
        self.announce(&places);
        stepped
    }

    /// When something is due that nobody tells of.
    pub(super) fn due(&self) -> Option<Instant> {
        self.history.lock().due()
    }

    fn make(
        &self,
        places: &[Arc<Place>],
        settings: &Arc<model::App>,
        generation: u64,
        surroundings: &Surroundings<'_>,
    ) -> std::io::Result<Arc<Place>> {
        let taken = |number: &u32| places.iter().any(|place| place.number == *number);
        // One of so many numbers is free.
        let number = (1..).find(|number| !taken(number)).unwrap_or(u32::MAX);
        let server = self.server(number, launch::address(settings, number, surroundings.directory)?);
        self.counters.lock().insert(number, server.metrics().clone());
        Ok(Place::new(number, settings.clone(), generation, server, surroundings))
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

/// Who comes so long before the next start waits for it.
const SOON: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::super::history::{BUSY, CALM, SETTLED, STABLE};
    use super::*;

    fn managed(fields: &str) -> Managed {
        let text = format!(
            r#"(name: "s", listeners: {{"h": "127.0.0.1:0"}}, apps: {{"blog": (command: ["x"], {fields})}})"#
        );
        let site = playhouse_config::parse(&text, std::path::Path::new("/srv/site.ron")).unwrap();
        let metrics = Arc::new(Metrics::default());
        Managed::new(Arc::new(App::new(&site.apps[0], &metrics)), metrics, None)
    }

    fn nowhere() -> Surroundings<'static> {
        Surroundings { directory: std::path::Path::new("/nowhere"), is_kept: false, audience: None }
    }

    fn step(managed: &Managed) -> Vec<u32> {
        managed.step(&nowhere(), 1.0);
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
        tokio::time::advance(SETTLED).await;
        managed.places()[0].rss_bytes.store(65 << 20, Ordering::Relaxed);
        assert_eq!(step(&managed), [2, 1]);
    }

    /// Has each process come over a limit so long after it is ready; gives from when on each was replaced.
    async fn replaced_after(managed: &Managed, exceed: impl Fn(&Place), ready_for: Duration) -> Vec<u128> {
        step(managed);
        ready(managed);
        let mut delays = Vec::new();
        for _ in 0..5 {
            tokio::time::advance(ready_for).await;
            let old = managed.places()[0].clone();
            exceed(&old);
            let began = Instant::now();
            while step(managed).len() == 1 {
                assert!(old.asked().is_none(), "it goes on meanwhile");
                tokio::time::sleep_until(managed.due().unwrap()).await;
            }
            delays.push(began.elapsed().as_millis());
            ready(managed);
            step(managed);
            end(managed, old.number, None);
            step(managed);
        }
        delays
    }

    #[tokio::test(start_paused = true)]
    async fn what_starts_above_its_limit_is_replaced_less_and_less_often_and_it_is_said() {
        let memory = |place: &Place| place.rss_bytes.store(65 << 20, Ordering::Relaxed);
        let requests = |place: &Place| drop(place.server.lease());
        let in_bounds = |delays: &[u128]| {
            let bounds = [0..1, 100..110, 200..210, 400..410, 800..810];
            delays.iter().zip(bounds).all(|(delay, bounds)| bounds.contains(delay))
        };
        let greedy = managed("max_memory: \"64MiB\"");
        let delays = replaced_after(&greedy, memory, Duration::from_secs(1)).await;
        assert!(in_bounds(&delays), "{delays:?}");
        let busy = managed("max_requests: 1");
        let delays = replaced_after(&busy, requests, Duration::from_millis(200)).await;
        assert!(in_bounds(&delays), "{delays:?}");
        assert_eq!((greedy.report().failures, busy.report().failures), (0, 0));
        // What lasts is replaced at once.
        let grows = managed("max_memory: \"64MiB\"");
        assert_eq!(replaced_after(&grows, memory, SETTLED).await, [0; 5]);
        let used = managed("max_requests: 1");
        assert_eq!(replaced_after(&used, requests, STABLE).await, [0; 5]);
        let said = managed("max_memory: \"64MiB\"");
        step(&said);
        ready(&said);
        memory(&said.places()[0]);
        let told = said.step(&nowhere(), 1.0).told.join("\n");
        assert!(told.contains("max_memory is less than it needs; it is replaced at once"), "{told}");
    }

    #[tokio::test(start_paused = true)]
    async fn of_what_the_site_file_no_longer_has_nothing_is_left() {
        let managed = managed("processes: 2");
        step(&managed);
        managed.set_removed(true);
        assert!(!managed.step(&nowhere(), 1.0).over);
        assert!(managed.places().iter().all(|place| place.asked().is_some()));
        end(&managed, 1, None);
        end(&managed, 2, None);
        assert!(managed.step(&nowhere(), 1.0).over);
    }
}
