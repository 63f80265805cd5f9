//! A stream that becomes a tunnel (RFC 8441 §5).

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use h2::{Reason, RecvStream, SendStream};
use http::header::SEC_WEBSOCKET_ACCEPT;
use http::{Method, Response, StatusCode, response};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::head;
use super::in_flight::InFlight;
use super::stream::InformationalSender;
use crate::tunnel::{Begun, Near, Tunnel, Watch};
use crate::{Application, Body, Outcome};

/// Answers with 200, where HTTP/1.1 has 101, and runs the tunnel to its end.
pub(super) async fn run<A: Application>(
    mut flight: InFlight<A>,
    sender: &InformationalSender,
    recv: RecvStream,
    mut parts: response::Parts,
    tunnel: Tunnel,
) -> InFlight<A> {
    parts.status = StatusCode::OK;
    parts.headers.remove(SEC_WEBSOCKET_ACCEPT);
    let mut prepared = head::prepare(Response::from_parts(parts, Body::Empty), &Method::CONNECT);
    prepared.head.headers_mut().remove(http::header::CONTENT_LENGTH);
    let Some(Ok(send)) = sender.take().map(|mut respond| respond.send_response(prepared.head, false)) else {
        flight.ended(Outcome::ClientGone);
        return flight;
    };
    flight.status = Some(StatusCode::OK);
    let shared = flight.shared.clone();
    let mut draining = Watch::new(shared.draining.clone());
    let mut stream =
        Stream { recv, send, ready: Bytes::new(), ended: false, client_gone: &shared.client_gone };
    let record = &mut flight.exchange.record;
    let metrics = record.route.as_ref().and_then(|route| route.tunnels(shared.info.listener_index));
    let begun = Begun { prefix: BytesMut::new(), eof: false };
    let run =
        tunnel.run(&mut stream, begun, &shared.timeouts, |cx| draining.poll(cx), metrics, &mut record.tunnel);
    let end = run.await;
    flight.bytes_sent = flight.exchange.record.tunnel.as_ref().map_or(0, |summary| summary.bytes_to_client);
    if let Some(panic) = &end.panic {
        shared.application.panicked(&shared.info, panic);
    }
    let Stream { mut send, ended, .. } = stream;
    if end.abort {
        // What a reset is over TCP (RFC 8441 §5).
        send.send_reset(Reason::CANCEL);
        flight.ended(end.outcome);
        return flight;
    }
    // Where it has been sent already, this does nothing.
    let _ = send.send_data(Bytes::new(), true);
    flight.sent(end.outcome);
    flight.leftover = (!ended).then_some(send);
    flight
}

/// A stream as a pair of byte streams. Reading gives the window back, so that the client sends as fast as it is read;
/// writing is bounded by the client's.
struct Stream<'a> {
    recv: RecvStream,
    send: SendStream<Bytes>,
    /// Of a DATA frame, not read yet.
    ready: Bytes,
    /// The client has ended the stream.
    ended: bool,
    /// The connection has ended by the client's doing.
    client_gone: &'a AtomicBool,
}

impl Near for Stream<'_> {
    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.send.poll_reset(cx).map(|_| ())
    }

    fn is_lost(&self) -> bool {
        self.client_gone.load(Ordering::Relaxed)
    }
}

impl AsyncRead for Stream<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.ready.is_empty() && !this.ended {
            match ready!(this.recv.poll_data(cx)) {
                Some(Ok(data)) => this.ready = data,
                Some(Err(error)) => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionReset, error)));
                }
                None => this.ended = true,
            }
        }
        let taken = this.ready.len().min(buffer.remaining());
        buffer.put_slice(&this.ready[..taken]);
        this.ready.advance(taken);
        // The stream may have ended by itself; then there is no window to fill.
        let _ = this.recv.flow_control().release_capacity(taken);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream<'_> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let send = &mut self.send;
        send.reserve_capacity(bytes.len());
        let mut capacity = send.capacity();
        while capacity == 0 {
            capacity = match ready!(send.poll_capacity(cx)) {
                Some(Ok(capacity)) => capacity,
                Some(Err(_)) | None => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            };
        }
        let piece = Bytes::copy_from_slice(&bytes[..bytes.len().min(capacity)]);
        let written = piece.len();
        send.send_data(piece, false).map_err(|_| io::ErrorKind::ConnectionReset)?;
        Poll::Ready(Ok(written))
    }

    /// The driver flushes when all streams have had their turn.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = self.send.send_data(Bytes::new(), true);
        Poll::Ready(ended.map_err(|_| io::ErrorKind::ConnectionReset.into()))
    }
}
