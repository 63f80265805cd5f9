//! What the fleet has to do with the apps that the controller runs for it.

use playhouse_protocol::control::{AppProcess, State};

use super::Fleet;
use crate::apps::{AppError, Pipes};
use crate::controller::member::Member;
use crate::supervision::EventKind;

impl Fleet {
    /// Puts the apps in force into their table, and goes on with the processes that a controller before this has left.
    /// `outputs` is what the adopted instances hold. To be called once, when these are known.
    ///
    /// # Errors
    /// The apps cannot be run here, or the state directory.
    pub(in crate::controller) fn open_apps(&self, outputs: Vec<(AppProcess, Pipes)>) -> Result<(), AppError> {
        let in_force = self.in_force();
        self.apps.prepare(&in_force.site.apps)?;
        self.apps.apply_elsewhere(&in_force.site.apps, false);
        self.members().iter().for_each(|member| self.expect_of(member.slot()));
        for told in self.apps.adopt(outputs)? {
            self.emit(EventKind::App, told);
        }
        Ok(())
    }

    /// Nothing that is said of the apps from here on has come to all until it has come to this instance.
    pub(in crate::controller) fn expect_of(&self, slot: u32) {
        if let Some(audience) = self.apps.audience() {
            audience.joins(slot);
        }
    }

    /// Tells an instance of the apps, unless it knows.
    pub(in crate::controller) fn give_apps(&self, member: &Member) {
        let Some(audience) = self.apps.audience() else { return };
        let said = audience.said();
        if said.apps.is_empty() && said.processes.is_empty() && !audience.has(member.slot()) {
            // This site has none, and had none that it could know of.
            return;
        }
        if !audience.has(member.slot()) {
            audience.joins(member.slot());
        }
        member.give_apps(&said, |process| self.apps.pipes(process));
    }

    /// Lets the apps go that the configuration in force does not have, once no instance goes by another.
    pub(in crate::controller) fn let_apps_go(&self) {
        let in_force = self.in_force();
        let goes_by_it = |member: &std::sync::Arc<Member>| match member.state() {
            State::Active | State::Draining => {
                member.answered().borrow().revision == in_force.text.revision || member.is_on_trial()
            }
            _ => true,
        };
        if self.members().iter().all(goes_by_it) {
            self.apps.apply_elsewhere(&in_force.site.apps, false);
        }
    }
}
