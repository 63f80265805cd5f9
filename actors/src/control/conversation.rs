//! What an instance and its controllers have said to each other: the table behind the actor that speaks.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use playhouse_protocol::control::{
    AppProcess, AppsState, Hello, MAX_DESCRIPTORS, Passed, SiteText, State, TicketKey, ToController,
    ToInstance, VERSION, Version,
};
use playhouse_serve::sockets::Given;
use tokio::time::Instant;

use super::files::{admin_path, control_path};
use super::link::{Link, LinkError, LinkListener, Receiver, Sender};
use super::passed;
use super::record::{Record, RecordError};
use crate::apps::outputs::{Outputs, pair_outputs};

/// Who an instance is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The state directory.
    pub directory: PathBuf,
    /// The site's name.
    pub site: String,
    /// The instance's place, from 1.
    pub slot: u32,
    /// Counts the processes that the site has started.
    pub generation: u64,
    /// The program's version, for people.
    pub build: String,
}

/// Everything of the conversation that must survive the actor which leads it: the link, where the next controller
/// connects, and how far things have come.
#[derive(Debug)]
pub struct Conversation {
    identity: Identity,
    record: Record,
    listener: Mutex<Option<Arc<LinkListener>>>,
    ends: Mutex<Option<Arc<Ends>>>,
    said: Mutex<Said>,
    /// What processes of apps write to.
    outputs: Outputs,
}

/// Both directions of a link.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) sender: Sender<ToController>,
    pub(super) receiver: Receiver<ToInstance>,
}

#[derive(Debug)]
struct Said {
    state: State,
    revision: u64,
    ticket_keys: Vec<TicketKey>,
    /// Sockets for the next configuration.
    ahead: Vec<(Passed, OwnedFd)>,
    /// Configurations without an answer yet, oldest first.
    orders: VecDeque<Arc<Order>>,
    samples: u64,
    sampled: Instant,
    abandoned: bool,
    /// What was said of the apps last.
    apps: Option<AppsState>,
}

/// A configuration that is to be put into force.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) site: SiteText,
    pub(super) given: Arc<Mutex<Given>>,
}

/// What went wrong in a conversation; its link is ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Misunderstood {
    #[error("version {0} of the control protocol is not understood")]
    Version(Version),
    #[error("it is the controller of {0:?}")]
    Site(String),
    #[error("{0}")]
    Sockets(String),
    #[error("too much at once")]
    TooMuch,
}

impl Conversation {
    /// Writes the instance's record, listens for controllers to come, and says who it is on the link to the one that has
    /// started it. Must be called within a runtime.
    ///
    /// # Errors
    /// What the file system says; where another process has this place. Nothing is left then.
    pub fn begin(identity: Identity, link: Link) -> Result<Arc<Self>, BeginError> {
        let Identity { directory, slot, generation, build, .. } = &identity;
        let record = Record::of_this_process(*slot, *generation, build).map_err(BeginError::Process)?;
        record.write(directory)?;
        let path = control_path(directory, *slot);
        let listener = LinkListener::bind(&path).map_err(|error| {
            let _ = record.remove(directory);
            BeginError::Listen { path, error }
        })?;
        let conversation = Arc::new(Conversation {
            identity,
            record,
            listener: Mutex::new(Some(Arc::new(listener))),
            ends: Mutex::default(),
            said: Mutex::new(Said {
                state: State::Starting,
                revision: 0,
                ticket_keys: Vec::new(),
                ahead: Vec::new(),
                orders: VecDeque::new(),
                samples: 0,
                sampled: Instant::now(),
                abandoned: false,
                apps: None,
            }),
            outputs: Outputs::default(),
        });
        conversation.relink(link);
        Ok(conversation)
    }

    /// Who the instance is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Where its own admin interface is.
    pub fn admin_path(&self) -> PathBuf {
        admin_path(&self.identity.directory, self.identity.slot)
    }

    /// Its name: the root of its tree.
    pub fn name(&self) -> String {
        format!("instance-{}", self.identity.slot)
    }

    /// Where it is in its life.
    pub fn state(&self) -> State {
        self.said.lock().state
    }

    /// Whether its controller was gone before it was told to serve.
    pub fn was_abandoned(&self) -> bool {
        self.said.lock().abandoned
    }

    /// Ends the conversation, and takes away what it has left in the state directory.
    pub fn end(&self) {
        self.listener.lock().take();
        if let Err(error) = self.record.remove(&self.identity.directory) {
            tracing::warn!(%error, "record not removed");
        }
        self.ends.lock().take();
    }

    /// Completes when the kernel has what was said; at once where there is no link.
    pub async fn flushed(&self) {
        if let Some(ends) = self.ends() {
            // A link that has ended takes nothing more.
            let _ = ends.sender.flushed().await;
        }
    }

    /// Goes on over this link: the one before is ended.
    pub(super) fn relink(&self, link: Link) {
        let (sender, receiver) = link.split();
        let before = self.ends.lock().replace(Arc::new(Ends { sender, receiver }));
        if let Some(before) = before {
            before.sender.close();
        }
        self.say(&ToController::Hello(self.hello()), Vec::new());
    }

    /// There is no link any more, unless it is another by now.
    pub(super) fn unlink(&self, ends: &Arc<Ends>) {
        let mut current = self.ends.lock();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, ends)) {
            *current = None;
            ends.sender.close();
        }
    }

    /// Whether there is a controller.
    pub(crate) fn is_linked(&self) -> bool {
        self.ends.lock().is_some()
    }

    /// What processes of apps write to, as far as it is held here.
    pub(crate) fn outputs(&self) -> &Outputs {
        &self.outputs
    }

    /// Holds what processes of apps write to.
    pub(super) fn hold_outputs(
        &self,
        processes: Vec<AppProcess>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Misunderstood> {
        let pairs = pair_outputs(processes, descriptors).map_err(Misunderstood::Sockets)?;
        pairs.into_iter().for_each(|(process, pipes)| self.outputs.hold(process, pipes));
        Ok(())
    }

    /// Notes what the controller says of the apps.
    pub(super) fn keep_apps(&self, apps: AppsState) {
        self.outputs.hold_only(&apps.processes);
        self.said.lock().apps = Some(apps);
    }

    /// What was said of the apps last.
    pub(super) fn apps(&self) -> Option<AppsState> {
        self.said.lock().apps.clone()
    }

    /// Sends back what processes of apps write to.
    pub(super) fn give_outputs(&self) {
        let mut all = self.outputs.duplicates();
        loop {
            let rest = all.split_off(all.len().min(MAX_DESCRIPTORS / 2));
            let more = !rest.is_empty();
            let (processes, pipes): (Vec<_>, Vec<_>) = std::mem::replace(&mut all, rest).into_iter().unzip();
            let descriptors = pipes.into_iter().flatten().collect();
            self.say(&ToController::AppOutputs { processes, more }, descriptors);
            if !more {
                return;
            }
        }
    }

    pub(super) fn ends(&self) -> Option<Arc<Ends>> {
        self.ends.lock().clone()
    }

    pub(super) fn listener(&self) -> Option<Arc<LinkListener>> {
        self.listener.lock().clone()
    }

    /// Says something, where there is somebody to hear it.
    pub(super) fn say(&self, message: &ToController, descriptors: Vec<OwnedFd>) {
        let Some(ends) = self.ends() else { return };
        match ends.sender.send(message, descriptors) {
            // Whoever receives sees the end, and has what the peer has said before.
            Ok(()) | Err(LinkError::Closed | LinkError::Overflow) => {}
            Err(error) => tracing::warn!(%error, "a message to the controller was not sent"),
        }
    }

    fn hello(&self) -> Hello {
        let said = self.said.lock();
        Hello {
            version: VERSION,
            build: self.identity.build.clone(),
            pid: self.record.pid,
            started: self.record.started,
            site: self.identity.site.clone(),
            slot: self.identity.slot,
            generation: self.identity.generation,
            revision: said.revision,
            state: Some(said.state),
            ticket_keys: said.ticket_keys.clone(),
        }
    }

    pub(super) fn check(&self, hello: &Hello) -> Result<(), Misunderstood> {
        if !hello.version.is_understood() {
            return Err(Misunderstood::Version(hello.version));
        }
        if hello.site != self.identity.site {
            return Err(Misunderstood::Site(hello.site.clone()));
        }
        Ok(())
    }

    /// Notes and says where it is in its life, if that is news.
    pub(crate) fn set_state(&self, state: State) {
        let before = std::mem::replace(&mut self.said.lock().state, state);
        if before != state {
            self.say(&ToController::State { state }, Vec::new());
        }
    }

    /// Its controller is gone, and it was never told to serve.
    pub(super) fn abandon(&self) {
        self.said.lock().abandoned = true;
    }

    /// Keeps the ticket keys, for the controller that has none.
    pub(super) fn keep_ticket_keys(&self, keys: Vec<TicketKey>) {
        self.said.lock().ticket_keys = keys;
    }

    pub(super) fn ticket_keys(&self) -> Vec<TicketKey> {
        self.said.lock().ticket_keys.clone()
    }

    pub(super) fn add_sockets(
        &self,
        sockets: Vec<Passed>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Misunderstood> {
        let pairs = passed::pair(sockets, descriptors).map_err(Misunderstood::Sockets)?;
        let mut said = self.said.lock();
        if said.ahead.len() + pairs.len() > MAX_AHEAD {
            return Err(Misunderstood::TooMuch);
        }
        said.ahead.extend(pairs);
        Ok(())
    }

    /// Notes a configuration that is to be put into force.
    pub(super) fn add_order(
        &self,
        site: SiteText,
        sockets: Vec<Passed>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Misunderstood> {
        self.add_sockets(sockets, descriptors)?;
        let mut said = self.said.lock();
        if said.orders.len() >= MAX_ORDERS {
            return Err(Misunderstood::TooMuch);
        }
        let mut given = Given::for_slot(self.identity().slot);
        for (passed, descriptor) in std::mem::take(&mut said.ahead) {
            given.add(&passed.listener, passed.slot, descriptor);
        }
        said.orders.push_back(Arc::new(Order { site, given: Arc::new(Mutex::new(given)) }));
        Ok(())
    }

    /// The oldest configuration without an answer.
    pub(super) fn order(&self) -> Option<Arc<Order>> {
        self.said.lock().orders.front().cloned()
    }

    /// Answers the oldest configuration.
    pub(super) fn answer(&self, order: &Arc<Order>, answer: ToController) {
        let mut said = self.said.lock();
        said.orders.retain(|other| !Arc::ptr_eq(other, order));
        if let ToController::Configured { revision, .. } = &answer {
            said.revision = *revision;
        }
        drop(said);
        self.say(&answer, Vec::new());
    }

    /// The number of the next sample, and the time since the one before in microseconds.
    pub(super) fn next_sample(&self) -> (u64, u64) {
        let mut said = self.said.lock();
        said.samples += 1;
        let before = std::mem::replace(&mut said.sampled, Instant::now());
        (said.samples, (said.sampled - before).as_micros() as u64)
    }
}

/// Why an instance could not begin.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// It does not know itself.
    #[error(transparent)]
    Process(io::Error),
    /// Its record cannot be written.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Controllers to come could not find it.
    #[error("{}: {error}", .path.display())]
    Listen {
        /// The socket file.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
}

/// Sockets that wait for their configuration: far more than a site has listeners.
const MAX_AHEAD: usize = 4096;
/// Configurations that wait: a controller sends the next when the one before is answered, or given up.
const MAX_ORDERS: usize = 8;
