//! An acceptor: takes streams from a socket of the table and gives each to a connection.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use playhouse_serve::Application;
use playhouse_serve::epoch::{Epoch, Owner};
use playhouse_serve::sockets::{AcceptError, Socket, TicketId};
use tokio::time::Instant;

use crate::connection::{Admission, Connection};
use crate::shard::Shard;
use crate::supervision::{
    self, Actor, ChildSpec, Context, EventKind, Failure, Restart, Seat, SeatState, Shutdown,
};

/// How clients come to an acceptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// By streams.
    Streams,
    /// By QUIC, for HTTP/3.
    Quic,
}

impl Door {
    /// The doors of a socket.
    pub fn of(socket: &Socket) -> Vec<Self> {
        let quic = socket.quic().is_some().then_some(Door::Quic);
        [Some(Door::Streams), quic].into_iter().flatten().collect()
    }

    /// The name of the acceptor at this door. No listener's name has a colon.
    pub fn acceptor(self, listener: &Arc<str>) -> Arc<str> {
        match self {
            Door::Streams => listener.clone(),
            Door::Quic => format!("{listener}:h3").into(),
        }
    }

    fn owner(self, socket: &Socket) -> &Owner {
        match self {
            Door::Streams => &socket.owner,
            Door::Quic => &socket.quic_owner,
        }
    }
}

/// Accepts on one socket. It holds nothing that is lost with it: the socket and all accepted streams are in the table.
pub struct Acceptor<A> {
    socket: Arc<Socket>,
    door: Door,
    application: Arc<A>,
    admission: Admission,
    /// The shards' parent.
    connections: Arc<Seat>,
    epoch: Epoch,
    next_shard: usize,
    /// A stream waits because no shard was alive.
    undispatched: bool,
}

impl<A: Application> Acceptor<A> {
    /// The child of the listeners' supervisor for this door of a socket. Connections are spread over the shards beneath
    /// `connections`.
    pub fn spec(
        socket: Arc<Socket>,
        door: Door,
        application: Arc<A>,
        admission: Admission,
        connections: Arc<Seat>,
    ) -> ChildSpec {
        let name = door.acceptor(socket.name()).to_string();
        ChildSpec::new(name, move || Acceptor {
            epoch: door.owner(&socket).claim(),
            socket: socket.clone(),
            door,
            application: application.clone(),
            admission,
            connections: connections.clone(),
            next_shard: 0,
            undispatched: false,
        })
        .restart(Restart::Transient)
        .shutdown(Shutdown::After(Duration::from_secs(2)))
        .stall_after(STALL)
    }

    /// Starts a connection for the ticket on the next shard that is alive. Where there is none, the stream stays in the
    /// queue, and is found there later.
    async fn dispatch(&mut self, ticket: TicketId) {
        let shards = self.connections.child_count();
        for _ in 0..shards {
            self.next_shard = (self.next_shard + 1) % shards;
            let Some(shard) = self.connections.child_at(self.next_shard) else { continue };
            if shard.kind() != Shard::KIND || shard.state() != SeatState::Running {
                continue;
            }
            let Some(parent) = shard.cell() else { continue };
            let id = NEXT_CONNECTION.fetch_add(1, Ordering::Relaxed);
            let (socket, application) = (self.socket.clone(), self.application.clone());
            let (connection, seat) = Connection::new(socket, ticket, application, self.admission, &shard, id);
            if supervision::spawn(seat, connection, Some(parent)).await.is_ok() {
                return;
            }
        }
        self.undispatched = true;
    }

    async fn accept(&self) -> Result<TicketId, AcceptError> {
        match self.door {
            Door::Streams => self.socket.accept().await,
            Door::Quic => self.socket.accept_quic().await,
        }
    }
}

impl<A: Application> Actor for Acceptor<A> {
    type Message = std::convert::Infallible;

    const KIND: &'static str = "acceptor";

    const GRACEFUL: bool = true;

    async fn run(&mut self, context: &Context) -> Result<(), Failure> {
        for ticket in self.socket.waiting() {
            self.dispatch(ticket).await;
        }
        let mut tick = pin!(tokio::time::sleep(TICK));
        let mut backoff = Duration::ZERO;
        loop {
            let accepted = tokio::select! {
                biased;
                // A closed socket first gives what the kernel has ready; an open one is the next incarnation's.
                () = context.drained(), if !self.socket.is_closed() => {
                    // It may have been closed, and this actor been asked to stop, since the condition was looked at.
                    if self.socket.is_closed() {
                        continue;
                    }
                    break;
                }
                accepted = self.accept() => accepted,
                () = tick.as_mut() => {
                    context.progress();
                    self.door.owner(&self.socket).check(self.epoch)?;
                    let age = if std::mem::take(&mut self.undispatched) { Duration::ZERO } else { OVERDUE };
                    let mut tickets = self.socket.overdue(age);
                    tickets.extend(self.socket.sweep());
                    for ticket in tickets {
                        self.dispatch(ticket).await;
                    }
                    let next = if self.undispatched { RETRY } else { TICK };
                    tick.as_mut().reset(Instant::now() + next);
                    continue;
                }
            };
            match accepted {
                Ok(ticket) => {
                    backoff = Duration::ZERO;
                    let before = self.undispatched;
                    self.dispatch(ticket).await;
                    if self.undispatched && !before {
                        tick.as_mut().reset(Instant::now() + RETRY);
                    }
                }
                Err(AcceptError::Closed) => break,
                Err(AcceptError::Transient(error)) => {
                    tracing::debug!(listener = %self.socket.name(), %error, "a connection failed before it was accepted");
                    tokio::task::yield_now().await;
                }
                Err(AcceptError::Exhausted(error)) => {
                    if backoff.is_zero() {
                        let message = format!("cannot accept: {error}; clients wait in the kernel's queue");
                        context.emit(EventKind::Listener, context.seat().path(), message);
                    }
                    backoff = (backoff * 2).clamp(MIN_BACKOFF, MAX_BACKOFF);
                    tokio::time::sleep(backoff).await;
                    context.progress();
                }
            }
        }
        context.stop();
        Ok(())
    }

    async fn handle(&mut self, message: Self::Message, _: &Context) -> Result<(), Failure> {
        match message {}
    }
}

/// Numbers the connections of the process.
static NEXT_CONNECTION: AtomicU64 = AtomicU64::new(1);

/// How often an idle acceptor shows that it is alive, and looks for streams that nobody took.
const TICK: Duration = Duration::from_millis(100);
/// A connection takes its stream in its first poll; one that was not taken for this long was lost with its shard.
const OVERDUE: Duration = Duration::from_millis(50);
/// How soon it looks again for a shard when there was none.
const RETRY: Duration = Duration::from_millis(5);
const STALL: Duration = Duration::from_secs(2);
const MIN_BACKOFF: Duration = Duration::from_millis(5);
const MAX_BACKOFF: Duration = Duration::from_millis(500);
