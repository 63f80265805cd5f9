//! A place: one process of an app, from before its start until nothing of it is left.
//!
//! It outlives the actors that decide about it. What is known of the process is in here, so that whoever comes next goes on
//! where the one before was cut off.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use playhouse_config::model::{self, Address};
use playhouse_serve::upstream::Server;
use rustix::process::Signal;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::output::Output;
use super::{group, launch, leftovers};
use crate::control::process::Process;

/// One process of an app.
#[derive(Debug)]
pub struct Place {
    /// Its number among those of its app, from 1; free again when nothing is left of it.
    pub number: u32,
    /// What it is started by.
    pub settings: Arc<model::App>,
    /// The rolling restart that it was started in or after.
    pub generation: u64,
    /// Where it listens.
    pub address: Address,
    /// The process as requests see it.
    pub server: Arc<Server>,
    /// Its record, for whoever comes after a site that was killed.
    record: Option<PathBuf>,
    state: Mutex<State>,
    /// Tells its actor that there is something to be looked at.
    pub changed: Notify,
    process: OnceLock<Process>,
    reaped: AtomicBool,
    pub(super) output: Mutex<Option<Output>>,
    /// Resident bytes of its group, when they were last looked at.
    pub rss_bytes: AtomicU64,
    /// An actor was started for it.
    pub has_actor: AtomicBool,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Since when it is in this phase.
    since: Instant,
    created: Instant,
    ready_at: Option<Instant>,
    /// Why it is to be replaced by another, where it is.
    outdated: Option<String>,
    /// Why it is to end, where it is.
    asked: Option<String>,
    /// What went wrong, where something did.
    failure: Option<String>,
    unhealthy_since: Option<Instant>,
}

/// Where a process is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not started.
    New,
    /// Being started.
    Launching,
    /// Started, and not ready.
    Starting,
    /// Answers requests.
    Serving,
    /// Gets no more requests, and finishes those that it has.
    Leaving,
    /// Asked to end (TERM).
    Ending,
    /// Nothing is left of it.
    Gone,
}

impl Phase {
    /// In status and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::New | Phase::Launching | Phase::Starting => "starting",
            Phase::Serving => "serving",
            Phase::Leaving | Phase::Ending | Phase::Gone => "leaving",
        }
    }
}

/// What has become of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// What went wrong, where something did; else it was asked to end.
    pub failure: Option<String>,
    /// How long it was ready.
    pub served: Option<Duration>,
}

impl Place {
    /// A place for a process that is still to be started.
    pub fn new(
        number: u32,
        settings: Arc<model::App>,
        generation: u64,
        address: Address,
        server: Arc<Server>,
        directory: Option<&Path>,
    ) -> Arc<Place> {
        let now = Instant::now();
        Arc::new(Place {
            record: directory.map(|directory| leftovers::path(directory, &settings.name, number)),
            number,
            settings,
            generation,
            address,
            server,
            state: Mutex::new(State {
                phase: Phase::New,
                since: now,
                created: now,
                ready_at: None,
                outdated: None,
                asked: None,
                failure: None,
                unhealthy_since: None,
            }),
            changed: Notify::new(),
            process: OnceLock::new(),
            reaped: AtomicBool::new(false),
            output: Mutex::new(None),
            rss_bytes: AtomicU64::new(0),
            has_actor: AtomicBool::new(false),
        })
    }

    /// Where it is in its life.
    pub fn phase(&self) -> Phase {
        self.state.lock().phase
    }

    /// The phase, and for how long.
    pub fn phase_for(&self) -> (Phase, Duration) {
        let state = self.state.lock();
        (state.phase, state.since.elapsed())
    }

    /// Since it was made.
    pub fn age(&self) -> Duration {
        self.state.lock().created.elapsed()
    }

    /// The process, once it was started.
    pub fn process(&self) -> Option<&Process> {
        self.process.get()
    }

    /// Its number, where it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.get().map(Process::pid)
    }

    pub(super) fn enter(&self, phase: Phase) {
        let mut state = self.state.lock();
        state.phase = phase;
        state.since = Instant::now();
        if phase == Phase::Serving {
            state.ready_at = Some(state.since);
        }
    }

    /// Why it is to be replaced by another, where it is; true where it was not before.
    pub(super) fn set_outdated(&self, why: Option<String>) -> bool {
        let mut state = self.state.lock();
        let newly = state.outdated.is_none() && why.is_some();
        state.outdated = why;
        newly
    }

    pub(super) fn is_outdated(&self) -> bool {
        self.state.lock().outdated.is_some()
    }

    /// It is to finish its requests and end.
    pub(super) fn ask(&self, why: &str) {
        self.state.lock().asked.get_or_insert_with(|| why.to_owned());
        self.changed.notify_one();
    }

    /// Why it is to end, where it is.
    pub fn asked(&self) -> Option<String> {
        self.state.lock().asked.clone()
    }

    /// It does not do what it should, and is to end.
    pub(super) fn fail(&self, failure: String) {
        let mut state = self.state.lock();
        if state.asked.is_none() {
            state.failure.get_or_insert(failure);
            state.asked = Some("it has failed".to_owned());
        }
        drop(state);
        self.changed.notify_one();
    }

    /// It has ended though nobody asked it to.
    pub(super) fn note_failure(&self, failure: String) {
        let mut state = self.state.lock();
        if state.asked.is_none() {
            state.failure.get_or_insert(failure);
        }
    }

    /// For how long its health checks have failed.
    pub(super) fn unhealthy_for(&self) -> Duration {
        let mut state = self.state.lock();
        if self.server.is_healthy() {
            state.unhealthy_since = None;
            return Duration::ZERO;
        }
        state.unhealthy_since.get_or_insert_with(Instant::now).elapsed()
    }

    /// What has become of it.
    pub(super) fn account(&self) -> Account {
        let state = self.state.lock();
        let served = state.ready_at.map(|ready| state.since.duration_since(ready));
        Account { failure: state.failure.clone(), served }
    }

    /// Starts the process. Blocking; it goes on if whoever asked for it is gone.
    pub(super) fn launch(&self) {
        match launch::launch(&self.settings, self.number, &self.address) {
            Ok(launched) => {
                if let Some(path) = &self.record {
                    leftovers::note(path, &launched.process);
                }
                *self.output.lock() = Some(launched.output);
                // Nobody else sets it: a place is launched once.
                let _ = self.process.set(launched.process);
                self.enter(Phase::Starting);
            }
            Err(why) => {
                self.note_failure(format!("did not start: {why}"));
                self.enter(Phase::Gone);
            }
        }
        self.changed.notify_one();
    }

    /// Sends its whole group a signal; nothing once it has been reaped.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(process) = self.process.get()
            && !self.reaped.load(Ordering::Acquire)
        {
            group::signal(process.pid(), signal);
        }
    }

    /// Whether others of its group run though it has ended itself.
    pub(super) async fn has_left_others(&self) -> bool {
        let Some(pid) = self.pid() else { return false };
        let usage = tokio::task::spawn_blocking(move || group::usage(&[pid])).await.unwrap_or_default();
        usage.get(&pid).is_some_and(|group| group.members > 0)
    }

    /// Ends what is left of its group, and reaps it. It has ended, or does now.
    pub(super) async fn bury(&self) {
        if let Some(process) = self.process.get() {
            self.signal(Signal::KILL);
            process.ended().await;
            // No signal from here on: its number may be another's.
            self.reaped.store(true, Ordering::Release);
            let status = process.wait().await;
            let status = status.map_or_else(|| "has ended".to_owned(), |status| status.to_string());
            self.note_failure(format!("process {} {status}", process.pid()));
        }
        if let Address::Unix(path) = &self.address {
            remove(path);
        }
        if let Some(path) = &self.record {
            remove(path);
        }
        self.enter(Phase::Gone);
    }

    /// Ends it, whatever it does: TERM, and KILL after its time is over. For when no actor is there to do it.
    pub(super) async fn end(&self) {
        while self.phase() == Phase::Launching {
            self.changed.notified().await;
        }
        if self.phase() == Phase::Gone {
            return;
        }
        self.ask("the site ends");
        if let Some(process) = self.process.get() {
            self.signal(Signal::TERM);
            let _ = tokio::time::timeout(self.settings.stop_timeout, process.ended()).await;
        }
        self.bury().await;
    }
}

impl Drop for Place {
    /// The last resort: nothing that was started stays behind.
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "not removed");
    }
}
