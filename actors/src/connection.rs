//! A connection: one actor, whose work is the whole life of one client's stream, or of its QUIC connection.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use playhouse_serve::engine::{Drain, NoHeader};
use playhouse_serve::net::Stream;
use playhouse_serve::sockets::{Accepted, Socket, TicketId, Transport};
use playhouse_serve::{Application, ConnectionInfo, engine};

use crate::supervision::{Actor, Context, Failure, Seat};

/// Serves one accepted stream. A temporary child of a [`crate::shard::Shard`].
pub struct Connection<A> {
    socket: Arc<Socket>,
    ticket: TicketId,
    application: Arc<A>,
    admission: Admission,
    /// The connection's number in the process, and the name of its seat.
    id: u64,
    _place: Place,
}

/// Who may speak on a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Whoever connects.
    Anyone,
    /// On a Unix socket, processes of our own user and of root.
    SameUser,
}

/// The connection's seat, given up with it.
struct Place {
    shard: Arc<Seat>,
    name: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shard.forget_child(&self.name);
    }
}

impl<A: Application> Connection<A> {
    /// A connection that will take its stream from `socket` by `ticket`, and its seat.
    pub fn new(
        socket: Arc<Socket>,
        ticket: TicketId,
        application: Arc<A>,
        admission: Admission,
        shard: &Arc<Seat>,
        id: u64,
    ) -> (Self, Arc<Seat>) {
        let name = id.to_string();
        let seat = shard.child(&name, Self::KIND);
        let place = Place { shard: shard.clone(), name };
        (Connection { socket, ticket, application, admission, id, _place: place }, seat)
    }

    async fn serve(&self, context: &Context) {
        // Another connection may have been sent for the same ticket, when this one seemed to be lost.
        let Some(accepted) = self.socket.take(self.ticket) else { return };
        let Accepted { transport, peer, local, mut lease } = accepted;
        if self.admission == Admission::SameUser && !is_same_user(&transport) {
            tracing::warn!(listener = %self.socket.name(), "a process of another user was refused");
            return;
        }
        let socket = &*self.socket;
        let settings = socket.settings();
        let is_proxy = settings.is_proxy(&peer);
        let mut info = ConnectionInfo {
            id: self.id,
            listener: socket.name().clone(),
            listener_index: socket.index(),
            peer,
            local,
            proxied: None,
            tls: None,
            rate: socket.meter(peer).filter(|_| !is_proxy),
            alternative: match &transport {
                Transport::Stream(_) => socket.alternative(),
                Transport::Quic(..) => None,
            },
        };
        let farewell = pin!(farewell(socket, socket.is_closed(), context.drained()));
        let mut drain = Drain::new(farewell);
        let mut stream = match transport {
            Transport::Stream(stream) => stream,
            // The endpoint is held, so that whoever needs its address meanwhile finds it. Boxed, so that streams do not
            // pay for the other.
            Transport::Quic(incoming, _endpoint) => {
                let application = self.application.clone();
                return Box::pin(engine::serve_quic(*incoming, info, settings, application, drain)).await;
            }
        };
        let prefix = match engine::proxy_header(&mut stream, &mut info, &settings, &mut drain).await {
            Ok(prefix) => prefix,
            Err(NoHeader::Silent) => return,
            Err(why) => return socket.refuse_header(&info.peer, &why),
        };
        if info.proxied.is_some() {
            // From here on it is its client's connection, within its client's limits.
            if socket.admit(&info.peer, &mut lease).is_err() {
                return;
            }
            info.rate = socket.meter(info.peer);
        }
        engine::serve(stream, prefix, info, settings, self.application.clone(), drain).await;
        drop(lease);
    }
}

impl<A: Application> Actor for Connection<A> {
    type Message = std::convert::Infallible;

    const KIND: &'static str = crate::supervision::CONNECTION;

    const GRACEFUL: bool = true;

    const ONLY_RUNS: bool = true;

    async fn run(&mut self, context: &Context) -> Result<(), Failure> {
        // Boxed as a whole: the wrappers around it move what they are given, several times.
        Box::pin(self.serve(context)).await;
        Ok(())
    }

    async fn handle(&mut self, message: Self::Message, _: &Context) -> Result<(), Failure> {
        match message {}
    }
}

/// Completes when the connection has been asked to stop, or its listener is gone. One that begins when its listener is
/// gone already still has its turn.
async fn farewell(socket: &Socket, stays: bool, drained: impl Future<Output = ()>) {
    let (mut closed, mut drained) = (pin!(socket.closed()), pin!(drained));
    let mut registered = stays;
    poll_fn(|cx| {
        // All connections of a listener wait at one place, with a lock: they go there once, not at every poll.
        let first = !std::mem::replace(&mut registered, true);
        if first && closed.as_mut().poll(cx).is_ready() || !stays && socket.is_closed() {
            return Poll::Ready(());
        }
        drained.as_mut().poll(cx)
    })
    .await;
}

fn is_same_user(transport: &Transport) -> bool {
    match transport {
        Transport::Stream(Stream::Unix(stream)) => stream
            .peer_cred()
            .is_ok_and(|peer| peer.uid() == 0 || peer.uid() == rustix::process::geteuid().as_raw()),
        _ => true,
    }
}
