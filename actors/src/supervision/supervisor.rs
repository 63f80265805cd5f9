//! The supervisor: OTP's rules over seats.
//!
//! It never waits in its own mailbox: children are ended, and backoffs are slept, in tasks that report back. A new
//! incarnation first ends whatever is still alive beneath its seat.

use std::sync::Arc;
use std::time::Duration;

use ractor::ActorId;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::actor::{Actor, Context, Ended, Failure};
use super::restarts::{History, Intensity, Row, Verdict};
use super::{ChildSpec, EventKind, Restart, Seat, SeatState, Shutdown};

/// Who else is started again when one child has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Nobody.
    #[default]
    OneForOne,
    /// All children.
    OneForAll,
    /// Those that were started after it.
    RestForOne,
}

/// What a supervisor is told.
pub enum Command {
    /// Adds a child and starts it; a child of this name that exists already is left as it is. Where one of this name is
    /// being removed, once that is gone.
    Add(ChildSpec, oneshot::Sender<()>),
    /// Ends a child by its own shutdown rule and forgets it. Answered when it is gone.
    Remove(String, oneshot::Sender<()>),
    /// Internal: a child that was to be removed is gone.
    Removed(String),
    /// Internal: these children may be started now, unless their appointment has been overtaken.
    Due(Vec<(String, u64)>),
    /// Internal: all children have been ended.
    AllEnded,
    /// Internal: a child of this incarnation makes no progress.
    Stalled(String, ActorId),
}

/// Starts its children in order, ends them in reverse, and restarts them by its strategy.
pub struct Supervisor {
    strategy: Strategy,
    intensity: Intensity,
    shutdown_at_once: bool,
    specs: Arc<dyn Fn() -> Vec<ChildSpec> + Send + Sync>,
    children: Vec<Child>,
    removals: Vec<Removal>,
    history: History,
    appointments: u64,
    ending: Option<Ending>,
    monitor: Option<AbortOnDrop>,
}

struct Child {
    spec: ChildSpec,
    seat: Arc<Seat>,
    phase: Phase,
    row: Row,
    /// Why it was ended by its supervisor, where that was not a shutdown.
    cause: Option<String>,
    /// Its stall has been reported, and nothing else is done about it.
    stall_reported: bool,
}

/// A child that is being ended for good.
struct Removal {
    name: String,
    /// Who wants to know when it is gone.
    asked: Vec<oneshot::Sender<()>>,
    /// Who is to have its seat then.
    next: Option<(ChildSpec, oneshot::Sender<()>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running(ActorId),
    /// Being ended together with a sibling, or waiting for its backoff; started by the appointment of this number.
    Waiting(u64),
    Stopped,
}

enum Ending {
    Stop,
    Escalate(String),
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Supervisor {
    /// A supervisor of the children that `specs` gives at each of its own starts, so that a new incarnation has what
    /// exists now.
    pub fn new(
        strategy: Strategy,
        intensity: Intensity,
        specs: impl Fn() -> Vec<ChildSpec> + Send + Sync + 'static,
    ) -> Self {
        Supervisor {
            strategy,
            intensity,
            shutdown_at_once: false,
            specs: Arc::new(specs),
            children: Vec::new(),
            removals: Vec::new(),
            history: History::default(),
            appointments: 0,
            ending: None,
            monitor: None,
        }
    }

    /// Ends all children at the same time, for equals of which none rests on another.
    pub fn shutdown_at_once(mut self) -> Self {
        self.shutdown_at_once = true;
        self
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.children.iter().position(|child| child.spec.name == name)
    }

    fn add(&mut self, spec: ChildSpec, context: &Context) {
        let seat = context.seat().child(&spec.name, spec.kind);
        seat.set_stall_after(spec.stall_after);
        self.children.push(Child {
            spec,
            seat,
            phase: Phase::Stopped,
            row: Row::default(),
            cause: None,
            stall_reported: false,
        });
    }

    async fn start(&mut self, index: usize, context: &Context) -> Result<(), Failure> {
        let child = &mut self.children[index];
        let again = child.seat.epoch() > 0;
        match (child.spec.start)(child.seat.clone(), context.cell()).await {
            Ok(cell) => {
                child.phase = Phase::Running(cell.get_id());
                if again {
                    let message = match child.seat.restarts() {
                        1 => "restarted for the first time".to_owned(),
                        times => format!("restarted, {times} times in all"),
                    };
                    context.seat().shared().events().emit(EventKind::Restarted, child.seat.path(), message);
                }
                Ok(())
            }
            Err(error) => {
                let cause = format!("did not start: {error}");
                self.failed(index, cause, false, context)
            }
        }
    }

    /// Decides what follows from the end of a child that must live.
    fn failed(
        &mut self,
        index: usize,
        cause: String,
        by_operator: bool,
        context: &Context,
    ) -> Result<(), Failure> {
        let shared = context.seat().shared();
        let child = &mut self.children[index];
        child.seat.set_cause(&cause);
        shared.events().emit(EventKind::Ended, child.seat.path(), cause.clone());
        let delay = if by_operator {
            Duration::ZERO
        } else {
            let intensity = child.spec.intensity.unwrap_or(self.intensity);
            match self.history.failed(&mut child.row, &intensity, Instant::now(), shared.jitter()) {
                Verdict::RestartAfter(delay) => delay,
                Verdict::Escalate => {
                    let name = &child.spec.name;
                    let Intensity { restarts, period, .. } = intensity;
                    let reason =
                        format!("more than {restarts} failures in {period:?}, the last of {name}: {cause}");
                    shared.events().emit(EventKind::Escalated, context.seat().path(), reason.clone());
                    self.end_all(Ending::Escalate(reason), context);
                    return Ok(());
                }
            }
        };
        let group = match self.strategy {
            Strategy::OneForOne => index..index + 1,
            Strategy::OneForAll => 0..self.children.len(),
            Strategy::RestForOne => index..self.children.len(),
        };
        let (mut to_end, mut to_start) = (Vec::new(), Vec::new());
        for position in group {
            let child = &mut self.children[position];
            if position != index {
                if child.phase == Phase::Stopped {
                    continue;
                }
                child.seat.set_cause(&format!("ended with its sibling: {cause}"));
            }
            to_end.push((child.seat.clone(), (child.spec.shutdown)()));
            if child.spec.restart == Restart::Temporary {
                child.phase = Phase::Stopped;
                continue;
            }
            self.appointments += 1;
            child.phase = Phase::Waiting(self.appointments);
            to_start.push((child.spec.name.clone(), self.appointments));
        }
        to_end.reverse();
        let at_once = to_end.iter().all(|(seat, _)| !seat.is_occupied()) && delay.is_zero();
        if at_once {
            context.send::<Self>(Command::Due(to_start));
            return Ok(());
        }
        let context = context.clone();
        tokio::spawn(async move {
            end_in_order(&to_end).await;
            for (seat, _) in &to_end {
                seat.set_state(SeatState::Restarting);
            }
            tokio::time::sleep(delay).await;
            context.send::<Self>(Command::Due(to_start));
        });
        Ok(())
    }

    async fn due(&mut self, appointments: Vec<(String, u64)>, context: &Context) -> Result<(), Failure> {
        for (name, appointment) in appointments {
            if self.ending.is_some() {
                return Ok(());
            }
            let Some(index) = self.position(&name) else { continue };
            if self.children[index].phase == Phase::Waiting(appointment) {
                self.start(index, context).await?;
            }
        }
        Ok(())
    }

    /// Ends all children in a task, in reverse order; `AllEnded` follows.
    fn end_all(&mut self, ending: Ending, context: &Context) {
        if self.ending.is_some() {
            return;
        }
        self.ending = Some(ending);
        context.seat().set_state(SeatState::Stopping);
        let children: Vec<_> =
            self.children.iter().rev().map(|child| (child.seat.clone(), (child.spec.shutdown)())).collect();
        let (context, at_once) = (context.clone(), self.shutdown_at_once);
        tokio::spawn(async move {
            if at_once {
                let ends = children.iter().map(|child| end_in_order(std::slice::from_ref(child)));
                futures_util::future::join_all(ends).await;
            } else {
                end_in_order(&children).await;
            }
            context.send::<Self>(Command::AllEnded);
        });
    }

    /// Looks at the children's progress stamps, without a message to anybody unless one stands still.
    fn monitor(&self, context: &Context) -> AbortOnDrop {
        let context = context.clone();
        let task = tokio::spawn(async move {
            let mut suspects = Vec::new();
            loop {
                let children = context.seat().children();
                let shortest = children.iter().filter_map(|child| child.stall_after()).min();
                let wait = shortest.map_or(IDLE_MONITOR, |limit| limit / 4).max(FASTEST_MONITOR);
                let due = Instant::now() + wait;
                tokio::time::sleep_until(due).await;
                // When we ourselves come late, the machine is short of time, and the children have had none either.
                if due.elapsed() > wait / 2 {
                    suspects.clear();
                    continue;
                }
                // Seen twice, so that one who was about to be polled gets the chance.
                let mut seen = Vec::new();
                for child in children {
                    let (Some(_), Some(occupant)) = (child.stalled(), child.occupant()) else { continue };
                    let id = occupant.get_id();
                    if suspects.contains(&id) {
                        context.send::<Self>(Command::Stalled(child.name().to_owned(), id));
                    }
                    seen.push(id);
                }
                suspects = seen;
            }
        });
        AbortOnDrop(task.abort_handle())
    }
}

impl Actor for Supervisor {
    type Message = Command;

    const KIND: &'static str = "supervisor";

    const GRACEFUL: bool = true;

    const STARTS_IN_RUN: bool = true;

    async fn run(&mut self, context: &Context) -> Result<(), Failure> {
        context.seat().kill_descendants().await;
        for spec in (self.specs)() {
            self.add(spec, context);
        }
        let stale = context.seat().children();
        for seat in stale.iter().filter(|seat| self.position(seat.name()).is_none()) {
            context.seat().forget_child(seat.name());
        }
        self.monitor = Some(self.monitor(context));
        for index in 0..self.children.len() {
            if self.ending.is_none() {
                self.start(index, context).await?;
            }
        }
        Ok(())
    }

    async fn handle(&mut self, command: Command, context: &Context) -> Result<(), Failure> {
        match command {
            Command::Add(spec, done) => {
                if let Some(removal) = self.removals.iter_mut().find(|removal| removal.name == spec.name) {
                    if let Some((_, before)) = removal.next.replace((spec, done)) {
                        let _ = before.send(());
                    }
                    return Ok(());
                }
                if self.ending.is_none() && self.position(&spec.name).is_none() {
                    self.add(spec, context);
                    self.start(self.children.len() - 1, context).await?;
                }
                let _ = done.send(());
            }
            Command::Remove(name, done) => {
                if let Some(removal) = self.removals.iter_mut().find(|removal| removal.name == name) {
                    removal.asked.extend(removal.next.take().map(|(_, next)| next));
                    removal.asked.push(done);
                    return Ok(());
                }
                let Some(index) = self.position(&name) else {
                    let _ = done.send(());
                    return Ok(());
                };
                let child = self.children.remove(index);
                self.removals.push(Removal { name: name.clone(), asked: vec![done], next: None });
                let context = context.clone();
                tokio::spawn(async move {
                    end_in_order(&[(child.seat, (child.spec.shutdown)())]).await;
                    context.send::<Self>(Command::Removed(name));
                });
            }
            Command::Removed(name) => {
                let Some(index) = self.removals.iter().position(|removal| removal.name == name) else {
                    return Ok(());
                };
                let removal = self.removals.remove(index);
                context.seat().forget_child(&name);
                for done in removal.asked {
                    let _ = done.send(());
                }
                if let Some((spec, done)) = removal.next {
                    context.send::<Self>(Command::Add(spec, done));
                }
            }
            Command::Due(appointments) => self.due(appointments, context).await?,
            Command::AllEnded => match self.ending.take() {
                Some(Ending::Escalate(reason)) => return Err(reason.into()),
                _ => context.stop(),
            },
            Command::Stalled(name, id) => {
                let Some(index) = self.position(&name) else { return Ok(()) };
                let child = &mut self.children[index];
                let (Phase::Running(running), Some(without)) = (child.phase, child.seat.stalled()) else {
                    return Ok(());
                };
                if running == id && child.cause.is_none() && !child.stall_reported {
                    let cause = format!("no progress for {} ms", without.as_millis());
                    let events = context.seat().shared().events();
                    events.emit(EventKind::Stalled, child.seat.path(), cause.clone());
                    if !child.spec.replace_stalled {
                        child.stall_reported = true;
                        return Ok(());
                    }
                    child.cause = Some(cause);
                    if child.seat.signals().is_stalled() {
                        child.seat.signals().mark_by_operator();
                    }
                    child.seat.kill();
                }
            }
        }
        Ok(())
    }

    async fn child_ended(&mut self, id: ActorId, ended: Ended, context: &Context) -> Result<(), Failure> {
        let Some(index) = self.children.iter().position(|child| child.phase == Phase::Running(id)) else {
            return Ok(());
        };
        let child = &mut self.children[index];
        let by_operator = child.seat.signals().take_by_operator();
        let stalled = child.cause.take();
        if self.ending.is_some() {
            child.phase = Phase::Stopped;
            return Ok(());
        }
        let mut cause = match (&ended, stalled) {
            (_, Some(stalled)) => stalled,
            (Ended::Stopped, None) => "stopped".to_owned(),
            (Ended::Killed, None) => "killed".to_owned(),
            (Ended::Failed(failure), None) => failure.clone(),
        };
        if by_operator {
            cause.push_str(" (by an operator)");
        }
        match child.spec.restart {
            Restart::Temporary => {
                let child = self.children.remove(index);
                context.seat().forget_child(&child.spec.name);
                Ok(())
            }
            Restart::Transient if ended == Ended::Stopped && !by_operator => {
                child.phase = Phase::Stopped;
                child.seat.set_cause(&cause);
                Ok(())
            }
            _ => self.failed(index, cause, by_operator, context),
        }
    }

    async fn stopping(&mut self, context: &Context) -> Result<bool, Failure> {
        self.end_all(Ending::Stop, context);
        Ok(false)
    }
}

/// Ends each in turn, and waits until it is gone.
async fn end_in_order(children: &[(Arc<Seat>, Shutdown)]) {
    for (seat, shutdown) in children {
        if !seat.is_occupied() {
            continue;
        }
        match shutdown {
            Shutdown::Brutal => seat.kill(),
            Shutdown::After(deadline) => {
                seat.request_stop();
                if tokio::time::timeout(*deadline, seat.vacated()).await.is_err() {
                    seat.kill();
                }
            }
            Shutdown::Infinity => seat.request_stop(),
        }
        seat.vacated().await;
        // ractor ends the children of a killed parent by a signal, and does not wait for them.
        seat.kill_descendants().await;
    }
}

/// How often a monitor without a child to watch looks for one.
const IDLE_MONITOR: Duration = Duration::from_millis(500);
const FASTEST_MONITOR: Duration = Duration::from_millis(5);
