//! One instance, as its controller knows it.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use playhouse_protocol::control::{
    AppProcess, AppsState, Hello, MAX_DESCRIPTORS, Sample, State, TicketKey, ToController, ToInstance,
};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::capacity::View;
use super::load::Sampled;
use crate::control::link::{Link, LinkError, Receiver, Sender};
use crate::control::process::Process;

/// One instance process. It outlives the actor that keeps it.
#[derive(Debug)]
pub struct Member {
    slot: u32,
    generation: u64,
    adopted: bool,
    process: Process,
    started: Instant,
    ends: Mutex<Option<Linked>>,
    seen: Mutex<Seen>,
    /// The newest revision that the instance has put into force or refused.
    answered: watch::Sender<Answered>,
    changed: Notify,
    /// Not to be activated yet: its controller does not run the site yet.
    held: AtomicBool,
    /// A configuration is tried on it that is not in force.
    on_trial: AtomicBool,
}

/// While it lives, an instance has a configuration that is tried on it. Dropped, its keeper sees to it that it has the
/// one that is in force.
#[derive(Debug)]
pub(super) struct Trial(Arc<Member>);

impl Drop for Trial {
    fn drop(&mut self) {
        self.0.on_trial.store(false, Ordering::Release);
        self.0.changed.notify_one();
    }
}

/// Both directions while there is a link; the second also in the hands of the keeper that reads.
type Linked = (Sender<ToInstance>, Arc<Receiver<ToController>>);

/// The two directions of a link to an instance.
pub(super) type Ends = (Sender<ToInstance>, Receiver<ToController>);

/// What became of the last configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answered {
    /// In force.
    pub revision: u64,
    /// The last that was refused, and why.
    pub refused: Option<(u64, String)>,
    /// The process has ended.
    pub gone: bool,
}

/// What is known of it.
#[derive(Clone, Debug)]
struct Seen {
    state: State,
    since: Instant,
    build: String,
    /// It has said who it is.
    greeted: bool,
    /// When its last message came.
    heard: Instant,
    stuck: bool,
    outdated: bool,
    /// The newest revision that it was sent.
    sent: u64,
    /// The name of the newest of the ticket keys that it has, or was sent.
    ticket_key: Option<String>,
    /// The last samples, newest last.
    samples: VecDeque<(Instant, Sample)>,
    /// What it was told of the apps, over this link.
    apps: u64,
    /// What it holds of them.
    outputs: HashSet<AppProcess>,
    /// When a drain was asked for, and how long it may take.
    drain: Option<(Instant, Duration)>,
    /// Why it is being killed, once it is.
    killed_for: Option<String>,
}

impl Member {
    /// A process that has just been started, or that has said who it is.
    pub(super) fn new(
        slot: u32,
        generation: u64,
        process: Process,
        (sender, receiver): Ends,
        hello: Option<&Hello>,
    ) -> Self {
        let now = Instant::now();
        let revision = hello.map_or(0, |hello| hello.revision);
        let seen = Seen {
            state: hello.and_then(|hello| hello.state).unwrap_or(State::Starting),
            since: now,
            build: hello.map(|hello| hello.build.clone()).unwrap_or_default(),
            greeted: hello.is_some(),
            heard: now,
            stuck: false,
            outdated: false,
            sent: revision,
            ticket_key: hello.and_then(|hello| Some(hello.ticket_keys.first()?.name.clone())),
            samples: VecDeque::new(),
            apps: 0,
            outputs: HashSet::new(),
            drain: None,
            killed_for: None,
        };
        Member {
            slot,
            generation,
            adopted: hello.is_some(),
            process,
            started: now,
            ends: Mutex::new(Some((sender, Arc::new(receiver)))),
            seen: Mutex::new(seen),
            answered: watch::Sender::new(Answered { revision, ..Answered::default() }),
            changed: Notify::new(),
            held: AtomicBool::new(false),
            on_trial: AtomicBool::new(false),
        }
    }

    /// Its place.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Counts the processes of the site.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Its name: in the tree, in metrics and in status.
    pub fn name(&self) -> String {
        name(self.slot)
    }

    /// Whether it was started by a controller before this one.
    pub fn is_adopted(&self) -> bool {
        self.adopted
    }

    /// Its process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// What it runs; empty until it has said so.
    pub fn build(&self) -> String {
        self.seen.lock().build.clone()
    }

    /// Where it is in its life.
    pub fn state(&self) -> State {
        self.seen.lock().state
    }

    /// How long this controller has known it.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// How long it has been in its state.
    pub fn in_state_for(&self) -> Duration {
        self.seen.lock().since.elapsed()
    }

    /// The last samples, newest last.
    pub fn samples(&self) -> Vec<(Instant, Sample)> {
        self.seen.lock().samples.iter().cloned().collect()
    }

    /// What is known of configurations that it was sent.
    pub fn answered(&self) -> watch::Receiver<Answered> {
        self.answered.subscribe()
    }

    /// For decisions about its future.
    pub fn view(&self) -> View {
        let seen = self.seen.lock();
        View {
            slot: self.slot,
            generation: self.generation,
            state: seen.state,
            stuck: seen.stuck,
            outdated: seen.outdated,
            connections: seen.samples.back().map_or(0, |(_, sample)| sample.connections),
        }
    }

    /// For the scaler.
    pub fn sampled(&self) -> Sampled {
        let seen = self.seen.lock();
        Sampled {
            slot: self.slot,
            state: seen.state,
            stuck: seen.stuck,
            since: seen.since,
            samples: seen.samples.iter().cloned().collect(),
        }
    }

    /// Sends a message, without waiting.
    ///
    /// # Errors
    /// Where there is no link just now; the keeper makes another.
    pub(super) fn send(
        &self,
        message: &ToInstance,
        descriptors: Vec<std::os::fd::OwnedFd>,
    ) -> Result<(), LinkError> {
        match &*self.ends.lock() {
            Some((sender, _)) => sender.send(message, descriptors),
            None => Err(LinkError::Closed),
        }
    }

    /// Sends it the keys of session tickets, newest first, unless it has them.
    pub(super) fn give_ticket_keys(&self, keys: Vec<TicketKey>) {
        let newest = keys.first().map(|key| key.name.clone());
        if newest.is_none() || self.seen.lock().ticket_key == newest {
            return;
        }
        // Over the next link otherwise.
        if self.send(&ToInstance::TicketKeys { keys }, Vec::new()).is_ok() {
            self.seen.lock().ticket_key = newest;
        }
    }

    /// Tells it of the apps, unless it knows. `pipes` gives what a process writes to.
    pub(super) fn give_apps(
        &self,
        state: &AppsState,
        pipes: impl Fn(&AppProcess) -> Option<Vec<std::os::fd::OwnedFd>>,
    ) {
        if self.seen.lock().apps == state.generation {
            return;
        }
        let held = self.seen.lock().outputs.clone();
        let lacking: Vec<_> = state.processes.iter().filter(|process| !held.contains(process)).collect();
        for some in lacking.chunks(MAX_DESCRIPTORS / 2) {
            let with: Vec<_> =
                some.iter().filter_map(|process| Some(((*process).clone(), pipes(process)?))).collect();
            let (processes, pipes): (Vec<AppProcess>, Vec<_>) = with.into_iter().unzip();
            let message = ToInstance::AppOutputs { processes: processes.clone() };
            // Before it is said who serves, so that nobody serves whose output would end with the controller.
            if self.send(&message, pipes.into_iter().flatten().collect()).is_err() {
                return;
            }
            self.seen.lock().outputs.extend(processes);
        }
        if self.send(&ToInstance::Apps(state.clone()), Vec::new()).is_ok() {
            let mut seen = self.seen.lock();
            seen.apps = state.generation;
            seen.outputs.retain(|process| state.processes.contains(process));
        }
    }

    /// It is to be replaced.
    pub(super) fn outdate(&self) {
        self.seen.lock().outdated = true;
    }

    /// Cuts it off. Its keeper sees the end, and tidies up.
    pub(super) fn kill(&self, why: &str) {
        let mut seen = self.seen.lock();
        if seen.state != State::Gone {
            seen.killed_for.get_or_insert_with(|| why.to_owned());
            // It may be gone already.
            let _ = self.process.kill(rustix::process::Signal::KILL);
        }
    }

    /// Why it was killed, if it was.
    pub(super) fn killed_for(&self) -> Option<String> {
        self.seen.lock().killed_for.clone()
    }

    /// Notes the state; true where it is another than before.
    pub(super) fn set_state(&self, state: State) -> bool {
        let mut seen = self.seen.lock();
        // Nothing leads back from here.
        let may = match seen.state {
            State::Gone => false,
            State::Draining => state == State::Gone,
            State::Active => matches!(state, State::Draining | State::Gone),
            _ => true,
        };
        if !may || seen.state == state {
            return false;
        }
        seen.state = state;
        seen.since = Instant::now();
        drop(seen);
        if state == State::Gone {
            self.answered.send_modify(|answered| answered.gone = true);
        }
        true
    }

    pub(super) fn note_hello(&self, hello: &Hello) {
        let mut seen = self.seen.lock();
        seen.build = hello.build.clone();
        seen.greeted = true;
    }

    /// Whether it has said who it is.
    pub(super) fn has_greeted(&self) -> bool {
        self.seen.lock().greeted
    }

    /// Notes that it lives; true where it was thought stuck.
    pub(super) fn note_heard(&self) -> bool {
        let mut seen = self.seen.lock();
        seen.heard = Instant::now();
        std::mem::take(&mut seen.stuck)
    }

    pub(super) fn note_sample(&self, sample: Sample) {
        let mut seen = self.seen.lock();
        if seen.samples.len() == SAMPLES {
            seen.samples.pop_front();
        }
        seen.samples.push_back((Instant::now(), sample));
    }

    pub(super) fn note_sent(&self, revision: u64) {
        self.seen.lock().sent = revision;
    }

    pub(super) fn note_configured(&self, revision: u64) {
        self.answered.send_modify(|answered| answered.revision = revision);
    }

    pub(super) fn note_refused(&self, revision: u64, error: String) {
        self.answered.send_modify(|answered| answered.refused = Some((revision, error)));
    }

    pub(super) fn note_drain(&self, deadline: Duration) {
        self.seen.lock().drain = Some((Instant::now(), deadline));
    }

    /// The newest revision that it was sent.
    pub(super) fn sent(&self) -> u64 {
        self.seen.lock().sent
    }

    /// How long it has been silent.
    pub(super) fn silent_for(&self) -> Duration {
        self.seen.lock().heard.elapsed()
    }

    /// Notes that it is stuck; true where that is news.
    pub(super) fn note_stuck(&self) -> bool {
        let mut seen = self.seen.lock();
        seen.state == State::Active && !std::mem::replace(&mut seen.stuck, true)
    }

    /// Whether a drain has taken longer than it may.
    pub(super) fn drain_is_overdue(&self) -> bool {
        let seen = self.seen.lock();
        seen.drain.is_some_and(|(asked, deadline)| asked.elapsed() > deadline + DRAIN_GRACE)
    }

    /// Whether a drain was asked for.
    pub(super) fn is_asked_to_drain(&self) -> bool {
        self.seen.lock().drain.is_some()
    }

    /// Goes on over another link. What was on its way over the one before may be lost.
    pub(super) fn relink(&self, link: Link) -> Arc<Receiver<ToController>> {
        {
            let mut seen = self.seen.lock();
            seen.ticket_key = None;
            seen.apps = 0;
            seen.outputs.clear();
        }
        let (sender, receiver) = link.split();
        let receiver = Arc::new(receiver);
        *self.ends.lock() = Some((sender, receiver.clone()));
        receiver
    }

    pub(super) fn unlink(&self) {
        *self.ends.lock() = None;
    }

    pub(super) fn receiver(&self) -> Option<Arc<Receiver<ToController>>> {
        self.ends.lock().as_ref().map(|(_, receiver)| receiver.clone())
    }

    /// Whether it stays ready, and is not told to serve.
    pub(super) fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    /// Keeps it from being told to serve, or no longer.
    pub fn hold(&self, held: bool) {
        self.held.store(held, Ordering::Release);
        self.changed.notify_one();
    }

    /// Lets a configuration be tried on it.
    pub(super) fn begin_trial(self: &Arc<Self>) -> Trial {
        self.on_trial.store(true, Ordering::Release);
        Trial(self.clone())
    }

    pub(super) fn is_on_trial(&self) -> bool {
        self.on_trial.load(Ordering::Acquire)
    }

    /// Notified when something has to be sent.
    pub(super) fn changed(&self) -> &Notify {
        &self.changed
    }
}

/// The name of the instance in this place.
pub fn name(slot: u32) -> String {
    format!("instance-{slot}")
}

/// A few seconds of heartbeats.
const SAMPLES: usize = 16;

/// What an instance is given beyond its drain's deadline, to end what is left and to count it.
const DRAIN_GRACE: Duration = Duration::from_secs(5);
