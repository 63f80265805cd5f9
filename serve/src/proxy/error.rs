//! Why there is no answer of a server, and what is answered instead.

use http::{Response, StatusCode};

use crate::apps::NotReady;
use crate::metrics::Failure;
use crate::{Body, Exchange, Outcome, RequestBodyError, respond};

/// Why there is no answer of a server.
#[derive(Debug)]
pub(crate) enum ProxyError {
    /// The client has failed.
    Client(RequestBodyError),
    /// The server has.
    Server { failure: Failure, cause: String },
    /// There are no descriptors left to ask with.
    Exhausted(std::io::Error),
    /// The upstream has no server.
    NoServer,
    /// None of the app's processes serves.
    NotReady(NotReady),
    /// The request is going in a circle.
    Loop,
    /// CONNECT and TRACE are not for reverse proxies.
    Method,
}

impl ProxyError {
    /// The answer; its outcome is noted in the record.
    pub(crate) fn answer(self, exchange: &mut Exchange) -> Response<Body> {
        let (status, outcome) = match &self {
            ProxyError::Client(error) if *error == RequestBodyError::Gone => {
                (error.status(), Outcome::ClientGone)
            }
            ProxyError::Client(error) => (error.status(), Outcome::Rejected),
            ProxyError::Server { failure, .. } => match failure {
                Failure::ConnectTimeout | Failure::FirstByteTimeout | Failure::BodyTimeout => {
                    (StatusCode::GATEWAY_TIMEOUT, Outcome::UpstreamFailed)
                }
                Failure::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, Outcome::UpstreamFailed),
                _ => (StatusCode::BAD_GATEWAY, Outcome::UpstreamFailed),
            },
            ProxyError::Exhausted(_) => (StatusCode::SERVICE_UNAVAILABLE, Outcome::Shed),
            ProxyError::NoServer => (StatusCode::SERVICE_UNAVAILABLE, Outcome::UpstreamFailed),
            ProxyError::NotReady(NotReady::QueueFull) => (StatusCode::SERVICE_UNAVAILABLE, Outcome::Shed),
            ProxyError::NotReady(_) => (StatusCode::SERVICE_UNAVAILABLE, Outcome::UpstreamFailed),
            ProxyError::Loop => (StatusCode::LOOP_DETECTED, Outcome::Rejected),
            ProxyError::Method => return respond::method_not_allowed(METHODS),
        };
        let server = exchange.record.server.as_ref().map(|server| server.address());
        tracing::debug!(
            status = status.as_u16(),
            server = server.map(|address| &**address),
            path = exchange.request.uri().path(),
            cause = %self,
            "request not forwarded"
        );
        exchange.record.outcome = Some(outcome);
        match self {
            ProxyError::NotReady(_) => respond::unavailable(RETRY_AFTER),
            _ => respond::error(status),
        }
    }
}

impl std::fmt::Display for ProxyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ProxyError::Client(error) => write!(f, "request content: {error}"),
            ProxyError::Server { cause, .. } => f.write_str(cause),
            ProxyError::Exhausted(error) => write!(f, "cannot connect: {error}"),
            ProxyError::NoServer => f.write_str("no server"),
            ProxyError::NotReady(why) => write!(f, "{why}"),
            ProxyError::Loop => f.write_str("the request goes in a circle"),
            ProxyError::Method => f.write_str("not for a reverse proxy"),
        }
    }
}

/// When a client may find an app's process that has failed started again.
const RETRY_AFTER: std::time::Duration = std::time::Duration::from_secs(1);

/// What RFC 9110 §9.3 and RFC 5789 define, without what a reverse proxy refuses. Others are forwarded all the same.
pub(super) const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";
