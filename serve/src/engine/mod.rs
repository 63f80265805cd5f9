//! The engines: bytes of a client's connection to [`crate::Exchange`]s, and [`crate::Body`]s back to bytes.

pub mod h1;
pub mod h2;
#[cfg(test)]
pub(crate) mod test_application;

use std::sync::Arc;

use playhouse_config::model::{ClientTimeouts, Limits};

use crate::net::Stream;
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
    /// `None` is cleartext.
    pub tls: Option<Arc<rustls::ServerConfig>>,
}

/// Serves one connection to its end: TLS where the listener has it, then HTTP/1.1 or HTTP/2 by ALPN, by prior knowledge
/// on cleartext. When `drain` completes, the connection ends gracefully: the request in flight is answered with
/// `Connection: close`, or GOAWAY is sent and open streams finish; an idle connection closes at once.
///
/// Dropping the future ends the connection at once and every request in flight as `Killed`.
/// `info.tls` is `None` on the way in and filled here.
pub async fn serve<A: Application>(
    _stream: Stream,
    _info: ConnectionInfo,
    _settings: Arc<Settings>,
    _application: Arc<A>,
    _drain: impl Future<Output = ()> + Send,
) {
    todo!()
}
