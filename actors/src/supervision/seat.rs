//! A seat: a place in the tree that outlives its occupants.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use indexmap::IndexMap;
use parking_lot::Mutex;
use ractor::ActorCell;
use rustc_hash::FxBuildHasher;
use tokio::sync::{Notify, oneshot};

use super::actor::{Actor, Envelope};
use super::fault::Fault;
use super::progress::Progress;
use super::signals::Signals;
use super::tree::Shared;

/// A place in the tree: a name, the current incarnation, and what is known of all incarnations. Who wants something
/// of an actor holds its seat.
pub struct Seat {
    id: u64,
    name: Box<str>,
    kind: &'static str,
    parent: Weak<Seat>,
    shared: Arc<Shared>,
    occupant: Mutex<Option<ActorCell>>,
    occupied: AtomicBool,
    changed: Notify,
    epoch: AtomicU64,
    state: AtomicU8,
    since_ms: AtomicU64,
    last_cause: Mutex<Option<Box<str>>>,
    progress: Progress,
    signals: Signals,
    /// By name. Nobody outside of the process chooses names, so that the hash need not be a keyed one.
    children: Mutex<IndexMap<Box<str>, Arc<Seat>, FxBuildHasher>>,
}

/// What the occupant of a seat is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SeatState {
    /// Never occupied, or started and not yet complete.
    Starting,
    /// Alive, and all of its children have been started.
    Running,
    /// Asked to stop.
    Stopping,
    /// Empty until its supervisor's backoff has passed.
    Restarting,
    /// Empty, and nobody will fill it.
    Stopped,
}

impl Seat {
    pub(super) fn new(name: &str, kind: &'static str, parent: Weak<Seat>, shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Seat {
            id: shared.next_seat_id(),
            name: name.into(),
            kind,
            parent,
            shared,
            occupant: Mutex::new(None),
            occupied: AtomicBool::new(false),
            changed: Notify::new(),
            epoch: AtomicU64::new(0),
            state: AtomicU8::new(SeatState::Starting as u8),
            since_ms: AtomicU64::new(0),
            last_cause: Mutex::new(None),
            progress: Progress::default(),
            signals: Signals::default(),
            children: Mutex::default(),
        })
    }

    /// The seat of this name beneath this one, made where there is none. A supervisor's new incarnation finds the
    /// seats of the old one, and so their counts.
    pub fn child(self: &Arc<Self>, name: &str, kind: &'static str) -> Arc<Seat> {
        let new = || Seat::new(name, kind, Arc::downgrade(self), self.shared.clone());
        self.children.lock().entry(name.into()).or_insert_with(new).clone()
    }

    /// Takes the seat of a child away. Order among many siblings of one kind does not matter to anyone, so that
    /// this is cheap for a connection.
    pub(crate) fn forget_child(&self, name: &str) {
        let mut children = self.children.lock();
        let few = children.len() <= 64;
        if few {
            children.shift_remove(name)
        } else {
            children.swap_remove(name)
        };
    }

    /// The name, unique among its siblings.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What kind of actor sits here.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Unique in the process.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// The names from the root, joined by `/`.
    pub fn path(&self) -> String {
        match self.parent.upgrade() {
            Some(parent) => format!("{}/{}", parent.path(), self.name),
            None => self.name.to_string(),
        }
    }

    /// Counts the incarnations: 0 before the first, then one more with each.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// How often the seat was filled again.
    pub fn restarts(&self) -> u64 {
        self.epoch().saturating_sub(1)
    }

    /// Why the last incarnation ended.
    pub fn last_cause(&self) -> Option<String> {
        self.last_cause.lock().as_deref().map(str::to_owned)
    }

    /// What the occupant is doing.
    pub fn state(&self) -> SeatState {
        match self.state.load(Ordering::Acquire) {
            1 => SeatState::Running,
            2 => SeatState::Stopping,
            3 => SeatState::Restarting,
            4 => SeatState::Stopped,
            _ => SeatState::Starting,
        }
    }

    /// Messages sent and not yet begun.
    pub fn mailbox(&self) -> usize {
        self.progress.mailbox()
    }

    /// How long the current incarnation has lived, or the seat has been empty.
    pub fn age(&self) -> Duration {
        Duration::from_millis(self.shared.now_ms().saturating_sub(self.since_ms.load(Ordering::Relaxed)))
    }

    /// The seats beneath this one.
    pub fn children(&self) -> Vec<Arc<Seat>> {
        self.children.lock().values().cloned().collect()
    }

    /// The seat beneath this one that stands at `index` in their order.
    pub fn child_at(&self, index: usize) -> Option<Arc<Seat>> {
        self.children.lock().get_index(index).map(|(_, child)| child.clone())
    }

    /// How many seats are beneath this one.
    pub fn child_count(&self) -> usize {
        self.children.lock().len()
    }

    /// The seat of this name beneath this one.
    pub fn find_child(&self, name: &str) -> Option<Arc<Seat>> {
        self.children.lock().get(name).cloned()
    }

    /// Whether an incarnation is alive: from before its start until all that it held has been dropped.
    pub fn is_occupied(&self) -> bool {
        self.occupied.load(Ordering::Acquire)
    }

    /// Waits until no incarnation is alive.
    pub async fn vacated(&self) {
        self.until(|seat| !seat.is_occupied()).await;
    }

    /// Waits for a state.
    pub async fn reached(&self, state: SeatState) {
        self.until(|seat| seat.state() == state).await;
    }

    /// Waits for a change of the seat that makes `condition` hold.
    pub async fn until(&self, condition: impl Fn(&Seat) -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if condition(self) {
                return;
            }
            changed.await;
        }
    }

    /// Sends a message to the current incarnation.
    pub fn send<A: Actor>(&self, message: A::Message) -> Result<(), Unavailable> {
        debug_assert_eq!(self.kind, A::KIND, "a message for another kind of actor");
        self.post(Envelope::Message(Box::new(message)))
    }

    /// Sends a message and waits for its answer. Sent again when the incarnation ends without one, so the message must
    /// be idempotent; gives up after `deadline`.
    pub async fn ask<A: Actor, R: Send>(
        &self,
        deadline: Duration,
        mut message: impl FnMut(oneshot::Sender<R>) -> A::Message,
    ) -> Result<R, AskError> {
        let asking = async {
            loop {
                let epoch = self.epoch();
                let (sender, answer) = oneshot::channel();
                if self.send::<A>(message(sender)).is_ok()
                    && let Ok(answer) = answer.await
                {
                    return answer;
                }
                self.until(|seat| seat.epoch() > epoch).await;
            }
        };
        tokio::time::timeout(deadline, asking).await.map_err(|_| AskError)
    }

    /// Puts a fault into the current incarnation. What follows is counted and shown, but uses up neither intensity
    /// nor backoff.
    pub fn inject(&self, fault: Fault) -> Result<(), Unavailable> {
        let occupant = self.occupant().ok_or(Unavailable)?;
        self.shared.events().emit(
            super::EventKind::Fault,
            self.path(),
            format!("{fault} asked for by an operator"),
        );
        if !matches!(fault, Fault::Stall(_)) {
            self.signals.mark_by_operator();
        }
        match fault {
            Fault::Kill => {
                occupant.kill();
                Ok(())
            }
            Fault::Stop => {
                self.request_stop();
                Ok(())
            }
            Fault::Panic => {
                self.signals.panic();
                self.post(Envelope::Wake)
            }
            Fault::Stall(duration) => {
                self.signals.stall(duration);
                self.post(Envelope::Wake)
            }
        }
    }

    /// Asks the current incarnation to stop: at its mailbox, and inside a long [`Actor::run`].
    pub fn request_stop(&self) {
        self.set_state(SeatState::Stopping);
        self.signals.stop();
        // An incarnation that is gone needs no stopping.
        let _ = self.post(Envelope::Stop);
    }

    /// Cuts the current incarnation off.
    pub fn kill(&self) {
        if let Some(occupant) = self.occupant() {
            occupant.kill();
        }
    }

    /// Kills all that is alive beneath this seat, and waits until all of it is gone.
    pub async fn kill_descendants(&self) {
        let mut living = Vec::new();
        self.collect_living(&mut living);
        living.iter().for_each(|seat| seat.kill());
        for seat in living {
            seat.vacated().await;
        }
    }

    /// A descendant is alive.
    pub fn has_living_descendants(&self) -> bool {
        self.children().iter().any(|child| child.is_occupied() || child.has_living_descendants())
    }

    fn collect_living(&self, living: &mut Vec<Arc<Seat>>) {
        for child in self.children() {
            child.collect_living(living);
            if child.is_occupied() {
                living.push(child);
            }
        }
    }

    /// For the root, which has no supervisor to watch it: whether the occupant takes its messages. To be asked again and
    /// again: each time it is given one, unless it has not taken the last, and may be without progress no longer than
    /// `patience`.
    pub(crate) fn answers(&self, patience: Duration) -> bool {
        if !self.is_occupied() || self.progress.waiting(self.shared.now_ms()) > patience {
            return false;
        }
        self.mailbox() > 0 || self.post(Envelope::Wake).is_ok()
    }

    /// For the root, which has no supervisor: cuts it off while a stall that an operator asked for goes on.
    pub(crate) fn kill_if_stalled_by_fault(&self) {
        if self.signals.is_stalled() {
            self.kill();
        }
    }

    /// For the root, which has no supervisor: whether an operator has ended its last incarnation.
    pub(crate) fn ended_by_operator(&self) -> bool {
        self.signals.take_by_operator()
    }

    /// The current incarnation's cell, to link a child to.
    pub(crate) fn cell(&self) -> Option<ActorCell> {
        self.occupant()
    }

    pub(super) fn occupant(&self) -> Option<ActorCell> {
        self.occupant.lock().clone()
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn post(&self, envelope: Envelope) -> Result<(), Unavailable> {
        let occupant = self.occupant().ok_or(Unavailable)?;
        self.progress.sent(self.stamp_ms());
        self.shared.count_message();
        occupant.send_message(envelope).map_err(|_| {
            self.progress.returned();
            Unavailable
        })
    }

    /// A new incarnation sits down. Refused while another is alive.
    pub(super) fn occupy(&self, cell: ActorCell) -> bool {
        if self.occupied.swap(true, Ordering::AcqRel) {
            return false;
        }
        *self.occupant.lock() = Some(cell);
        let now_ms = self.shared.now_ms();
        self.progress.clear(now_ms);
        self.signals.clear();
        self.since_ms.store(now_ms, Ordering::Relaxed);
        self.epoch.fetch_add(1, Ordering::AcqRel);
        self.set_state(SeatState::Starting);
        true
    }

    /// The incarnation is gone, with all that it held.
    pub(super) fn vacate(&self) {
        *self.occupant.lock() = None;
        self.signals.deregister();
        self.since_ms.store(self.stamp_ms(), Ordering::Relaxed);
        self.occupied.store(false, Ordering::Release);
        self.set_state(SeatState::Stopped);
    }

    pub(super) fn set_state(&self, state: SeatState) {
        self.state.store(state as u8, Ordering::Release);
        self.changed.notify_waiters();
    }

    pub(super) fn set_cause(&self, cause: &str) {
        *self.last_cause.lock() = Some(cause.into());
    }

    pub(super) fn set_stall_after(&self, deadline: Option<Duration>) {
        self.progress.set_limit(deadline);
    }

    pub(super) fn stall_after(&self) -> Option<Duration> {
        self.progress.limit()
    }

    /// How long the occupant has been without progress, when that is longer than it may be.
    pub(crate) fn stalled(&self) -> Option<Duration> {
        self.progress.stalled(self.shared.now_ms()).filter(|_| self.is_occupied())
    }

    /// What the occupant is told by other ways than its mailbox.
    pub(super) fn signals(&self) -> &Signals {
        &self.signals
    }

    /// The occupant takes its next message.
    pub(super) fn received(&self) {
        self.progress.received(self.stamp_ms());
    }

    /// The occupant is back at its mailbox.
    pub(super) fn idle(&self) {
        self.progress.idle(self.stamp_ms());
    }

    /// The occupant's work goes on.
    pub(super) fn note_progress(&self) {
        self.progress.note(self.shared.now_ms());
    }

    /// The time, for what is noted of the occupant's progress. Nobody watches a connection by that: it ends with its seat, and
    /// of those there are too many to read the clock for.
    fn stamp_ms(&self) -> u64 {
        if self.kind == super::CONNECTION { 0 } else { self.shared.now_ms() }
    }
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seat")
            .field("path", &self.path())
            .field("epoch", &self.epoch())
            .finish_non_exhaustive()
    }
}

/// Completes when the occupant has been asked to stop. To be awaited by the occupant's own task alone.
#[derive(Debug)]
pub struct Drained(pub(super) Arc<Seat>);

impl Future for Drained {
    type Output = ();

    // The seat's waker is the task's own: the wrapper has registered it in this same poll.
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.0.signals.stop_requested() { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Nobody sits there just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no incarnation of the actor is alive")]
pub struct Unavailable;

/// No answer within the deadline, from this incarnation or the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the actor has not answered within the deadline")]
pub struct AskError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_survive_the_way_through_their_number() {
        let tree = crate::supervision::Tree::new("root", "supervisor", 1);
        for state in [
            SeatState::Starting,
            SeatState::Running,
            SeatState::Stopping,
            SeatState::Restarting,
            SeatState::Stopped,
        ] {
            tree.root().set_state(state);
            assert_eq!(tree.root().state(), state);
        }
    }
}
