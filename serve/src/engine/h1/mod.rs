//! The HTTP/1.1 server engine (RFC 9112): one connection, one request after the other, each over
//! [`playhouse_protocol::http1`].
//!
//! [`serve`] is the whole of a connection: [`head`] waits for a request, [`exchange`] has it answered, and then the
//! connection goes on or ends. [`input`] and [`output`] are the two directions, [`shared`] is what a request's body and
//! its interim answers share with the connection, [`timer`] is the one timer behind all deadlines. An idle
//! connection holds this future alone, no buffers.

mod answer;
mod connection;
mod exchange;
mod head;
mod input;
mod output;
mod send;
mod shared;
mod timer;
mod tunnel;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

pub use shared::{BodyReader, InformationalSender};

use self::connection::Connection;
pub(super) use self::connection::LINGER;
use self::exchange::Then;
use self::head::Next;
use super::Settings;
use super::drain::{Drain, lingering};
use crate::{Application, ConnectionInfo, Outcome};

/// How a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Its writing side was shut down, or the client has gone.
    Closed,
    /// All is written, and nothing is to come: what is left to do is to close it, which is the caller's, who knows whether
    /// that takes more than to drop it.
    Done,
    /// In the middle of an answer, or the client has gone. Where the transport can, it is reset: so a client does not
    /// take what it has for the whole, and the kernel keeps nothing for one that reads nothing.
    Aborted,
}

/// Serves one connection to its end. `prefix` is what was read of it already. When `drain` completes, the request in
/// flight is answered with `Connection: close`; an idle connection ends within `drain_idle`, unless a request comes.
/// Dropped, it ends the request in flight as [`Outcome::Killed`].
pub(crate) async fn serve<A: Application>(
    io: impl AsyncRead + AsyncWrite + Unpin + Send,
    prefix: BytesMut,
    info: Arc<ConnectionInfo>,
    settings: &Settings,
    app: &Arc<A>,
    mut drain: Drain<impl Future<Output = ()> + Send + Unpin>,
) -> Ending {
    let mut connection = Connection::new(io, prefix, info, settings, app);
    let mut idle_since = Instant::now();
    loop {
        let (ticket, started) = match connection.next_head(&mut drain, idle_since).await {
            Next::Head(ticket, started) => (ticket, started),
            Next::Refused(ticket, status) => {
                let sent = connection.refuse(status).await;
                ticket.end(Outcome::Rejected);
                app.refused(&connection.info, sent.then_some(status));
                if sent {
                    connection.linger(LINGER).await;
                }
                return Ending::Closed;
            }
            Next::Gone(ticket) => {
                ticket.end(Outcome::ClientGone);
                app.refused(&connection.info, None);
                return Ending::Closed;
            }
            Next::Idle => return Ending::Done,
            Next::Drained => {
                // A request that comes only now gets no answer, but an end rather than a reset.
                connection.linger(lingering(settings.timeouts.drain_idle)).await;
                return Ending::Closed;
            }
        };
        match connection.exchange(&mut drain, ticket, started).await {
            Then::Next(now) => idle_since = now,
            Then::Close => return Ending::Done,
            Then::Linger => {
                connection.linger(LINGER).await;
                return Ending::Closed;
            }
            Then::Abort => return Ending::Aborted,
        }
    }
}
