//! The actor that keeps one instance: it leads the process from its start to its end, and tidies up behind it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use playhouse_protocol::control::{Hello, State, ToController, ToInstance};
use tokio::time::Instant;

use super::administration::BY_AN_OPERATOR;
use super::fleet::Fleet;
use super::member::Member;
use super::tickets::TicketHolder;
use crate::control::crash::crash_point;
use crate::control::link::{Link, Receiver};
use crate::control::process::ExitStatus;
use crate::supervision::{Actor, ChildSpec, Command, Context, EventKind, Failure, Shutdown, Supervisor};

/// Keeps one instance. Its end costs nothing: what is known of the instance is in the [`Fleet`], and the next incarnation
/// reads on where this one has stopped.
pub struct Keeper {
    fleet: Arc<Fleet>,
    member: Arc<Member>,
}

impl Keeper {
    /// The child of the instances' supervisor for this instance.
    pub fn spec(fleet: &Arc<Fleet>, member: &Arc<Member>) -> ChildSpec {
        let (fleet, member) = (fleet.clone(), member.clone());
        ChildSpec::new(member.name(), move || Keeper { fleet: fleet.clone(), member: member.clone() })
            .shutdown(Shutdown::After(Duration::from_secs(1)))
            .stall_after(STALL)
    }

    async fn follow(&mut self, context: &Context) {
        let member = self.member.clone();
        let mut receiver = member.receiver();
        if member.state() == State::Active {
            // One that was adopted may have another configuration, or other ticket keys, than is in force by now.
            self.bring_up_to_date();
        }
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut apps = self.fleet.apps().audience().map(|audience| audience.changes());
        let mut exited = std::pin::pin!(member.process().wait());
        self.give_apps();
        loop {
            context.progress();
            tokio::select! {
                // Messages before deadlines: when it was this process that stood still, they are all there by now.
                biased;
                status = &mut exited => return self.ended(status),
                message = receive(receiver.as_deref()) => match message {
                    Some((message, descriptors)) => self.heard(message, descriptors),
                    None => {
                        receiver = None;
                        member.unlink();
                    }
                },
                () = member.changed().notified() => self.bring_up_to_date(),
                () = changed(&mut apps) => self.give_apps(),
                _ = tick.tick() => {
                    self.deadlines();
                    if receiver.is_none() && let Some(link) = self.reconnect().await {
                        receiver = Some(member.relink(link));
                        self.fleet.expect_of(member.slot());
                        self.give_apps();
                        self.bring_up_to_date();
                    }
                }
            }
        }
    }

    fn heard(&self, message: ToController, descriptors: Vec<OwnedFd>) {
        let (fleet, member) = (&self.fleet, &self.member);
        if member.killed_for().is_some() {
            // What it has said before it is gone counts no more: it may have been killed for what it is.
            return;
        }
        if !member.has_greeted() && !matches!(message, ToController::Hello(_)) {
            member.kill("it does not say who it is");
            return;
        }
        if member.note_heard() {
            fleet.emit_of(member, EventKind::Lifecycle, "answers again");
            fleet.steer();
            fleet.notify();
        }
        match message {
            ToController::Hello(hello) => self.hello(&hello),
            ToController::Configured { revision, .. } => {
                member.note_configured(revision);
                self.bring_up_to_date();
                fleet.let_apps_go();
            }
            ToController::Refused { revision, error } => {
                member.note_refused(revision, error.clone());
                match member.state() {
                    State::Starting | State::Ready => {
                        member.kill(&format!("it refused its configuration: {error}"))
                    }
                    // A canary's refusal is an answer, not a fault.
                    _ if revision != fleet.in_force().text.revision => self.bring_up_to_date(),
                    _ => {
                        fleet.emit_of(
                            member,
                            EventKind::Reload,
                            format!("refused what others have accepted, and is replaced: {error}"),
                        );
                        member.outdate();
                        fleet.notify();
                    }
                }
            }
            ToController::State { state } => self.state(state),
            ToController::Sample(sample) => member.note_sample(sample),
            ToController::ServerHealth(health) => {
                fleet.ejections().note(&health);
                for other in fleet.members().iter().filter(|other| other.slot() != member.slot()) {
                    // One whose link is down does without.
                    let _ = other.send(&ToInstance::ServerHealth(health.clone()), Vec::new());
                }
            }
            ToController::AppsLoad(load) => fleet.apps().hears(member.slot(), load),
            ToController::Sockets { .. } | ToController::AppOutputs { .. } | ToController::Unknown => {
                drop(descriptors);
            }
        }
    }

    fn hello(&self, hello: &Hello) {
        let (fleet, member) = (&self.fleet, &self.member);
        if !hello.version.is_understood() {
            member.kill(&format!("it speaks version {} of the control protocol", hello.version));
            return;
        }
        if hello.slot != member.slot() || hello.pid != member.process().pid() {
            member.kill("it does not speak as the process that was started");
            return;
        }
        member.note_hello(hello);
        if hello.revision == 0 {
            self.bring_up_to_date();
        }
        fleet.notify();
    }

    fn state(&self, state: State) {
        let (fleet, member) = (&self.fleet, &self.member);
        if !member.set_state(state) {
            return;
        }
        match state {
            State::Ready => {
                self.give_apps();
                self.bring_up_to_date();
            }
            State::Active => {
                fleet.emit_of(
                    member,
                    EventKind::Lifecycle,
                    format!("active, {:.0?} after its start", member.age()),
                );
                fleet.steer();
                fleet.note_active();
            }
            State::Draining => fleet.emit_of(member, EventKind::Lifecycle, "draining"),
            _ => {}
        }
        fleet.notify();
    }

    /// Sees to it that it knows of the apps. One that is not ready yet is told when it is, before it serves.
    fn give_apps(&self) {
        let (fleet, member) = (&self.fleet, &self.member);
        if matches!(member.state(), State::Ready | State::Active | State::Draining) && !member.is_held() {
            fleet.give_apps(member);
        }
    }

    /// Sees to it that it has the configuration in force, and serves once it has.
    fn bring_up_to_date(&self) {
        let (fleet, member) = (&self.fleet, &self.member);
        let in_force = fleet.in_force();
        let state = member.state();
        if matches!(state, State::Draining | State::Gone) || fleet.is_stopping() || member.is_on_trial() {
            return;
        }
        if member.sent() != in_force.text.revision {
            let sent = fleet
                .bound()
                .descriptors()
                .and_then(|sockets| fleet.configure(member, &in_force.text, sockets));
            if let Err(error) = sent {
                tracing::warn!(instance = member.name(), %error, "its configuration could not be sent");
            }
            return;
        }
        let answered = member.answered().borrow().clone();
        if state == State::Active {
            member.give_ticket_keys(fleet.ticket_keys());
        }
        if state == State::Ready && answered.revision == in_force.text.revision && !member.is_held() {
            member.give_ticket_keys(fleet.ticket_keys());
            for health in fleet.ejections().in_force() {
                // A failure of this or the next shows as a link that has ended, or in the deadline.
                let _ = member.send(&ToInstance::ServerHealth(health), Vec::new());
            }
            let _ = member.send(&ToInstance::Activate, Vec::new());
            crash_point("activate");
        }
    }

    fn deadlines(&self) {
        let (fleet, member) = (&self.fleet, &self.member);
        let settings = fleet.settings();
        match member.state() {
            State::Starting | State::Ready
                if member.in_state_for() > settings.ready_timeout && !member.is_held() =>
            {
                member.kill(&format!(
                    "not ready within {:?} (instances.ready_timeout)",
                    settings.ready_timeout
                ));
            }
            State::Active if member.silent_for() > settings.heartbeat_timeout && member.note_stuck() => {
                let message = format!(
                    "no heartbeat for {:?} (instances.heartbeat_timeout): to be replaced, then killed",
                    settings.heartbeat_timeout
                );
                fleet.emit_of(member, EventKind::Stalled, message);
                fleet.steer();
                fleet.notify();
            }
            _ => {}
        }
        if member.drain_is_overdue() {
            member.kill("its drain took longer than drain_timeout");
        }
    }

    /// Another link, to a process that lives and was active: a process that never was ends without one.
    async fn reconnect(&self) -> Option<Link> {
        if matches!(self.member.state(), State::Starting | State::Ready) {
            self.member.kill("its control link was lost before it was active");
            return None;
        }
        let path = crate::control::control_path(self.fleet.directory(), self.member.slot());
        match Link::connect(&path).await {
            Ok(link) if link.peer().pid == self.member.process().pid() => Some(link),
            // It may be stuck, or about to end; its heartbeat decides.
            _ => None,
        }
    }

    fn ended(&self, status: Option<ExitStatus>) {
        let (fleet, member) = (&self.fleet, &self.member);
        let state = member.state();
        let how = status.map_or_else(|| "has ended".to_owned(), |status| status.to_string());
        let cause = member.killed_for();
        let message = match &cause {
            Some(cause) => format!("killed: {cause}"),
            None => how.clone(),
        };
        // First its counts and its place, then what is decided about a successor.
        fleet.bury(member);
        fleet.let_apps_go();
        match state {
            State::Starting | State::Ready => {
                if !fleet.is_stopping() && !member.view().outdated && !member.is_held() {
                    fleet.note_failed_start(format!("{} {message}", member.name()));
                }
            }
            State::Draining => {
                crash_point("drained");
                fleet.emit_of(member, EventKind::Lifecycle, format!("drained, {how}"));
            }
            _ => {
                let clean = status.is_some_and(|status| status.is_success());
                fleet.note_death(match (cause.as_deref(), clean) {
                    (Some(BY_AN_OPERATOR), _) => "operator",
                    (Some(_), _) => "stuck",
                    (None, true) => "exit",
                    (None, false) => "crash",
                });
                fleet.emit_of(member, EventKind::Ended, message);
            }
        }
        fleet.notify();
    }
}

impl Actor for Keeper {
    type Message = std::convert::Infallible;

    const KIND: &'static str = "instance";

    async fn run(&mut self, context: &Context) -> Result<(), Failure> {
        if self.member.state() != State::Gone {
            self.follow(context).await;
        }
        // Its place in the tree goes with it; the supervisor's command ends this incarnation.
        let (fleet, member) = (self.fleet.clone(), self.member.clone());
        tokio::spawn(async move {
            let instances = fleet.tree().root().child(super::INSTANCES, Supervisor::KIND);
            let name = member.name();
            let remove = |done| Command::Remove(name.clone(), done);
            match instances.ask::<Supervisor, ()>(REMOVE_DEADLINE, remove).await {
                // Only now may another process have its place, and a keeper of the same name.
                Ok(()) => fleet.forget(&member),
                Err(_) => tracing::warn!(instance = name, "its keeper was not removed in time"),
            }
        });
        let since = Instant::now();
        while since.elapsed() < REMOVE_DEADLINE {
            tokio::time::sleep(TICK).await;
            context.progress();
        }
        Ok(())
    }

    async fn handle(&mut self, message: Self::Message, _: &Context) -> Result<(), Failure> {
        match message {}
    }
}

/// Completes when there is something else to be said of the apps.
async fn changed<T>(apps: &mut Option<tokio::sync::watch::Receiver<T>>) {
    let has_changed = match apps {
        Some(apps) => apps.changed().await.is_ok(),
        None => false,
    };
    // The sender is in the fleet, and goes with it.
    if !has_changed {
        std::future::pending::<()>().await;
    }
}

async fn receive(receiver: Option<&Receiver<ToController>>) -> Option<(ToController, Vec<OwnedFd>)> {
    match receiver {
        Some(receiver) => match receiver.recv().await {
            Ok(message) => message,
            Err(error) => {
                tracing::warn!(%error, "the link to an instance is ended");
                None
            }
        },
        None => std::future::pending().await,
    }
}

const TICK: Duration = Duration::from_millis(100);
const STALL: Duration = Duration::from_secs(2);
const REMOVE_DEADLINE: Duration = Duration::from_secs(10);
