//! Requests that become tunnels: WebSocket and other protocols by HTTP/1.1 Upgrade (RFC 9110 §7.8), WebSocket by
//! HTTP/2's extended CONNECT (RFC 8441).
//!
//! Whoever answers a request gives a [`Tunnel`] as the content of its answer; the engine then hands its side over, and
//! [`relay`] carries bytes both ways within the connection's own task, until both sides have ended: no message, no second
//! task, and a killed connection takes its tunnels alone with it. [`upgrade`] says who asks for what, [`plan`] which
//! route gives it and what a reload does to it.

pub mod plan;
mod relay;
mod signal;
pub mod summary;
pub mod upgrade;
pub mod websocket;

use std::task::Context;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::future::BoxFuture;
use playhouse_config::model::ClientTimeouts;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::time::Instant;

pub use plan::{Plan, Terms, Tunnels};
pub(crate) use relay::{End, Near};
pub(crate) use signal::{Signal, Watch};
pub use summary::{Reason, Summary};
pub use upgrade::{ExtendedConnect, Offer, Upgrade};

use crate::Outcome;
use crate::metrics::TunnelMetrics;
use crate::upstream::{Connection, Lease};
use relay::{Far, Relay};

/// An answer that ends HTTP on its connection or stream. What its other side has sent already is in it.
pub struct Tunnel {
    offer: Offer,
    /// Whether an extension was agreed, so that reserved bits of frames have a meaning.
    extensions: bool,
    side: Side,
}

/// The other side.
enum Side {
    Upstream {
        connection: Box<Connection>,
        /// Held as long as the tunnel is open.
        lease: Lease,
        /// How long the server may take nothing.
        write: Duration,
    },
    Endpoint {
        io: DuplexStream,
        task: BoxFuture<'static, ()>,
    },
}

/// What the engine has of its own side.
pub(crate) struct Begun {
    /// Read behind the head of the request.
    pub(crate) prefix: BytesMut,
    /// The client has shut down its writing side.
    pub(crate) eof: bool,
}

impl Tunnel {
    pub(crate) fn to_upstream(
        offer: Offer,
        extensions: bool,
        connection: Connection,
        lease: Lease,
        write: Duration,
    ) -> Self {
        let side = Side::Upstream { connection: Box::new(connection), lease, write };
        Tunnel { offer, extensions, side }
    }

    /// To an endpoint of the embedding program, whose future runs beside it.
    pub(crate) fn to_endpoint(offer: Offer, io: DuplexStream, task: BoxFuture<'static, ()>) -> Self {
        Tunnel { offer, extensions: false, side: Side::Endpoint { io, task } }
    }

    /// What was asked for and given.
    pub(crate) fn upgrade(&self) -> &Upgrade {
        &self.offer.upgrade
    }

    /// Carries bytes both ways until the end. `drain` says since when the connection is to end. Dropped before, the
    /// tunnel was killed.
    pub(crate) async fn run<N: Near>(
        self,
        near: &mut N,
        begun: Begun,
        timeouts: &ClientTimeouts,
        drain: impl FnMut(&mut Context<'_>) -> Option<Instant>,
        metrics: Option<&TunnelMetrics>,
        summary: &mut Option<Box<Summary>>,
    ) -> End {
        let Tunnel { offer, extensions, side } = self;
        let summary = summary.insert(Box::new(Summary::new(offer.upgrade.protocol())));
        let websocket = offer.upgrade.is_websocket().then_some(extensions);
        match side {
            Side::Upstream { connection, lease, write } => {
                let Connection { mut stream, input, .. } = *connection;
                let far = Far { io: &mut stream, prefix: input, write };
                let relay = Relay::new(near, begun, far, websocket, offer.terms, timeouts, metrics, summary);
                let end = relay.run(drain).await;
                if end.outcome == Outcome::ClientGone {
                    // The server is not to take it for an end in order either.
                    stream.reset_on_drop();
                }
                drop(lease);
                end
            }
            Side::Endpoint { io, task } => {
                let far = Far { io, prefix: BytesMut::new(), write: timeouts.write };
                let relay = Relay::new(near, begun, far, websocket, offer.terms, timeouts, metrics, summary);
                relay.beside(task).run(drain).await
            }
        }
    }
}

impl std::fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tunnel").field("upgrade", &self.offer.upgrade).finish_non_exhaustive()
    }
}

/// What a tunnel's sides are.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}
