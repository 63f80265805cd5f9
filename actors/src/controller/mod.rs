//! The controller of a site with several instances: it opens the listening sockets, starts the processes that serve, and
//! decides how many there are. It serves nobody itself, and may end at any moment: the next one adopts its instances.
//!
//! [`Fleet`] is the table, which every actor here is handed: [`steward`] keeps as many instances as are wanted,
//! [`scaler`] decides how many those are, a [`keeper`] leads one process through its life, [`reload`] puts configurations
//! into force, [`tickets`] replaces the keys of TLS sessions. [`adoption`] is how it begins.

pub mod accounts;
mod administration;
mod adoption;
pub mod capacity;
mod cgroup;
pub mod cpus;
mod ejections;
mod fleet;
mod keeper;
pub mod load;
pub mod member;
mod memo;
pub mod memory;
mod reload;
pub mod scaler;
pub mod scaling;
#[cfg(test)]
mod simulation;
pub(crate) mod small_pages;
mod steering;
mod steward;
pub mod tickets;
mod upgrade;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use playhouse_config::model;
use playhouse_protocol::control::{Hello, SiteText, State, VERSION};
use playhouse_serve::net::KeySource;
use playhouse_serve::random::Random;
use playhouse_serve::shared::{Addresses, Board};
use playhouse_serve::site::Handlers;
use playhouse_serve::sockets::{Bound, Given, Passable, Prepared, Sockets};
use playhouse_serve::tls::Certificates;
use ractor::{ActorCell, SpawnErr};
use tokio::time::Instant;

use accounts::Accounts;
use fleet::Pages;
pub use fleet::{Fleet, InForce, StartReport};
use keeper::Keeper;
use memo::Memo;
use scaler::Scaler;
pub use small_pages::use_small_pages;
pub use upgrade::{Successor, UpgradeError};

use crate::admin;
use crate::apps;
use crate::control::crash::crash_point;
use crate::control::{board_path, limits_path, process, quic_path, record};
use crate::instance::{Exit, StartError};
use crate::plan::Plan;
use crate::reload::{ReloadError, Reloaded};
use crate::service_manager::{Listening, Notifier, ServiceManager, Serviced};
use crate::shard;
use crate::state_dir::StateDir;
use crate::supervision::{
    self, ChildSpec, EventKind, Intensity, RootEnd, Seat, Strategy, Supervisor, Tree, Watchdog,
};

/// One controller.
#[derive(Debug)]
pub struct Controller {
    fleet: Arc<Fleet>,
    tree: Arc<Tree>,
    options: Options,
    state_dir: StateDir,
    admin: Sockets,
    admin_token: ArcSwap<Option<String>>,
    started: Instant,
    /// The site file, where it says something else than what the adopted instances serve.
    catch_up: Mutex<Option<PathBuf>>,
    upgrading: Arc<tokio::sync::Mutex<()>>,
    _watchdog: Option<Watchdog>,
}

/// How a controller is run.
#[derive(Default)]
pub struct Options {
    /// Where everything is that outlives it.
    pub state_dir: PathBuf,
    /// What is running, for people, for metrics and for the instances.
    pub build: String,
    /// Names of the handlers that the program answers `Handler` routes with.
    pub handlers: Handlers,
    /// The file that the program was started from.
    pub program: PathBuf,
    /// Listening sockets that were inherited from whoever has started this process.
    pub given: Given,
    /// Who is told how the site is.
    pub service_manager: Option<Arc<ServiceManager>>,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("state_dir", &self.state_dir).finish_non_exhaustive()
    }
}

impl Controller {
    /// Takes the state directory, adopts the instances that a controller before this one has left, or opens the
    /// listening sockets. No instance is started yet. To be called within a tokio runtime.
    ///
    /// `file` is the site file and what is wrong with it, if so: with instances to adopt it comes into force by a reload,
    /// and where it is not valid they go on with what they have.
    ///
    /// # Errors
    /// The state directory is taken, the file is not valid and there is nobody to adopt, a listener cannot be opened.
    pub async fn open(file: &Path, mut options: Options) -> Result<Arc<Self>, StartError> {
        crash_point("open-start");
        let state_dir = StateDir::take(&options.state_dir)?;
        crash_point("open-lock");
        let directory = options.state_dir.clone();
        let random = Random::from_os();
        let tree = Tree::new(ROOT, <Supervisor as supervision::Actor>::KIND, random.below(u64::MAX));
        let mut memo = Memo::read(&directory)
            .unwrap_or_else(|error| {
                tracing::warn!(%error, "site.json is not what a controller writes; it is replaced");
                None
            })
            .unwrap_or_default();
        if let Some(process) = memo.trial.take().and_then(|trial| trial.process()) {
            adoption::end(&process).await;
        }
        let read = reload::read(file);
        let name = match (&read, &memo.site) {
            (Ok((site, _)), _) => site.name.clone(),
            (Err(_), Some(text)) => reload::parse(text)?.name,
            (Err(_), None) => String::new(),
        };
        let hello = Hello {
            version: VERSION,
            build: options.build.clone(),
            pid: std::process::id(),
            started: process::start_time(std::process::id()).unwrap_or(0),
            site: name,
            slot: 0,
            generation: memo.generation,
            revision: 0,
            state: None,
            ticket_keys: Vec::new(),
        };
        let found = adoption::find(&directory, &hello).await;
        crash_point("open-adopt");
        for why in &found.removed {
            tracing::warn!("a record of an instance was removed: {why}");
        }
        let (text, catch_up) = match (&memo.site, found.adopted.is_empty()) {
            // What they serve is in force, whatever the file says by now.
            (Some(text), false) => {
                let catch_up = match &read {
                    Ok((_, file)) => (&file.path, &file.text) != (&text.path, &text.text),
                    Err(error) => {
                        tracing::error!("{error}\nwhat the instances serve stays in force");
                        false
                    }
                };
                (text.clone(), catch_up.then(|| file.to_owned()))
            }
            _ => {
                let (_, text) = read?;
                let revision = memo.site.map_or(0, |site| site.revision) + 1;
                (SiteText { revision, ..text }, None)
            }
        };
        let site = reload::parse(&text)?;
        memo.site = Some(text.clone());
        if found.adopted.is_empty() {
            memo.scale = None;
        }
        memo.generation =
            found.adopted.iter().map(|adopted| adopted.hello.generation).fold(memo.generation, u64::max);

        let mut given = std::mem::take(&mut options.given);
        let (mut keys, mut ejections, mut members) = (Vec::new(), Vec::new(), Vec::new());
        let mut outputs = Vec::new();
        for adopted in found.adopted {
            for (passed, descriptor) in adopted.sockets {
                given.add(&passed.listener, passed.slot, descriptor);
            }
            keys.push(adopted.hello.ticket_keys);
            ejections.extend(adopted.ejections);
            outputs.extend(adopted.outputs);
            members.push(adopted.member);
        }
        let bound = Bound::default();
        bound.take_keys_from(KeySource::Owned(quic_path(&directory)));
        bound.reserve_slots(site.instances.as_ref().map_or(0, |instances| instances.slots()));
        let prepared = bound.prepare(&site.listeners, &mut given).map_err(ReloadError::from)?;
        bound.commit(prepared);
        for name in given.unused() {
            tracing::warn!(name, "a socket that was passed on is no listener's, and is closed");
        }
        let accounts = Accounts::open(&directory).map_err(ReloadError::StateDir)?;
        let board = Board::open_or_create(&board_path(&directory)).map_err(ReloadError::StateDir)?;
        memo.write(&directory).map_err(ReloadError::StateDir)?;
        let in_force = InForce::new(text, site).ok_or(ReloadError::NeedsRestart("instances"))?;
        let addresses =
            Addresses::open_or_create(&limits_path(&directory), in_force.instances.slots(), &random)
                .map_err(ReloadError::StateDir)?;
        let pages = Pages { accounts, board, addresses };
        let fleet = Arc::new(Fleet::new(directory, tree.clone(), in_force, bound, pages, memo));
        fleet.take_ticket_keys(tickets::newest(keys));
        ejections.iter().for_each(|health| fleet.ejections().note(health));
        for member in members {
            let member = fleet.adopt(member);
            fleet.emit_of(
                &member,
                EventKind::Lifecycle,
                format!("adopted, process {}", member.process().pid()),
            );
        }
        fleet.open_apps(outputs).map_err(ReloadError::from)?;
        if fleet.scale().is_none() {
            // As many as there were; the scaler goes on from there.
            fleet
                .want_so_many(fleet.views().iter().filter(|view| view.state == State::Active).count() as u32);
        }
        fleet.bury_the_dead();
        fleet.steer();
        fleet.outdate();
        for why in found.removed {
            fleet.emit(EventKind::Lifecycle, format!("a record was removed: {why}"));
        }
        let watchdog = Watchdog::start(&tree, BLOCKED)
            .inspect_err(|error| tracing::warn!(%error, "no watchdog: blocked threads will not be seen"))
            .ok();
        let controller = Controller {
            fleet,
            tree,
            options,
            state_dir,
            admin: Sockets::default(),
            admin_token: ArcSwap::default(),
            started: Instant::now(),
            catch_up: Mutex::new(catch_up),
            upgrading: Arc::default(),
            _watchdog: watchdog,
        };
        let prepared = controller.prepare_admin(&controller.fleet.in_force().site)?;
        controller.commit_admin(prepared);
        crash_point("open-end");
        Ok(Arc::new(controller))
    }

    /// Starts the tree, linked to `parent` where there is one.
    async fn spawn(self: &Arc<Self>, parent: Option<ActorCell>) -> Result<ActorCell, SpawnErr> {
        let controller = self.clone();
        let root = Supervisor::new(Strategy::OneForOne, Intensity::default(), move || controller.children());
        self.tree.start(root, parent).await
    }

    /// Runs the site until it is stopped, or until another controller has taken it over. A root that has ended for any
    /// other reason is started again: the instances serve on meanwhile.
    pub async fn run(self: &Arc<Self>) -> Result<Exit, SpawnErr> {
        loop {
            self.spawn(None).await?;
            if let Some(file) = self.catch_up.lock().take() {
                let controller = self.clone();
                tokio::spawn(async move {
                    if let Err(error) = controller.reload_file(Some(&file)).await {
                        tracing::error!(%error, "the site file was refused; what the instances serve stays in force");
                    }
                });
            }
            match self.tree.ended().await {
                _ if self.fleet.is_stopping() => return Ok(Exit::Stopped),
                // The next controller adopts them.
                RootEnd::Other(cause) => return Ok(Exit::Failed(cause)),
                RootEnd::Operator => self.tree.note_root_restart(),
            }
        }
    }

    /// Stops the site: nobody is accepted any more, all instances drain, and everything is removed that the next start
    /// does not need. Completes when all processes have ended; asked again, it waits with the first.
    pub async fn stop(&self) {
        if self.fleet.begin_stop() {
            self.tree.events().emit(EventKind::Lifecycle, self.tree.root().path(), "draining");
            if let Some(manager) = &self.options.service_manager {
                manager.stopping();
            }
            // From here on only instances hold the sockets, and each empties the queue before it lets go.
            self.fleet.bound().close();
            for member in self.fleet.members() {
                match member.state() {
                    State::Starting | State::Ready => member.kill("the site is stopped"),
                    _ => self.fleet.drain(&member, true),
                }
            }
        }
        let mut changed = self.fleet.changed();
        while self.fleet.members().iter().any(|member| member.state() != State::Gone) {
            let _ = tokio::time::timeout(STOP_LOOK, changed.changed()).await;
        }
        // Nobody sends them anything any more.
        self.fleet.apps().stop();
        self.tree.stop().await;
        self.fleet.apps().end_all().await;
        self.fleet.clean_up();
    }

    /// Reads a site file, or the one that the site was started from, and puts it into force in every instance.
    pub async fn reload_file(&self, path: Option<&Path>) -> Result<Reloaded, ReloadError> {
        reload::ask(self, path).await
    }

    /// What that would do, without doing it.
    pub async fn plan(&self, path: Option<PathBuf>) -> Result<Plan, ReloadError> {
        reload::plan(self, path).await
    }

    /// Opens what the admin interface needs, and changes nothing.
    fn prepare_admin(&self, site: &model::Site) -> Result<PreparedAdmin, ReloadError> {
        let token = admin::read_token(&site.admin)?;
        let listeners = admin::listeners(Some(self.state_dir.admin_socket()), &site.admin);
        let sockets = self.admin.prepare(&listeners, &Certificates::default(), &mut Given::default())?;
        Ok(PreparedAdmin { token, sockets })
    }

    fn commit_admin(&self, prepared: PreparedAdmin) {
        self.admin.commit(prepared.sockets);
        self.admin_token.store(Arc::new(prepared.token));
    }

    /// The table.
    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// The controller's own actors.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// How it is run.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// How long it has run.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Names and addresses of the listeners, a port 0 resolved.
    pub fn addresses(&self) -> Vec<(Arc<str>, String)> {
        self.fleet.bound().addresses()
    }

    /// The admin interface's addresses.
    pub fn admin_addresses(&self) -> Vec<String> {
        self.admin.all().iter().map(|socket| socket.address().to_owned()).collect()
    }

    /// Whether as many instances serve as the site wants at least, and every part of the controller is up.
    pub fn is_ready(&self) -> bool {
        let active =
            self.fleet.views().iter().filter(|view| view.state == State::Active && !view.stuck).count();
        !self.fleet.is_stopping()
            && active >= self.fleet.settings().min.get() as usize
            && self.tree.is_complete(shard::KIND)
    }

    fn children(self: &Arc<Self>) -> Vec<ChildSpec> {
        let fleet = self.fleet.clone();
        let for_instances = fleet.clone();
        let for_admin = self.clone();
        let manager = self.options.service_manager.as_ref();
        let mut children: Vec<_> =
            manager.map(|manager| Notifier::spec(manager, self.clone())).into_iter().collect();
        children.extend([
            ChildSpec::new(INSTANCES, move || {
                let fleet = for_instances.clone();
                Supervisor::new(Strategy::OneForOne, Intensity::default(), move || {
                    fleet.members().iter().map(|member| Keeper::spec(&fleet, member)).collect()
                })
            })
            .stall_after(STALL),
            {
                let (table, root) = (fleet.apps().clone(), self.tree.root().clone());
                let for_end = table.clone();
                ChildSpec::new(apps::NAME, move || apps::supervisor(table.clone(), root.clone()))
                    .shutdown_by(move || apps::shutdown(&for_end))
                    .stall_after(STALL)
            },
            administration::relay::Relay::spec(&fleet),
            ChildSpec::new(admin::NAME, move || admin::supervisor(for_admin.clone())).stall_after(STALL),
            steward::Steward::spec(&fleet),
            tickets::Tickets::spec(&fleet),
            {
                let fleet = fleet.clone();
                ChildSpec::new("scaler", move || Scaler::new(fleet.clone(), fleet.scaler().clone()))
                    .stall_after(STALL)
            },
            reload::Reloader::spec(self),
        ]);
        children
    }
}

impl Serviced for Controller {
    fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    fn is_ready(&self) -> bool {
        self.is_ready()
    }

    fn essential(&self) -> Vec<Arc<Seat>> {
        self.tree.root().find_child(steward::NAME).into_iter().collect()
    }

    fn line(&self) -> String {
        let views = self.fleet.views();
        let active = views.iter().filter(|view| view.state == State::Active && !view.stuck).count();
        if self.fleet.is_stopping() {
            return format!("draining, {} instances are there", views.len());
        }
        let report = self.fleet.start_report();
        let trouble = report.last_failure.map(|cause| format!("; an instance does not start: {cause}"));
        let (wanted, trouble) = (self.fleet.wanted(), trouble.unwrap_or_default());
        format!(
            "{active} of {wanted} instances serve, revision {}{trouble}",
            self.fleet.in_force().text.revision
        )
    }

    fn listening(&self) -> Vec<Listening> {
        self.addresses()
    }

    fn descriptors(&self) -> io::Result<Vec<Passable>> {
        self.fleet.bound().descriptors()
    }
}

/// The admin interface of a configuration that is not in force yet.
struct PreparedAdmin {
    token: Option<String>,
    sockets: Prepared,
}

/// Whether a state directory has a record of an instance in it.
pub fn has_instances(directory: &Path) -> bool {
    record::all(directory).iter().any(|(_, record)| record.is_ok())
}

/// Removes what only a running site needs from the state directory of one that has ended without a controller; of one
/// whose instances serve on, nothing. What is left of its apps is ended. Not to be called within a runtime.
///
/// # Errors
/// The directory cannot be read.
pub fn clean_up(taken: &StateDir) -> Result<(), StartError> {
    let directory = taken.path();
    if record::all(directory).is_empty() {
        let accounts = Accounts::open(directory).map_err(ReloadError::StateDir)?;
        remove_shared(directory, &accounts);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let ended = runtime.and_then(|runtime| runtime.block_on(apps::end_leftovers(directory)));
        ended.map_err(ReloadError::StateDir)?;
        let _ = std::fs::remove_file(taken.admin_socket());
    }
    Ok(())
}

fn remove_shared(directory: &Path, accounts: &Accounts) {
    Memo::remove(directory);
    if let Err(error) = accounts.forget() {
        tracing::warn!(%error, "the ledger's files stay, and count on with the next start");
    }
    // They may be gone; the next start makes others.
    let _ = std::fs::remove_file(board_path(directory));
    let _ = Addresses::remove(&limits_path(directory));
    let _ = std::fs::remove_file(quic_path(directory));
}

/// The root's name.
pub const ROOT: &str = "controller";
pub(crate) const INSTANCES: &str = "instances";
const STALL: Duration = Duration::from_secs(5);
const STOP_LOOK: Duration = Duration::from_secs(2);
const BLOCKED: Duration = Duration::from_millis(500);
