//! The table of a site's instances, and of everything that they share. It outlives every actor of the controller.

mod apps;
mod processes;
mod starts;
mod steered;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use playhouse_config::model;
use playhouse_protocol::control::{SiteText, State, TicketKey};
use playhouse_serve::shared::{Addresses, Board};
use playhouse_serve::sockets::Bound;
use tokio::sync::watch;
use tokio::time::Instant;

pub use self::starts::StartReport;
use self::starts::Starts;
use self::steered::Steered;
use super::accounts::Accounts;
use super::capacity::{Aim, View};
use super::ejections::Ejections;
use super::member::{self, Member};
use super::memo::Memo;
use super::scaler::{Scaled, ScalerTable};
use super::scaling::{self, Decision, Facts, ScaleError};
use super::tickets::TicketHolder;
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
    ejections: Ejections,
    accounts: Accounts,
    board: Board,
    addresses: Addresses,
    memo: Mutex<Memo>,
    /// The newest revision that was given to a configuration, whether it came into force or not.
    revision: AtomicU64,
    wanted: AtomicU64,
    scaler: Arc<ScalerTable>,
    starts: Mutex<Starts>,
    steered: Mutex<Steered>,
    apps: Arc<crate::apps::Table>,
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
        let apps = Arc::new(crate::apps::Table::for_instances(&directory));
        let revision = in_force.text.revision;
        Fleet {
            directory,
            tree,
            members: Mutex::default(),
            wanted: AtomicU64::new(memo.scale.unwrap_or(in_force.instances.min.get()).into()),
            in_force: ArcSwap::from_pointee(in_force),
            bound,
            ticket_keys: Mutex::default(),
            ejections: Ejections::default(),
            accounts,
            board,
            addresses,
            memo: Mutex::new(memo),
            revision: AtomicU64::new(revision),
            scaler: Arc::default(),
            starts: Mutex::default(),
            steered: Mutex::default(),
            apps,
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

    /// The apps.
    pub fn apps(&self) -> &Arc<crate::apps::Table> {
        &self.apps
    }

    /// The ledger's pages.
    pub fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// The gauges that acceptors share.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// The upstream servers that instances leave out.
    pub(super) fn ejections(&self) -> &Ejections {
        &self.ejections
    }

    /// Makes room for so many places of instances in what they share.
    ///
    /// # Errors
    /// What the file system says.
    pub(super) fn reserve_slots(&self, slots: u32) -> io::Result<()> {
        self.addresses.reserve(slots)?;
        self.bound.reserve_slots(slots);
        Ok(())
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
        // Those that are gone stay until no instance goes by the configuration before.
        self.apps.apply_elsewhere(&in_force.site.apps, true);
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
            member.give_ticket_keys(keys.clone());
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
            wanted: self.wanted(),
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
