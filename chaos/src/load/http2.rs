//! One HTTP/2 connection and the exchanges on its streams.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{Request, Version, header};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use super::exchange::{Body, Checker, Exchange, ExpectBody};
use super::report::{Class, Sent};
use super::target::Wire;
use super::worker::{Connected, Fault};

const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// A connection that several clients share.
pub(super) struct Connection {
    send: SendRequest<Bytes>,
    wire: Arc<Wire>,
    pub(super) number: u64,
    pub(super) begun: Instant,
    ended: Arc<AtomicBool>,
    retired: AtomicBool,
    answered: AtomicBool,
    driver: AbortHandle,
}

/// What became of an exchange.
pub(super) enum End {
    Answered,
    /// The connection had ended, or was ending, before there was a stream for it.
    ClosedBefore(String),
    Failed(Fault),
}

impl Connection {
    pub(super) async fn new(connected: Connected, deadline: Instant) -> Result<Connection, Fault> {
        let Connected { socket, wire, number, begun } = connected;
        let mut builder = Builder::new();
        builder
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .enable_push(false);
        let (send, connection) = match timeout_at(deadline, builder.handshake(socket)).await {
            Ok(Ok(made)) => made,
            Ok(Err(error)) => return Err(Fault::before(Class::Unsent, error)),
            Err(_) => return Err(Fault::before(Class::Lost, "no preface within the deadline")),
        };
        let ended = Arc::new(AtomicBool::new(false));
        let driver = tokio::spawn({
            let ended = ended.clone();
            async move {
                // What ended it reaches each stream by itself.
                let _ = connection.await;
                ended.store(true, Ordering::Release);
            }
        })
        .abort_handle();
        let (retired, answered) = Default::default();
        Ok(Connection { send, wire, number, begun, ended, retired, answered, driver })
    }

    /// Requests may still be sent on it, as far as is known.
    pub(super) fn is_open(&self) -> bool {
        !self.ended.load(Ordering::Acquire) && !self.retired.load(Ordering::Acquire)
    }

    /// Takes it out of use for new requests; true for the first who does.
    pub(super) fn retire(&self) -> bool {
        !self.retired.swap(true, Ordering::AcqRel)
    }

    /// Notes a complete answer; true for the first.
    pub(super) fn note_answer(&self) -> bool {
        !self.answered.swap(true, Ordering::AcqRel)
    }

    /// It has given a complete answer.
    pub(super) fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Acquire)
    }

    /// Sends a request and checks its answer.
    pub(super) async fn exchange(
        &self,
        exchange: &Exchange,
        scheme: &str,
        authority: &str,
        deadline: Instant,
    ) -> End {
        let mut send = match timeout_at(deadline, self.send.clone().ready()).await {
            Ok(Ok(send)) => send,
            Ok(Err(error)) => return no_stream(&error),
            Err(_) => return End::Failed(Fault::before(Class::Lost, "no stream within the deadline")),
        };
        let before = self.wire.written();
        let answered = AtomicU64::new(0);
        let request = match request(exchange, scheme, authority) {
            Ok(request) => request,
            Err(error) => return End::Failed(Fault::before(Class::Wrong, format!("the request: {error}"))),
        };
        let (response, to) = match send.send_request(request, exchange.body.length() == 0) {
            Ok(sent) => sent,
            Err(error) => return no_stream(&error),
        };
        // Where the body stops being wanted or possible the answer says why; its sending ends with the exchange.
        let body = async {
            if exchange.body.length() > 0 {
                let _ = send_body(to, exchange).await;
            }
            std::future::pending::<std::convert::Infallible>().await
        };
        let answer = async {
            let (head, from) = response.await.map_err(Broken::H2)?.into_parts();
            read(head, from, exchange, &answered).await
        };
        let result = timeout_at(deadline, async {
            tokio::select! {
                never = body => match never {},
                result = answer => result,
            }
        })
        .await;
        let sent = if self.wire.written() == before { Sent::None } else { Sent::All };
        let answered = answered.into_inner();
        let failed = |class, sent, detail| End::Failed(Fault { class, sent, answered, detail });
        match result {
            Ok(Ok(())) => End::Answered,
            Ok(Err(Broken::Status(status))) => {
                failed(Class::Status(status), sent, format!("status {status}"))
            }
            Ok(Err(Broken::Wrong(detail))) => failed(Class::Wrong, sent, detail),
            Ok(Err(Broken::H2(error))) => {
                let (class, sent) = classify(&error, sent);
                failed(class, sent, error.to_string())
            }
            Err(_) => failed(Class::Lost, sent, "no complete answer within the deadline".into()),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// What an error says that came instead of a stream.
fn no_stream(error: &h2::Error) -> End {
    if error.is_io() || error.is_go_away() || error.is_reset() {
        return End::ClosedBefore(error.to_string());
    }
    // The request itself is one that HTTP/2 does not allow: a new connection would not help.
    End::Failed(Fault::before(Class::Wrong, format!("the request: {error}")))
}

/// What an error of a stream says about its request.
fn classify(error: &h2::Error, sent: Sent) -> (Class, Sent) {
    if error.is_remote() {
        // A GOAWAY ends only the streams after its last one (RFC 9113 §6.8); those before run on, and end otherwise.
        if error.is_go_away() || error.reason() == Some(Reason::REFUSED_STREAM) {
            return (Class::Unsent, sent);
        }
        return (Class::InFlight, sent);
    }
    if error.is_io() {
        return (if sent == Sent::None { Class::Unsent } else { Class::InFlight }, sent);
    }
    // Ours: what the server sent broke the protocol (a length that does not fit, a frame out of place).
    (Class::Wrong, sent)
}

enum Broken {
    Status(u16),
    Wrong(String),
    H2(h2::Error),
}

fn request(exchange: &Exchange, scheme: &str, authority: &str) -> Result<Request<()>, http::Error> {
    let host = exchange.headers.iter().find(|(name, _)| name == header::HOST);
    let authority = host.and_then(|(_, value)| value.to_str().ok()).unwrap_or(authority);
    let mut builder = Request::builder()
        .method(exchange.method.clone())
        .uri(format!("{scheme}://{authority}{}", exchange.path))
        .version(Version::HTTP_2);
    for (name, value) in exchange.headers.iter().filter(|(name, _)| name != header::HOST) {
        builder = builder.header(name, value);
    }
    if matches!(exchange.body, Body::Fixed(_) | Body::Pattern { .. }) {
        builder = builder.header(header::CONTENT_LENGTH, exchange.body.length());
    }
    builder.body(())
}

async fn send_body(mut to: SendStream<Bytes>, exchange: &Exchange) -> Result<(), h2::Error> {
    let body = &exchange.body;
    let length = body.length();
    let mut offset = 0;
    while offset < length {
        let mut piece = body.piece(offset);
        while !piece.is_empty() {
            to.reserve_capacity(piece.len());
            let capacity = match poll_fn(|cx| to.poll_capacity(cx)).await {
                Some(capacity) => capacity?,
                None => return Ok(()),
            };
            let part = piece.split_to(capacity.min(piece.len()));
            offset += part.len() as u64;
            to.send_data(part, offset == length)?;
        }
        if !exchange.pause.is_zero() {
            tokio::time::sleep(exchange.pause).await;
        }
    }
    Ok(())
}

async fn read(
    head: http::response::Parts,
    mut from: RecvStream,
    exchange: &Exchange,
    answered: &AtomicU64,
) -> Result<(), Broken> {
    let expect = &exchange.expect;
    let status = head.status.as_u16();
    let expected = status == expect.status;
    let mut wrong = if expected { expect.check_headers(&head.headers) } else { None };
    let checked = expected && exchange.method != http::Method::HEAD && !matches!(status, 204 | 304);
    let mut checker = Checker::new(if checked { &expect.body } else { &ExpectBody::Any });
    while let Some(data) = from.data().await {
        let data = data.map_err(Broken::H2)?;
        answered.fetch_add(data.len() as u64, Ordering::Relaxed);
        let _ = from.flow_control().release_capacity(data.len());
        // Read on to the end: whether the answer was whole decides between wrong and in flight.
        wrong = wrong.or_else(|| checker.feed(&data).err());
    }
    from.trailers().await.map_err(Broken::H2)?;
    if !expected {
        return Err(Broken::Status(status));
    }
    match wrong.or_else(|| checker.end().err()) {
        Some(wrong) => Err(Broken::Wrong(wrong)),
        None => Ok(()),
    }
}
