//! What HTTP/2 and HTTP/3 have in common: a connection that several clients share, with a stream for each request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{HeaderMap, Method, Request, Version, header};
use tokio::time::Instant;

use super::exchange::{Body, Exchange};
use super::worker::{Fault, Shared};

/// A connection with streams.
pub(super) trait Multiplexed: Sized + Send + Sync + 'static {
    /// A request that was given a stream.
    type Opened: Send;

    /// Connects.
    fn connect(shared: &Shared, deadline: Instant) -> impl Future<Output = Result<Self, Fault>> + Send;

    fn life(&self) -> &Life;

    /// Sends the head of a request.
    fn open(
        &self,
        exchange: &Exchange,
        shared: &Shared,
        deadline: Instant,
    ) -> impl Future<Output = Result<Self::Opened, NoStream>> + Send;

    /// Sends the request's content, and checks its answer.
    fn exchange(
        &self,
        opened: Self::Opened,
        exchange: &Exchange,
        deadline: Instant,
    ) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// Why there is no stream for a request.
pub(super) enum NoStream {
    /// The connection has ended before, or is ending; whether because the server said that it goes (GOAWAY, no error).
    Closed {
        detail: String,
        told: bool,
    },
    Failed(Fault),
}

/// How far a connection has come.
pub(super) struct Life {
    pub(super) number: u64,
    pub(super) begun: Instant,
    ended: Arc<AtomicBool>,
    retired: AtomicBool,
    answered: AtomicBool,
}

impl Life {
    /// Of a connection that was just made; who drives it sets `ended`.
    pub(super) fn new(number: u64, begun: Instant, ended: Arc<AtomicBool>) -> Life {
        Life { number, begun, ended, retired: AtomicBool::new(false), answered: AtomicBool::new(false) }
    }

    /// Requests may still be sent on it, as far as is known.
    pub(super) fn is_open(&self) -> bool {
        !self.ended.load(Ordering::Acquire) && !self.retired.load(Ordering::Acquire)
    }

    /// Takes it out of use for new requests; true for the first who does.
    pub(super) fn retire(&self) -> bool {
        !self.retired.swap(true, Ordering::AcqRel)
    }

    /// Notes a complete answer; when the connection was begun, for the first.
    pub(super) fn note_answer(&self) -> Option<Instant> {
        (!self.answered.swap(true, Ordering::AcqRel)).then_some(self.begun)
    }

    /// It has given a complete answer.
    pub(super) fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Acquire)
    }
}

/// A request's head.
pub(super) fn request(
    exchange: &Exchange,
    version: Version,
    scheme: &str,
    authority: &str,
) -> Result<Request<()>, http::Error> {
    let host = exchange.headers.iter().find(|(name, _)| name == header::HOST);
    let authority = host.and_then(|(_, value)| value.to_str().ok()).unwrap_or(authority);
    let mut request = Request::builder()
        .method(exchange.method.clone())
        .uri(format!("{scheme}://{authority}{}", exchange.path))
        .version(version)
        .body(())?;
    let fields = exchange.headers.iter().filter(|(name, _)| name != header::HOST).cloned();
    let headers: &mut HeaderMap = request.headers_mut();
    for (name, value) in fields {
        headers.append(name, value);
    }
    if matches!(exchange.body, Body::Fixed(_) | Body::Pattern { .. }) {
        headers.insert(header::CONTENT_LENGTH, exchange.body.length().into());
    }
    Ok(request)
}

/// Whether a request ends with its head.
pub(super) fn ends_with_head(exchange: &Exchange) -> bool {
    exchange.method != Method::CONNECT && exchange.body.length() == 0
}
