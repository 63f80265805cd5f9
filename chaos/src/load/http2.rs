//! One HTTP/2 connection and the exchanges on its streams.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::ext::Protocol;
use h2::{Ping, Reason, RecvStream, SendStream};
use http::{Method, Version};
use tokio::task::AbortHandle;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout_at};

use super::exchange::{Answer, Exchange, NotExpected};
use super::multiplexed::{Life, Multiplexed, NoStream, ends_with_head, request};
use super::report::{Class, Sent};
use super::target::Wire;
use super::worker::{Connected, Fault, Shared};

const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// A connection that several clients share.
pub(super) struct Connection {
    send: SendRequest<Bytes>,
    wire: Arc<Wire>,
    life: Life,
    driver: AbortHandle,
}

/// A request that was given a stream.
pub(super) struct Opened {
    response: ResponseFuture,
    to: SendStream<Bytes>,
    /// Bytes that the kernel had taken of the connection until then.
    before: u64,
}

impl Connection {
    /// On a connection that was just made; where `greeted`, only once the server's SETTINGS are known, without which there is
    /// no extended CONNECT (RFC 8441 §3).
    async fn new(connected: Connected, greeted: bool, deadline: Instant) -> Result<Connection, Fault> {
        let Connected { socket, wire, number, begun } = connected;
        let mut builder = Builder::new();
        builder
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .enable_push(false);
        let (send, mut connection) = match timeout_at(deadline, builder.handshake(socket)).await {
            Ok(Ok(made)) => made,
            Ok(Err(error)) => return Err(Fault::before(Class::Unsent, error)),
            Err(_) => return Err(Fault::before(Class::Lost, "no preface within the deadline")),
        };
        let ping = connection.ping_pong().filter(|_| greeted);
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
        let connection = Connection { send, wire, life: Life::new(number, begun, ended), driver };
        if let Some(mut ping) = ping {
            // They come before anything else, and so before what answers a PING.
            match timeout_at(deadline, ping.ping(Ping::opaque())).await {
                // That it has ended is found again where a stream is wanted.
                Ok(Ok(_) | Err(_)) => {}
                Err(_) => return Err(Fault::before(Class::Lost, "no SETTINGS within the deadline")),
            }
        }
        Ok(connection)
    }

    /// Waits for the answer that makes a stream a tunnel (RFC 8441 §5).
    pub(super) async fn switch(
        &self,
        Opened { response, to, before }: Opened,
        exchange: &Exchange,
        deadline: Instant,
    ) -> Result<(RecvStream, SendStream<Bytes>), Fault> {
        let answer = async {
            let (head, from) = response.await.map_err(Broken::H2)?.into_parts();
            let status = head.status.as_u16();
            if status != exchange.expect.status {
                return Err(Broken::Answer(NotExpected::Status(status)));
            }
            match exchange.expect.check_headers(&head.headers) {
                Some(wrong) => Err(Broken::Answer(NotExpected::Wrong(wrong))),
                None => Ok((from, to)),
            }
        };
        self.judge(timeout_at(deadline, answer).await, before)
    }

    /// What a result says about a request before whose head so many bytes were written.
    fn judge<T>(&self, result: Result<Result<T, Broken>, Elapsed>, before: u64) -> Result<T, Fault> {
        let sent = if self.wire.written() == before { Sent::None } else { Sent::All };
        let failed = |class, sent, detail| Err(Fault { class, sent, answered: 0, detail });
        match result {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(Broken::Answer(NotExpected::Status(status)))) => {
                failed(Class::Status(status), sent, format!("status {status}"))
            }
            Ok(Err(Broken::Answer(NotExpected::Wrong(detail)))) => failed(Class::Wrong, sent, detail),
            Ok(Err(Broken::H2(error))) => {
                let (class, sent) = classify(&error, sent);
                failed(class, sent, error.to_string())
            }
            Err(_) => failed(Class::Lost, sent, "no complete answer within the deadline".into()),
        }
    }
}

impl Multiplexed for Connection {
    type Opened = Opened;

    async fn connect(shared: &Shared, deadline: Instant) -> Result<Connection, Fault> {
        let greeted = shared.stream.messages.is_some();
        Connection::new(shared.connect(deadline).await?, greeted, deadline).await
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
        let mut send = match timeout_at(deadline, self.send.clone().ready()).await {
            Ok(Ok(send)) => send,
            Ok(Err(error)) => return Err(no_stream(&error)),
            Err(_) => return failed(Class::Lost, "no stream within the deadline".to_owned()),
        };
        let before = self.wire.written();
        let scheme = if shared.tls.is_some() { "https" } else { "http" };
        let mut request = match request(exchange, Version::HTTP_2, scheme, &shared.authority) {
            Ok(request) => request,
            Err(error) => return failed(Class::Wrong, format!("the request: {error}")),
        };
        if exchange.method == Method::CONNECT {
            request.extensions_mut().insert(Protocol::from_static("websocket"));
        }
        match send.send_request(request, ends_with_head(exchange)) {
            Ok((response, to)) => Ok(Opened { response, to, before }),
            Err(error) => Err(no_stream(&error)),
        }
    }

    async fn exchange(
        &self,
        Opened { response, to, before }: Opened,
        exchange: &Exchange,
        deadline: Instant,
    ) -> Result<(), Fault> {
        let answered = AtomicU64::new(0);
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
        let answered = answered.into_inner();
        self.judge(result, before).map_err(|fault| Fault { answered, ..fault })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// What an error says that came instead of a stream.
fn no_stream(error: &h2::Error) -> NoStream {
    if error.is_io() || error.is_go_away() || error.is_reset() {
        let told = error.is_go_away() && error.is_remote() && error.reason() == Some(Reason::NO_ERROR);
        return NoStream::Closed { detail: error.to_string(), told };
    }
    // The request itself is one that HTTP/2 does not allow: a new connection would not help.
    NoStream::Failed(Fault::before(Class::Wrong, format!("the request: {error}")))
}

/// What an error of a stream says about its request.
pub(super) fn classify(error: &h2::Error, sent: Sent) -> (Class, Sent) {
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
    Answer(NotExpected),
    H2(h2::Error),
}

/// How much of so many bytes may be sent now; waits until it is something.
pub(super) async fn capacity(to: &mut SendStream<Bytes>, wanted: usize) -> Result<usize, String> {
    to.reserve_capacity(wanted);
    match poll_fn(|cx| to.poll_capacity(cx)).await {
        Some(Ok(capacity)) => Ok(capacity.min(wanted)),
        Some(Err(error)) => Err(error.to_string()),
        None => Err("the stream has ended".into()),
    }
}

async fn send_body(mut to: SendStream<Bytes>, exchange: &Exchange) -> Result<(), String> {
    let body = &exchange.body;
    let length = body.length();
    let mut offset = 0;
    while offset < length {
        let mut piece = body.piece(offset);
        while !piece.is_empty() {
            let part = piece.split_to(capacity(&mut to, piece.len()).await?);
            offset += part.len() as u64;
            to.send_data(part, offset == length).map_err(|error| error.to_string())?;
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
    let mut answer = Answer::new(exchange, head.status.as_u16(), &head.headers);
    while let Some(data) = from.data().await {
        let data = data.map_err(Broken::H2)?;
        answered.fetch_add(data.len() as u64, Ordering::Relaxed);
        let _ = from.flow_control().release_capacity(data.len());
        answer.feed(&data);
    }
    from.trailers().await.map_err(Broken::H2)?;
    answer.end().map_err(Broken::Answer)
}
