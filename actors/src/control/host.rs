//! The life of an instance process: from its first word to its exit.

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use playhouse_config::model;
use playhouse_protocol::control::{SiteText, State, ToController, ToInstance};
use playhouse_serve::Ledger;
use playhouse_serve::ledger;
use playhouse_serve::net::KeySource;
use playhouse_serve::shared::{Addresses, Board, Shared};
use playhouse_sys::SharedPage;
use ractor::SpawnErr;

use super::conversation::{BeginError, Conversation, Identity, Order};
use super::files;
use super::instance_link::configured;
use super::link::Link;
use crate::instance::{Exit, Instance, Options, StartError};
use crate::reload::{ReloadError, Reloaded};

/// Why an instance process has ended otherwise than by a drain.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// It could not begin.
    #[error(transparent)]
    Begin(#[from] BeginError),
    /// Its controller was gone before it was told to serve.
    #[error("the controller was gone before this instance was told to serve")]
    Abandoned,
    /// The controller has said what cannot be understood.
    #[error("the controller was not understood: {0}")]
    Misunderstood(String),
    /// Its first configuration could not be put into force; the controller was told.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The tree could not be started.
    #[error("the root supervisor did not start: {0}")]
    Spawn(#[from] SpawnErr),
    /// A failure has climbed to the top.
    #[error("the instance has failed, and what it could drain is drained: {0}")]
    Failed(String),
}

/// Runs an instance over the link to its controller until it is drained. `terminated` completes when the process is asked
/// to end by a signal: that is a drain too, for which others take what the kernel has queued. `options` are those of an
/// instance in one process, without a state directory. To be called within a runtime.
///
/// # Errors
/// See [`HostError`]. In any case nothing is left in the state directory.
pub async fn run(
    identity: Identity,
    link: Link,
    options: Options,
    terminated: impl Future<Output = ()>,
) -> Result<(), HostError> {
    let (directory, slot) = (identity.directory.clone(), identity.slot);
    let conversation = Conversation::begin(identity, link)?;
    let result = live(&conversation, options, terminated).await;
    // A controller that does not read holds nobody up.
    let _ = tokio::time::timeout(FAREWELL, conversation.flushed()).await;
    conversation.end();
    // What outlives the tables by an accident of who holds them last.
    let _ = std::fs::remove_file(files::admin_path(&directory, slot));
    result
}

async fn live(
    conversation: &Arc<Conversation>,
    options: Options,
    terminated: impl Future<Output = ()>,
) -> Result<(), HostError> {
    let mut terminated = pin!(terminated);
    let first = tokio::select! {
        order = first_order(conversation) => order?,
        () = &mut terminated => None,
    };
    let Some(order) = first else { return Ok(()) };
    let instance = match open(conversation, options, &order).await {
        Ok(instance) => instance,
        Err(error) => {
            let (revision, text) = (order.site.revision, error.to_string());
            conversation.answer(&order, ToController::Refused { revision, error: text });
            return Err(error.into());
        }
    };
    let opened = Reloaded {
        listeners_added: instance.addresses().into_iter().map(|(name, _)| name).collect(),
        ..Reloaded::default()
    };
    conversation.answer(&order, configured(order.site.revision, &opened));
    drop(order);
    let mut running = pin!(instance.run());
    let exit = tokio::select! {
        exit = &mut running => exit,
        () = &mut terminated => {
            instance.drain(instance.config().drain_timeout, false);
            running.await
        }
    };
    match exit? {
        Exit::Stopped if conversation.was_abandoned() => Err(HostError::Abandoned),
        Exit::Stopped => Ok(()),
        Exit::Failed(cause) => Err(HostError::Failed(cause)),
    }
}

/// The first configuration; `None` where it is to end before it has one.
async fn first_order(conversation: &Conversation) -> Result<Option<Arc<Order>>, HostError> {
    let misunderstood = |error: &dyn std::fmt::Display| HostError::Misunderstood(error.to_string());
    loop {
        let ends = conversation.ends().ok_or(HostError::Abandoned)?;
        let received = ends.receiver.recv().await.map_err(|error| misunderstood(&error))?;
        let (message, descriptors) = received.ok_or(HostError::Abandoned)?;
        let result = match message {
            ToInstance::Hello(hello) => conversation.check(&hello),
            ToInstance::Sockets { sockets } => conversation.add_sockets(sockets, descriptors),
            ToInstance::Configure { site, sockets } => conversation.add_order(site, sockets, descriptors),
            ToInstance::TicketKeys { keys } => {
                conversation.keep_ticket_keys(keys);
                Ok(())
            }
            ToInstance::Drain { .. } => {
                conversation.set_state(State::Draining);
                return Ok(None);
            }
            ToInstance::GiveSockets => {
                conversation.say(&ToController::Sockets { sockets: Vec::new(), more: false }, Vec::new());
                Ok(())
            }
            ToInstance::Apps(apps) => {
                conversation.keep_apps(apps);
                Ok(())
            }
            ToInstance::AppOutputs { processes } => conversation.hold_outputs(processes, descriptors),
            ToInstance::GiveAppOutputs => {
                conversation.give_outputs();
                Ok(())
            }
            // There is nothing yet that could serve, or that could be unwell.
            ToInstance::Activate | ToInstance::ServerHealth(_) | ToInstance::Unknown => Ok(()),
        };
        result.map_err(|error| misunderstood(&error))?;
        if let Some(order) = conversation.order() {
            return Ok(Some(order));
        }
    }
}

async fn open(
    conversation: &Arc<Conversation>,
    mut options: Options,
    order: &Order,
) -> Result<Arc<Instance>, StartError> {
    let config = parse(&order.site, &conversation.identity().site).await?;
    options.conversation = Some(conversation.clone());
    options.site_file = Some(order.site.path.clone());
    options.shared = shared(conversation.identity());
    let instance = Instance::open_with(config, options, &mut order.given.lock())?;
    if let Some(apps) = conversation.apps() {
        instance.remote_apps().apply(apps, instance.site());
    }
    let keys = conversation.ticket_keys();
    if !keys.is_empty()
        && let Err(error) = instance.site().certificates.ticket_keys().replace(keys)
    {
        tracing::error!(%error, "session ticket keys were refused");
    }
    Ok(instance)
}

/// What the controller has made for this process to share. An instance serves without: it is counted by nobody then, and
/// takes as many clients as come.
fn shared(identity: &Identity) -> Shared {
    let Identity { directory, slot, generation, .. } = identity;
    let mut shared = Shared { quic: KeySource::Given(files::quic_path(directory)), ..Shared::default() };
    let page = SharedPage::open(&files::ledger_path(directory, *slot, *generation), ledger::WORDS);
    match page.and_then(Ledger::in_page) {
        Ok(ledger) => shared.ledger = Arc::new(ledger),
        Err(error) => {
            tracing::warn!(%error, "no page of the ledger: what is counted here ends with this process")
        }
    }
    match Board::open(&files::board_path(directory)) {
        Ok(board) => shared.place = board.mine(*slot),
        Err(error) => tracing::warn!(%error, "no board: clients are not shared evenly"),
    }
    match Addresses::open(&files::limits_path(directory), *slot) {
        Ok(addresses) => shared.addresses = Some(Arc::new(addresses)),
        Err(error) => {
            tracing::warn!(%error, "no table of addresses: limits of clients are this instance's alone")
        }
    }
    shared
}

/// What a site file means that the controller has read.
pub(super) async fn parse(text: &SiteText, name: &str) -> Result<model::Site, ReloadError> {
    let text = text.clone();
    let parsed =
        tokio::task::spawn_blocking(move || playhouse_config::parse(&text.text, Path::new(&text.path)));
    let site = parsed.await.map_err(|_| ReloadError::NoAnswer)??;
    if site.name != name {
        return Err(ReloadError::OtherSite(site.name));
    }
    Ok(site)
}

/// For the kernel to take the last words.
const FAREWELL: Duration = Duration::from_secs(1);
