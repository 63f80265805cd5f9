//! The count of a socket's open connections, and its limit.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

use super::fairness::Peers;

/// How many connections of a socket are open, and how many may be.
#[derive(Debug)]
pub struct Connections {
    open: AtomicUsize,
    limit: AtomicUsize,
    freed: Notify,
    peers: Arc<OnceLock<Arc<dyn Peers>>>,
}

impl Connections {
    pub(super) fn new(limit: usize, peers: Arc<OnceLock<Arc<dyn Peers>>>) -> Arc<Self> {
        Arc::new(Connections {
            open: AtomicUsize::new(0),
            limit: AtomicUsize::new(limit),
            freed: Notify::new(),
            peers,
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
        self.open() < self.limit()
    }

    pub(super) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Release);
        self.freed.notify_waiters();
    }

    /// Notified when a lease was given back, when the limit has changed, or when the hand-off queue has a free place.
    pub(super) fn freed(&self) -> &Notify {
        &self.freed
    }

    /// Those who accept from the same sockets, where there are any.
    pub(super) fn peers(&self) -> Option<&Arc<dyn Peers>> {
        self.peers.get()
    }

    pub(super) fn lease(self: &Arc<Self>) -> Lease {
        self.open.fetch_add(1, Ordering::AcqRel);
        let peers = self.peers.get().cloned();
        if let Some(peers) = &peers {
            peers.opened();
        }
        Lease { connections: self.clone(), peers }
    }
}

/// One open connection, given back when dropped.
#[derive(Debug)]
#[must_use = "dropping a lease gives the place to another connection"]
pub struct Lease {
    connections: Arc<Connections>,
    /// Whom it was counted for.
    peers: Option<Arc<dyn Peers>>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(peers) = &self.peers {
            peers.closed();
        }
        self.connections.open.fetch_sub(1, Ordering::AcqRel);
        self.connections.freed.notify_waiters();
    }
}
