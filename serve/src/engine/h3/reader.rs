//! The client's side of a request stream.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use playhouse_protocol::http3::{Code, Event, RequestDecoder, RequestError};
use quinn::{Connection, RecvStream};

/// Why nothing more is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadError {
    /// The client has reset the stream, or the connection is over.
    Gone,
    /// The client has broken the protocol; the connection has been closed.
    Broken,
    /// A field section is larger than allowed.
    TooLarge,
    /// The stream has ended without a head.
    Incomplete,
}

/// Reads a request stream. Dropped before its end, it asks the client to send no more.
#[derive(Debug)]
pub(super) struct Reader {
    stream: RecvStream,
    decoder: RequestDecoder,
    input: Bytes,
    ended: bool,
    /// With what the client is asked to stop.
    stop: Code,
    faults: Arc<Faults>,
}

/// Closes the connection when a client breaks the protocol on a stream.
#[derive(Debug)]
pub(super) struct Faults(pub(super) Connection);

impl Faults {
    pub(super) fn close(&self, code: Code) {
        tracing::debug!(?code, "h3 connection closed");
        self.0.close(super::code(code), b"");
    }
}

impl Reader {
    /// A field section may have `section` bytes as it is encoded.
    pub(super) fn new(stream: RecvStream, section: usize, faults: Arc<Faults>) -> Self {
        Reader {
            stream,
            decoder: RequestDecoder::new(section),
            input: Bytes::new(),
            ended: false,
            // The usual case: it was answered before it had ended (RFC 9114 §4.1).
            stop: Code::NoError,
            faults,
        }
    }

    /// The code with which the client is asked to stop, should this be dropped before the end.
    pub(super) fn stop_with(&mut self, code: Code) {
        self.stop = code;
    }

    /// Whether there is a first byte, or there never will be.
    pub(super) fn poll_begun(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, ReadError>> {
        while self.input.is_empty() && !self.ended {
            ready!(self.poll_input(cx))?;
        }
        Poll::Ready(Ok(!self.input.is_empty()))
    }

    /// What comes next; `None` is the end of the request.
    pub(super) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Event>, ReadError>> {
        loop {
            match self.decoder.next(&mut self.input) {
                Ok(Some(event)) => return Poll::Ready(Ok(Some(event))),
                Ok(None) if self.ended => {
                    return Poll::Ready(
                        self.decoder.finish().map(|()| None).map_err(|error| self.fault(error)),
                    );
                }
                Ok(None) => ready!(self.poll_input(cx))?,
                Err(error) => return Poll::Ready(Err(self.fault(error))),
            }
        }
    }

    /// Looks whether the end of the request has come with what was read already.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Result<bool, ReadError> {
        if self.input.is_empty()
            && !self.ended
            && let Poll::Ready(read) = self.poll_input(cx)
        {
            read?;
        }
        Ok(self.is_at_end())
    }

    /// Whether all of the request was read, and is whole.
    pub(super) fn is_at_end(&self) -> bool {
        self.ended && self.input.is_empty() && self.decoder.finish().is_ok()
    }

    fn poll_input(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ReadError>> {
        match ready!(pin!(self.stream.read_chunk(CHUNK, true)).poll(cx)) {
            Ok(Some(chunk)) => self.input = chunk.bytes,
            Ok(None) => self.ended = true,
            Err(_) => {
                self.ended = true;
                return Poll::Ready(Err(ReadError::Gone));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Closes the connection where that is what the error demands.
    fn fault(&mut self, error: RequestError) -> ReadError {
        match error {
            RequestError::Connection(code) => {
                self.faults.close(code);
                ReadError::Broken
            }
            RequestError::TooLarge => ReadError::TooLarge,
            RequestError::Incomplete => ReadError::Incomplete,
        }
    }

    /// Closes the connection: only content comes in a tunnel.
    pub(super) fn unexpected_frame(&mut self) {
        self.fault(RequestError::Connection(Code::FrameUnexpected));
    }

    /// Closes the connection: a field section is broken (RFC 9204 §2.2).
    pub(super) fn broken_section(&mut self) -> ReadError {
        self.fault(RequestError::Connection(Code::QpackDecompressionFailed))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if !self.ended {
            // Fails only where the stream has ended.
            let _ = self.stream.stop(super::code(self.stop));
        }
    }
}

/// What is taken at a time.
const CHUNK: usize = 64 << 10;
