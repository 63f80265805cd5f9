//! Listening sockets that another process has opened for this one.

use std::os::fd::OwnedFd;

use playhouse_config::model;

use crate::net::BoundSocket;

/// Before a listener's name, in the name of a socket that a service manager keeps for us: where it does not fit the listener
/// any more, another is bound.
pub const KEPT: &str = "listener-";

/// Descriptors that are used instead of binding: from a controller, from the instances that a controller adopts, or from
/// systemd. [`Given::default`] is none, and everything is bound.
#[derive(Debug, Default)]
pub struct Given {
    sockets: Vec<GivenSocket>,
    only: bool,
    /// The slot that this process has; 0 is none.
    own_slot: u32,
}

/// A socket that was given.
#[derive(Debug)]
pub(super) struct GivenSocket {
    listener: String,
    slot: u32,
    pub(super) descriptor: OwnedFd,
    /// Its opener goes on holding it, and looks after its socket file.
    pub(super) borrowed: bool,
}

impl Given {
    /// For a process that never binds: a listener without a socket is an error.
    pub fn only() -> Self {
        Given { only: true, ..Given::default() }
    }

    /// The same, for the instance in this slot: of a listener with a socket per instance it accepts from that one.
    pub fn for_slot(slot: u32) -> Self {
        Given { own_slot: slot, ..Given::only() }
    }

    /// A socket for the listener of this name. `slot` is its place where the listener has a socket per instance, else 0.
    /// Of several for the same place the first counts.
    pub fn add(&mut self, listener: &str, slot: u32, descriptor: OwnedFd) {
        let listener = listener.to_owned();
        self.sockets.push(GivenSocket { listener, slot, descriptor, borrowed: false });
    }

    /// A socket from a service manager: for the listener of this name, or else the one whose address it has. The service
    /// manager keeps it, and removes its socket file.
    pub fn add_activated(&mut self, name: &str, descriptor: OwnedFd) {
        let listener = name.to_owned();
        self.sockets.push(GivenSocket { listener, slot: 0, descriptor, borrowed: true });
    }

    /// The names of what has not been used.
    pub fn unused(&self) -> Vec<&str> {
        self.sockets.iter().map(|socket| &*socket.listener).collect()
    }

    pub(super) fn own_slot(&self) -> u32 {
        self.own_slot
    }

    /// Whether there is a socket for this place.
    pub(super) fn has(&self, listener: &str, slot: u32) -> bool {
        self.sockets.iter().any(|socket| socket.listener == listener && socket.slot == slot)
    }

    /// The sockets of slot 1 and those behind it, as far as there is none missing.
    pub(super) fn take_slots(&mut self, listener: &str) -> Vec<OwnedFd> {
        (1..).map_while(|slot| self.take(listener, slot)).map(|socket| socket.descriptor).collect()
    }

    /// Whether nothing may be bound.
    pub(super) fn is_only(&self) -> bool {
        self.only
    }

    /// Gives sockets of a service manager that are for no listener, or do not fit theirs, to the one whose address they
    /// have.
    pub(super) fn match_addresses(&mut self, listeners: &[model::Listener]) {
        for socket in self.sockets.iter_mut().filter(|socket| socket.borrowed) {
            let fits = |listener: &&model::Listener| BoundSocket::fits(&socket.descriptor, &listener.bind);
            let kept = socket.listener.strip_prefix(KEPT);
            let is_named = |listener: &&model::Listener| {
                *listener.name == *socket.listener || kept == Some(&*listener.name)
            };
            if let Some(named) = listeners.iter().filter(is_named).find(fits) {
                socket.listener = named.name.to_string();
                continue;
            }
            let has_port = |listener: &&model::Listener| match &listener.bind {
                model::Bind::Tcp { address, .. } => address.port() != 0,
                model::Bind::Unix { .. } => true,
            };
            if let Some(other) = listeners.iter().filter(has_port).find(fits) {
                socket.listener = other.name.to_string();
            }
        }
    }

    /// The socket for a place; further ones for it are closed.
    pub(super) fn take(&mut self, listener: &str, slot: u32) -> Option<GivenSocket> {
        let mut taken = None;
        for socket in std::mem::take(&mut self.sockets) {
            if socket.listener != listener || socket.slot != slot {
                self.sockets.push(socket);
            } else if taken.is_none() {
                taken = Some(socket);
            }
        }
        taken
    }
}
