//! A connection: one actor, whose work is the whole life of one client's stream.

use std::sync::Arc;

use playhouse_serve::net::Stream;
use playhouse_serve::sockets::{Accepted, Socket, TicketId};
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
}

impl<A: Application> Actor for Connection<A> {
    type Message = std::convert::Infallible;

    const KIND: &'static str = crate::supervision::CONNECTION;

    const GRACEFUL: bool = true;

    async fn run(&mut self, context: &Context) -> Result<(), Failure> {
        context.stop();
        // Another connection may have been sent for the same ticket, when this one seemed to be lost.
        let Some(accepted) = self.socket.take(self.ticket) else { return Ok(()) };
        let Accepted { stream, peer, local, lease } = accepted;
        if self.admission == Admission::SameUser && !is_same_user(&stream) {
            tracing::warn!(listener = %self.socket.name(), "a process of another user was refused");
            return Ok(());
        }
        let info = ConnectionInfo {
            id: self.id,
            listener: self.socket.name().clone(),
            listener_index: self.socket.index(),
            peer,
            local,
            tls: None,
        };
        let serving =
            engine::serve(stream, info, self.socket.settings(), self.application.clone(), context.drained());
        // Boxed, so that the wrapper around it stays small and the future is not moved.
        Box::pin(serving).await;
        drop(lease);
        Ok(())
    }

    async fn handle(&mut self, message: Self::Message, _: &Context) -> Result<(), Failure> {
        match message {}
    }
}

fn is_same_user(stream: &Stream) -> bool {
    match stream {
        Stream::Unix(stream) => stream
            .peer_cred()
            .is_ok_and(|peer| peer.uid() == 0 || peer.uid() == rustix::process::geteuid().as_raw()),
        _ => true,
    }
}
