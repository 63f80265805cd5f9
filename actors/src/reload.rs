//! The reload actor: puts another configuration into the tables, and brings the tree in line with them.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use playhouse_config::model;
use playhouse_serve::router::route::RouteError;
use playhouse_serve::sockets::{BindError, Changes, Given, Socket};
use playhouse_serve::upstream::Upstream;
use tokio::sync::oneshot;

use crate::acceptor::Door;
use crate::admin::{self, Administered};
use crate::apps::{self, AppError};
use crate::instance::{Instance, LISTENERS, UPSTREAMS};
use crate::service_manager::ServiceManager;
use crate::supervision::{Actor, AskError, ChildSpec, Context, Failure, Seat, Supervisor};
use crate::{plan, supervision, upstreams};

/// Reloads, one at a time. What it has begun when it is killed, its next incarnation finishes.
pub struct Reloader {
    instance: Arc<Instance>,
}

/// What to put into force.
#[derive(Clone, Debug)]
pub enum Reload {
    /// A site file; `None` is the one the instance was started from.
    File(Option<PathBuf>),
    /// A site made in code.
    To(Arc<model::Site>),
    /// The same, with listening sockets that another process has opened.
    With(Arc<model::Site>, Arc<Mutex<Given>>),
}

/// What a reload has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Reloaded {
    /// Listeners that were opened.
    pub listeners_added: Vec<Arc<str>>,
    /// Listeners that were closed; their connections finish what is in flight.
    pub listeners_removed: Vec<Arc<str>>,
    /// Listeners with other settings for the connections to come.
    pub listeners_changed: Vec<Arc<str>>,
}

/// Why a reload changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The site file is not valid.
    #[error("{0}")]
    Site(#[from] playhouse_config::Errors),
    /// Listeners could not be opened.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Bind(Vec<BindError>),
    /// A route cannot be built.
    #[error("{0}")]
    Route(#[from] RouteError),
    /// The access log cannot be opened.
    #[error("access_log: {0}")]
    Log(io::Error),
    /// An app cannot be started as the site file has it.
    #[error(transparent)]
    App(#[from] AppError),
    /// The admin token cannot be read.
    #[error("admin.token_file: {}: {error}", .path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// An instance could not put it into force.
    #[error("an instance has refused it: {0}")]
    Refused(String),
    /// What only a new start can change.
    #[error("{0} cannot be changed while the site runs; stop it, and start it again")]
    NeedsRestart(&'static str),
    /// It cannot be written down, or handed on, so that the next controller would not know of it.
    #[error("the state directory: {0}")]
    StateDir(io::Error),
    /// It is the file of another site than the one that runs.
    #[error("it is the file of the site {0:?}")]
    OtherSite(String),
    /// The site has no file: it was made in code.
    #[error("this site was not started from a file; name one")]
    NoFile,
    /// No answer in time.
    #[error("the reload has not come to an end in time; what it does is all or nothing")]
    NoAnswer,
}

impl From<Vec<BindError>> for ReloadError {
    fn from(errors: Vec<BindError>) -> Self {
        ReloadError::Bind(errors)
    }
}

impl From<&Changes> for Reloaded {
    fn from(changes: &Changes) -> Self {
        let names = |sockets: &[Arc<Socket>]| sockets.iter().map(|socket| socket.name().clone()).collect();
        Reloaded {
            listeners_added: names(&changes.added),
            listeners_removed: names(&changes.removed),
            listeners_changed: names(&changes.changed),
        }
    }
}

impl fmt::Display for Reloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("in force")?;
        let lists = [
            ("opened", &self.listeners_added),
            ("closed", &self.listeners_removed),
            ("changed", &self.listeners_changed),
        ];
        for (what, names) in lists.iter().filter(|(_, names)| !names.is_empty()) {
            write!(f, "; {what} {}", names.join(", "))?;
        }
        Ok(())
    }
}

/// Which tables the tree's actors were started for.
#[derive(Debug, Default)]
pub(crate) struct Running {
    /// By the acceptor's name.
    listeners: HashMap<Arc<str>, Arc<Socket>>,
    /// With whether there is a health checker.
    upstreams: HashMap<Arc<str>, (Arc<Upstream>, bool)>,
}

impl Running {
    pub fn listeners_are(&mut self, all: &[Arc<Socket>]) {
        let acceptors = |socket: &Arc<Socket>| {
            let named = |door: Door| (door.acceptor(socket.name()), socket.clone());
            Door::of(socket).into_iter().map(named).collect::<Vec<_>>()
        };
        self.listeners = all.iter().flat_map(acceptors).collect();
    }

    pub fn upstreams_are(&mut self, all: &[Arc<Upstream>]) {
        self.upstreams = all.iter().map(|upstream| (upstream.name().clone(), checked(upstream))).collect();
    }
}

fn checked(upstream: &Arc<Upstream>) -> (Arc<Upstream>, bool) {
    (upstream.clone(), upstream.snapshot().settings.health.is_some())
}

impl Reloader {
    /// The actor that reloads this instance.
    pub fn new(instance: Arc<Instance>) -> Self {
        Reloader { instance }
    }

    async fn reload(&self, reload: Reload) -> Result<Reloaded, ReloadError> {
        let mut given = Arc::default();
        let config = match reload {
            Reload::To(config) => config,
            Reload::With(config, sockets) => {
                given = sockets;
                config
            }
            Reload::File(path) => {
                let path =
                    path.or_else(|| self.instance.options().site_file.clone()).ok_or(ReloadError::NoFile)?;
                let loaded = tokio::task::spawn_blocking(move || playhouse_config::load(&path)).await;
                Arc::new(loaded.map_err(|_| ReloadError::NoAnswer)??)
            }
        };
        if let Some(field) = plan::cannot_change(&self.instance.config(), &config) {
            return Err(ReloadError::NeedsRestart(field));
        }
        let reloaded = self.instance.apply(&config, &mut given.lock())?;
        // The reload is in force; should this fail, the next incarnation does it again.
        self.reconcile().await.map_err(|AskError| ReloadError::NoAnswer)?;
        Ok(reloaded)
    }

    /// Gives every socket its acceptor and every upstream its actors, and ends those of what is gone.
    async fn reconcile(&self) -> Result<(), AskError> {
        let root = self.instance.tree().root();
        let seat = |name: &str| root.child(name, Supervisor::KIND);
        let (listeners, connections) = (seat(LISTENERS), self.instance.connections_seat());
        let sockets = self.instance.site().sockets.all();
        let stale = self.stale(|running| {
            let before = std::mem::take(&mut running.listeners);
            running.listeners_are(&sockets);
            let goes_on = |name: &Arc<str>, socket: &Arc<Socket>| {
                running.listeners.get(name).is_some_and(|now| Arc::ptr_eq(now, socket))
            };
            let stale = before.iter().filter(|(name, socket)| !goes_on(name, socket));
            stale.map(|(name, _)| name.clone()).collect()
        });
        bring_in_line(
            &listeners,
            stale,
            sockets.iter().flat_map(|socket| self.instance.acceptors(socket, &connections)),
        )
        .await?;

        let all = self.instance.forwards_to();
        let stale = self.stale(|running| {
            let goes_on = |name: &Arc<str>| {
                let (was, had) = &running.upstreams[name];
                all.iter().any(|upstream| {
                    let (is, has) = checked(upstream);
                    Arc::ptr_eq(was, &is) && *had == has
                })
            };
            let stale = running.upstreams.keys().filter(|name| !goes_on(name)).cloned().collect();
            running.upstreams_are(&all);
            stale
        });
        bring_in_line(&seat(UPSTREAMS), stale, all.into_iter().map(upstreams::spec)).await?;

        if !self.instance.is_led() {
            apps::reconcile(self.instance.apps(), root).await?;
        }

        let over: Arc<dyn Administered> = self.instance.clone();
        admin::reconcile(&over).await
    }

    fn stale(&self, find: impl FnOnce(&mut Running) -> Vec<Arc<str>>) -> Vec<Arc<str>> {
        find(&mut self.instance.running().lock())
    }
}

/// Ends the stale children and adds those that are missing; both commands are idempotent.
pub(crate) async fn bring_in_line(
    supervisor: &Arc<Seat>,
    stale: Vec<Arc<str>>,
    specs: impl Iterator<Item = ChildSpec>,
) -> Result<(), AskError> {
    use supervision::Command;
    for name in stale {
        supervisor
            .ask::<Supervisor, ()>(COMMAND_DEADLINE, |done| Command::Remove(name.to_string(), done))
            .await?;
    }
    for spec in specs {
        supervisor.ask::<Supervisor, ()>(COMMAND_DEADLINE, |done| Command::Add(spec.clone(), done)).await?;
    }
    Ok(())
}

impl Actor for Reloader {
    type Message = (Reload, oneshot::Sender<Result<Reloaded, ReloadError>>);

    const KIND: &'static str = "reload";

    async fn run(&mut self, context: &Context) -> Result<(), Failure> {
        // At the first start the tree is made from the tables; later an incarnation before may have left work.
        if context.seat().restarts() > 0 {
            self.reconcile().await?;
        }
        Ok(())
    }

    async fn handle(&mut self, (reload, answer): Self::Message, _: &Context) -> Result<(), Failure> {
        let manager = self.instance.options().service_manager.as_ref();
        let _reloading = manager.map(ServiceManager::reloading);
        let result = self.reload(reload).await;
        let _ = answer.send(result);
        Ok(())
    }
}

const COMMAND_DEADLINE: Duration = Duration::from_secs(10);
