//! What a supervisor knows of a child before it lives.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use ractor::{ActorCell, SpawnErr};

use super::actor::{self, Actor};
use super::{Intensity, Seat};

/// When a child that has ended is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// Always.
    Permanent,
    /// Unless it stopped by itself or was asked to.
    Transient,
    /// Never; its seat goes with it.
    Temporary,
}

/// How a child is ended by its supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Killed at once.
    Brutal,
    /// Asked to stop, killed at the deadline.
    After(Duration),
    /// Asked to stop, waited for without end.
    Infinity,
}

pub(super) type Start =
    Arc<dyn Fn(Arc<Seat>, ActorCell) -> BoxFuture<'static, Result<ActorCell, SpawnErr>> + Send + Sync>;

/// A child of a supervisor: its name, how it is started, and what is done about its end.
#[derive(Clone)]
pub struct ChildSpec {
    pub(super) name: String,
    pub(super) kind: &'static str,
    pub(super) restart: Restart,
    pub(super) shutdown: Arc<dyn Fn() -> Shutdown + Send + Sync>,
    pub(super) stall_after: Option<Duration>,
    pub(super) replace_stalled: bool,
    pub(super) intensity: Option<Intensity>,
    pub(super) start: Start,
}

impl ChildSpec {
    /// A permanent child that is given five seconds to stop. `make` gives the actor anew at each start.
    pub fn new<A: Actor>(name: impl Into<String>, make: impl Fn() -> A + Send + Sync + 'static) -> Self {
        let make = Arc::new(make);
        ChildSpec {
            name: name.into(),
            kind: A::KIND,
            restart: Restart::Permanent,
            shutdown: Arc::new(|| Shutdown::After(Duration::from_secs(5))),
            stall_after: None,
            replace_stalled: true,
            intensity: None,
            start: Arc::new(move |seat, parent| {
                let make = make.clone();
                Box::pin(async move { actor::spawn(seat, make(), Some(parent)).await })
            }),
        }
    }

    /// When it is started again.
    pub fn restart(mut self, restart: Restart) -> Self {
        self.restart = restart;
        self
    }

    /// How it is ended.
    pub fn shutdown(self, shutdown: Shutdown) -> Self {
        self.shutdown_by(move || shutdown)
    }

    /// How it is ended, asked when that begins.
    pub fn shutdown_by(mut self, shutdown: impl Fn() -> Shutdown + Send + Sync + 'static) -> Self {
        self.shutdown = Arc::new(shutdown);
        self
    }

    /// Replaced when it makes no progress for this long: inside one message, or with a message waiting. An actor whose
    /// [`Actor::run`] does not return stamps its progress itself.
    pub fn stall_after(mut self, deadline: Duration) -> Self {
        self.stall_after = Some(deadline);
        self
    }

    /// A stall is an event, and nothing more: to replace the child would cost more than to wait for it.
    pub fn report_stalls(mut self, deadline: Duration) -> Self {
        self.replace_stalled = false;
        self.stall_after(deadline)
    }
}

impl std::fmt::Debug for ChildSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChildSpec")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .field("restart", &self.restart)
            .field("shutdown", &(self.shutdown)())
            .field("stall_after", &self.stall_after)
            .finish_non_exhaustive()
    }
}
