//! The table of a site's instances, and of everything that they share. It outlives every actor of the controller.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use playhouse_config::model;
use playhouse_protocol::control::{MAX_DESCRIPTORS, Passed, SiteText, State, TicketKey, ToInstance};
use playhouse_serve::shared::{Addresses, Board};
use playhouse_serve::sockets::{Bound, Passable};
use tokio::sync::watch;
use tokio::time::Instant;

use super::accounts::Accounts;
use super::capacity::{self, Aim, View};
use super::member::{self, Member};
use super::memo::Memo;
use super::scaler::{Scaled, ScalerTable};
use super::scaling::{self, Decision, Facts, ScaleError};
use super::tickets::TicketHolder;
use crate::control;
use crate::control::crash::{self, crash_point};
use crate::control::link::Link;
use crate::control::process::Process;
use crate::service_manager;
use crate::supervision::{EventKind, Tree};

/// The configuration in force.
#[derive(Debug)]
pub struct InForce {
    /// As it was read.
    pub text: SiteText,
    /// What it means.
    pub site: model::Site,
    /// Its part about instances.
    pub instances: model::Instances,
}

impl InForce {
    /// `None` for a site that is to run in one process.
    pub fn new(text: SiteText, site: model::Site) -> Option<Self> {
        let instances = site.instances.clone()?;
        Some(InForce { text, site, instances })
    }
}

/// The table.
#[derive(Debug)]
pub struct Fleet {
    directory: PathBuf,
    tree: Arc<Tree>,
    members: Mutex<BTreeMap<u32, Arc<Member>>>,
    in_force: ArcSwap<InForce>,
    bound: Bound,
    ticket_keys: Mutex<Vec<TicketKey>>,
    accounts: Accounts,
    board: Board,
    addresses: Addresses,
    memo: Mutex<Memo>,
    /// The newest revision that was given to a configuration, whether it came into force or not.
    revision: AtomicU64,
    wanted: AtomicU64,
    scaler: Arc<ScalerTable>,
    starts: Mutex<Starts>,
    stopping: AtomicBool,
    changed: watch::Sender<u64>,
}

/// What the processes of the site share in its state directory.
#[derive(Debug)]
pub(super) struct Pages {
    pub(super) accounts: Accounts,
    pub(super) board: Board,
    pub(super) addresses: Addresses,
}

/// How starting went lately.
#[derive(Debug, Default)]
struct Starts {
    begun: u64,
    failed_in_a_row: u32,
    not_before: Option<Instant>,
    last_failure: Option<String>,
    refused: Option<String>,
    adopted: u64,
    failures: BTreeMap<&'static str, u64>,
}

/// How starting instances goes, for status and metrics.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct StartReport {
    /// Processes started by this controller.
    pub started: u64,
    /// Processes taken over from a controller before it.
    pub adopted: u64,
    /// Starts that have failed since the last that went well.
    pub failed_in_a_row: u32,
    /// Why the last one failed, while none has gone well since.
    pub last_failure: Option<String>,
    /// Why none is started just now, if so.
    pub refused: Option<String>,
    /// Ends that nobody asked for, by cause.
    pub failures: BTreeMap<&'static str, u64>,
}

impl Fleet {
    pub(super) fn new(
        directory: PathBuf,
        tree: Arc<Tree>,
        in_force: InForce,
        bound: Bound,
        pages: Pages,
        memo: Memo,
    ) -> Self {
        let Pages { accounts, board, addresses } = pages;
        let revision = in_force.text.revision;
        Fleet {
            directory,
            tree,
            members: Mutex::default(),
            wanted: AtomicU64::new(memo.scale.unwrap_or(in_force.instances.min.get()).into()),
            in_force: ArcSwap::from_pointee(in_force),
            bound,
            ticket_keys: Mutex::default(),
            accounts,
            board,
            addresses,
            memo: Mutex::new(memo),
            revision: AtomicU64::new(revision),
            scaler: Arc::default(),
            starts: Mutex::default(),
            stopping: AtomicBool::new(false),
            changed: watch::Sender::new(0),
        }
    }

    /// The state directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// All instances, by their place.
    pub fn members(&self) -> Vec<Arc<Member>> {
        self.members.lock().values().cloned().collect()
    }

    /// The instance of this name.
    pub fn member(&self, name: &str) -> Option<Arc<Member>> {
        self.members.lock().values().find(|member| member.name() == name).cloned()
    }

    /// The configuration in force.
    pub fn in_force(&self) -> Arc<InForce> {
        self.in_force.load_full()
    }

    /// Its part about instances.
    pub fn settings(&self) -> model::Instances {
        self.in_force.load().instances.clone()
    }

    /// The listening sockets.
    pub fn bound(&self) -> &Bound {
        &self.bound
    }

    /// The ledger's pages.
    pub fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// The gauges that acceptors share.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// How many instances there are to be.
    pub fn wanted(&self) -> u32 {
        self.wanted.load(Ordering::Acquire) as u32
    }

    /// Sets how many instances there are to be; within what the site says.
    pub(super) fn want_so_many(&self, wanted: u32) {
        let settings = self.settings();
        let wanted = wanted.clamp(settings.min.get(), settings.max.get());
        if self.wanted.swap(wanted.into(), Ordering::AcqRel) != u64::from(wanted) {
            self.notify();
        }
    }

    /// How many instances an operator has asked for.
    pub fn scale(&self) -> Option<u32> {
        self.memo.lock().scale
    }

    /// Notes how many instances an operator asks for; `None` leaves it to the scaler again.
    ///
    /// # Errors
    /// It is not within `min` and `max`, or cannot be written down.
    pub fn set_scale(&self, scale: Option<u32>) -> Result<(), SetScaleError> {
        if let Some(asked) = scale {
            scaling::check(asked, &self.settings())?;
        }
        self.remember(|memo| memo.scale = scale)?;
        self.scaler.wake();
        Ok(())
    }

    /// What the scaler goes by, and what it has decided.
    pub fn scaler(&self) -> &Arc<ScalerTable> {
        &self.scaler
    }

    /// No start while this is said: there is no memory for another process.
    fn refuse_starts(&self, why: Option<String>) {
        let mut starts = self.starts.lock();
        if starts.refused != why {
            starts.refused = why;
            drop(starts);
            self.notify();
        }
    }

    /// How starting goes.
    pub fn start_report(&self) -> StartReport {
        let starts = self.starts.lock();
        StartReport {
            started: starts.begun,
            adopted: starts.adopted,
            failed_in_a_row: starts.failed_in_a_row,
            last_failure: starts.last_failure.clone(),
            refused: starts.refused.clone(),
            failures: starts.failures.clone(),
        }
    }

    /// Takes the keys that adopted instances use.
    pub(super) fn take_ticket_keys(&self, keys: Vec<TicketKey>) {
        *self.ticket_keys.lock() = keys;
    }

    /// Whether the site is being stopped.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Tells when something that decisions rest on has changed.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(super) fn notify(&self) {
        self.changed.send_modify(|version| *version += 1);
    }

    pub(super) fn begin_stop(&self) -> bool {
        let first = !self.stopping.swap(true, Ordering::AcqRel);
        self.notify();
        first
    }

    pub(super) fn views(&self) -> Vec<View> {
        let counts = |member: &&Arc<Member>| member.state() != State::Gone && !member.is_held();
        self.members().iter().filter(counts).map(|member| member.view()).collect()
    }

    pub(super) fn aim(&self) -> Aim {
        let starts = self.starts.lock();
        Aim {
            wanted: if self.is_stopping() { 0 } else { self.wanted() },
            slots: self.slots(),
            not_before: starts.not_before.unwrap_or_else(Instant::now),
            refused: starts.refused.clone(),
        }
    }

    /// Places of instances: twice as many as there may be, for a roll of all, and two for an upgrade.
    pub(super) fn slots(&self) -> u32 {
        self.settings().slots()
    }

    /// A revision for a configuration that may come into force.
    pub(super) fn next_revision(&self) -> u64 {
        self.revision.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Puts a configuration into force, with what `commit` does for it: whoever keeps an instance sends it there.
    ///
    /// # Errors
    /// It cannot be written down; then nothing has changed.
    pub(super) fn put_into_force<T>(&self, in_force: InForce, commit: impl FnOnce() -> T) -> io::Result<T> {
        self.remember(|memo| memo.site = Some(in_force.text.clone()))?;
        let committed = commit();
        self.in_force.store(Arc::new(in_force));
        self.want_so_many(self.wanted());
        self.scaler.wake();
        self.members().iter().for_each(|member| member.changed().notify_one());
        self.notify();
        Ok(committed)
    }

    /// All instances that there are now are to be replaced, one by one.
    ///
    /// # Errors
    /// It cannot be written down.
    pub fn roll(&self) -> io::Result<()> {
        self.remember(|memo| memo.roll_before = memo.generation + 1)?;
        self.outdate();
        Ok(())
    }

    /// Marks the instances that a roll concerns, also one that a controller before this has begun.
    pub(super) fn outdate(&self) {
        let roll_before = self.memo.lock().roll_before;
        for member in self.members().iter().filter(|member| member.generation() < roll_before) {
            member.outdate();
        }
        self.notify();
    }

    /// Changes what the next controller reads.
    pub(super) fn remember(&self, change: impl FnOnce(&mut Memo)) -> io::Result<()> {
        let mut memo = self.memo.lock();
        let mut changed = memo.clone();
        change(&mut changed);
        if changed != *memo {
            changed.write(&self.directory)?;
            *memo = changed;
        }
        Ok(())
    }

    /// Starts one more process in the lowest free place. It is configured by its keeper.
    ///
    /// # Errors
    /// What the system says; nothing is left behind.
    pub(super) fn start(&self) -> io::Result<Arc<Member>> {
        // The program that runs, even where its file has been replaced by another build meanwhile.
        self.start_process(Path::new("/proc/self/exe"), false)
    }

    /// Starts one process of another build, which is never told to serve.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(super) fn start_on_trial(&self, program: &Path) -> io::Result<Arc<Member>> {
        let member = self.start_process(program, true)?;
        self.notify();
        Ok(member)
    }

    fn start_process(&self, program: &Path, held: bool) -> io::Result<Arc<Member>> {
        let slot = {
            let members = self.members.lock();
            (1..=self.slots()).find(|slot| !members.contains_key(slot))
        };
        let slot = slot.ok_or_else(|| io::Error::other("every place has its process"))?;
        let generation = self.memo.lock().generation + 1;
        self.remember(|memo| memo.generation = generation)?;
        // The page is there before the process, and whole: with a full disk there is neither.
        self.accounts.page_for(slot, generation)?;
        let member = match self.spawn(program, slot, generation) {
            Ok(member) => Arc::new(member),
            Err(error) => {
                let _ = self.accounts.fold(slot, generation);
                return Err(error);
            }
        };
        member.hold(held);
        self.starts.lock().begun += 1;
        self.members.lock().insert(slot, member.clone());
        Ok(member)
    }

    fn spawn(&self, program: &Path, slot: u32, generation: u64) -> io::Result<Member> {
        use std::os::unix::process::CommandExt;

        let (link, theirs) = Link::pair()?;
        let in_force = self.in_force.load();
        let threads = in_force.site.threads.map_or(1, |threads| threads.get());
        let mut command = Command::new(program);
        command
            .arg0("playhouse")
            .arg("instance")
            .arg("--state-dir")
            .arg(&self.directory)
            .args(["--site", &in_force.site.name, "--threads", &threads.to_string()])
            .args(["--slot", &slot.to_string(), "--generation", &generation.to_string()])
            .stdin(Stdio::from(theirs))
            .env_remove(crash::VARIABLE)
            // What a terminal sends to its foreground group is for the controller alone.
            .process_group(0);
        for variable in service_manager::own_variables() {
            command.env_remove(variable);
        }
        let child = command.spawn()?;
        // Until it is reaped its number is its own, so this is about no other process.
        let process = Process::of_child(&child)?;
        crash_point("start");
        Ok(Member::new(slot, generation, process, link.split(), None))
    }

    /// Takes over a process that a controller before this one has started.
    pub(super) fn adopt(&self, member: Member) -> Arc<Member> {
        let member = Arc::new(member);
        self.starts.lock().adopted += 1;
        self.members.lock().insert(member.slot(), member.clone());
        member
    }

    /// Sends a configuration to an instance, with the sockets that it names.
    pub(super) fn configure(
        &self,
        member: &Member,
        text: &SiteText,
        mut sockets: Vec<Passable>,
    ) -> io::Result<()> {
        let send = |message: &ToInstance, descriptors| {
            member.send(message, descriptors).map_err(|error| io::Error::other(error.to_string()))
        };
        while sockets.len() > MAX_DESCRIPTORS {
            let rest = sockets.split_off(MAX_DESCRIPTORS);
            let (passed, descriptors) = numbered(std::mem::replace(&mut sockets, rest));
            send(&ToInstance::Sockets { sockets: passed }, descriptors)?;
        }
        let (passed, descriptors) = numbered(sockets);
        send(&ToInstance::Configure { site: text.clone(), sockets: passed }, descriptors)?;
        member.note_sent(text.revision);
        crash_point("configure");
        Ok(())
    }

    /// An instance serves: the series of failures is over.
    pub(super) fn note_active(&self) {
        let mut starts = self.starts.lock();
        starts.failed_in_a_row = 0;
        starts.not_before = None;
        starts.last_failure = None;
        drop(starts);
        self.notify();
    }

    /// A start has failed.
    pub(super) fn note_failed_start(&self, cause: String) {
        let mut starts = self.starts.lock();
        starts.failed_in_a_row = starts.failed_in_a_row.saturating_add(1);
        *starts.failures.entry("start").or_default() += 1;
        let delay = capacity::backoff(starts.failed_in_a_row, self.tree.jitter());
        starts.not_before = Some(Instant::now() + delay);
        let failures = starts.failed_in_a_row;
        starts.last_failure = Some(cause.clone());
        drop(starts);
        let rest = if self.views().iter().any(|view| view.state == State::Active) {
            "; those that serve go on as they are"
        } else {
            ""
        };
        let next = if delay.is_zero() { "at once".to_owned() } else { format!("in {delay:.1?}") };
        self.emit(
            EventKind::Ended,
            format!("an instance did not start ({failures} in a row): {cause}; again {next}{rest}"),
        );
        self.notify();
    }

    /// An instance that served has ended without having been asked to.
    pub(super) fn note_death(&self, cause: &'static str) {
        *self.starts.lock().failures.entry(cause).or_default() += 1;
    }

    /// Tidies up behind a process that has ended: its ledger page, its gauges, its files.
    pub(super) fn bury(&self, member: &Member) {
        member.set_state(State::Gone);
        self.board.clear(member.slot());
        self.steer();
        self.addresses.release_slot(member.slot());
        if let Err(error) = self.accounts.fold(member.slot(), member.generation()) {
            // Its counts are in the sums all the same, and the next fold takes it along.
            tracing::warn!(instance = member.name(), %error, "the ledger's page of an instance that has ended stays for now");
        }
        control::remove_files(&self.directory, member.slot(), member.process());
        self.notify();
    }

    /// Folds the ledger pages of processes that no instance here is: they have ended without a controller.
    pub(super) fn bury_the_dead(&self) {
        let living: Vec<_> =
            self.members().iter().map(|member| (member.slot(), member.generation())).collect();
        for (slot, generation) in self.accounts.pages() {
            if living.contains(&(slot, generation)) {
                continue;
            }
            if !living.iter().any(|(living, _)| *living == slot) {
                // Before its page is gone, and nobody knows any more that it was there.
                self.board.clear(slot);
                self.addresses.release_slot(slot);
            }
            if let Err(error) = self.accounts.fold(slot, generation) {
                tracing::warn!(slot, generation, %error, "a ledger page of a process that has ended stays for now");
            }
        }
    }

    /// Removes what only a running site needs. All processes have ended.
    pub(super) fn clean_up(&self) {
        Memo::remove(&self.directory);
        if let Err(error) = self.accounts.forget() {
            tracing::warn!(%error, "the ledger's files stay, and count on with the next start");
        }
        // They may be gone; the next start makes others.
        let _ = std::fs::remove_file(control::board_path(&self.directory));
        let _ = std::fs::remove_file(control::limits_path(&self.directory));
    }

    /// Gives the place of an instance that is buried to others.
    pub(super) fn forget(&self, member: &Member) {
        let mut members = self.members.lock();
        if members.get(&member.slot()).is_some_and(|other| other.generation() == member.generation()) {
            members.remove(&member.slot());
        }
        drop(members);
        self.notify();
    }

    /// Asks an instance to finish what it has and to go.
    pub(super) fn drain(&self, member: &Member, last: bool) {
        let deadline = self.in_force.load().site.drain_timeout;
        if member.is_asked_to_drain() && !last {
            return;
        }
        member.note_drain(deadline);
        // First nobody is sent there any more, then it empties what it has.
        self.steer();
        let message = ToInstance::Drain { deadline_ms: deadline.as_millis() as u64, last };
        if member.send(&message, Vec::new()).is_err() {
            // TERM says the same to a process whose link is down.
            let _ = member.process().kill(rustix::process::Signal::TERM);
        }
        self.notify();
    }

    /// Sends new clients, where a listener has a socket per instance, to those that serve.
    pub(super) fn steer(&self) {
        let serves = |member: &&Arc<Member>| {
            let view = member.view();
            view.state == State::Active && !view.stuck && !member.is_asked_to_drain()
        };
        let members = self.members();
        let active: Vec<u32> = members.iter().filter(serves).map(|member| member.slot()).collect();
        if !active.is_empty()
            && let Err(error) = self.bound.steer(&active)
        {
            tracing::warn!(%error, "new clients are not spread over the instances as they should be");
        }
    }

    pub(super) fn emit(&self, kind: EventKind, message: impl Into<String>) {
        self.tree.events().emit(kind, self.tree.root().path(), message);
    }

    pub(super) fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// Notes an event of an instance.
    pub(super) fn emit_of(&self, member: &Member, kind: EventKind, message: impl Into<String>) {
        self.tree.events().emit(kind, member::name(member.slot()), message);
    }
}

impl TicketHolder for Fleet {
    /// The keys of session tickets, newest first.
    fn ticket_keys(&self) -> Vec<TicketKey> {
        self.ticket_keys.lock().clone()
    }

    /// Replaces the keys of session tickets, here and in every instance.
    fn publish_ticket_keys(&self, keys: Vec<TicketKey>) {
        *self.ticket_keys.lock() = keys.clone();
        for member in self.members().iter().filter(|member| member.state() == State::Active) {
            // One whose link is down gets them with the next.
            let _ = member.send(&ToInstance::TicketKeys { keys: keys.clone() }, Vec::new());
        }
    }
}

impl Scaled for Fleet {
    fn facts(&self) -> Facts {
        let in_force = self.in_force();
        Facts {
            limits: in_force.instances.clone(),
            threads: in_force.site.threads.map_or(1, |threads| threads.get() as u32),
            asked: self.scale(),
            instances: self
                .members()
                .iter()
                .filter(|m| !m.is_held())
                .map(|member| member.sampled())
                .collect(),
        }
    }

    fn want(&self, decision: &Arc<Decision>) {
        self.want_so_many(decision.wanted);
        self.refuse_starts(decision.refused.clone());
    }
}

/// Why an operator's number was not taken.
#[derive(Debug, thiserror::Error)]
pub enum SetScaleError {
    /// It cannot be.
    #[error(transparent)]
    Scale(#[from] ScaleError),
    /// The next controller would not know of it.
    #[error("it cannot be written down: {0}")]
    Memo(#[from] io::Error),
}

fn numbered(sockets: Vec<Passable>) -> (Vec<Passed>, Vec<OwnedFd>) {
    let number = |(index, socket): (usize, Passable)| {
        let Passable { listener, slot, descriptor } = socket;
        (Passed { listener: listener.to_string(), slot, descriptor: index as u32 }, descriptor)
    };
    sockets.into_iter().enumerate().map(number).unzip()
}
