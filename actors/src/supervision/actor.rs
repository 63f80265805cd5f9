//! What sits in a seat, and the wrapper around every one of them.

use std::any::Any;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use ractor::{ActorCell, ActorId, ActorProcessingErr, ActorRef, SpawnErr, SupervisionEvent};

use super::events::EventKind;
use super::fault::Fault;
use super::seat::{Drained, Seat, SeatState};
use super::watchdog;

/// Why an actor has failed; given as an error by its own code, or made from a panic.
pub type Failure = ActorProcessingErr;

/// An actor. It lives in its own task, takes one message at a time, and everything that it holds is dropped with it,
/// whatever ends it.
pub trait Actor: Send + Sized + 'static {
    /// What it is sent.
    type Message: Send + 'static;

    /// What its kind is called in the tree.
    const KIND: &'static str;

    /// Whether [`Actor::run`] ends by itself after [`Context::drained`]; otherwise it is dropped when the actor is asked
    /// to stop.
    const GRACEFUL: bool = false;

    /// Whether it is complete only when [`Actor::run`] has returned: until then its seat says `starting`.
    const STARTS_IN_RUN: bool = false;

    /// Whether [`Actor::run`] is all that it ever does: it takes no messages, and ends when that returns. For actors that come
    /// and go by the thousand: to begin and to end in order is no message, and no event at its parent, which hears of
    /// failures and kills alone.
    const ONLY_RUNS: bool = false;

    /// The first thing it does. An actor whose work is a loop stays in here: kills and injected faults reach it at its
    /// await points, messages do not.
    fn run(&mut self, _: &Context) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }

    /// One message.
    fn handle(
        &mut self,
        message: Self::Message,
        context: &Context,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// A linked child has ended.
    fn child_ended(
        &mut self,
        _: ActorId,
        _: Ended,
        _: &Context,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }

    /// It has been asked to stop. One that needs time gives `false`, and calls [`Context::stop`] later.
    fn stopping(&mut self, _: &Context) -> impl Future<Output = Result<bool, Failure>> + Send {
        async { Ok(true) }
    }
}

/// How a child has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By itself, or because it was asked to.
    Stopped,
    /// Cut off.
    Killed,
    /// With an error or a panic.
    Failed(String),
}

/// An actor's view of itself.
#[derive(Clone, Debug)]
pub struct Context {
    seat: Arc<Seat>,
    me: ActorRef<Envelope>,
}

impl Context {
    /// Its seat.
    pub fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }

    /// Its cell, to link children to.
    pub fn cell(&self) -> ActorCell {
        self.me.get_cell()
    }

    /// Notes that the work goes on; for an actor that stays in [`Actor::run`] or in one long message.
    pub fn progress(&self) {
        self.seat.note_progress();
    }

    /// Completes when it has been asked to stop.
    pub fn drained(&self) -> Drained {
        Drained(self.seat.clone())
    }

    /// A number from 0 to less than 1, for backoffs that are not to be in step.
    pub(crate) fn jitter(&self) -> f64 {
        self.seat.shared().jitter()
    }

    /// Ends this incarnation once the current message is done. What is queued behind it is dropped.
    pub fn stop(&self) {
        self.me.stop(None);
    }

    /// Notes an event.
    pub fn emit(&self, kind: EventKind, path: impl Into<String>, message: impl Into<String>) {
        self.seat.shared().events().emit(kind, path, message);
    }

    /// Sends this incarnation a message; nothing where it is gone.
    pub fn send<A: Actor>(&self, message: A::Message) {
        // A new incarnation must not get what was meant for this one, so this does not go through the seat.
        self.seat.shared().count_message();
        let _ = self.me.cast(Envelope::Internal(Box::new(message)));
    }

    /// Sends this incarnation a message after a time.
    pub fn send_after<A: Actor>(&self, delay: Duration, message: A::Message) {
        let context = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            context.send::<A>(message);
        });
    }
}

/// What goes through the mailbox.
pub(super) enum Envelope {
    /// Begin [`Actor::run`].
    Run,
    /// Look for a fault.
    Wake,
    /// Stop.
    Stop,
    /// A message through the seat, counted in its depth.
    Message(Box<dyn Any + Send>),
    /// A message from the incarnation to itself.
    Internal(Box<dyn Any + Send>),
}

/// Ends an actor that [only runs](Actor::ONLY_RUNS).
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("it has done all that it had to do")]
struct Finished;

/// Fills a seat, linked to a parent where there is one. Refused while another incarnation sits there.
pub async fn spawn<A: Actor>(
    seat: Arc<Seat>,
    actor: A,
    parent: Option<ActorCell>,
) -> Result<ActorCell, SpawnErr> {
    let seated = Seated { seat, context: OnceLock::new(), actor: Mutex::new(Some(actor)) };
    let (actor, _) = match parent {
        Some(parent) => ractor::Actor::spawn_linked(None, seated, (), parent).await?,
        None => ractor::Actor::spawn(None, seated, ()).await?,
    };
    Ok(actor.get_cell())
}

/// The wrapper. The actor is in here, and in the future of its current message while there is one, never in ractor's
/// state: a killed actor's state would live on until its supervisor has read of it.
struct Seated<A> {
    seat: Arc<Seat>,
    /// Set when the seat was taken.
    context: OnceLock<Context>,
    actor: Mutex<Option<A>>,
}

impl<A: Actor> ractor::Actor for Seated<A> {
    type Msg = Envelope;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, me: ActorRef<Envelope>, _: ()) -> Result<(), Failure> {
        if !self.seat.occupy(me.get_cell()) {
            return Err(format!("{} is still occupied", self.seat.path()).into());
        }
        let _ = self.context.set(Context { seat: self.seat.clone(), me });
        if !A::ONLY_RUNS {
            self.seat.post(Envelope::Run)?;
        }
        Ok(())
    }

    /// Where a message is not worth it. A kill and a panic end it here as anywhere.
    async fn post_start(&self, me: ActorRef<Envelope>, _: &mut ()) -> Result<(), Failure> {
        if !A::ONLY_RUNS {
            return Ok(());
        }
        self.with_actor(async |actor, context| {
            self.seat.set_state(SeatState::Running);
            self.guarded(actor.run(context), !A::GRACEFUL).await.unwrap_or(Ok(()))
        })
        .await?;
        // From here to its end there is no await, in which anything could still want to end it.
        let me = me.get_cell();
        if let Some(parent) = me.try_get_supervisor() {
            me.unlink(parent);
        }
        // To ractor it has failed to start, which is the shortest way out. Nobody is told.
        Err(Finished.into())
    }

    async fn handle(&self, _: ActorRef<Envelope>, envelope: Envelope, _: &mut ()) -> Result<(), Failure> {
        if matches!(envelope, Envelope::Internal(_)) {
            self.seat.note_progress();
        } else {
            self.seat.received();
        }
        self.with_actor(async |actor, context| match envelope {
            Envelope::Run => {
                if !A::STARTS_IN_RUN {
                    self.seat.set_state(SeatState::Running);
                }
                self.guarded(actor.run(context), !A::GRACEFUL).await.unwrap_or(Ok(()))?;
                if A::STARTS_IN_RUN && self.seat.state() == SeatState::Starting {
                    self.seat.set_state(SeatState::Running);
                }
                Ok(())
            }
            Envelope::Wake => self.guarded(async { Ok(()) }, false).await.unwrap_or(Ok(())),
            Envelope::Stop => {
                if self.guarded(actor.stopping(context), false).await.unwrap_or(Ok(true))? {
                    context.stop();
                }
                Ok(())
            }
            Envelope::Message(message) | Envelope::Internal(message) => match message.downcast() {
                Ok(message) => self.guarded(actor.handle(*message, context), false).await.unwrap_or(Ok(())),
                Err(_) => {
                    tracing::error!(
                        path = self.seat.path(),
                        "a message for another kind of actor was dropped"
                    );
                    Ok(())
                }
            },
        })
        .await
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<Envelope>,
        event: SupervisionEvent,
        _: &mut (),
    ) -> Result<(), Failure> {
        let (child, ended) = match event {
            SupervisionEvent::ActorTerminated(child, _, why) => match why.as_deref() {
                Some("killed" | "actor_task_cancelled") => (child, Ended::Killed),
                _ => (child, Ended::Stopped),
            },
            SupervisionEvent::ActorFailed(child, failure) => (child, Ended::Failed(failure.to_string())),
            _ => return Ok(()),
        };
        let id = child.get_id();
        self.with_actor(async |actor, context| {
            self.guarded(actor.child_ended(id, ended, context), false).await.unwrap_or(Ok(()))
        })
        .await
    }
}

impl<A: Actor> Seated<A> {
    /// Runs one step with the actor taken out, so that a kill or a panic in the middle drops it there and then.
    async fn with_actor(
        &self,
        step: impl AsyncFnOnce(&mut A, &Context) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let actor = self.actor.lock().take();
        let (Some(mut actor), Some(context)) = (actor, self.context.get()) else {
            return Err("an earlier step was cut off".into());
        };
        let result = step(&mut actor, context).await;
        if let Err(failure) = &result {
            self.seat.set_cause(&failure.to_string());
        }
        *self.actor.lock() = Some(actor);
        self.seat.idle();
        result
    }

    /// Polls `work` under the watchdog's eye, with the seat's faults before each poll. `None`: it was dropped because
    /// the actor has been asked to stop.
    async fn guarded<T>(&self, work: impl Future<Output = T>, droppable: bool) -> Option<T> {
        let mut work = pin!(work);
        let mut stall = None;
        let mut registered: Option<Waker> = None;
        poll_fn(|cx| {
            let _polling = watchdog::polling(self.seat.id());
            if registered.as_ref().is_none_or(|registered| !registered.will_wake(cx.waker())) {
                self.seat.signals().register(cx.waker().clone());
                registered = Some(cx.waker().clone());
            }
            loop {
                if self.seat.signals().has_fault() {
                    match self.seat.signals().take_fault() {
                        Some(Fault::Panic) => panic!("panic asked for by an operator"),
                        Some(Fault::Stall(duration)) => stall = Some(Box::pin(tokio::time::sleep(duration))),
                        _ => {}
                    }
                }
                let Some(sleep) = &mut stall else { break };
                if sleep.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                stall = None;
                self.seat.signals().stall_over();
            }
            if droppable && self.seat.signals().stop_requested() {
                return Poll::Ready(None);
            }
            work.as_mut().poll(cx).map(Some)
        })
        .await
    }
}

impl<A> Drop for Seated<A> {
    fn drop(&mut self) {
        // First the actor with all that it holds: whoever waits for the empty seat may rely on that.
        drop(self.actor.lock().take());
        if self.context.get().is_some() {
            self.seat.vacate();
        }
    }
}
