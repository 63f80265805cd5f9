//! The socket table: listening sockets and what was accepted from them, outliving every acceptor and every reload that
//! does not concern them.

mod bound;
mod connections;
mod fairness;
mod gate;
mod given;
mod handoff;
mod holding;
mod plan;
mod prepare;
mod quic;
mod quic_holding;
mod socket;

pub use bound::{Bound, BoundChanges, Passable, PreparedBound};
pub use connections::{Connections, Lease, Refused};
pub use fairness::{Peers, Share};
pub use given::{Given, KEPT};
pub use handoff::{Accepted, TicketId, Transport};
pub use plan::{Place, Source, sources};
pub use prepare::{BindError, BindErrorKind, Changes, Prepared};
pub use socket::{AcceptError, Counts, Socket};

use std::io;
use std::sync::Arc;

use dashmap::DashMap;
use parking_lot::Mutex;

use self::connections::Surroundings;
use self::gate::Gate;
use self::quic::{Endpoints, quic_name};
use crate::net::{self, KeySource};
use crate::shared::{Addresses, Place as Seat};

/// All sockets of a site, by the listener's name. They accept at once, unless they are [held](Sockets::hold).
#[derive(Debug, Default)]
pub struct Sockets {
    table: DashMap<Arc<str>, Arc<Socket>>,
    /// Every name that was ever seen; its place is its number.
    names: Mutex<Vec<Arc<str>>>,
    gate: Arc<Gate>,
    surroundings: Arc<Surroundings>,
    endpoints: Endpoints,
}

impl Sockets {
    /// The socket of a listener that runs.
    pub fn socket(&self, name: &str) -> Option<Arc<Socket>> {
        self.table.get(name).map(|socket| socket.clone())
    }

    /// All sockets, ordered by their number.
    pub fn all(&self) -> Vec<Arc<Socket>> {
        let mut all: Vec<_> = self.table.iter().map(|entry| entry.value().clone()).collect();
        all.sort_by_key(|socket| socket.index());
        all
    }

    /// The number of a listener's name: small, dense, given at the first call and never to another name while the
    /// process lives.
    pub fn index(&self, name: &Arc<str>) -> usize {
        let mut names = self.names.lock();
        names.iter().position(|known| known == name).unwrap_or_else(|| {
            names.push(name.clone());
            names.len() - 1
        })
    }

    /// Duplicates of all listening sockets, to be passed on: to a controller that has none. Those that were let go are
    /// not among them.
    ///
    /// # Errors
    /// Where the process has no descriptor left.
    pub fn descriptors(&self) -> io::Result<Vec<Passable>> {
        let mut duplicates = Vec::new();
        for socket in self.all() {
            let Some(listening) = socket.listener().filter(|_| !socket.is_left()) else { continue };
            let mut add = |slot, bound: &net::BoundSocket| {
                let (listener, descriptor) = (socket.name().clone(), bound.try_clone_descriptor()?);
                duplicates.push(Passable { listener, slot, descriptor });
                io::Result::Ok(())
            };
            match listening.group() {
                Some((group, _)) => group.sockets().try_for_each(|(slot, bound)| add(slot, bound))?,
                None => add(0, listening.socket())?,
            }
            let Some(quic) = socket.quic() else { continue };
            let Some(group) = quic.group() else { continue };
            let name: Arc<str> = quic_name(socket.name(), group.is_steered()).into();
            for (slot, bound) in group.sockets() {
                duplicates.push(Passable { listener: name.clone(), slot, descriptor: bound.try_clone()? });
            }
        }
        Ok(duplicates)
    }

    /// Lets nobody accept, on these sockets and those to come, until [`Sockets::activate`]. Clients are left to the other
    /// processes that hold the sockets, or wait in the kernel's queue. To be called before the first acceptor runs.
    pub fn hold(&self) {
        self.gate.shut();
        self.set_active(false);
    }

    /// Accepting begins; from then on new sockets accept at once. Idempotent.
    pub fn activate(&self) {
        self.set_active(true);
        self.gate.open();
    }

    /// Whether accepting has begun.
    pub fn is_active(&self) -> bool {
        self.gate.is_open()
    }

    /// Counts connections for `peers`, and lets them go first where they have fewer. To be called once, before the first
    /// acceptor runs; later calls change nothing.
    pub fn share_with(&self, peers: Arc<dyn Peers>) {
        let _ = self.surroundings.peers.set(peers);
        self.set_active(self.is_active());
    }

    /// Says where the keys of QUIC endpoints are from, and where it is seen which other processes have some. To be called
    /// once, before the first [`Sockets::prepare`]; without it the keys end with the process.
    pub fn take_keys_from(&self, source: KeySource, place: Option<Seat>) {
        self.endpoints.take_keys_from(source, place);
    }

    /// Counts what each client address has in this table. To be called once, before the first acceptor runs; without it
    /// no address is limited.
    pub fn limit_by(&self, addresses: Arc<Addresses>) {
        let _ = self.surroundings.addresses.set(addresses);
    }

    /// Says to the others whether they may leave clients to us.
    fn set_active(&self, active: bool) {
        if let Some(peers) = self.surroundings.peers.get() {
            peers.set_active(active);
        }
    }

    /// Lets all listening sockets go at once: no client is taken from the kernel's queues any more, because others hold
    /// the sockets and take them. Acceptors end with [`AcceptError::Closed`], connections go on.
    pub fn leave(&self) {
        self.set_active(false);
        for socket in self.all() {
            socket.leave();
        }
    }

    /// Stops all accepting: every [`Socket::accept`] takes what the kernel has ready, and then says
    /// [`AcceptError::Closed`]. Sockets that were never activated, and those that were [left](Sockets::leave), take
    /// nobody.
    pub fn close(&self) {
        self.set_active(false);
        for socket in self.all() {
            socket.close();
        }
    }
}

#[cfg(test)]
mod tests;
