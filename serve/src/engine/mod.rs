//! The engines: bytes of a client's connection to [`crate::Exchange`]s, and [`crate::Body`]s back to bytes.

mod drain;
pub mod h1;
pub mod h2;
pub mod h3;
mod opening;
mod proxy_header;
mod rewind;
#[cfg(test)]
pub(crate) use h3::client_config as h3_client_config;
#[cfg(test)]
pub(crate) mod test_application;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::BytesMut;
use http::HeaderValue;
use playhouse_config::model::{ClientTimeouts, Limits, ProxyProtocol};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout};

pub use self::drain::Drain;
use self::drain::{lingering, waiting};
pub use self::proxy_header::{NoHeader, proxy_header};
use crate::exchange::Peer;
use crate::net::{QuicConfig, QuicIncoming, Stream};
use crate::tls::ListenerTls;
use crate::{Application, ConnectionInfo};

/// What a listener demands of its connections. Replaced as a whole by a reload; a connection keeps what it began with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What a client may send.
    pub limits: Limits,
    /// How long it may take.
    pub timeouts: ClientTimeouts,
    /// Offer HTTP/2.
    pub http2: bool,
    /// Whose PROXY headers are read; `None` is nobody's.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// `None` is cleartext.
    pub tls: Option<Arc<ListenerTls>>,
    /// Offer HTTP/3, which needs TLS.
    pub quic: Option<QuicConfig>,
}

impl Settings {
    /// Whether the peer is one that may name another as its client.
    pub fn is_proxy(&self, peer: &Peer) -> bool {
        let address = peer.address().map(|address| address.ip());
        self.proxy_protocol.as_ref().is_some_and(|proxies| proxies.trusts(address))
    }
}

/// Serves one connection to its end: TLS where the listener has it, then HTTP/1.1 or HTTP/2 by ALPN, by prior knowledge
/// on cleartext. When `drain` completes, the connection ends gracefully: the request in flight is answered with
/// `Connection: close`, or GOAWAY is sent and open streams finish. The next request of an idle connection may be on its
/// way already: it is answered if it comes within `drain_idle`, and then the connection closes.
///
/// Dropping the future ends the connection at once and every request in flight as `Killed`.
/// `prefix` is what has been read from the stream already. `info.tls` is `None` on the way in and filled here.
pub async fn serve<A: Application>(
    mut stream: Stream,
    mut prefix: BytesMut,
    mut info: ConnectionInfo,
    settings: Arc<Settings>,
    application: Arc<A>,
    mut drain: Drain<impl Future<Output = ()> + Send + Unpin>,
) {
    let timeouts = &settings.timeouts;
    let deadline = Instant::now() + if settings.tls.is_some() { timeouts.tls } else { timeouts.idle };
    if prefix.is_empty() && (settings.tls.is_some() || settings.http2) {
        let first =
            drain.grace(waiting(timeouts.drain_idle), opening::first_bytes(&mut stream, deadline)).await;
        match first {
            Some(Some(first)) => prefix = first,
            Some(None) => return,
            None => return opening::farewell(stream, lingering(timeouts.drain_idle)).await,
        }
    }
    // Each part in a box of its own, so that a connection pays for the part that it is in, not for the largest.
    if let Some(tls) = &settings.tls {
        let handshake = opening::handshake(stream, prefix, deadline, tls, &mut info, &*application);
        let Some(mut stream) = Box::pin(handshake).await else { return };
        let h2 = info.tls.as_ref().is_some_and(|tls| tls.alpn_h2);
        match speak(h2, &mut stream, BytesMut::new(), info, &settings, &application, drain).await {
            h1::Ending::Closed => {}
            // The end of TLS is a record of its own. What cannot be closed in order is dropped.
            h1::Ending::Done => drop(timeout(h1::LINGER, stream.shutdown()).await),
            h1::Ending::Aborted => stream.get_ref().0.transport().reset_on_drop(),
        }
    } else {
        let h2 = settings.http2 && opening::is_h2(&mut stream, &mut prefix, &settings).await;
        match speak(h2, &mut stream, prefix, info, &settings, &application, drain).await {
            // Dropped, a socket says its end by itself, behind all that was written.
            h1::Ending::Closed | h1::Ending::Done => {}
            h1::Ending::Aborted => stream.reset_on_drop(),
        }
    }
}

/// Serves one QUIC connection to its end: its handshake, then HTTP/3. When `drain` completes, it ends gracefully: a GOAWAY
/// that lets what is on its way come, after a round trip the one that names the last request, and a close when all are
/// answered.
///
/// Dropping the future ends the connection at once and every request in flight as `Killed`. `info.tls` is filled here.
pub async fn serve_quic<A: Application>(
    incoming: QuicIncoming,
    info: ConnectionInfo,
    settings: Arc<Settings>,
    application: Arc<A>,
    drain: Drain<impl Future<Output = ()> + Send + Unpin>,
) {
    // Without TLS there is no QUIC: the client is refused.
    let Some(tls) = &settings.tls else { return };
    Box::pin(h3::serve(incoming, info, tls, &settings, &application, drain)).await;
}

/// Speaks HTTP to the connection's end.
async fn speak<A: Application>(
    h2: bool,
    io: impl AsyncRead + AsyncWrite + Unpin + Send,
    prefix: BytesMut,
    info: ConnectionInfo,
    settings: &Settings,
    application: &Arc<A>,
    drain: Drain<impl Future<Output = ()> + Send + Unpin>,
) -> h1::Ending {
    let info = Arc::new(info);
    if h2 {
        Box::pin(h2::serve(io, prefix, info, settings, application, drain)).await;
        // Its frames say what is whole.
        h1::Ending::Closed
    } else {
        Box::pin(h1::serve(io, prefix, info, settings, application, drain)).await
    }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// `Date` of now, formatted once a second and thread.
pub(crate) fn date() -> HeaderValue {
    thread_local! {
        static DATE: RefCell<playhouse_protocol::http1::date::DateCache> = RefCell::default();
    }
    DATE.with_borrow_mut(|date| date.value(wall_clock()))
}

/// The time for `Date`, to a few milliseconds: cheaper than the exact one, and the field has seconds.
pub(crate) fn wall_clock() -> SystemTime {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    SystemTime::UNIX_EPOCH + Duration::from_secs(now.tv_sec.try_into().unwrap_or(0))
}
