//! Apps in `/v1/status` and `/metrics`.

use std::sync::atomic::Ordering;

use playhouse_serve::metrics::Scrape;

use super::managed::Managed;
use super::place::{Phase, Place};
use super::table::Table;

/// One app.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct AppStatus {
    /// Its name.
    pub name: String,
    /// `serving`, `starting`, `idle` (stopped until somebody comes), or `failing` (none serves, the next try is not yet).
    pub state: String,
    /// So many processes are to serve.
    pub wanted: usize,
    /// Its processes, by place.
    pub processes: Vec<ProcessStatus>,
    /// Processes started so far.
    pub started: u64,
    /// Ends so far that nobody asked for.
    pub failures: u64,
    /// Why the last one failed, while none has become ready since.
    pub last_failure: Option<String>,
    /// Requests that wait for a process to be ready.
    pub waiting: usize,
}

/// One process of an app.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct ProcessStatus {
    /// Its number among those of its app.
    pub place: u32,
    /// The process; 0 before it was started.
    pub pid: u32,
    /// `starting`, `serving` or `leaving`.
    pub state: String,
    /// Since its start, in milliseconds.
    pub age_ms: u64,
    /// Where it listens.
    pub address: String,
    /// What health checks say.
    pub healthy: bool,
    /// Left out for a while because requests to it failed.
    pub ejected: bool,
    /// Requests in flight.
    pub in_flight: usize,
    /// Requests so far.
    pub requests: u64,
    /// Resident memory of it and of what it has started, when that was last looked at.
    pub rss_bytes: u64,
}

impl AppStatus {
    /// All apps of a site.
    pub fn all(table: &Table) -> Vec<AppStatus> {
        table.all().iter().map(|managed| AppStatus::of(managed)).collect()
    }

    fn of(managed: &Managed) -> Self {
        let report = managed.report();
        let places = managed.places();
        let state = match () {
            () if places.iter().any(|place| place.phase() == Phase::Serving) => "serving",
            () if report.idle => "idle",
            () if report.failing => "failing",
            () => "starting",
        };
        AppStatus {
            name: managed.app.name().to_string(),
            state: state.to_owned(),
            wanted: report.wanted,
            processes: places.iter().map(|place| ProcessStatus::of(place)).collect(),
            started: report.started,
            failures: report.failures,
            last_failure: report.last_failure,
            waiting: managed.waiting(),
        }
    }
}

impl ProcessStatus {
    fn of(place: &Place) -> Self {
        let server = &place.server;
        ProcessStatus {
            place: place.number,
            pid: place.pid().unwrap_or(0),
            state: place.phase().as_str().to_owned(),
            age_ms: place.age().as_millis() as u64,
            address: place.address.to_string(),
            healthy: server.is_healthy(),
            ejected: server.is_ejected(),
            in_flight: place.in_flight(),
            requests: place.requests(),
            rss_bytes: place.rss_bytes.load(Ordering::Relaxed),
        }
    }
}

/// The metrics of all apps.
pub fn collect(scrape: &mut Scrape<'_>, table: &Table) {
    for managed in table.all() {
        let app = &**managed.app.name();
        let (report, places) = (managed.report(), managed.places());
        for state in ["starting", "serving", "leaving"] {
            let count = places.iter().filter(|place| place.phase().as_str() == state).count();
            scrape.set("playhouse_app_processes", &[("app", app), ("state", state)], count as f64);
        }
        let memory: u64 = places.iter().map(|place| place.rss_bytes.load(Ordering::Relaxed)).sum();
        let labels = [("app", app)];
        scrape.set("playhouse_app_processes_wanted", &labels, report.wanted as f64);
        scrape.set("playhouse_app_starts_total", &labels, report.started as f64);
        scrape.set("playhouse_app_failures_total", &labels, report.failures as f64);
        scrape.set("playhouse_app_memory_bytes", &labels, memory as f64);
        scrape.set("playhouse_app_waiting_requests", &labels, managed.waiting() as f64);
    }
}
