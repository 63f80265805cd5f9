//! A place: one process of an app, from before its start until nothing of it is left.
//!
//! It outlives the actors that decide about it. What is known of the process is in here, so that whoever comes next goes on
//! where the one before was cut off.

mod known;

use std::io;
use std::os::fd::OwnedFd;
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

use super::audience::Audience;
use super::output::Output;
use super::record::{Record, Stage, fingerprint};
use super::{group, launch};
use crate::control::crash::crash_point;
use crate::control::process::Process;

/// One process of an app.
#[derive(Debug)]
pub struct Place {
    /// Its number among those of its app, from 1; free again when nothing is left of it.
    pub number: u32,
    /// What it is started by; of one that was adopted, what its app was like then.
    pub settings: Arc<model::App>,
    /// Of what it was started by.
    pub fingerprint: String,
    /// The rolling restart that it was started in or after.
    pub generation: u64,
    /// Where it listens.
    pub address: Address,
    /// The process as requests see it.
    pub server: Arc<Server>,
    /// Where sockets and records are.
    directory: PathBuf,
    /// Whether it is written down, for whoever comes after this process.
    is_kept: bool,
    /// Those who send it requests from other processes.
    audience: Option<Arc<Audience>>,
    /// Since when it is left alone: what was said when it was taken out of service, and when all had heard it.
    left: Mutex<Left>,
    state: Mutex<State>,
    /// Tells its actor that there is something to be looked at.
    pub changed: Notify,
    process: OnceLock<Process>,
    reaped: AtomicBool,
    pub(super) output: Mutex<Option<Output>>,
    /// The read ends of its standard output and error, for others to hold.
    pipes: OnceLock<[OwnedFd; 2]>,
    /// Resident bytes of its group as [`group::usage`] counts them, when they were last looked at.
    pub rss_bytes: AtomicU64,
    /// An actor was started for it.
    pub has_actor: AtomicBool,
    /// It was seen to have had enough of what is limited, and the time of its successor is settled.
    pub(super) is_worn: AtomicBool,
}

#[derive(Debug, Default)]
struct Left {
    generation: u64,
    reached: Option<Instant>,
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
    /// An operator has killed it.
    by_operator: bool,
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

/// Where the processes of apps live.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// Where sockets and records are.
    pub directory: &'a Path,
    /// Whether processes are written down there.
    pub is_kept: bool,
    /// Those who send requests from other processes, where there are such.
    pub audience: Option<&'a Arc<Audience>>,
}

/// What has become of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// What went wrong, where something did; else it was asked to end.
    pub failure: Option<String>,
    /// How long it was ready.
    pub served: Option<Duration>,
    /// An operator has killed it, to see what it costs.
    pub by_operator: bool,
}

impl Place {
    /// A place for a process that is still to be started.
    pub fn new(
        number: u32,
        settings: Arc<model::App>,
        generation: u64,
        server: Arc<Server>,
        surroundings: &Surroundings<'_>,
    ) -> Arc<Place> {
        let fingerprint = fingerprint(&settings);
        Self::at(Phase::New, number, settings, fingerprint, generation, server, surroundings)
    }

    /// The place of a process that another has started and written down. Without `output`, what it writes goes nowhere.
    pub fn adopt(
        record: &Record,
        process: Process,
        output: Option<[OwnedFd; 2]>,
        settings: Arc<model::App>,
        server: Arc<Server>,
        surroundings: &Surroundings<'_>,
    ) -> Arc<Place> {
        let phase = match record.stage {
            Stage::Starting => Phase::Starting,
            Stage::Serving => Phase::Serving,
            Stage::Leaving => Phase::Leaving,
        };
        let fingerprint = match &output {
            Some(_) => record.fingerprint.clone(),
            // As if it had been started in another way: another is to take its place.
            None => String::new(),
        };
        let Record { place, generation, .. } = record;
        let place = Self::at(phase, *place, settings, fingerprint, *generation, server, surroundings);
        if phase == Phase::Leaving {
            place.ask("it was to end before it was adopted");
        }
        if let Some([stdout, stderr]) = output {
            let duplicates = stdout.try_clone().and_then(|stdout| Ok([stdout, stderr.try_clone()?]));
            match duplicates.and_then(|pipes| Ok((pipes, Output::new(stdout, stderr)?))) {
                Ok((pipes, output)) => {
                    // Nobody else has it yet.
                    let _ = place.pipes.set(pipes);
                    *place.output.lock() = Some(output);
                }
                Err(error) => tracing::warn!(%error, "the output of an app's process cannot be read"),
            }
        }
        place.state.lock().created = began(process.started());
        // Nobody else has it yet.
        let _ = place.process.set(process);
        place
    }

    fn at(
        phase: Phase,
        number: u32,
        settings: Arc<model::App>,
        fingerprint: String,
        generation: u64,
        server: Arc<Server>,
        surroundings: &Surroundings<'_>,
    ) -> Arc<Place> {
        let now = Instant::now();
        let ready_at = matches!(phase, Phase::Serving).then_some(now);
        Arc::new(Place {
            number,
            settings,
            fingerprint,
            generation,
            address: server.address().clone(),
            server,
            directory: surroundings.directory.to_owned(),
            is_kept: surroundings.is_kept,
            audience: surroundings.audience.cloned(),
            left: Mutex::default(),
            pipes: OnceLock::new(),
            state: Mutex::new(State {
                phase,
                since: now,
                created: now,
                ready_at,
                outdated: None,
                asked: None,
                failure: None,
                unhealthy_since: None,
                by_operator: false,
            }),
            changed: Notify::new(),
            process: OnceLock::new(),
            reaped: AtomicBool::new(false),
            output: Mutex::new(None),
            rss_bytes: AtomicU64::new(0),
            has_actor: AtomicBool::new(false),
            is_worn: AtomicBool::new(false),
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
        drop(state);
        if matches!(phase, Phase::Serving | Phase::Leaving) {
            self.note();
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

    /// Kills the process as an operator asks, to see what it costs; `None` where there is none.
    pub(super) fn kill_by_operator(&self) -> Option<u32> {
        let process = self.process.get().filter(|process| !process.has_ended())?;
        self.state.lock().by_operator = true;
        // What it has started is ended once it is known.
        process.kill(Signal::KILL).ok().map(|()| process.pid())
    }

    /// It has ended though nobody asked it to.
    pub(super) fn note_failure(&self, failure: String) {
        let mut state = self.state.lock();
        if state.asked.is_none() {
            state.failure.get_or_insert(failure);
        }
    }

    /// For how long it has been ready, where it is.
    pub(super) fn ready_for(&self) -> Option<Duration> {
        self.state.lock().ready_at.map(|ready| ready.elapsed())
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
        Account { failure: state.failure.clone(), served, by_operator: state.by_operator }
    }

    /// Starts the process. Blocking; it goes on if whoever asked for it is gone.
    pub(super) fn launch(&self) {
        // So that it is looked for, should it be started and not written down.
        self.note();
        match launch::launch(&self.settings, self.number, &self.address, &self.directory) {
            Ok(launched) => {
                crash_point("app-start");
                *self.output.lock() = Some(launched.output);
                // Nobody else sets these: a place is launched once.
                let _ = self.pipes.set(launched.pipes);
                let _ = self.process.set(launched.process);
                self.note();
                crash_point("app-noted");
                self.enter(Phase::Starting);
            }
            Err(why) => {
                self.note_failure(format!("did not start: {why}"));
                self.remove_record();
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
        tokio::task::spawn_blocking(move || group::count(pid)).await.unwrap_or_default() > 0
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
        self.remove_record();
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
    /// The last resort: nothing that was started stays behind. What others send requests to, others adopt.
    fn drop(&mut self) {
        if self.audience.is_none() {
            self.signal(Signal::KILL);
        }
    }
}

/// The time of so many clock ticks after boot.
fn began(ticks: u64) -> Instant {
    let now = Instant::now();
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let uptime = uptime.split_whitespace().next().and_then(|seconds| seconds.parse::<f64>().ok());
    let ago = uptime.unwrap_or(0.0) - ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
    Duration::try_from_secs_f64(ago).ok().and_then(|ago| now.checked_sub(ago)).unwrap_or(now)
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "not removed");
    }
}
