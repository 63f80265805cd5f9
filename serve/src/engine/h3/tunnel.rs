//! A stream that becomes a tunnel (RFC 9220).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, SEC_WEBSOCKET_ACCEPT};
use http::{Method, Response, StatusCode, response};
use playhouse_protocol::http3::{Code, Event};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::in_flight::{InFlight, Shared};
use super::interim::InformationalSender;
use super::reader::Reader;
use super::sender::Sender;
use super::stream::{Ending, settled};
use crate::engine::h2::head::prepare;
use crate::tunnel::{Begun, Near, Tunnel, Watch};
use crate::{Application, Body, Outcome};

/// Answers with 200, where HTTP/1.1 has 101, and runs the tunnel to its end.
pub(super) async fn run<A: Application>(
    mut flight: InFlight<A>,
    mut sender: Sender,
    interim: &InformationalSender,
    reader: Reader,
    mut parts: response::Parts,
    tunnel: Tunnel,
) -> Ending {
    parts.status = StatusCode::OK;
    parts.headers.remove(SEC_WEBSOCKET_ACCEPT);
    let mut head = prepare(Response::from_parts(parts, Body::Empty), &Method::CONNECT).head;
    head.headers_mut().remove(CONTENT_LENGTH);
    sender.head(interim.close(), head.status(), head.headers());
    flight.status = Some(head.status());
    if let Err(outcome) = sender.flush().await {
        flight.ended(outcome);
        return Ending::Cut;
    }
    let shared = flight.shared.clone();
    let mut draining = Watch::new(shared.draining.clone());
    let mut stream = Stream { reader, sender, ready: Bytes::new(), ended: false, shared: &shared };
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
    let Stream { mut sender, reader, .. } = stream;
    if end.abort {
        // What a reset is over TCP (RFC 9220 §3).
        sender.reset(Code::RequestCancelled);
        flight.ended(end.outcome);
        return if end.outcome == Outcome::ClientGone { Ending::Cut } else { Ending::Answered };
    }
    drop(reader);
    // Where it has been ended already, this does nothing.
    let _ = sender.finish().await;
    flight.sent(end.outcome);
    settled(&mut flight, &mut sender).await
}

/// A stream as a pair of byte streams. What is read gives room to the client, so that it sends as fast as it is read; what
/// is written waits for the client's windows.
struct Stream<'a, A> {
    reader: Reader,
    sender: Sender,
    /// Of a DATA frame, not read yet.
    ready: Bytes,
    /// The client has ended the stream.
    ended: bool,
    shared: &'a Arc<Shared<A>>,
}

impl<A: Application> Near for Stream<'_, A> {
    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match ready!(self.sender.poll_stopped(cx)) {
            // It has all that we have sent.
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }

    fn is_lost(&self) -> bool {
        self.shared.is_lost()
    }
}

impl<A: Application> AsyncRead for Stream<'_, A> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.ready.is_empty() && !this.ended {
            match ready!(this.reader.poll_event(cx)) {
                Ok(Some(Event::Data(data))) => this.ready = data,
                Ok(Some(Event::Headers(_))) => {
                    // RFC 9114 §4.4
                    this.reader.unexpected_frame();
                    return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                }
                Ok(None) => this.ended = true,
                Err(_) => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            }
        }
        let taken = this.ready.len().min(buffer.remaining());
        buffer.put_slice(&this.ready[..taken]);
        this.ready.advance(taken);
        Poll::Ready(Ok(()))
    }
}

impl<A: Application> AsyncWrite for Stream<'_, A> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        // The frame before first: no more than one is kept.
        ready!(self.sender.poll_flush(cx))?;
        let piece = &bytes[..bytes.len().min(PIECE)];
        self.sender.queue_data(piece);
        // What does not go now goes with the next one, or by a flush.
        if let Poll::Ready(flushed) = self.sender.poll_flush(cx) {
            flushed?;
        }
        Poll::Ready(Ok(piece.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.sender.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.sender.poll_flush(cx))?;
        Poll::Ready(self.sender.end())
    }
}

/// Of one DATA frame.
const PIECE: usize = 16 << 10;
