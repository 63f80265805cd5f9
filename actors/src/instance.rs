//! An instance: a site's tables, the tree of actors over them, and its life from the first bind to the last answer.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use playhouse_config::model;
use playhouse_protocol::control::State;
use playhouse_serve::Site;
use playhouse_serve::ledger::Totals;
use playhouse_serve::net::KeySource;
use playhouse_serve::random::Random;
use playhouse_serve::router::route::RouteError;
use playhouse_serve::shared::Shared;
use playhouse_serve::site::Handlers;
use playhouse_serve::sockets::{BindError, Given, Passable, Prepared, Sockets};
use playhouse_serve::tls::Certificates as CertificateTable;
use playhouse_serve::upstream::Upstream;
use ractor::{ActorCell, SpawnErr};
use tokio::time::Instant;

use crate::acceptor::{Acceptor, Door};
use crate::access_log::AccessLog;
use crate::admin;
use crate::apps;
use crate::certificates::Certificates;
use crate::connection::Admission;
use crate::control::{Conversation, InstanceLink, quic_path};
use crate::metrics::{Metrics, Samples};
use crate::plan::{self, Plan, Processes};
use crate::reload::{Reload, ReloadError, Reloaded, Reloader, Running};
use crate::service_manager::{Listening, Notifier, ServiceManager, Serviced};
use crate::state_dir::{StateDir, StateDirError};
use crate::supervision::{
    self, ChildSpec, EventKind, Intensity, RootEnd, Seat, Shutdown, Strategy, Supervisor, Tree, Watchdog,
};
use crate::{shard, upstreams};

/// One running site. Everything that must survive an actor is in here; whoever runs the site holds it by `Arc`, and
/// every incarnation of the tree is handed it.
#[derive(Debug)]
pub struct Instance {
    site: Arc<Site>,
    tree: Arc<Tree>,
    config: ArcSwap<model::Site>,
    options: Options,
    state_dir: Option<StateDir>,
    admin: Sockets,
    admin_token: ArcSwap<Option<String>>,
    samples: Arc<Samples>,
    running: Mutex<Running>,
    apps: Arc<apps::Table>,
    remote_apps: apps::remote::Remote,
    stopping: AtomicBool,
    started: Instant,
    _watchdog: Option<Watchdog>,
}

/// How an instance is run.
#[derive(Clone, Default)]
pub struct Options {
    /// Where the lock and the admin socket are; `None` has neither.
    pub state_dir: Option<PathBuf>,
    /// What a reload reads when it is not told otherwise.
    pub site_file: Option<PathBuf>,
    /// Answers for `Handler` routes.
    pub handlers: Handlers,
    /// What is running, for people and for metrics; empty is this crate's version.
    pub build: String,
    /// What it shares with other processes of the site; by default nothing.
    pub shared: Shared,
    /// With the controller whose instance this is: the instance has the place in the state directory that is in there,
    /// takes no lock, and is active when it is told to be.
    pub conversation: Option<Arc<Conversation>>,
    /// Seeds all randomness; `None` takes a seed from the operating system.
    pub seed: Option<u64>,
    /// Who is told how the site is.
    pub service_manager: Option<Arc<ServiceManager>>,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("state_dir", &self.state_dir)
            .field("site_file", &self.site_file)
            .field("handlers", &self.handlers.keys())
            .finish_non_exhaustive()
    }
}

/// Why an instance could not start. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The state directory is taken or unusable.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// The configuration could not be put into force.
    #[error(transparent)]
    Config(#[from] ReloadError),
    /// The tree could not be started.
    #[error("the root supervisor did not start: {0}")]
    Spawn(#[from] SpawnErr),
}

/// How an instance has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It was asked to, and has drained.
    Stopped,
    /// A failure has climbed to the top; what could be drained was.
    Failed(String),
}

impl Instance {
    /// Takes the state directory, opens every socket and file that the site needs, and builds its tables. No actor
    /// runs yet. To be called within a tokio runtime.
    pub fn open(config: model::Site, options: Options) -> Result<Arc<Self>, StartError> {
        Self::open_with(config, options, &mut Given::default())
    }

    /// The same, with listening sockets that another process has opened.
    pub fn open_with(
        config: model::Site,
        options: Options,
        given: &mut Given,
    ) -> Result<Arc<Self>, StartError> {
        let state_dir = options.state_dir.as_deref().map(StateDir::take).transpose()?;
        let random = options.seed.map_or_else(Random::from_os, Random::seeded);
        let root =
            options.conversation.as_ref().map_or_else(|| ROOT.to_owned(), |conversation| conversation.name());
        let tree = Tree::new(&root, <Supervisor as supervision::Actor>::KIND, random.below(u64::MAX));
        let mut shared = options.shared.clone();
        if let Some(directory) = &state_dir {
            shared.quic = KeySource::Owned(quic_path(directory.path()));
        }
        let site =
            Site::sharing(&config, options.handlers.clone(), random, shared).map_err(ReloadError::from)?;
        if options.conversation.is_some() {
            site.sockets.hold();
        }
        let unique = tree.unique();
        let apps =
            apps::Table::open(state_dir.as_ref().map(StateDir::path), unique).map_err(ReloadError::from)?;
        let watchdog = Watchdog::start(&tree, BLOCKED)
            .inspect_err(|error| tracing::warn!(%error, "no watchdog: blocked threads will not be seen"))
            .ok();
        let instance = Instance {
            site,
            tree,
            config: ArcSwap::from_pointee(config.clone()),
            options,
            state_dir,
            admin: Sockets::default(),
            admin_token: ArcSwap::default(),
            samples: Arc::default(),
            running: Mutex::default(),
            apps: Arc::new(apps),
            remote_apps: apps::remote::Remote::default(),
            stopping: AtomicBool::new(false),
            started: Instant::now(),
            _watchdog: watchdog,
        };
        instance.apply(&config, given)?;
        Ok(Arc::new(instance))
    }

    /// Starts the tree, linked to `parent` where there is one. After its end it may be started again: sockets, idle
    /// upstream connections, counters and health are those of the incarnation before.
    pub async fn spawn(self: &Arc<Self>, parent: Option<ActorCell>) -> Result<ActorCell, SpawnErr> {
        let instance = self.clone();
        let root = Supervisor::new(Strategy::OneForOne, Intensity::default(), move || instance.children());
        self.tree.start(root, parent).await
    }

    /// Runs the tree until it is stopped or fails. A root that an operator has killed is started again.
    pub async fn run(self: &Arc<Self>) -> Result<Exit, SpawnErr> {
        loop {
            self.spawn(None).await?;
            let end = self.tree.ended().await;
            let exit = match end {
                _ if self.is_stopping() => Exit::Stopped,
                RootEnd::Other(cause) => Exit::Failed(cause),
                RootEnd::Operator => {
                    self.tree.note_root_restart();
                    continue;
                }
            };
            self.apps.end_all().await;
            self.site.access_log.stop(LOG_FLUSH).await;
            return Ok(exit);
        }
    }

    /// Stops gracefully: no more is accepted, requests in flight are answered within the site's drain timeout, and the
    /// tree ends in reverse order. Completes when all of it is gone; asked again, it waits with the first.
    pub async fn stop(&self) {
        if !self.stopping.swap(true, Ordering::AcqRel) {
            self.tree.events().emit(EventKind::Lifecycle, self.tree.root().path(), "draining");
            if let Some(manager) = &self.options.service_manager {
                manager.stopping();
            }
            self.site.sockets.close();
            self.apps.stop();
        }
        self.tree.stop().await;
        self.apps.end_all().await;
    }

    /// Ends an instance that has others beside it. Not `last`, it lets its listening sockets go at once, and what the
    /// kernel has queued is for the others; what is not finished within the deadline is ended. Begins at once, and goes on
    /// by itself.
    pub(crate) fn drain(self: &Arc<Self>, deadline: Duration, last: bool) {
        if let Some(place) = &self.site.place {
            place.set_active(false);
        }
        if !last {
            self.site.sockets.leave();
        }
        if let Some(conversation) = &self.options.conversation {
            conversation.set_state(State::Draining);
        }
        let instance = self.clone();
        tokio::spawn(async move {
            let mut stopping = pin!(instance.stop());
            if tokio::time::timeout(deadline, &mut stopping).await.is_ok() {
                return;
            }
            let connections = instance.connections_seat();
            // Before that, its supervisor would start again what is ended here.
            while connections.is_occupied() && connections.state() != supervision::SeatState::Stopping {
                if tokio::time::timeout(DEADLINE_LOOK, &mut stopping).await.is_ok() {
                    return;
                }
            }
            connections.kill_descendants().await;
            stopping.await;
        });
    }

    /// Puts another configuration into force; what it does not change goes on untouched. On an error nothing has
    /// changed.
    pub async fn reload(self: &Arc<Self>, config: model::Site) -> Result<Reloaded, ReloadError> {
        self.ask_reloader(Reload::To(Arc::new(config))).await
    }

    /// The same, with listening sockets that another process has opened. Those that are not used stay in `given`.
    pub async fn reload_with(
        self: &Arc<Self>,
        config: model::Site,
        given: Arc<Mutex<Given>>,
    ) -> Result<Reloaded, ReloadError> {
        self.ask_reloader(Reload::With(Arc::new(config), given)).await
    }

    /// Reads a site file, or the one that the instance was started from, and puts it into force.
    pub async fn reload_file(self: &Arc<Self>, path: Option<&Path>) -> Result<Reloaded, ReloadError> {
        self.ask_reloader(Reload::File(path.map(Path::to_owned))).await
    }

    /// What [`Instance::reload_file`] would do, without doing it.
    pub async fn plan(&self, path: Option<PathBuf>) -> Result<Plan, ReloadError> {
        let path = path.or_else(|| self.options.site_file.clone()).ok_or(ReloadError::NoFile)?;
        let read = tokio::task::spawn_blocking(move || {
            let site = playhouse_config::load(&path)?;
            plan::check_files(&site)?;
            Ok::<_, ReloadError>(site)
        });
        let after = read.await.map_err(|_| ReloadError::NoAnswer)??;
        self.check_handlers(&after)?;
        if !self.is_led() {
            self.apps.check(&after.apps)?;
        }
        Ok(Plan::new(&self.config(), &after, Processes::One))
    }

    /// The tables.
    pub fn site(&self) -> &Arc<Site> {
        &self.site
    }

    /// The actors.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// The configuration in force.
    pub fn config(&self) -> Arc<model::Site> {
        self.config.load_full()
    }

    /// How it is run.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// What is running.
    pub fn build(&self) -> &str {
        if self.options.build.is_empty() { env!("CARGO_PKG_VERSION") } else { &self.options.build }
    }

    /// Names and addresses of the listeners, a port 0 resolved.
    pub fn addresses(&self) -> Vec<(Arc<str>, String)> {
        let sockets = self.site.sockets.all();
        sockets.iter().map(|socket| (socket.name().clone(), socket.address().to_owned())).collect()
    }

    /// The admin interface's addresses.
    pub fn admin_addresses(&self) -> Vec<String> {
        self.admin.all().iter().map(|socket| socket.address().to_owned()).collect()
    }

    /// The requests' outcomes so far.
    pub fn ledger(&self) -> Totals {
        self.site.ledger.totals()
    }

    /// How long it has run.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether it is draining.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Where it is in its life.
    pub fn state(&self) -> State {
        match &self.options.conversation {
            Some(conversation) => conversation.state(),
            None if self.is_stopping() => State::Draining,
            None => State::Active,
        }
    }

    /// Counts the processes that its site has started.
    pub fn generation(&self) -> u64 {
        self.options.conversation.as_ref().map_or(1, |conversation| conversation.identity().generation)
    }

    /// Whether every part of the tree is up.
    pub fn is_ready(&self) -> bool {
        !self.is_stopping() && self.tree.is_complete(shard::KIND)
    }

    /// Open connections of all listeners.
    pub fn connections(&self) -> usize {
        self.site.sockets.all().iter().map(|socket| socket.connections().open()).sum()
    }

    /// Its apps and their processes: none where a controller runs them.
    pub fn apps(&self) -> &Arc<apps::Table> {
        &self.apps
    }

    /// What its controller says of the apps.
    pub(crate) fn remote_apps(&self) -> &apps::remote::Remote {
        &self.remote_apps
    }

    /// Whether it has a controller.
    pub(crate) fn is_led(&self) -> bool {
        self.options.conversation.is_some()
    }

    /// The upstreams that it forwards requests to, each in the care of a pool: also the apps that a controller runs.
    pub(crate) fn forwards_to(&self) -> Vec<Arc<Upstream>> {
        let mut all = self.site.upstreams.all();
        if self.is_led() {
            all.extend(self.site.apps.all().iter().map(|app| app.upstream().clone()));
        }
        all
    }

    pub(crate) fn samples(&self) -> &Samples {
        &self.samples
    }

    pub(crate) fn admin_token(&self) -> Arc<Option<String>> {
        self.admin_token.load_full()
    }

    pub(crate) fn admin_sockets(&self) -> &Sockets {
        &self.admin
    }

    pub(crate) fn running(&self) -> &Mutex<Running> {
        &self.running
    }

    /// Puts a configuration into the tables: first everything that can fail, then everything that cannot.
    pub(crate) fn apply(&self, config: &model::Site, given: &mut Given) -> Result<Reloaded, ReloadError> {
        let token = admin::read_token(&config.admin)?;
        let prepared = self.site.sockets.prepare(&config.listeners, &self.site.certificates, given)?;
        let admin = self.prepare_admin(config)?;
        self.check_handlers(config)?;
        if !self.is_led() {
            self.apps.prepare(&config.apps)?;
        }
        self.site.access_log.apply(config.access_log.as_ref()).map_err(ReloadError::Log)?;
        self.site.upstreams.apply(&config.upstreams, &self.site.metrics);
        if self.is_led() {
            self.site.apps.apply(&config.apps, &self.site.metrics);
            self.remote_apps.apply_again(&self.site);
        } else {
            self.apps.apply(&config.apps, &self.site.apps, &self.site.metrics);
        }
        self.site.apply_routes(config)?;
        let changes = self.site.sockets.commit(prepared);
        self.admin.commit(admin);
        self.admin_token.store(Arc::new(token));
        self.config.store(Arc::new(config.clone()));
        Ok(Reloaded::from(&changes))
    }

    fn check_handlers(&self, config: &model::Site) -> Result<(), RouteError> {
        for route in &config.routes {
            if let model::Target::Handler(handler) = &route.to
                && !self.options.handlers.contains_key(handler)
            {
                return Err(RouteError::Handler { route: route.label().into(), handler: handler.clone() });
            }
        }
        Ok(())
    }

    fn prepare_admin(&self, config: &model::Site) -> Result<Prepared, Vec<BindError>> {
        let listeners = match &self.options.conversation {
            // What is open to others is the controller's.
            Some(conversation) => {
                let admin = model::Admin { bind: None, ..config.admin.clone() };
                admin::listeners(Some(conversation.admin_path()), &admin)
            }
            None => admin::listeners(self.state_dir.as_ref().map(StateDir::admin_socket), &config.admin),
        };
        self.admin.prepare(&listeners, &CertificateTable::default(), &mut Given::default())
    }

    async fn ask_reloader(self: &Arc<Self>, reload: Reload) -> Result<Reloaded, ReloadError> {
        let seat = self.tree.root().child(RELOADER, <Reloader as supervision::Actor>::KIND);
        let answer = seat
            .ask::<Reloader, _>(RELOAD_DEADLINE, |answer| (reload.clone(), answer))
            .await
            .map_err(|_| ReloadError::NoAnswer)?;
        let message = match &answer {
            Ok(reloaded) => reloaded.to_string(),
            Err(error) => format!("refused, nothing has changed: {error}"),
        };
        self.tree.events().emit(EventKind::Reload, seat.path(), message);
        answer
    }

    /// The root's children, in the order in which they start. They end in reverse: first nothing is accepted any more,
    /// then connections finish, and the admin interface answers until nearly the end.
    fn children(self: &Arc<Self>) -> Vec<ChildSpec> {
        let for_connections = self.clone();
        let drain = move || for_connections.config().drain_timeout;
        let (site, samples) = (self.site.clone(), self.samples.clone());
        let for_log = site.clone();
        let for_certificates = site.clone();
        let (for_upstreams, for_listeners, for_reload) = (self.clone(), self.clone(), self.clone());
        let (for_admin, for_apps, for_apps_end) = (self.clone(), self.clone(), self.clone());
        let control = self.options.conversation.clone().map(|conversation| {
            let instance = self.clone();
            let link = move || InstanceLink::new(instance.clone(), conversation.clone());
            ChildSpec::new(CONTROL, link).stall_after(STALL)
        });
        let manager = self.options.service_manager.as_ref();
        let notifier = manager.map(|manager| Notifier::spec(manager, self.clone()));
        let apps = match &self.options.conversation {
            Some(conversation) => apps::outputs::Reader::spec(conversation),
            None => ChildSpec::new(apps::NAME, move || {
                apps::supervisor(for_apps.apps.clone(), for_apps.tree.root().clone())
            })
            .shutdown_by(move || apps::shutdown(&for_apps_end.apps))
            .stall_after(STALL),
        };
        let children = vec![
            ChildSpec::new("access-log", move || AccessLog::new(for_log.clone())).stall_after(STALL),
            ChildSpec::new("metrics", move || Metrics::new(samples.clone())).stall_after(STALL),
            ChildSpec::new("certificates", move || Certificates::new(for_certificates.clone()))
                .stall_after(STALL),
            ChildSpec::new("admin", move || admin::supervisor(for_admin.clone())).stall_after(STALL),
            ChildSpec::new("upstreams", move || {
                let instance = for_upstreams.clone();
                upstreams::supervisor(move || instance.upstream_specs())
            })
            .stall_after(STALL),
            apps,
            ChildSpec::new(CONNECTIONS, shard::supervisor_of(shard::COUNT, drain.clone()))
                .shutdown_by(move || Shutdown::After(drain() + GRACE))
                .report_stalls(STALL),
            ChildSpec::new(LISTENERS, move || {
                let instance = for_listeners.clone();
                let connections = instance.connections_seat();
                Supervisor::new(Strategy::OneForOne, Intensity::default(), move || {
                    instance.listener_specs(&connections)
                })
            })
            .stall_after(STALL),
            ChildSpec::new(RELOADER, move || Reloader::new(for_reload.clone())).stall_after(RELOAD_DEADLINE),
        ];
        notifier.into_iter().chain(control).chain(children).collect()
    }

    /// The parent of the shards that the site's own listeners give their connections to.
    pub(crate) fn connections_seat(&self) -> Arc<Seat> {
        self.tree.root().child(CONNECTIONS, <Supervisor as supervision::Actor>::KIND)
    }

    fn upstream_specs(&self) -> Vec<ChildSpec> {
        let all = self.forwards_to();
        self.running.lock().upstreams_are(&all);
        all.into_iter().map(upstreams::spec).collect()
    }

    fn listener_specs(&self, connections: &Arc<Seat>) -> Vec<ChildSpec> {
        let all = self.site.sockets.all();
        self.running.lock().listeners_are(&all);
        all.iter().flat_map(|socket| self.acceptors(socket, connections)).collect()
    }

    /// The acceptors of a socket, one for each of its doors.
    pub(crate) fn acceptors(
        &self,
        socket: &Arc<playhouse_serve::sockets::Socket>,
        connections: &Arc<Seat>,
    ) -> Vec<ChildSpec> {
        let spec = |door| {
            let (socket, site) = (socket.clone(), self.site.clone());
            Acceptor::spec(socket, door, site, Admission::Anyone, connections.clone())
        };
        Door::of(socket).into_iter().map(spec).collect()
    }
}

impl Serviced for Instance {
    fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    fn is_ready(&self) -> bool {
        self.is_ready()
    }

    fn line(&self) -> String {
        let addresses = self.addresses();
        let listeners: Vec<_> =
            addresses.iter().map(|(name, address)| format!("{name} at {address}")).collect();
        match self.connections() {
            open if self.is_stopping() => format!("draining, {open} connections are open"),
            _ if !self.is_ready() => "a part is not up".to_owned(),
            _ => format!("serving {}", listeners.join(", ")),
        }
    }

    fn listening(&self) -> Vec<Listening> {
        self.addresses()
    }

    fn descriptors(&self) -> io::Result<Vec<Passable>> {
        let sockets = self.site.sockets.all();
        let open = sockets.iter().filter_map(|socket| Some((socket.name(), socket.listener()?)));
        let duplicate = |(name, listener): (&Arc<str>, Arc<playhouse_serve::net::Listener>)| {
            let descriptor = listener.try_clone_descriptor()?;
            Ok(Passable { listener: name.clone(), slot: 0, descriptor })
        };
        open.map(duplicate).collect()
    }
}

/// The root's name.
pub const ROOT: &str = "instance-1";
const CONTROL: &str = "control";
const CONNECTIONS: &str = "connections";
pub(crate) const LISTENERS: &str = "listeners";
pub(crate) const UPSTREAMS: &str = "upstreams";
const RELOADER: &str = "reload";

/// How often a drain looks whether it has come to the connections.
const DEADLINE_LOOK: Duration = Duration::from_millis(10);
const STALL: Duration = Duration::from_secs(2);
/// A poll that takes longer holds up everything else on its thread.
const BLOCKED: Duration = Duration::from_millis(500);
const RELOAD_DEADLINE: Duration = Duration::from_secs(30);
/// What the connections' supervisor is given beyond the drain, to kill and count what is left.
const GRACE: Duration = Duration::from_secs(2);
const LOG_FLUSH: Duration = Duration::from_secs(2);
