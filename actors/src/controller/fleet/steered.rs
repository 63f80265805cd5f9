//! Where new clients are sent, where a listener has a socket per instance.

use std::sync::Arc;

use playhouse_protocol::control::State;
use playhouse_serve::net::Weighted;

use super::Fleet;
use crate::controller::member::Member;
use crate::controller::steering;

/// Where they are sent now.
#[derive(Debug, Default)]
pub(super) struct Steered {
    weights: Vec<Weighted>,
    /// Those that may have connections.
    living: Vec<u32>,
    /// Connections so far, of those that serve.
    accepted: u64,
    /// It was said that the kernel refuses.
    failed: bool,
}

impl Fleet {
    /// Sends new clients, where a listener has a socket per instance, to those that serve; more to those that have fewer
    /// connections. To be called whenever one begins or ends to serve, and again and again.
    pub(in crate::controller) fn steer(&self) {
        let serves = |member: &&Arc<Member>| {
            let view = member.view();
            view.state == State::Active && !view.stuck && !member.is_asked_to_drain()
        };
        let members = self.members();
        let active: Vec<u32> = members.iter().filter(serves).map(|member| member.slot()).collect();
        if active.is_empty() {
            return;
        }
        let is_there = |member: &&Arc<Member>| member.state() != State::Gone;
        let living: Vec<u32> = members.iter().filter(is_there).map(|member| member.slot()).collect();
        let load = |slot: &u32| steering::Load { slot: *slot, connections: self.board.connections(*slot) };
        let accepted = active.iter().map(|slot| self.board.accepted(*slot)).fold(0, u64::wrapping_add);
        let mut steered = self.steered.lock();
        let arrivals = accepted.saturating_sub(steered.accepted);
        let weights = steering::weights(&active.iter().map(load).collect::<Vec<_>>(), arrivals);
        steered.accepted = accepted;
        if steered.weights == weights && steered.living == living {
            return;
        }
        match self.bound.steer(&weights, &living) {
            Ok(()) => *steered = Steered { weights, living, accepted, failed: false },
            Err(error) if !std::mem::replace(&mut steered.failed, true) => {
                tracing::warn!(%error, "new clients are not spread over the instances as they should be");
            }
            Err(_) => {}
        }
    }
}
