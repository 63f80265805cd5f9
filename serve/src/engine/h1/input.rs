//! The request's side of an exchange: its content, and whether the client is still there.

use std::task::{Context, Poll};
use std::time::Duration;

use http_body::Frame;
use playhouse_protocol::http1::{BodyDecoder, Decoded, HeadLimits};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use super::connection::Connection;
use crate::{Application, RequestBodyError};

/// How far the content of the request has come.
#[derive(Debug)]
pub(super) struct Inbound {
    decoder: BodyDecoder,
    /// All of it was decoded, or there is none.
    pub(super) complete: bool,
    /// Its framing is broken; where the next request begins is not known.
    pub(super) broken: bool,
    /// The client waits for 100.
    pub(super) expects_continue: bool,
    /// By when the next byte has to come, while one is waited for.
    pub(super) deadline: Option<Instant>,
    /// When it was first seen that the client has shut its side down and waits, and how much had been written then.
    waiting_half_closed: Option<(Instant, u64)>,
}

/// The client has closed in the middle of its request, or reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gone;

impl Inbound {
    pub(super) fn new(decoder: BodyDecoder, expects_continue: bool) -> Self {
        let complete = decoder.is_end();
        Inbound {
            decoder,
            complete,
            broken: false,
            expects_continue: expects_continue && !complete,
            deadline: None,
            waiting_half_closed: None,
        }
    }

    /// Whether the rest is known to be more than what is read only to be thrown away.
    pub(super) fn is_beyond_discard(&self) -> bool {
        self.decoder.remaining().is_some_and(|remaining| remaining > DISCARDED as u64)
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin + Send, A: Application> Connection<'_, IO, A> {
    /// Reads what the body's reader waits for; where it waits for nothing, looks whether the client is still there,
    /// which reads a bounded piece ahead. Whether the reader was given something.
    pub(super) fn poll_inbound(
        &mut self,
        cx: &mut Context<'_>,
        inbound: &mut Inbound,
        wanted: bool,
    ) -> Result<bool, Gone> {
        if !wanted {
            inbound.deadline = None;
            return self.poll_ahead(cx, inbound).map(|()| false);
        }
        loop {
            let piece = match inbound.decoder.decode(&mut self.input) {
                Ok(Decoded::NeedMore) => None,
                Ok(Decoded::Data(data)) => Some(Some(Ok(Frame::data(data)))),
                Ok(Decoded::Trailers(trailers)) => Some(Some(Ok(Frame::trailers(trailers)))),
                Ok(Decoded::End) => Some(None),
                Err(_) => {
                    inbound.broken = true;
                    Some(Some(Err(RequestBodyError::Malformed)))
                }
            };
            if let Some(piece) = piece {
                inbound.deadline = None;
                inbound.complete = inbound.decoder.is_end();
                if let Some(shared) = &self.shared {
                    shared.deliver(piece, inbound.complete, inbound.decoder.remaining());
                }
                return Ok(true);
            }
            if self.eof {
                return Err(Gone);
            }
            match self.poll_fill(cx) {
                Poll::Ready(Ok(0)) | Poll::Ready(Err(_)) => return Err(Gone),
                Poll::Ready(Ok(_)) => inbound.deadline = None,
                Poll::Pending => {
                    let timeout = self.settings.timeouts.body;
                    inbound.deadline.get_or_insert_with(|| Instant::now() + timeout);
                    return Ok(false);
                }
            }
        }
    }

    /// An end of the stream is no sign of absence once the request is complete: the client may have shut down its
    /// writing side only.
    fn poll_ahead(&mut self, cx: &mut Context<'_>, inbound: &Inbound) -> Result<(), Gone> {
        while !self.eof && self.input.len() < READ_AHEAD {
            match self.poll_fill(cx) {
                Poll::Ready(Ok(0)) if inbound.complete || inbound.broken => break,
                Poll::Ready(Ok(0)) => match inbound.decoder.remaining() {
                    Some(remaining) if remaining > self.input.len() as u64 => return Err(Gone),
                    // Whether the chunks that are here are all is seen when they are decoded.
                    _ => break,
                },
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return Err(Gone),
                Poll::Pending => break,
            }
        }
        Ok(())
    }

    /// Whether the client is to be taken for gone: it has shut its side down, and nothing could be written to it for a
    /// while. A client that still wants its answer (RFC 9112 §9.6 allows for it) cannot be told from one that has closed
    /// until something is written; the work for a client that has gone should not go on for long.
    pub(super) fn poll_half_closed(&mut self, cx: &mut Context<'_>, inbound: &mut Inbound) -> Poll<()> {
        if !self.eof || !inbound.complete || !self.output.is_empty() {
            inbound.waiting_half_closed = None;
            return Poll::Pending;
        }
        let written = self.output.written();
        let since = match inbound.waiting_half_closed {
            Some((since, before)) if before == written => since,
            _ => Instant::now(),
        };
        inbound.waiting_half_closed = Some((since, written));
        self.timer.poll(cx, since + HALF_CLOSED)
    }

    /// Reads the rest of the content and throws it away, up to a bound in bytes and time. Whether the next request
    /// begins behind it.
    pub(super) async fn discard(&mut self, inbound: &mut Inbound) -> bool {
        if inbound.complete {
            return true;
        }
        if inbound.broken || inbound.expects_continue || inbound.is_beyond_discard() {
            return false;
        }
        let deadline = Instant::now() + self.settings.timeouts.body.min(super::connection::LINGER);
        let mut left = DISCARDED;
        std::future::poll_fn(|cx| {
            loop {
                match inbound.decoder.decode(&mut self.input) {
                    Ok(Decoded::Data(data)) => match left.checked_sub(data.len()) {
                        Some(rest) => left = rest,
                        None => return Poll::Ready(false),
                    },
                    Ok(Decoded::Trailers(_)) => {}
                    Ok(Decoded::End) => {
                        inbound.complete = true;
                        return Poll::Ready(true);
                    }
                    Ok(Decoded::NeedMore) => match self.poll_fill(cx) {
                        Poll::Ready(Ok(0)) | Poll::Ready(Err(_)) => return Poll::Ready(false),
                        Poll::Ready(Ok(_)) => {}
                        Poll::Pending => return self.timer.poll(cx, deadline).map(|()| false),
                    },
                    Err(_) => return Poll::Ready(false),
                }
            }
        })
        .await
    }
}

/// What a trailer section of a request may measure.
pub(super) const TRAILERS: HeadLimits = HeadLimits { bytes: 8 << 10, fields: 64 };

/// How long a client that has shut its side down is waited with for the next byte of its answer.
pub(super) const HALF_CLOSED: Duration = Duration::from_secs(3);
/// Bytes that are read before anybody has asked for them.
const READ_AHEAD: usize = 8 << 10;
/// Bytes of a body that nobody has read, and that are read so that the connection can go on.
const DISCARDED: usize = 64 << 10;
