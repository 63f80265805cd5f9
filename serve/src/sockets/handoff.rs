//! The hand-off queue: accepted streams wait here until their connection takes them.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Lease;
use crate::exchange::Peer;
use crate::net::{QuicEndpoint, QuicIncoming, Stream};

/// The number of an accepted stream; never used twice by one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TicketId(u64);

/// A client that was accepted.
#[derive(Debug)]
pub struct Accepted {
    /// How it has come.
    pub transport: Transport,
    /// The client.
    pub peer: Peer,
    /// The local address; `None` on a Unix socket.
    pub local: Option<SocketAddr>,
    /// Held as long as the connection is open.
    pub lease: Lease,
}

/// How a client has come.
#[derive(Debug)]
pub enum Transport {
    /// By a connected stream.
    Stream(Stream),
    /// By a first QUIC packet, at this endpoint.
    Quic(Box<QuicIncoming>, Arc<QuicEndpoint>),
}

/// Accepted streams, oldest first. Holds at most [`CAPACITY`].
#[derive(Debug, Default)]
pub(super) struct Handoff {
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Ordered by ticket.
    waiting: VecDeque<Entry>,
    next: u64,
}

#[derive(Debug)]
struct Entry {
    ticket: TicketId,
    since: Instant,
    accepted: Accepted,
}

impl Handoff {
    pub(super) fn push(&self, accepted: Accepted) -> TicketId {
        let mut queue = self.queue.lock();
        let ticket = TicketId(queue.next);
        queue.next += 1;
        queue.waiting.push_back(Entry { ticket, since: Instant::now(), accepted });
        ticket
    }

    /// Takes a stream out, and says whether the queue was full.
    pub(super) fn take(&self, ticket: TicketId) -> Option<(Accepted, bool)> {
        let mut queue = self.queue.lock();
        let full = queue.waiting.len() >= CAPACITY;
        // Most are taken in the order in which they have come.
        let place = match queue.waiting.front()? {
            first if first.ticket == ticket => 0,
            _ => queue.waiting.binary_search_by_key(&ticket, |entry| entry.ticket).ok()?,
        };
        queue.waiting.remove(place).map(|entry| (entry.accepted, full))
    }

    pub(super) fn waiting(&self, at_least: Duration) -> Vec<TicketId> {
        let queue = self.queue.lock();
        let waiting = queue.waiting.iter();
        waiting.take_while(|entry| entry.since.elapsed() >= at_least).map(|entry| entry.ticket).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.queue.lock().waiting.len()
    }
}

/// Beyond this nothing is accepted, so that the kernel's queue (and its backlog) holds what cannot be served yet.
pub(super) const CAPACITY: usize = 1024;
