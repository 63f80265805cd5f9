//! One HTTP/1.1 connection, on the raw byte stream: nothing between this code and the socket repairs, retries or hides.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, timeout_at};

use super::answer::{Answer, Broken, read_answer};
use super::exchange::{Body, Exchange};
use super::report::{Class, Sent};
use super::target::{Peek, Socket, Wire};
use super::worker::{Connected, Fault};

/// A connection, on which one exchange at a time happens.
pub(super) struct Connection {
    socket: Socket,
    wire: Arc<Wire>,
    /// What was read and not yet used.
    buffer: BytesMut,
    pub(super) number: u64,
    /// When its connect began.
    pub(super) begun: Instant,
    /// Complete answers so far.
    pub(super) answers: u64,
}

/// What a connection without a request in flight looks like.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Idle {
    Open,
    Closed,
    /// There are bytes of an answer.
    Unsolicited,
}

impl Connection {
    pub(super) fn new(Connected { socket, wire, number, begun }: Connected) -> Connection {
        Connection { socket, wire, buffer: BytesMut::with_capacity(16 << 10), number, begun, answers: 0 }
    }

    /// Looks, without waiting, whether the server has closed or said anything.
    pub(super) fn idle(&mut self) -> Idle {
        if !self.buffer.is_empty() {
            return Idle::Unsolicited;
        }
        match self.socket.peek() {
            Peek::Nothing => Idle::Open,
            Peek::Data => Idle::Unsolicited,
            Peek::End => Idle::Closed,
            Peek::Records => {
                let mut space = [0; 1];
                let mut space = ReadBuf::new(&mut space);
                let mut cx = Context::from_waker(Waker::noop());
                match Pin::new(&mut self.socket).poll_read(&mut cx, &mut space) {
                    // A session ticket, for example.
                    Poll::Pending => Idle::Open,
                    Poll::Ready(Ok(())) if !space.filled().is_empty() => Idle::Unsolicited,
                    Poll::Ready(_) => Idle::Closed,
                }
            }
        }
    }

    /// The socket, after a 101, and what has been read from it behind that.
    pub(super) fn into_tunnel(self) -> (Socket, BytesMut) {
        (self.socket, self.buffer)
    }

    /// Sends a request and checks its answer; says whether the connection can be used again.
    pub(super) async fn exchange(
        &mut self,
        exchange: &Exchange,
        authority: &str,
        keep_alive: bool,
        deadline: Instant,
    ) -> Result<bool, (Fault, bool)> {
        let before = self.wire.written();
        let answered = AtomicU64::new(0);
        let head = head(exchange, authority, keep_alive);
        let (mut from, mut to) = tokio::io::split(&mut self.socket);
        let mut write = pin!(write(&mut to, &head, exchange));
        let mut read = pin!(read_answer(&mut from, &mut self.buffer, &answered, exchange));
        // An answer may come before the request is sent (an early refusal), and even though it cannot be sent.
        let mut written = None;
        let read = timeout_at(deadline, async {
            loop {
                tokio::select! {
                    result = &mut write, if written.is_none() => written = Some(result),
                    result = &mut read => break result,
                }
            }
        })
        .await;

        let sent = match &written {
            _ if self.wire.written() == before => Sent::None,
            Some(Ok(())) => Sent::All,
            _ => Sent::Part,
        };
        let answered = answered.load(Ordering::Relaxed);
        let fault = |class, detail: String| {
            let detail = match &written {
                Some(Err(error)) => format!("{detail}; while writing: {error}"),
                _ => detail,
            };
            Fault { class, sent, answered, detail }
        };
        match read {
            Ok(Ok(Answer { status, reusable, wrong })) => {
                self.answers += 1;
                let reusable = reusable && sent == Sent::All;
                if sent == Sent::None && status != 408 {
                    Err((fault(Class::Wrong, "an answer to nothing".into()), false))
                } else if status != exchange.expect.status {
                    Err((fault(Class::Status(status), format!("status {status}")), reusable))
                } else if let Some(wrong) = wrong {
                    Err((fault(Class::Wrong, wrong), false))
                } else {
                    Ok(reusable)
                }
            }
            Ok(Err(Broken::Wrong(detail))) => Err((fault(Class::Wrong, detail), false)),
            Ok(Err(Broken::Closed(detail))) => {
                let class = match sent {
                    Sent::None => Class::Unsent,
                    _ if self.answers > 0 && answered == 0 => Class::InFlightReused,
                    _ => Class::InFlight,
                };
                Err((fault(class, detail), false))
            }
            Err(_) => Err((fault(Class::Lost, "no complete answer within the deadline".into()), false)),
        }
    }
}

fn head(exchange: &Exchange, authority: &str, keep_alive: bool) -> Vec<u8> {
    let mut head = Vec::with_capacity(256);
    let mut put = |name: &str, value: &[u8]| {
        head.extend_from_slice(name.as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value);
        head.extend_from_slice(b"\r\n");
    };
    if !exchange.headers.iter().any(|(name, _)| name == http::header::HOST) {
        put("host", authority.as_bytes());
    }
    for (name, value) in &exchange.headers {
        put(name.as_str(), value.as_bytes());
    }
    match &exchange.body {
        Body::Empty => {}
        Body::Streamed { .. } => put("transfer-encoding", b"chunked"),
        body => put("content-length", body.length().to_string().as_bytes()),
    }
    if !keep_alive {
        put("connection", b"close");
    }
    let mut whole = format!("{} {} HTTP/1.1\r\n", exchange.method, exchange.path).into_bytes();
    whole.append(&mut head);
    whole.extend_from_slice(b"\r\n");
    whole
}

/// Writes head and body; a short body goes out together with the head.
async fn write(to: &mut (impl AsyncWrite + Unpin), head: &[u8], exchange: &Exchange) -> std::io::Result<()> {
    let body = &exchange.body;
    let chunked = matches!(body, Body::Streamed { .. });
    let mut out = head.to_vec();
    let mut offset = 0;
    loop {
        let piece = body.piece(offset);
        if piece.is_empty() {
            break;
        }
        offset += piece.len() as u64;
        if chunked {
            out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            out.extend_from_slice(&piece);
            out.extend_from_slice(b"\r\n");
        } else {
            out.extend_from_slice(&piece);
        }
        to.write_all(&out).await?;
        out.clear();
        if !exchange.pause.is_zero() {
            to.flush().await?;
            tokio::time::sleep(exchange.pause).await;
        }
    }
    if chunked {
        out.extend_from_slice(b"0\r\n\r\n");
    }
    to.write_all(&out).await?;
    to.flush().await
}

/// Counts bytes of an answer.
pub(super) fn count(answered: &AtomicU64, n: usize) {
    answered.fetch_add(n as u64, Ordering::Relaxed);
}
