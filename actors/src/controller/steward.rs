//! The actor that sees to it that there are as many instances as are wanted.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::capacity::{Action, plan};
use super::fleet::Fleet;
use super::keeper::Keeper;
use crate::supervision::{Actor, ChildSpec, Command, Context, EventKind, Failure, Supervisor};

/// Starts, drains and kills what [`plan`] says, after every change of the [`Fleet`]. It remembers nothing.
pub struct Steward {
    fleet: Arc<Fleet>,
}

impl Steward {
    /// The child of the controller's root.
    pub fn spec(fleet: &Arc<Fleet>) -> ChildSpec {
        let fleet = fleet.clone();
        ChildSpec::new(NAME, move || Steward { fleet: fleet.clone() }).stall_after(STALL)
    }

    fn start_one(&self) {
        match self.fleet.start() {
            Ok(member) => {
                let message = format!("started as process {}", member.process().pid());
                self.fleet.emit_of(&member, EventKind::Lifecycle, message);
            }
            Err(error) => self.fleet.note_failed_start(error.to_string()),
        }
    }

    /// Gives every instance its keeper; a command for one that has it does nothing.
    async fn keep_all(&self, context: &Context) {
        let instances = self.fleet.tree().root().child(super::INSTANCES, Supervisor::KIND);
        for member in self.fleet.members() {
            if instances.find_child(&member.name()).is_some() {
                continue;
            }
            let spec = Keeper::spec(&self.fleet, &member);
            // A supervisor that is being started again takes all members along by itself.
            let _ = instances.ask::<Supervisor, ()>(COMMAND, |done| Command::Add(spec.clone(), done)).await;
            context.progress();
        }
    }
}

impl Actor for Steward {
    type Message = std::convert::Infallible;

    const KIND: &'static str = "steward";

    async fn run(&mut self, context: &Context) -> Result<(), Failure> {
        let mut changed = self.fleet.changed();
        loop {
            changed.mark_unchanged();
            let aim = self.fleet.aim();
            let views = if self.fleet.is_stopping() { Vec::new() } else { self.fleet.views() };
            for action in plan(&views, &aim, Instant::now()) {
                let member = |slot| self.fleet.members().into_iter().find(|member| member.slot() == slot);
                match action {
                    Action::Start => self.start_one(),
                    Action::Drain(slot) => {
                        if let Some(member) = member(slot) {
                            self.fleet.drain(&member, false);
                        }
                    }
                    Action::Kill(slot, why) => {
                        if let Some(member) = member(slot) {
                            member.kill(why);
                        }
                    }
                }
            }
            self.keep_all(context).await;
            if !self.fleet.is_stopping() {
                self.fleet.steer();
            }
            context.progress();
            let until = aim.not_before.min(Instant::now() + TICK).max(Instant::now() + SHORTEST);
            // Whatever was changed meanwhile, also by this loop itself, is looked at again at once.
            let _ = tokio::time::timeout_at(until, changed.changed()).await;
        }
    }

    async fn handle(&mut self, message: Self::Message, _: &Context) -> Result<(), Failure> {
        match message {}
    }
}

/// Its place in the tree.
pub(super) const NAME: &str = "steward";
/// A look without a cause, should a cause have been missed.
const TICK: Duration = Duration::from_millis(500);
/// Between two looks for a backoff that is nearly over.
const SHORTEST: Duration = Duration::from_millis(10);
const COMMAND: Duration = Duration::from_secs(5);
const STALL: Duration = Duration::from_secs(10);
