//! Requests forwarded to an upstream.
//!
//! A request is sent and its answer read within the request's own task: no second task, no channel. So whatever ends that
//! task, be it a client that has gone, closes the connection to the server too. [`fields`] says what becomes of a message
//! on its way, [`sender`] and [`attempt`] drive it, [`body`] gives the content of the answer.
//!
//! # When a request is sent again
//! - When no byte of it has left: the server refused the connection, or had closed the idle one. To another server first,
//!   as often as `retries` says.
//! - When it went out on an idle connection that ended without a byte of an answer, as happens when a server closes it at
//!   that moment, the method is idempotent (RFC 9110 §9.2.2) and what has gone by of the content is still there: once more
//!   to the same server, on a new connection.
//! - To an app once more when the process that it was for has ended before a byte of it has left: another is on its way.
//! - Otherwise never: the server may have acted on it. A request that could not be sent again is not given to a connection
//!   that has been idle for more than a moment, either.

mod attempt;
mod body;
pub(crate) mod error;
pub(crate) mod fields;
mod sender;
pub(crate) mod source;
mod target;

use std::task::Poll;
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Response, StatusCode, header};
use playhouse_protocol::http1::{BodyDecoder, BodyLength, Decoded, ResponseHead};
use tokio::time::{Instant, timeout};

use attempt::{AttemptError, attempt};
use body::Wire;
use error::{METHODS, ProxyError};
use fields::{Outbound, RequestHead};
use sender::Sender;
use source::Source;

use crate::metrics::Failure;
use crate::net::{self, Connector};
use crate::tunnel::{Offer, Tunnel, Upgrade};
use crate::upstream::{Connection, Lease, Owner, Server, Snapshot, introduce};
use crate::{Body, Exchange};

pub use body::UpstreamBody;
pub use target::ProxyTarget;

/// Forwards a request and returns the answer, whose content is still to come. The path of the request's URI is sent as it
/// stands there: the router leaves the normalised form in it, so that the server cannot understand another path than the
/// one that was routed by.
///
/// Answers 502 when the server fails, 504 when it is too slow, 503 when it cannot be asked at all, and sets
/// `record.outcome` with it.
pub async fn proxy(target: &ProxyTarget, exchange: &mut Exchange) -> Response<Body> {
    let body = std::mem::take(exchange.request.body_mut());
    match forward(target, exchange, Source::new(body)).await {
        Ok(response) => response,
        Err(error) => error.answer(exchange),
    }
}

async fn forward(
    target: &ProxyTarget,
    exchange: &mut Exchange,
    source: Source,
) -> Result<Response<Body>, ProxyError> {
    let Exchange { request, connection, informational, record } = exchange;
    let offer = request.extensions().get::<Offer>();
    let head = RequestHead {
        method: request.method(),
        uri: request.uri(),
        version: request.version(),
        headers: request.headers(),
        connection,
    };
    if *head.method == Method::CONNECT || *head.method == Method::TRACE {
        return Err(ProxyError::Method);
    }
    let hops = head.headers.get(header::MAX_FORWARDS).and_then(fields::max_forwards);
    if *head.method == Method::OPTIONS && hops == Some(0) {
        return Ok(final_recipient());
    }
    let path = head.uri.path_and_query().map_or(PathAndQuery::from_static("/"), |sent| target.path(sent));
    let mut snapshot = target.upstream.snapshot();
    let mut source = source;
    let mut tried = Vec::new();
    let mut tries_left = snapshot.settings.retries;
    let begun = record.started;
    loop {
        if let Some(app) = &target.app
            && snapshot.all.is_empty()
        {
            app.served(begun + app.settings().ready_timeout).await.map_err(ProxyError::NotReady)?;
            snapshot = target.upstream.snapshot();
        }
        let call = Call { target, snapshot: &snapshot, head: &head, path: &path, offer };
        let lease = target.upstream.choose(&snapshot, &tried);
        // When all have been tried, any may be tried again.
        let lease = lease.or_else(|| target.upstream.choose(&snapshot, &[])).ok_or(ProxyError::NoServer)?;
        let server = lease.server().clone();
        record.server = Some(server.metrics().clone());
        match call.ask(lease, source, informational).await {
            Ok(response) => return Ok(response),
            Err(TryError::Final(error)) => return Err(error),
            Err(TryError::Unsent(unsent, error)) => {
                source = *unsent;
                if !source.rewind() {
                    return Err(error);
                }
                if tries_left > 0 {
                    tries_left -= 1;
                } else {
                    let Some(app) = &target.app else { return Err(error) };
                    if !app.succeeded(&server, begun + app.settings().ready_timeout).await {
                        return Err(error);
                    }
                    tried.clear();
                }
                server.metrics().retried();
                tried.push(server);
                // Another process may have taken its place.
                if target.app.is_some() {
                    snapshot = target.upstream.snapshot();
                }
            }
        }
    }
}

/// A request on its way to some server.
struct Call<'a> {
    target: &'a ProxyTarget,
    snapshot: &'a Snapshot,
    head: &'a RequestHead<'a>,
    path: &'a PathAndQuery,
    /// The tunnel that the request asks for.
    offer: Option<&'a Offer>,
}

enum TryError {
    Final(ProxyError),
    /// Provably nothing of the request has left.
    Unsent(Box<Source>, ProxyError),
}

impl Call<'_> {
    /// Asks one server: on an idle connection where there is one, and once more on a new one where the idle one turns out
    /// to be dead.
    async fn ask(
        &self,
        lease: Lease,
        source: Source,
        informational: &crate::exchange::Informational,
    ) -> Result<Response<Body>, TryError> {
        let server = lease.server().clone();
        let mut idle = self.take_idle(&server, &source);
        let mut source = source;
        let mut lease = lease;
        loop {
            let reused = idle.is_some();
            let connection = match idle.take() {
                Some(connection) => {
                    server.metrics().reused();
                    connection
                }
                None => match self.connect(&server).await {
                    Ok(connection) => connection,
                    Err(error @ ProxyError::Exhausted(_)) => return Err(TryError::Final(error)),
                    Err(error) => return Err(TryError::Unsent(Box::new(source), error)),
                },
            };
            let mut wire = self.wire(connection, source, lease).map_err(TryError::Final)?;
            let upgrade = self.offer.map(Offer::upgrade);
            let error = match attempt(&mut wire, self.head, informational, upgrade).await {
                Ok(head) if head.status == StatusCode::SWITCHING_PROTOCOLS => {
                    return self.tunnel(wire, head).map_err(TryError::Final);
                }
                Ok(head) if upgrade.is_some_and(Upgrade::is_connect) && head.status.is_success() => {
                    return Err(TryError::Final(not_switched()));
                }
                Ok(head) => return self.answer(wire, head).await.map_err(TryError::Final),
                Err(error) => error,
            };
            let (failure, cause, answered) = match error {
                AttemptError::Client(error) => return Err(TryError::Final(ProxyError::Client(error))),
                AttemptError::Server { failure, cause, answered } => (failure, cause, answered),
            };
            let unsent = !wire.sender.has_begun();
            let error = ProxyError::Server { failure, cause };
            source = wire.source;
            lease = wire.lease;
            let died_idle = reused && failure == Failure::Closed && !answered;
            if died_idle && (unsent || self.head.method.is_idempotent()) && source.rewind() {
                server.metrics().retried();
                continue;
            }
            server.failed(&self.target.upstream, failure);
            return Err(if unsent {
                TryError::Unsent(Box::new(source), error)
            } else {
                TryError::Final(error)
            });
        }
    }

    fn take_idle(&self, server: &Server, source: &Source) -> Option<Connection> {
        // What may become a tunnel has a connection of its own, before and after.
        if self.offer.is_some() {
            return None;
        }
        let (now, owner) = (Instant::now(), self.owner());
        if self.head.method.is_idempotent() && source.fits_replay() {
            return server.idle.take(owner, now, None);
        }
        // Not to be sent twice: only what is not likely to be closed at this moment, and is not closed for certain.
        std::iter::from_fn(|| server.idle.take(owner, now, Some(FRESH))).find(Connection::is_quiet_now)
    }

    /// Whose connections may be used. What was said at the beginning of one holds for all requests on it.
    fn owner(&self) -> Owner {
        match self.snapshot.settings.proxy_protocol {
            Some(_) => Owner::Client(self.head.connection.id),
            None => Owner::Anyone,
        }
    }

    async fn connect(&self, server: &Server) -> Result<Connection, ProxyError> {
        let deadline = self.snapshot.settings.timeouts.connect;
        let (failure, cause) = match timeout(deadline, Connector::connect(server.address())).await {
            Ok(Ok(stream)) => {
                server.metrics().connected();
                let mut connection = Connection::new(stream);
                if let Some(version) = self.snapshot.settings.proxy_protocol {
                    connection.owner = self.owner();
                    introduce(&mut connection.output, version, Some(self.head.connection));
                }
                return Ok(connection);
            }
            // Ours, not the server's.
            Ok(Err(error)) if net::is_exhausted(&error) => return Err(ProxyError::Exhausted(error)),
            Ok(Err(error)) => (Failure::Connect, format!("cannot connect: {error}")),
            Err(_) => (Failure::ConnectTimeout, "no connection in time".to_owned()),
        };
        server.failed(&self.target.upstream, failure);
        Err(ProxyError::Server { failure, cause })
    }

    /// Joins connection and request; the head is in the output, behind the header of a new connection.
    fn wire(&self, mut connection: Connection, source: Source, lease: Lease) -> Result<Wire, ProxyError> {
        // Content that is here costs the client nothing more, and a server that does not know `Expect` would only make it
        // wait.
        let expect =
            source.length() != BodyLength::None && !source.is_at_hand() && self.head.expects_continue();
        let outbound = Outbound {
            target: self.path,
            server: lease.server().host(),
            preserve_host: self.target.preserve_host,
            length: source.length(),
            expect,
            close: self.snapshot.settings.keep_alive.max_idle == 0,
            upgrade: self.offer.map(Offer::upgrade),
        };
        self.head.write(&mut connection.output, &outbound).map_err(|fields::Loop| ProxyError::Loop)?;
        Ok(Wire {
            connection,
            sender: Sender::new(source.length(), expect),
            source,
            upstream: self.target.upstream.clone(),
            settings: self.snapshot.settings.clone(),
            lease,
            keep_alive: false,
            keep: None,
            waiting: None,
        })
    }

    /// The server has switched protocols.
    fn tunnel(&self, wire: Wire, mut head: ResponseHead) -> Result<Response<Body>, ProxyError> {
        let Some(offer) = self.offer else { return Err(not_switched()) };
        wire.lease.server().succeeded();
        fields::strip_answer(&mut head, false);
        let extensions = head.headers.contains_key(header::SEC_WEBSOCKET_EXTENSIONS);
        let write = wire.settings.timeouts.idle;
        let Wire { connection, lease, .. } = wire;
        let tunnel = Tunnel::to_upstream(offer.clone(), extensions, connection, lease, write);
        let mut response = Response::new(Body::Tunnel(Box::new(tunnel)));
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers;
        Ok(response)
    }

    /// The answer, with what has come of its content. A small one is waited for, so that it can go out in one piece.
    async fn answer(&self, mut wire: Wire, mut head: ResponseHead) -> Result<Response<Body>, ProxyError> {
        let trailers_wanted = self.head.accepts_trailers();
        wire.keep_alive = head.keep_alive && self.offer.is_none();
        wire.keep = fields::strip_answer(&mut head, trailers_wanted);
        wire.source.forget();
        let mut decoder = BodyDecoder::for_answer(head.body, attempt::TRAILER_LIMITS);
        let body = match gather(&mut wire, &mut decoder).await {
            Ok(Gathered { data, trailers: None, ended: true }) => {
                wire.end();
                data.map_or(Body::Empty, Body::Bytes)
            }
            Ok(Gathered { data, trailers, ended }) => {
                let wire = if ended {
                    wire.end();
                    None
                } else {
                    Some(wire)
                };
                Body::Upstream(Box::new(UpstreamBody {
                    ready: data,
                    trailers,
                    decoder,
                    wire,
                    trailers_wanted,
                }))
            }
            // Nothing of the answer has gone out yet, so that it need not be cut.
            Err(cut) => {
                wire.failed(cut.failure);
                return Err(ProxyError::Server { failure: cut.failure, cause: cut.cause });
            }
        };
        let mut response = Response::new(body);
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers;
        Ok(response)
    }
}

/// The client can be told of a success only when there is a tunnel.
fn not_switched() -> ProxyError {
    ProxyError::Server { failure: Failure::Malformed, cause: "has not switched protocols".to_owned() }
}

/// What has come of an answer's content.
#[derive(Default)]
struct Gathered {
    data: Option<bytes::Bytes>,
    trailers: Option<http::HeaderMap>,
    ended: bool,
}

/// Takes what has come of the content; waits a moment for the rest of a small one.
async fn gather(wire: &mut Wire, decoder: &mut BodyDecoder) -> Result<Gathered, body::Cut> {
    let mut gathered = Gathered::default();
    let small = decoder.remaining().is_some_and(|left| left <= SMALL);
    let patience = Instant::now() + GATHER;
    std::future::poll_fn(|cx| {
        loop {
            let decoded = match decoder.decode(&mut wire.connection.input) {
                Ok(Decoded::NeedMore) if !small => return Poll::Ready(Ok(())),
                Ok(Decoded::NeedMore) => match wire.poll_decode(decoder, cx) {
                    Poll::Ready(decoded) => decoded?,
                    Poll::Pending => return wire.connection.timer.poll(patience, cx).map(Ok),
                },
                Ok(decoded) => decoded,
                Err(error) => return Poll::Ready(Err(body::Cut::malformed(error))),
            };
            match decoded {
                Decoded::Data(data) => {
                    gathered.data = Some(match gathered.data.take() {
                        None => data,
                        Some(before) => [before, data].concat().into(),
                    });
                }
                Decoded::Trailers(trailers) => gathered.trailers = Some(trailers),
                Decoded::NeedMore => {}
                Decoded::End => {
                    gathered.ended = true;
                    return Poll::Ready(Ok(()));
                }
            }
        }
    })
    .await?;
    Ok(gathered)
}

/// The answer to an `OPTIONS` that may go no further (RFC 9110 §7.6.2).
fn final_recipient() -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = StatusCode::NO_CONTENT;
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(METHODS));
    response
}

/// A connection that has been idle for longer may be about to be closed.
const FRESH: Duration = Duration::from_secs(1);

/// An answer of up to this many bytes is waited for to its end,
const SMALL: u64 = 16 << 10;

/// for up to this long: many servers send a head first and the content right behind it.
const GATHER: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests;
