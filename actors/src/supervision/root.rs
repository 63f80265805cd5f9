//! The life of a whole tree, from its root: started, waited for, ended.

use std::time::Duration;

use ractor::{ActorCell, SpawnErr};

use super::actor::spawn;
use super::{EventKind, Seat, SeatState, Supervisor, Tree};

/// Why a root has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootEnd {
    /// An operator's fault has ended it: it is to be started again.
    Operator,
    /// It was asked to stop, or a failure has climbed to it; with its last cause.
    Other(String),
}

impl Tree {
    /// Starts the root, linked to `parent` where there is one, once an earlier incarnation is gone.
    pub async fn start(&self, root: Supervisor, parent: Option<ActorCell>) -> Result<ActorCell, SpawnErr> {
        self.root().vacated().await;
        spawn(self.root().clone(), root, parent).await
    }

    /// Waits until the root has ended, and all beneath it.
    pub async fn ended(&self) -> RootEnd {
        let root = self.root();
        root.vacated().await;
        // ractor ends the children of a killed parent by a signal, and does not wait for them.
        root.kill_descendants().await;
        if root.ended_by_operator() {
            return RootEnd::Operator;
        }
        RootEnd::Other(root.last_cause().unwrap_or_else(|| "the root supervisor has ended".to_owned()))
    }

    /// Tells that the root is started again after an operator's fault.
    pub fn note_root_restart(&self) {
        let message = "started again after an operator's fault";
        self.events().emit(EventKind::Restarted, self.root().path(), message);
    }

    /// Asks the root to stop, and waits until it has. One that an operator's fault holds is killed.
    pub async fn stop(&self) {
        let root = self.root();
        root.request_stop();
        while tokio::time::timeout(STOP_LOOK, root.vacated()).await.is_err() {
            // A root that does not look at its mailbox cannot drain; its end ends all others.
            root.kill_if_stalled_by_fault();
        }
    }

    /// Whether every actor is up; those beneath one of the kind `leaf` do not count.
    pub fn is_complete(&self, leaf: &str) -> bool {
        fn complete(seat: &Seat, leaf: &str) -> bool {
            seat.is_occupied()
                && seat.state() == SeatState::Running
                && (seat.kind() == leaf || seat.children().iter().all(|child| complete(child, leaf)))
        }
        complete(self.root(), leaf)
    }
}

/// How often a stop looks whether the root still follows.
const STOP_LOOK: Duration = Duration::from_secs(2);
