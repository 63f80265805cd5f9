//! The actor that speaks with the controller.

use std::future::pending;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use playhouse_protocol::control::{AppsLoad, MAX_DESCRIPTORS, State, ToController, ToInstance};
use playhouse_serve::net::is_exhausted;
use playhouse_serve::sockets::Passable;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::MissedTickBehavior;

use super::conversation::{Conversation, Ends, Misunderstood, Order};
use super::{number, sample};
use crate::instance::Instance;
use crate::reload::{ReloadError, Reloaded};
use crate::supervision::{Actor, Context, EventKind, Failure};

/// Leads the instance's side of the conversation. All that has been said is in the [`Conversation`]: a new incarnation
/// goes on over the same link, where the one before was cut off.
pub struct InstanceLink {
    instance: Arc<Instance>,
    conversation: Arc<Conversation>,
    /// What was last said of the apps here.
    load: Mutex<Option<AppsLoad>>,
}

/// A configuration on its way into force.
type Applying = BoxFuture<'static, (Arc<Order>, Result<Reloaded, ReloadError>)>;

impl InstanceLink {
    /// The actor that speaks for this instance.
    pub fn new(instance: Arc<Instance>, conversation: Arc<Conversation>) -> Self {
        InstanceLink { instance, conversation, load: Mutex::default() }
    }

    /// Acts on a message. Nothing is awaited in here, so that no end of this actor comes between a message that was
    /// received and what follows from it.
    fn heard(
        &self,
        message: ToInstance,
        descriptors: Vec<OwnedFd>,
        context: &Context,
    ) -> Result<(), Misunderstood> {
        let site = self.instance.site();
        match message {
            ToInstance::Hello(hello) => self.conversation.check(&hello)?,
            ToInstance::Sockets { sockets } => self.conversation.add_sockets(sockets, descriptors)?,
            ToInstance::Configure { site, sockets } => {
                self.conversation.add_order(site, sockets, descriptors)?;
            }
            ToInstance::TicketKeys { keys } => match site.certificates.ticket_keys().replace(keys.clone()) {
                Ok(()) => self.conversation.keep_ticket_keys(keys),
                Err(error) => tracing::error!(%error, "session ticket keys were refused"),
            },
            ToInstance::Activate => self.activate(context),
            ToInstance::Drain { deadline_ms, last } => {
                self.instance.drain(Duration::from_millis(deadline_ms), last);
            }
            ToInstance::GiveSockets => self.give_sockets(),
            ToInstance::ServerHealth(health) => {
                if let Some(event) = site.upstreams.apply_health(&health) {
                    context.emit(EventKind::Upstream, context.seat().path(), event.to_string());
                }
            }
            ToInstance::Apps(apps) => {
                self.conversation.keep_apps(apps.clone());
                self.instance.remote_apps().apply(apps, site);
                self.tell_load();
            }
            ToInstance::AppOutputs { processes } => {
                self.conversation.hold_outputs(processes, descriptors)?;
            }
            ToInstance::GiveAppOutputs => self.conversation.give_outputs(),
            ToInstance::Unknown => {}
        }
        Ok(())
    }

    fn activate(&self, context: &Context) {
        if matches!(self.conversation.state(), State::Starting | State::Ready) {
            let site = self.instance.site();
            if let Some(place) = &site.place {
                place.set_active(true);
            }
            site.sockets.activate();
            context.emit(EventKind::Lifecycle, self.instance.tree().root().path(), "active");
            self.conversation.set_state(State::Active);
        }
    }

    /// Duplicates of all listening sockets, those of other instances too, in as many messages as they need.
    fn give_sockets(&self) {
        let sockets = self.instance.site().sockets.descriptors().unwrap_or_else(|error| {
            tracing::error!(%error, "the listening sockets were not given to the controller");
            Vec::new()
        });
        let mut sockets: Vec<_> = sockets
            .into_iter()
            .map(|Passable { listener, slot, descriptor }| (listener.to_string(), slot, descriptor))
            .collect();
        loop {
            let rest = sockets.split_off(sockets.len().min(MAX_DESCRIPTORS));
            let more = !rest.is_empty();
            let (passed, descriptors) = number(std::mem::replace(&mut sockets, rest));
            self.conversation.say(&ToController::Sockets { sockets: passed, more }, descriptors);
            if !more {
                return;
            }
        }
    }

    fn apply(&self, order: Arc<Order>) -> Applying {
        let (instance, conversation) = (self.instance.clone(), self.conversation.clone());
        Box::pin(async move {
            let result = apply(&instance, &conversation, &order).await;
            (order, result)
        })
    }

    fn answer(&self, order: &Arc<Order>, result: Result<Reloaded, ReloadError>) {
        let revision = order.site.revision;
        self.conversation.answer(
            order,
            match result {
                Ok(reloaded) => configured(revision, &reloaded),
                Err(error) => ToController::Refused { revision, error: error.to_string() },
            },
        );
    }

    fn link_ended(&self, ends: &Arc<Ends>, why: Option<String>) {
        self.conversation.unlink(ends);
        match why {
            Some(why) => tracing::warn!(why, "the link to the controller was ended"),
            None => tracing::warn!("the controller has gone, or has ended its link"),
        }
        if matches!(self.conversation.state(), State::Starting | State::Ready) {
            tracing::error!("it was never told to serve, and ends");
            self.conversation.abandon();
            self.instance.drain(Duration::ZERO, false);
        }
    }

    /// Says what there is of the apps here, if it is not what was said last.
    fn tell_load(&self) {
        let load = self.instance.remote_apps().load(self.instance.site());
        let mut last = self.load.lock();
        if load.is_some() && *last != load {
            last.clone_from(&load);
            drop(last);
            load.into_iter()
                .for_each(|load| self.conversation.say(&ToController::AppsLoad(load), Vec::new()));
        }
    }

    fn tell_ejections(&self) {
        for health in self.instance.site().upstreams.ejections() {
            self.conversation.say(&ToController::ServerHealth(health), Vec::new());
        }
    }
}

impl Actor for InstanceLink {
    type Message = std::convert::Infallible;

    const KIND: &'static str = "control link";

    async fn run(&mut self, context: &Context) -> Result<(), Failure> {
        let mut ejections = self.instance.site().upstreams.observe();
        // Of those that nobody has observed.
        self.tell_ejections();
        let mut sampling = tokio::time::interval(SAMPLE);
        sampling.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut looking = tokio::time::interval(READY_LOOK);
        looking.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut telling = tokio::time::interval(LOAD);
        telling.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let site = self.instance.site().clone();
        let mut applying: Option<Applying> = None;
        loop {
            context.progress();
            if applying.is_none() {
                applying = self.conversation.order().map(|order| self.apply(order));
            }
            let (ends, listener) = (self.conversation.ends(), self.conversation.listener());
            tokio::select! {
                received = async {
                    match &ends {
                        Some(ends) => ends.receiver.recv().await.map(|received| (ends, received)),
                        None => pending().await,
                    }.map_err(|error| (ends.as_ref(), error))
                } => match received {
                    Ok((ends, Some((message, descriptors)))) => {
                        if let Err(error) = self.heard(message, descriptors, context) {
                            self.link_ended(ends, Some(error.to_string()));
                        }
                    }
                    Ok((ends, None)) => self.link_ended(ends, None),
                    Err((Some(ends), error)) => self.link_ended(ends, Some(error.to_string())),
                    Err((None, _)) => {}
                },
                accepted = async {
                    match &listener {
                        Some(listener) => listener.accept().await,
                        None => pending().await,
                    }
                } => match accepted {
                    Ok((link, peer)) => {
                        tracing::info!(pid = peer.pid, "another controller has connected");
                        self.conversation.relink(link);
                        self.tell_ejections();
                        *self.load.lock() = None;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a controller's link was not accepted");
                        if is_exhausted(&error) {
                            tokio::time::sleep(EXHAUSTED).await;
                        }
                    }
                },
                (order, result) = async {
                    match &mut applying {
                        Some(applying) => applying.await,
                        None => pending().await,
                    }
                } => {
                    applying = None;
                    self.answer(&order, result);
                }
                health = ejections.recv() => match health {
                    Ok(health) => self.conversation.say(&ToController::ServerHealth(health), Vec::new()),
                    Err(RecvError::Lagged(_)) => self.tell_ejections(),
                    Err(RecvError::Closed) => return Err("the upstreams are gone".into()),
                },
                () = site.apps.wanted() => self.tell_load(),
                _ = telling.tick(), if !self.instance.config().apps.is_empty() => self.tell_load(),
                _ = sampling.tick() => {
                    let sample = sample::take(&self.instance, &self.conversation);
                    self.conversation.say(&ToController::Sample(sample), Vec::new());
                }
                _ = looking.tick(), if self.conversation.state() == State::Starting => {
                    if self.instance.is_ready() {
                        self.conversation.set_state(State::Ready);
                    }
                }
            }
        }
    }

    async fn handle(&mut self, message: Self::Message, _: &Context) -> Result<(), Failure> {
        match message {}
    }
}

async fn apply(
    instance: &Arc<Instance>,
    conversation: &Conversation,
    order: &Order,
) -> Result<Reloaded, ReloadError> {
    let config = super::host::parse(&order.site, &conversation.identity().site).await?;
    instance.reload_with(config, order.given.clone()).await
}

pub(super) fn configured(revision: u64, reloaded: &Reloaded) -> ToController {
    let names = |names: &[Arc<str>]| names.iter().map(ToString::to_string).collect();
    ToController::Configured {
        revision,
        listeners_added: names(&reloaded.listeners_added),
        listeners_removed: names(&reloaded.listeners_removed),
        listeners_changed: names(&reloaded.listeners_changed),
    }
}

/// Its heartbeat too; deadlines for it are a multiple.
const SAMPLE: Duration = Duration::from_millis(500);
const READY_LOOK: Duration = Duration::from_millis(10);
/// How often it is seen whether there is something else to be said of the apps.
const LOAD: Duration = Duration::from_millis(100);
const EXHAUSTED: Duration = Duration::from_millis(100);
