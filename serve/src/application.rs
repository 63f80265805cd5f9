//! The seam between the engines that speak HTTP and what answers.

use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode};

use crate::{Body, ConnectionInfo, Exchange, Ledger, Outcome};

/// What answers the requests of a connection: a [`crate::Site`], or the admin interface.
pub trait Application: Send + Sync + 'static {
    /// Answers one request. The engine catches a panic in here, answers it with 500 and ends it as
    /// [`Outcome::Killed`].
    fn handle(&self, exchange: &mut Exchange) -> impl Future<Output = Response<Body>> + Send;

    /// Where the requests of this application are entered.
    fn ledger(&self) -> &Arc<Ledger>;

    /// A request whose head was complete has ended; its outcome is in the ledger.
    fn ended(&self, exchange: &Exchange, end: &End);

    /// The engine has answered for the application: the head was malformed, too large or too slow, so that no
    /// [`Exchange`] came to be. `status` is what was sent; `None` when nothing could be.
    fn refused(&self, connection: &ConnectionInfo, status: Option<StatusCode>);

    /// A handler or a body has panicked, with this message.
    fn panicked(&self, connection: &ConnectionInfo, message: &str);

    /// A TLS handshake has failed or was too slow, for this reason; no request was read. Most are scanners' and nobody's
    /// fault, so that this is for counting.
    fn handshake_failed(&self, _connection: &ConnectionInfo, _reason: &str) {}
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// What was entered in the ledger.
    pub outcome: Outcome,
    /// The status that was sent, `None` when none was.
    pub status: Option<StatusCode>,
    /// Bytes of content sent, without head and framing.
    pub bytes_sent: u64,
    /// From the first byte of the head to the last byte of the answer.
    pub duration: Duration,
}
