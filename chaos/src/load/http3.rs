//! One HTTP/3 connection and the exchanges on its streams.

use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::{Buf, Bytes};
use h3::client::{RequestStream, SendRequest};
use h3::error::{Code, ConnectionError, StreamError};
use h3::quic::{RecvStream, SendStream};
use h3_quinn::{BidiStream, OpenStreams};
use http::Version;
use quinn::Endpoint;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use super::exchange::{Answer, Exchange, NotExpected};
use super::multiplexed::{Life, Multiplexed, NoStream, request};
use super::report::{Class, Sent};
use super::target::Target;
use super::worker::{Fault, Shared};

/// A connection that several clients share, with a socket of its own.
pub(super) struct Connection {
    send: SendRequest<OpenStreams, Bytes>,
    quic: quinn::Connection,
    life: Life,
    driver: AbortHandle,
    _endpoint: Endpoint,
}

/// A request that was given a stream.
pub(super) struct Opened {
    stream: RequestStream<BidiStream<Bytes>, Bytes>,
    /// Bytes that the connection had sent until then.
    before: u64,
}

impl Multiplexed for Connection {
    type Opened = Opened;

    async fn connect(shared: &Shared, deadline: Instant) -> Result<Connection, Fault> {
        let begun = Instant::now();
        let Target::Tcp(address) = shared.target else {
            return Err(Fault::before(Class::Wrong, "HTTP/3 goes over UDP"));
        };
        let tls = shared.stream.tls.as_ref();
        let tls = tls.ok_or_else(|| Fault::before(Class::Wrong, "HTTP/3 is never without TLS"))?;
        let config = tls.quic().map_err(|error| Fault::before(Class::Wrong, error))?;
        let name = tls.name().to_str();
        let refused = |error: &dyn std::fmt::Display| Fault::before(Class::Refused, error);
        let endpoint = Endpoint::client(any_port(address)).map_err(|error| refused(&error))?;
        let connecting = endpoint
            .connect_with(config, address, &name)
            .map_err(|error| Fault::before(Class::Wrong, error))?;
        let quic = match timeout_at(deadline, connecting).await {
            Ok(Ok(quic)) => quic,
            // A certificate that does not fit is an answer, and a wrong one.
            Ok(Err(quinn::ConnectionError::TransportError(error))) => {
                return Err(Fault::before(Class::Wrong, error));
            }
            Ok(Err(error)) => return Err(refused(&error)),
            Err(_) => return Err(refused(&"no connection within the deadline")),
        };
        let number = shared.account.connected(shared.index);
        let made = h3::client::new(h3_quinn::Connection::new(quic.clone()));
        let (mut connection, send) = match timeout_at(deadline, made).await {
            Ok(Ok(made)) => made,
            Ok(Err(error)) => return Err(Fault::before(Class::Unsent, error)),
            Err(_) => return Err(Fault::before(Class::Lost, "no streams within the deadline")),
        };
        let ended = Arc::new(AtomicBool::new(false));
        let driver = tokio::spawn({
            let ended = ended.clone();
            async move {
                // What ended it reaches each stream by itself.
                poll_fn(|cx| connection.poll_close(cx)).await;
                ended.store(true, Ordering::Release);
            }
        })
        .abort_handle();
        let life = Life::new(number, begun, ended);
        Ok(Connection { send, quic, life, driver, _endpoint: endpoint })
    }

    fn life(&self) -> &Life {
        &self.life
    }

    async fn open(
        &self,
        exchange: &Exchange,
        shared: &Shared,
        deadline: Instant,
    ) -> Result<Opened, NoStream> {
        let failed = |class, detail| Err(NoStream::Failed(Fault::before(class, detail)));
        let request = match request(exchange, Version::HTTP_3, "https", &shared.authority) {
            Ok(request) => request,
            Err(error) => return failed(Class::Wrong, format!("the request: {error}")),
        };
        let before = self.sent();
        match timeout_at(deadline, self.send.clone().send_request(request)).await {
            Ok(Ok(stream)) => Ok(Opened { stream, before }),
            Ok(Err(StreamError::RemoteClosing { .. })) => {
                Err(NoStream::Closed { detail: "the server goes".to_owned(), told: true })
            }
            Ok(Err(StreamError::ConnectionError { 0: error, .. })) => {
                Err(NoStream::Closed { detail: error.to_string(), told: error.is_h3_no_error() })
            }
            Ok(Err(error)) => {
                let (class, sent) = classify(&error, self.since(before));
                Err(NoStream::Failed(Fault { class, sent, answered: 0, detail: error.to_string() }))
            }
            Err(_) => failed(Class::Lost, "no stream within the deadline".to_owned()),
        }
    }

    async fn exchange(
        &self,
        Opened { stream, before }: Opened,
        exchange: &Exchange,
        deadline: Instant,
    ) -> Result<(), Fault> {
        let answered = AtomicU64::new(0);
        let (to, from) = stream.split();
        // Where the body stops being wanted or possible the answer says why; its sending ends with the exchange.
        let body = async {
            // Kept: a stream that is dropped is reset.
            let _to = send_body(to, exchange).await;
            std::future::pending::<std::convert::Infallible>().await
        };
        let result = timeout_at(deadline, async {
            tokio::select! {
                never = body => match never {},
                result = read(from, exchange, &answered) => result,
            }
        })
        .await;
        let (class, sent, detail) = match result {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(Broken::Answer(NotExpected::Status(status)))) => {
                (Class::Status(status), self.since(before), format!("status {status}"))
            }
            Ok(Err(Broken::Answer(NotExpected::Wrong(detail)))) => (Class::Wrong, self.since(before), detail),
            Ok(Err(Broken::H3(error))) => {
                let (class, sent) = classify(&error, self.since(before));
                (class, sent, error.to_string())
            }
            Err(_) => (Class::Lost, self.since(before), "no complete answer within the deadline".to_owned()),
        };
        Err(Fault { class, sent, answered: answered.into_inner(), detail })
    }
}

impl Connection {
    /// Bytes in datagrams so far.
    fn sent(&self) -> u64 {
        self.quic.stats().udp_tx.bytes
    }

    /// Whether anything was sent since; what it was, is encrypted.
    fn since(&self, before: u64) -> Sent {
        if self.sent() == before { Sent::None } else { Sent::All }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Where a socket is bound that speaks to this address.
fn any_port(address: SocketAddr) -> SocketAddr {
    let any = match address {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    SocketAddr::new(any, 0)
}

/// What an error of a stream says about its request.
fn classify(error: &StreamError, sent: Sent) -> (Class, Sent) {
    let ended = if sent == Sent::None { Class::Unsent } else { Class::InFlight };
    let class = match error {
        // Not processed (RFC 9114 §4.1.1).
        StreamError::RemoteTerminate { code, .. } if *code == Code::H3_REQUEST_REJECTED => Class::Unsent,
        StreamError::RemoteTerminate { .. } => Class::InFlight,
        StreamError::RemoteClosing { .. } => Class::Unsent,
        StreamError::ConnectionError {
            0: ConnectionError::Remote { .. } | ConnectionError::Timeout { .. },
            ..
        }
        | StreamError::Undefined { .. } => ended,
        // Ours: what the server sent broke the protocol.
        _ => Class::Wrong,
    };
    (class, sent)
}

enum Broken {
    Answer(NotExpected),
    H3(StreamError),
}

/// Sends the content and the end of a request; gives the stream back, whatever has become of it.
async fn send_body<S: SendStream<Bytes>>(
    mut to: RequestStream<S, Bytes>,
    exchange: &Exchange,
) -> RequestStream<S, Bytes> {
    let body = &exchange.body;
    let mut offset = 0;
    while offset < body.length() {
        let piece = body.piece(offset);
        offset += piece.len() as u64;
        if to.send_data(piece).await.is_err() {
            return to;
        }
        if !exchange.pause.is_zero() {
            tokio::time::sleep(exchange.pause).await;
        }
    }
    // The answer says what has come of it.
    let _ = to.finish().await;
    to
}

async fn read<S: RecvStream>(
    mut from: RequestStream<S, Bytes>,
    exchange: &Exchange,
    answered: &AtomicU64,
) -> Result<(), Broken> {
    let head = from.recv_response().await.map_err(Broken::H3)?;
    let mut answer = Answer::new(exchange, head.status().as_u16(), head.headers());
    while let Some(mut data) = from.recv_data().await.map_err(Broken::H3)? {
        while data.has_remaining() {
            let length = data.chunk().len();
            answered.fetch_add(length as u64, Ordering::Relaxed);
            answer.feed(data.chunk());
            data.advance(length);
        }
    }
    from.recv_trailers().await.map_err(Broken::H3)?;
    answer.end().map_err(Broken::Answer)
}
