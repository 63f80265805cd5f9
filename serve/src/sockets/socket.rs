//! One listening socket with its hand-off queue.

mod quic;

use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use futures_util::FutureExt;
use parking_lot::Mutex;
use playhouse_config::model::Bind;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::connections::Surroundings;
use super::fairness::{Turn, Turns};
use super::gate::Gate;
use super::handoff::{CAPACITY, Handoff};
use super::{Accepted, Connections, Lease, Refused, TicketId, Transport};
use crate::alternative::Alternative;
use crate::engine::{NoHeader, Settings};
use crate::epoch::Owner;
use crate::exchange::Peer;
use crate::net::{self, QuicEndpoint, Stream, is_exhausted};
use crate::shared::addresses::Meter;

/// One listening socket: accepted streams go through its bounded hand-off queue, so that neither the end of an acceptor
/// nor that of a connection which has not begun loses a client.
#[derive(Debug)]
pub struct Socket {
    name: Arc<str>,
    index: usize,
    bind: Bind,
    address: String,
    // `None` once it is closed: connections hold this socket for long after, and must not keep the kernel queueing.
    listener: ArcSwapOption<net::Listener>,
    /// Who may accept; each incarnation of the acceptor claims it.
    pub owner: Owner,
    /// Where it speaks HTTP/3 too.
    quic: ArcSwapOption<QuicEndpoint>,
    /// The same as `owner`, of who accepts by QUIC.
    pub quic_owner: Owner,
    alternative: Arc<Alternative>,
    settings: ArcSwap<Settings>,
    handoff: Handoff,
    connections: Arc<Connections>,
    turns: Turns,
    gate: Arc<Gate>,
    /// [`OPEN`], [`LEFT`] or [`CLOSED`], in this order.
    state: AtomicU8,
    /// Until when clients may still come to a slot that is taken out of its group.
    handshakes: OnceLock<Instant>,
    stopping: Notify,
    closing: Notify,
    accepted: AtomicU64,
    http3: AtomicU64,
    retries: AtomicU64,
    handed: AtomicU64,
    errors: AtomicU64,
    refused: AtomicU64,
    rate_limited: Arc<AtomicU64>,
    headers_refused: AtomicU64,
    /// When the last of these was worth a warning.
    warned: Mutex<Option<Instant>>,
}

/// Why nothing was accepted.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The listener was removed or is draining, and everything the kernel had ready has been accepted.
    #[error("the listener is closed")]
    Closed,
    /// No descriptors or memory left: wait before the next try.
    #[error("{0}")]
    Exhausted(io::Error),
    /// One connection failed before it was accepted: try again at once.
    #[error("{0}")]
    Transient(io::Error),
}

/// What a socket has counted since it was bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Streams accepted, and QUIC connections begun.
    pub accepted: u64,
    /// Those by QUIC.
    pub http3: u64,
    /// Clients that had to show their address before a QUIC handshake.
    pub retries: u64,
    /// Streams that their connection has taken from the hand-off queue.
    pub handed: u64,
    /// Errors of `accept`.
    pub errors: u64,
    /// Streams that were closed at once, because their address had as many as it may have.
    pub refused: u64,
    /// Requests over the rate of their address.
    pub rate_limited: u64,
    /// Connections that were closed for their PROXY header: none where one is required, a malformed or late one, or one
    /// from somebody who is not trusted.
    pub headers_refused: u64,
    /// Streams that wait in the hand-off queue now.
    pub waiting: usize,
    /// Connections open now, those that wait among them.
    pub open: usize,
}

impl Socket {
    pub(super) fn new(
        name: Arc<str>,
        index: usize,
        bind: Bind,
        listener: Arc<net::Listener>,
        settings: Arc<Settings>,
        gate: Arc<Gate>,
        surroundings: Arc<Surroundings>,
    ) -> Self {
        Socket {
            name,
            index,
            bind,
            address: listener.address().to_owned(),
            listener: ArcSwapOption::new(Some(listener)),
            owner: Owner::default(),
            quic: ArcSwapOption::empty(),
            quic_owner: Owner::default(),
            alternative: Arc::default(),
            handoff: Handoff::default(),
            connections: Connections::new(settings.limits.connections, surroundings),
            settings: ArcSwap::new(settings),
            turns: Turns::default(),
            gate,
            state: AtomicU8::new(OPEN),
            handshakes: OnceLock::new(),
            stopping: Notify::new(),
            closing: Notify::new(),
            accepted: AtomicU64::new(0),
            http3: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            handed: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            rate_limited: Arc::default(),
            headers_refused: AtomicU64::new(0),
            warned: Mutex::new(None),
        }
    }

    /// Accepts one stream into the hand-off queue. Waits, without accepting, while the sockets are held, or the queue or
    /// the connection limit is full.
    ///
    /// The accept and the push happen in one poll: a future that is dropped, at whatever point, has either accepted
    /// nothing or left the stream in the queue, where [`Socket::waiting`] finds it.
    ///
    /// # Errors
    /// See [`AcceptError`]; only `Closed` is final.
    pub async fn accept(&self) -> Result<TicketId, AcceptError> {
        loop {
            if let Some(ticket) = self.accept_one().await? {
                return Ok(ticket);
            }
        }
    }

    /// As [`Socket::accept`]; `None` for a client whose address has as many connections as it may have.
    async fn accept_one(&self) -> Result<Option<TicketId>, AcceptError> {
        if !self.gate.is_open() {
            tokio::select! {
                biased;
                () = self.gate.opened() => {}
                () = self.stopped() => return Err(self.gone()),
            }
        }
        self.room().await;
        let listener = self.listener.load_full().ok_or(AcceptError::Closed)?;
        let accepted = loop {
            let open = self.state.load(Ordering::Acquire) == OPEN;
            // Under load somebody waits already, and there is nothing to register for.
            let ready = match listener.readable().now_or_never().filter(|_| open) {
                Some(ready) => ready,
                None => tokio::select! {
                    biased;
                    () = self.stopped() => break self.last(&listener).await.ok_or_else(|| self.gone())?,
                    ready = listener.readable() => ready,
                },
            };
            if let Err(error) = ready {
                break Err(error);
            }
            // A runtime's thread is everybody's, however many wait here.
            tokio::task::coop::consume_budget().await;
            let turn = match self.connections.peers() {
                Some(peers) if listener.group().is_none() => {
                    self.turns.wait(&**peers, self.connections.freed()).await
                }
                _ => Turn::Ours,
            };
            if turn != Turn::Ours && self.state.load(Ordering::Acquire) != OPEN {
                continue;
            }
            let accepted = listener.try_accept().transpose();
            self.turns.accepted(turn, accepted.is_some());
            if let Some(accepted) = accepted {
                break accepted;
            }
        };
        // From the accept to the push there must be no await.
        match accepted {
            Ok((stream, peer)) => Ok(self.push(&listener, stream, peer)),
            Err(error) => {
                self.errors.fetch_add(1, Ordering::Relaxed);
                Err(if is_exhausted(&error) {
                    AcceptError::Exhausted(error)
                } else {
                    AcceptError::Transient(error)
                })
            }
        }
    }

    /// What an acceptor that is to stop still takes; `None` is nothing more.
    async fn last(&self, listener: &net::Listener) -> Option<io::Result<(Stream, Peer)>> {
        if let Some(until) = self.handshakes.get().filter(|_| listener.group().is_some()) {
            // Nobody else takes from this slot as long as we are there.
            while Instant::now() < *until {
                tokio::select! {
                    biased;
                    ready = listener.readable() => if let Err(error) = ready {
                        return Some(Err(error));
                    },
                    () = tokio::time::sleep_until(*until) => {}
                }
                if let Some(accepted) = listener.try_accept().transpose() {
                    return Some(accepted);
                }
            }
        } else if self.state.load(Ordering::Acquire) != CLOSED {
            return None;
        }
        // The clients that the kernel has already answered are not to be reset.
        listener.accept_now().transpose()
    }

    /// Takes the clients that wait for slots whose process is gone, where each instance has a socket of its own. Never
    /// many at once.
    pub fn sweep(&self) -> Vec<TicketId> {
        let mut tickets = Vec::new();
        let (listener, peers) = (self.listener.load(), self.connections.peers());
        let (Some(listener), Some(peers)) = (&*listener, peers) else { return tickets };
        let Some((group, own)) = listener.group() else { return tickets };
        if !self.gate.is_open() || self.state.load(Ordering::Acquire) != OPEN {
            return tickets;
        }
        let abandoned =
            group.sockets().map(|(slot, _)| slot).filter(|slot| *slot != own && !peers.is_active(*slot));
        let mut taken = 0;
        for slot in abandoned {
            while taken < SWEPT && self.handoff.len() < CAPACITY && self.connections.has_room() {
                match listener.accept_of_slot(slot) {
                    Ok(Some((stream, peer))) => {
                        taken += 1;
                        tickets.extend(self.push(listener, stream, peer));
                    }
                    Ok(None) => break,
                    Err(_) => {
                        self.errors.fetch_add(1, Ordering::Relaxed);
                        break;
                    }
                }
            }
        }
        tickets
    }

    /// Puts a stream into the hand-off queue, or closes it: `None`, where its address has as many as it may have.
    fn push(&self, listener: &net::Listener, stream: Stream, peer: Peer) -> Option<TicketId> {
        let settings = self.settings.load();
        // A proxy is not its clients, who are not known yet.
        let limit = settings.limits.connections_per_address.filter(|_| !settings.is_proxy(&peer));
        let Ok(address) = self.connections.admit(&self.name, &peer, limit) else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        self.accepted.fetch_add(1, Ordering::Relaxed);
        let local = listener.local_of(&stream);
        let lease = self.connections.lease(address);
        let transport = Transport::Stream(stream);
        Some(self.handoff.push(Accepted { transport, peer, local, lease }))
    }

    /// Takes an accepted stream; `None` when it has been taken already.
    pub fn take(&self, ticket: TicketId) -> Option<Accepted> {
        let (accepted, was_full) = self.handoff.take(ticket)?;
        self.handed.fetch_add(1, Ordering::Relaxed);
        if was_full {
            self.connections.freed().notify_waiters();
        }
        Some(accepted)
    }

    /// The streams that nobody has taken, oldest first: what the next incarnation of the acceptor begins with.
    pub fn waiting(&self) -> Vec<TicketId> {
        self.handoff.waiting(Duration::ZERO)
    }

    /// The streams that nobody has taken for at least `age`, oldest first: the connection that was to take them has
    /// ended before it began.
    pub fn overdue(&self, age: Duration) -> Vec<TicketId> {
        self.handoff.waiting(age)
    }

    /// Stops accepting for good: the next [`Socket::accept`] that finds the kernel's queue empty lets the socket go, so
    /// that new clients are refused. What waits in the hand-off queue can still be taken.
    pub fn close(&self) {
        self.stop(CLOSED);
    }

    /// Stops accepting for good, and lets the socket go at once: what the kernel has queued is for the others that hold
    /// it. Connections go on, and what waits in the hand-off queue can still be taken.
    ///
    /// A socket that is this instance's alone is emptied first, for as long as handshakes may still end at it.
    pub fn leave(&self) {
        let own =
            self.gate.is_open() && self.listener.load().as_ref().is_some_and(|own| own.group().is_some());
        if own || self.gate.is_open() && self.has_own_quic() {
            self.handshakes.get_or_init(|| Instant::now() + HANDSHAKES);
        }
        self.stop(LEFT);
        if !own {
            self.listener.store(None);
        }
    }

    /// Whether it was left.
    pub(super) fn is_left(&self) -> bool {
        self.state.load(Ordering::Acquire) == LEFT || self.handshakes.get().is_some()
    }

    fn stop(&self, state: u8) {
        // Its acceptor does it, where it still takes those who have begun to come.
        if self.handshakes.get().is_none() || !self.has_own_quic() {
            self.shut_quic();
        }
        self.state.fetch_max(state, Ordering::AcqRel);
        self.stopping.notify_waiters();
        if state == CLOSED {
            self.closing.notify_waiters();
        }
        self.connections.freed().notify_waiters();
    }

    /// Whether it was removed, or is draining.
    pub fn is_closed(&self) -> bool {
        self.state.load(Ordering::Acquire) == CLOSED
    }

    /// Completes when the socket is closed.
    pub async fn closed(&self) {
        self.reached(CLOSED, &self.closing).await;
    }

    /// Completes when nothing is to be accepted any more.
    async fn stopped(&self) {
        self.reached(LEFT, &self.stopping).await;
    }

    async fn reached(&self, state: u8, notify: &Notify) {
        let reached = notify.notified();
        tokio::pin!(reached);
        reached.as_mut().enable();
        if self.state.load(Ordering::Acquire) < state {
            reached.await;
        }
    }

    /// Lets the socket go.
    fn gone(&self) -> AcceptError {
        self.listener.store(None);
        AcceptError::Closed
    }

    /// The listener's name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The listener's number, see [`super::Sockets::index`].
    pub fn index(&self) -> usize {
        self.index
    }

    /// Where it was told to listen.
    pub fn bind(&self) -> &Bind {
        &self.bind
    }

    /// Where it listens, a port 0 resolved; `unix:/path` for a Unix socket.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The socket itself; `None` once it is closed and everything that the kernel had ready has been accepted.
    pub fn listener(&self) -> Option<Arc<net::Listener>> {
        self.listener.load_full()
    }

    /// What a connection that begins now has to keep to.
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    /// Counts a connection for the address of the client whom a proxy has named.
    ///
    /// # Errors
    /// Where that has as many as it may have.
    pub fn admit(&self, client: &Peer, lease: &mut Lease) -> Result<(), Refused> {
        let limit = self.settings.load().limits.connections_per_address;
        let admitted = self.connections.admit(&self.name, client, limit);
        if admitted.is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        lease.hold(admitted?);
        Ok(())
    }

    /// Counts a connection that is closed for its PROXY header. Says so in the log, once in a while: whoever can connect
    /// can bring it about.
    pub fn refuse_header(&self, peer: &Peer, why: &NoHeader) {
        self.headers_refused.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let mut warned = self.warned.lock();
        if warned.is_none_or(|last| now.duration_since(last) >= WARN_EVERY) {
            *warned = Some(now);
            tracing::warn!(listener = %self.name, %peer, %why, "a connection was closed for its PROXY header");
        } else {
            tracing::debug!(listener = %self.name, %peer, %why, "a connection was closed for its PROXY header");
        }
    }

    /// What counts the requests of a connection that begins now, where its address has a rate.
    pub fn meter(&self, peer: Peer) -> Option<Meter> {
        let rate = self.settings.load().limits.rate?;
        let (Peer::Tcp(peer), Some(addresses)) = (peer, self.connections.addresses()) else { return None };
        Some(addresses.meter(&self.name, peer.ip(), rate, self.rate_limited.clone()))
    }

    /// The open connections.
    pub fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    /// What it has counted.
    pub fn counts(&self) -> Counts {
        // In this order, so that `accepted` is never less than what it led to.
        let handed = self.handed.load(Ordering::Acquire);
        let waiting = self.handoff.len();
        Counts {
            handed,
            http3: self.http3.load(Ordering::Relaxed),
            retries: self.retries.load(Ordering::Relaxed),
            waiting,
            open: self.connections.open(),
            errors: self.errors.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            rate_limited: self.rate_limited.load(Ordering::Relaxed),
            headers_refused: self.headers_refused.load(Ordering::Relaxed),
            accepted: self.accepted.load(Ordering::Acquire),
        }
    }

    pub(super) fn apply(&self, settings: Arc<Settings>) {
        self.connections.set_limit(settings.limits.connections);
        self.settings.store(settings);
    }

    /// Waits until the queue and the limit have room for one more, or the socket is closed.
    async fn room(&self) {
        while !self.has_room() {
            let freed = self.connections.freed().notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if self.has_room() {
                return;
            }
            freed.await;
        }
    }

    fn has_room(&self) -> bool {
        self.handoff.len() < CAPACITY
            && (self.connections.has_room() || self.state.load(Ordering::Acquire) != OPEN)
    }
}

/// A round trip and a lost packet or two: acceptors are given two seconds to end.
const HANDSHAKES: Duration = Duration::from_secs(1);
/// Clients of other slots that are taken in one go, so that those of our own are not kept waiting.
const SWEPT: usize = 64;

/// Between two warnings of one listener about PROXY headers.
const WARN_EVERY: Duration = Duration::from_secs(60);

const OPEN: u8 = 0;
/// The listening socket is no longer ours; connections go on.
const LEFT: u8 = 1;
/// Nobody else accepts either, and connections are to finish.
const CLOSED: u8 = 2;
