//! The count of a socket's open connections, and its limit.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

use super::fairness::Peers;
use crate::exchange::Peer;
use crate::shared::Addresses;
use crate::shared::addresses::AddressLease;

/// What the sockets of a process have in common with those of others.
#[derive(Debug, Default)]
pub(super) struct Surroundings {
    /// Those who accept from the same sockets, where there are any.
    pub(super) peers: OnceLock<Arc<dyn Peers>>,
    /// What each client address has, where that is limited.
    pub(super) addresses: OnceLock<Arc<Addresses>>,
}

/// How many connections of a socket are open, and how many may be.
#[derive(Debug)]
pub struct Connections {
    open: AtomicUsize,
    limit: AtomicUsize,
    freed: Notify,
    surroundings: Arc<Surroundings>,
}

impl Connections {
    pub(super) fn new(limit: usize, surroundings: Arc<Surroundings>) -> Arc<Self> {
        Arc::new(Connections {
            open: AtomicUsize::new(0),
            limit: AtomicUsize::new(limit),
            freed: Notify::new(),
            surroundings,
        })
    }

    /// Leases that have not been given back.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// More than this wait in the kernel's queue.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Acquire)
    }

    pub(super) fn has_room(&self) -> bool {
        let limit = self.limit.load(Ordering::SeqCst);
        self.open.load(Ordering::SeqCst) < limit
    }

    pub(super) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::SeqCst);
        self.freed.notify_waiters();
    }

    /// Notified when a lease was given back, when the limit has changed, or when the hand-off queue has a free place; not
    /// where nobody can wait for that: who is alone, and has room left, waits for no lease.
    pub(super) fn freed(&self) -> &Notify {
        &self.freed
    }

    /// Those who accept from the same sockets, where there are any.
    pub(super) fn peers(&self) -> Option<&Arc<dyn Peers>> {
        self.surroundings.peers.get()
    }

    /// What each client address has, where that is limited.
    pub(super) fn addresses(&self) -> Option<&Arc<Addresses>> {
        self.surroundings.addresses.get()
    }

    /// One of the `limit` connections that the client's address may have on a listener; `Err` where it has them all.
    pub(super) fn admit(
        &self,
        listener: &str,
        peer: &Peer,
        limit: Option<NonZeroU32>,
    ) -> Result<Option<AddressLease>, Refused> {
        let (Peer::Tcp(peer), Some(limit), Some(addresses)) = (peer, limit, self.addresses()) else {
            return Ok(None);
        };
        addresses.lease(listener, peer.ip(), limit.get()).map(Some).ok_or(Refused)
    }

    pub(super) fn lease(self: &Arc<Self>, address: Option<AddressLease>) -> Lease {
        self.open.fetch_add(1, Ordering::AcqRel);
        let peers = self.peers().cloned();
        if let Some(peers) = &peers {
            peers.opened();
        }
        Lease { connections: self.clone(), peers, address }
    }
}

/// One open connection, given back when dropped.
#[derive(Debug)]
#[must_use = "dropping a lease gives the place to another connection"]
pub struct Lease {
    connections: Arc<Connections>,
    /// Whom it was counted for.
    peers: Option<Arc<dyn Peers>>,
    /// Given back with it.
    address: Option<AddressLease>,
}

impl Lease {
    /// Counts the connection for its client's address too, which has come to be known only now.
    pub(super) fn hold(&mut self, address: Option<AddressLease>) {
        self.address = address;
    }
}

/// The client's address has as many connections as it may have.
#[derive(Debug)]
pub struct Refused;

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(peers) = &self.peers {
            peers.closed();
        }
        let Connections { open, limit, freed, .. } = &*self.connections;
        // In one order with what `has_room` reads and `set_limit` writes: whoever found no room by this limit is woken here,
        // by another one there.
        let before = open.fetch_sub(1, Ordering::SeqCst);
        if self.peers.is_some() || before >= limit.load(Ordering::SeqCst) {
            freed.notify_waiters();
        }
    }
}
