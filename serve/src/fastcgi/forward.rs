//! A request on its way to some server, and the head of its answer.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, Response, StatusCode, header};
use playhouse_protocol::fastcgi::{AnswerHead, HeadParser, Reader, write};
use playhouse_protocol::http1::{BodyLength, HeadLimits};
use tokio::time::{Instant, timeout};

use super::FastCgiTarget;
use super::body::FastCgiBody;
use super::params::params;
use super::script::Script;
use super::wire::{Cut, Sending, Stderr, Wire};
use crate::metrics::Failure;
use crate::net::{self, Connector};
use crate::proxy::error::ProxyError;
use crate::proxy::source::Source;
use crate::router::NormalisedPath;
use crate::upstream::{Connection, Lease, Owner, Server, Snapshot};
use crate::{Body, Exchange, Outcome, RequestBody, RequestBodyError, respond};

/// Has a script answer a request.
pub(super) async fn forward(
    target: &FastCgiTarget,
    exchange: &mut Exchange,
    path: &NormalisedPath,
    script: &Script,
) -> Response<Body> {
    let body = std::mem::take(exchange.request.body_mut());
    let source = match with_length(body, target.buffer).await {
        Ok(source) => source,
        Err(Unlengthened::TooLong) => {
            exchange.record.outcome = Some(Outcome::Rejected);
            return respond::error(StatusCode::LENGTH_REQUIRED);
        }
        Err(Unlengthened::Client(error)) => return ProxyError::Client(error).answer(exchange),
    };
    let params = params(target, exchange, path, script, source.length());
    let answer = ask_any(target, exchange, &params, source).await;
    match answer {
        Ok(response) => response,
        Err(error) => error.answer(exchange),
    }
}

/// Why content has no length.
enum Unlengthened {
    Client(RequestBodyError),
    /// More has come than is held.
    TooLong,
}

/// The content with its length, which scripts are told beforehand: of chunks, only when all of them have come.
async fn with_length(body: RequestBody, buffer: usize) -> Result<Source, Unlengthened> {
    let mut source = Source::new(body);
    if source.length() != BodyLength::Chunked {
        return Ok(source);
    }
    let mut held = BytesMut::new();
    while let Some(frame) = poll_fn(|cx| source.poll_frame(cx)).await {
        let Ok(data) = frame.map_err(Unlengthened::Client)?.into_data() else { continue };
        if data.len() > buffer - held.len() {
            return Err(Unlengthened::TooLong);
        }
        held.extend_from_slice(&data);
    }
    Ok(Source::new(if held.is_empty() { RequestBody::Empty } else { RequestBody::Bytes(held.freeze()) }))
}

async fn ask_any(
    target: &FastCgiTarget,
    exchange: &mut Exchange,
    params: &[u8],
    source: Source,
) -> Result<Response<Body>, ProxyError> {
    let mut snapshot = target.upstream.snapshot();
    let mut source = source;
    let mut tried = Vec::new();
    let mut tries_left = snapshot.settings.retries;
    let begun = exchange.record.started;
    loop {
        if let Some(app) = &target.app
            && snapshot.all.is_empty()
        {
            app.served(begun + app.settings().ready_timeout).await.map_err(ProxyError::NotReady)?;
            snapshot = target.upstream.snapshot();
        }
        let call = Call { target, snapshot: &snapshot, method: exchange.request.method(), params };
        let lease = target.upstream.choose(&snapshot, &tried);
        // When all have been tried, any may be tried again.
        let lease = lease.or_else(|| target.upstream.choose(&snapshot, &[])).ok_or(ProxyError::NoServer)?;
        let server = lease.server().clone();
        exchange.record.server = Some(server.metrics().clone());
        match call.ask(lease, source).await {
            Ok(response) => return Ok(response),
            Err(TryError::Final(error)) => return Err(error),
            Err(TryError::Undone(unsent, error)) => {
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
    target: &'a FastCgiTarget,
    snapshot: &'a Snapshot,
    method: &'a Method,
    params: &'a [u8],
}

enum TryError {
    Final(ProxyError),
    /// Provably nothing was done of what the request asks for.
    Undone(Box<Source>, ProxyError),
}

/// Why a try has not led to an answer.
enum AttemptError {
    /// The client has failed: no server can do better.
    Client(RequestBodyError),
    /// The server has.
    Server { cut: Cut, answered: bool },
}

impl Call<'_> {
    /// Asks one server: on an idle connection where there is one, and once more on a new one where the idle one turns out
    /// to be dead.
    async fn ask(&self, lease: Lease, source: Source) -> Result<Response<Body>, TryError> {
        let server = lease.server().clone();
        let mut idle = self.take_idle(&server, &source);
        let (mut source, mut lease) = (source, lease);
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
                    Err(error) => return Err(TryError::Undone(Box::new(source), error)),
                },
            };
            let mut wire = self.wire(connection, source, lease);
            wire.newcomer = (!reused).then(|| server.newcomer());
            let (cut, answered) = match self.attempt(&mut wire).await {
                Ok((head, content)) => {
                    return self.answer(wire, head, content).await.map_err(TryError::Final);
                }
                Err(AttemptError::Client(error)) => return Err(TryError::Final(ProxyError::Client(error))),
                Err(AttemptError::Server { cut, answered }) => (cut, answered),
            };
            let undone = !wire.began || cut.refused && !answered;
            source = wire.source;
            lease = wire.lease;
            let died_idle = reused && cut.failure == Failure::Closed && !answered && !cut.refused;
            if died_idle && (undone || self.method.is_idempotent()) && source.rewind() {
                server.metrics().retried();
                continue;
            }
            server.failed(&self.target.upstream, cut.failure);
            let error = ProxyError::Server { failure: cut.failure, cause: cut.cause };
            return Err(if undone {
                TryError::Undone(Box::new(source), error)
            } else {
                TryError::Final(error)
            });
        }
    }

    fn take_idle(&self, server: &Server, source: &Source) -> Option<Connection> {
        if !self.keeps() {
            return None;
        }
        let idle = server.idle.take(Owner::FastCgi, Instant::now(), None);
        // One that must not be sent twice has a connection to itself. An idle one is given up for it: a process may wait
        // behind that, which is needed for this.
        idle.filter(|_| self.method.is_idempotent() && source.fits_replay())
    }

    fn keeps(&self) -> bool {
        self.snapshot.settings.keep_alive.max_idle > 0
    }

    async fn connect(&self, server: &Server) -> Result<Connection, ProxyError> {
        let deadline = self.snapshot.settings.timeouts.connect;
        let (failure, cause) = match timeout(deadline, Connector::connect(server.address())).await {
            Ok(Ok(stream)) => {
                server.metrics().connected();
                let mut connection = Connection::new(stream);
                connection.owner = Owner::FastCgi;
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

    /// Joins connection and request, whose beginning is in the output.
    fn wire(&self, mut connection: Connection, source: Source, lease: Lease) -> Wire {
        write::begin(&mut connection.output, self.keeps());
        write::params(&mut connection.output, self.params);
        Wire {
            connection,
            source,
            upstream: self.target.upstream.clone(),
            settings: self.snapshot.settings.clone(),
            reader: Reader::default(),
            newcomer: None,
            stderr: Stderr::new(&self.target.label, lease.server().name()),
            lease,
            sending: Sending::Content,
            unframed: Bytes::new(),
            piece: Bytes::new(),
            began: false,
            stalled: None,
            waiting: None,
        }
    }

    /// Sends the request and waits for the head of the answer. What has come of the content is given with it.
    async fn attempt(&self, wire: &mut Wire) -> Result<(AnswerHead, BytesMut), AttemptError> {
        let started = Instant::now();
        let mut receiver =
            Receiver { parser: HeadParser::new(LIMITS), head: BytesMut::new(), asked: None, answered: false };
        let head = poll_fn(|cx| receiver.poll(wire, cx)).await?;
        let asked = receiver.asked.unwrap_or(started);
        wire.lease.server().metrics().answered(head.status, asked.elapsed());
        Ok((head, receiver.head))
    }

    /// The answer, with what has come of its content. A small one is waited for, so that it can go out in one piece, and
    /// with its length.
    async fn answer(
        &self,
        mut wire: Wire,
        head: AnswerHead,
        content: BytesMut,
    ) -> Result<Response<Body>, ProxyError> {
        let AnswerHead { status, mut headers, length } = head;
        let failed = |wire: Wire, cut: Cut| {
            wire.failed(cut.failure);
            ProxyError::Server { failure: cut.failure, cause: cut.cause }
        };
        wire.source.forget();
        let bodiless = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let body = if *self.method == Method::HEAD || bodiless {
            // The script is let come to its end; what it says is for nobody.
            if drain(&mut wire).await {
                wire.end();
            }
            if bodiless {
                headers.remove(header::CONTENT_LENGTH);
            }
            Body::Empty
        } else {
            let mut owed = length;
            let content = FastCgiBody::count(&mut owed, content.freeze());
            match gather(&mut wire, content.into(), owed).await {
                Ok(Gathered { data, owed, ended: true }) if owed.is_none_or(|owed| owed == 0) => {
                    wire.end();
                    data.freeze().into()
                }
                Ok(Gathered { ended: true, .. }) => {
                    let cut = Cut::closed("the content is shorter than its Content-Length");
                    return Err(failed(wire, cut));
                }
                Ok(Gathered { data, owed, ended: false }) => {
                    let ready = Some(data.freeze()).filter(|data| !data.is_empty());
                    Body::Stream(Box::pin(FastCgiBody { ready, owed, wire: Some(wire) }))
                }
                // Nothing of the answer has gone out yet, so that it need not be cut.
                Err(Failed::Server(cut)) => return Err(failed(wire, cut)),
                Err(Failed::Client(error)) => return Err(ProxyError::Client(error)),
            }
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        Ok(response)
    }
}

/// Waits for the head.
struct Receiver {
    parser: HeadParser,
    /// Output that belongs to the head, or stands behind it.
    head: BytesMut,
    /// Since when only the server is waited for.
    asked: Option<Instant>,
    /// Whether anything of an answer has come.
    answered: bool,
}

impl Receiver {
    fn poll(&mut self, wire: &mut Wire, cx: &mut Context<'_>) -> Poll<Result<AnswerHead, AttemptError>> {
        loop {
            wire.poll_send(cx).map_err(AttemptError::Client)?;
            if wire.is_sent() && self.asked.is_none() {
                self.asked = Some(Instant::now());
            }
            let cut = match wire.poll_output(cx) {
                Poll::Ready(Ok(Some(output))) => {
                    self.answered = true;
                    self.head.extend_from_slice(&output);
                    match self.parser.parse(&mut self.head) {
                        Ok(Some(head)) => return Poll::Ready(Ok(head)),
                        Ok(None) => continue,
                        Err(error) => Cut::malformed(&error),
                    }
                }
                Poll::Ready(Ok(None)) => {
                    self.answered = true;
                    Cut::malformed(&"ended before the head of its answer")
                }
                Poll::Ready(Err(cut)) => cut,
                Poll::Pending => {
                    let Some(deadline) = wire.deadline(self.asked) else { return Poll::Pending };
                    if wire.connection.timer.poll(deadline, cx).is_pending() {
                        return Poll::Pending;
                    }
                    let cause = "no answer in time".to_owned();
                    Cut { failure: Failure::FirstByteTimeout, cause, refused: false }
                }
            };
            return Poll::Ready(Err(AttemptError::Server { cut, answered: self.answered }));
        }
    }
}

/// What has come of an answer's content.
struct Gathered {
    data: BytesMut,
    owed: Option<u64>,
    ended: bool,
}

enum Failed {
    Client(RequestBodyError),
    Server(Cut),
}

/// Leaves what comes of the content, for a while. Whether that was all.
async fn drain(wire: &mut Wire) -> bool {
    let end = poll_fn(|cx| {
        loop {
            if wire.poll_send(cx).is_err() {
                return Poll::Ready(false);
            }
            match std::task::ready!(wire.poll_output(cx)) {
                Ok(Some(_)) => {}
                Ok(None) => return Poll::Ready(true),
                Err(_) => return Poll::Ready(false),
            }
        }
    });
    timeout(DRAIN, end).await.unwrap_or(false)
}

/// Takes what comes of the content within a moment, if it is small.
async fn gather(wire: &mut Wire, data: BytesMut, owed: Option<u64>) -> Result<Gathered, Failed> {
    let patience = Instant::now() + GATHER;
    let mut gathered = Gathered { data, owed, ended: false };
    poll_fn(|cx| {
        loop {
            wire.poll_send(cx).map_err(Failed::Client)?;
            if gathered.data.len() >= SMALL {
                return Poll::Ready(Ok(()));
            }
            match wire.poll_output(cx) {
                Poll::Ready(Ok(Some(output))) => {
                    let output = FastCgiBody::count(&mut gathered.owed, output);
                    gathered.data.extend_from_slice(&output);
                }
                Poll::Ready(Ok(None)) => {
                    gathered.ended = true;
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Err(cut)) => return Poll::Ready(Err(Failed::Server(cut))),
                Poll::Pending => return wire.connection.timer.poll(patience, cx).map(Ok),
            }
        }
    })
    .await?;
    Ok(gathered)
}

/// What the head of an answer may measure; what other proxies take at most.
const LIMITS: HeadLimits = HeadLimits { bytes: 64 << 10, fields: 200 };

/// An answer of up to about this many bytes is waited for to its end,
const SMALL: usize = 16 << 10;

/// for up to this long: most scripts write all of it at once.
const GATHER: Duration = Duration::from_millis(10);

/// How long a script may go on that has nothing to say.
const DRAIN: Duration = Duration::from_secs(1);
