//! The request on its way to the server.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes};
use playhouse_protocol::http1::{BodyLength, encode};
use tokio::io::AsyncWrite;
use tokio::time::Instant;

use super::source::Source;
use crate::RequestBodyError;
use crate::upstream::Connection;

/// Sends the head, which is in the connection's output, and then the content as the client gives it. Small pieces go out
/// in one write with what stands before them.
#[derive(Debug)]
pub(super) struct Sender {
    state: State,
    length: BodyLength,
    /// A piece too large to be copied into the output, which goes before it.
    piece: Bytes,
    /// What stands behind the piece.
    tail: &'static [u8],
    /// Whether the kernel has taken a byte of this request.
    began: bool,
    /// Since when the server takes nothing, though there is something to send.
    stalled: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Only the head is sent before [`Sender::proceed`].
    Expecting,
    Content,
    /// All is in the output.
    Flushing,
    Done,
    /// The server does not take the rest.
    Stopped,
}

/// Why the request could not be sent to its end.
#[derive(Debug)]
pub(super) enum SendError {
    /// The client has failed.
    Client(RequestBodyError),
    /// The server has closed or reset.
    Server,
}

impl Sender {
    /// For a request whose head is in the output. When it is `expecting`, the content waits for [`Sender::proceed`].
    pub(super) fn new(length: BodyLength, expecting: bool) -> Self {
        let state = match length {
            BodyLength::None => State::Flushing,
            _ if expecting => State::Expecting,
            _ => State::Content,
        };
        Sender { state, length, piece: Bytes::new(), tail: b"", began: false, stalled: None }
    }

    /// Sends as much as can be sent. Ready once all is.
    pub(super) fn poll(
        &mut self,
        connection: &mut Connection,
        source: &mut Source,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        loop {
            self.fill(connection, source, cx).map_err(SendError::Client)?;
            if connection.output.is_empty() && self.piece.is_empty() && self.tail.is_empty() {
                if self.state == State::Flushing {
                    self.state = State::Done;
                }
                return if self.is_over() { Poll::Ready(Ok(())) } else { Poll::Pending };
            }
            match self.poll_write(connection, cx) {
                Poll::Ready(written) => written.map_err(|_| SendError::Server)?,
                Poll::Pending => {
                    self.stalled.get_or_insert_with(Instant::now);
                    return Poll::Pending;
                }
            }
        }
    }

    /// Takes pieces of content from the client for as long as they are there and the output is small.
    fn fill(
        &mut self,
        connection: &mut Connection,
        source: &mut Source,
        cx: &mut Context<'_>,
    ) -> Result<(), RequestBodyError> {
        let out = &mut connection.output;
        while self.state == State::Content && self.piece.is_empty() && out.len() < LARGEST_COPY {
            let Poll::Ready(frame) = source.poll_frame(cx) else { return Ok(()) };
            let chunked = self.length == BodyLength::Chunked;
            match frame.transpose()?.map(|frame| frame.into_data().map_err(|frame| frame.into_trailers())) {
                Some(Ok(data)) => {
                    if chunked {
                        encode::chunk_head(out, data.len());
                    }
                    let tail = if chunked { encode::CHUNK_END } else { b"" };
                    if data.len() <= LARGEST_COPY {
                        out.put_slice(&data);
                        out.put_slice(tail);
                    } else {
                        (self.piece, self.tail) = (data, tail);
                    }
                }
                // Trailers have no place behind a length.
                Some(Err(Ok(trailers))) if chunked => {
                    encode::last_chunk(out, &trailers);
                    self.state = State::Flushing;
                }
                Some(Err(_)) => {}
                None => {
                    if chunked {
                        out.put_slice(encode::LAST_CHUNK);
                    }
                    self.state = State::Flushing;
                }
            }
        }
        Ok(())
    }

    /// Writes until there is nothing left to write.
    fn poll_write(&mut self, connection: &mut Connection, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Connection { stream, output, .. } = connection;
        while !(output.is_empty() && self.piece.is_empty() && self.tail.is_empty()) {
            let stream = Pin::new(&mut *stream);
            let mut written = if self.piece.is_empty() && self.tail.is_empty() {
                ready!(stream.poll_write(cx, output))?
            } else {
                let slices = [IoSlice::new(output), IoSlice::new(&self.piece), IoSlice::new(self.tail)];
                ready!(stream.poll_write_vectored(cx, &slices))?
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.began = true;
            self.stalled = None;
            let mut taken = |left: usize| {
                let taken = written.min(left);
                written -= taken;
                taken
            };
            output.advance(taken(output.len()));
            self.piece.advance(taken(self.piece.len()));
            self.tail = &self.tail[taken(self.tail.len())..];
        }
        Poll::Ready(Ok(()))
    }

    /// The server wants the content, or has been silent about it for long enough.
    pub(super) fn proceed(&mut self) {
        if self.state == State::Expecting {
            self.state = State::Content;
        }
    }

    /// Nothing more is sent.
    pub(super) fn stop(&mut self) {
        self.state = State::Stopped;
    }

    /// Whether the content waits for the server's word.
    pub(super) fn is_expecting(&self) -> bool {
        self.state == State::Expecting
    }

    /// Whether nothing more will be sent, be it done or not.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Done | State::Stopped)
    }

    /// Whether all has been sent.
    pub(super) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Whether the server may have seen anything of this request.
    pub(super) fn has_begun(&self) -> bool {
        self.began
    }

    /// Since when the server takes nothing, though there is something to send.
    pub(super) fn stalled_since(&self) -> Option<Instant> {
        self.stalled
    }
}

/// Larger pieces are written from where they are.
const LARGEST_COPY: usize = 16 << 10;
