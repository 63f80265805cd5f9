//! A request under way to a server, and its answer on its way back.

use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes};
use playhouse_config::model;
use playhouse_protocol::fastcgi::{Event, ProtocolStatus, Reader, write};
use tokio::io::AsyncWrite;
use tokio::time::Instant;

use crate::RequestBodyError;
use crate::metrics::Failure;
use crate::proxy::source::Source;
use crate::upstream::{Connection, Lease, Newcomer, Upstream};

/// A request under way.
pub(super) struct Wire {
    pub(super) connection: Connection,
    pub(super) source: Source,
    pub(super) upstream: Arc<Upstream>,
    pub(super) settings: Arc<model::Upstream>,
    pub(super) lease: Lease,
    pub(super) reader: Reader,
    /// Until the first byte of an answer on a new connection.
    pub(super) newcomer: Option<Newcomer>,
    pub(super) stderr: Stderr,
    pub(super) sending: Sending,
    /// Content that has no record yet.
    pub(super) unframed: Bytes,
    /// Content behind the output, too large to be copied there.
    pub(super) piece: Bytes,
    /// Whether the kernel has taken a byte of this request.
    pub(super) began: bool,
    /// Since when the server takes nothing, though there is something to send.
    pub(super) stalled: Option<Instant>,
    /// Since when the server sends nothing, though it is waited for.
    pub(super) waiting: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    Content,
    /// All is in the output.
    Flushing,
    Done,
    /// The server does not take the rest.
    Stopped,
}

/// Why an answer has not come, or not to its end.
pub(super) struct Cut {
    pub(super) failure: Failure,
    pub(super) cause: String,
    /// Whether the server has said that it did nothing with the request.
    pub(super) refused: bool,
}

impl Wire {
    /// Sends as much as can be sent. An error is the client's; the server's end of it shows in its answer.
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>) -> Result<(), RequestBodyError> {
        while !self.is_sent() {
            self.fill(cx)?;
            if self.connection.output.is_empty() && self.piece.is_empty() {
                if self.sending == Sending::Flushing {
                    self.sending = Sending::Done;
                }
                return Ok(());
            }
            match self.poll_write(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => self.sending = Sending::Stopped,
                Poll::Pending => {
                    self.stalled.get_or_insert_with(Instant::now);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Takes content from the client for as long as it is there and the output is small.
    fn fill(&mut self, cx: &mut Context<'_>) -> Result<(), RequestBodyError> {
        let out = &mut self.connection.output;
        while self.sending == Sending::Content && self.piece.is_empty() && out.len() < LARGEST_COPY {
            if !self.unframed.is_empty() {
                let data = self.unframed.split_to(self.unframed.len().min(write::LARGEST));
                write::content(out, data.len() as u16);
                if data.len() <= LARGEST_COPY {
                    out.put_slice(&data);
                } else {
                    self.piece = data;
                }
                continue;
            }
            let Poll::Ready(frame) = self.source.poll_frame(cx) else { return Ok(()) };
            match frame.transpose()?.map(|frame| frame.into_data()) {
                Some(Ok(data)) => self.unframed = data,
                // Trailers have no place here.
                Some(Err(_)) => {}
                None => {
                    write::content_end(out);
                    self.sending = Sending::Flushing;
                }
            }
        }
        Ok(())
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let Connection { stream, output, .. } = &mut self.connection;
        while !(output.is_empty() && self.piece.is_empty()) {
            let stream = Pin::new(&mut *stream);
            let written = if self.piece.is_empty() {
                ready!(stream.poll_write(cx, output))?
            } else {
                ready!(stream.poll_write_vectored(cx, &[IoSlice::new(output), IoSlice::new(&self.piece)]))?
            };
            if written == 0 {
                return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into()));
            }
            self.began = true;
            self.stalled = None;
            let from_output = written.min(output.len());
            output.advance(from_output);
            self.piece.advance(written - from_output);
        }
        Poll::Ready(Ok(()))
    }

    /// The next of the answer's output; `None` is its end. What is for the log is noted.
    pub(super) fn poll_output(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Cut>> {
        loop {
            if let Some(output) = self.output_at_hand()? {
                return Poll::Ready(Ok(output));
            }
            match self.connection.poll_read(READ, cx) {
                Poll::Ready(Ok(1..)) => {
                    self.waiting = None;
                    self.newcomer = None;
                }
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(Cut::closed("closed before its end"))),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(Cut::closed(&error.to_string()))),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// The same of what has been read already; `None` where that is not enough.
    pub(super) fn output_at_hand(&mut self) -> Result<Option<Option<Bytes>>, Cut> {
        if self.reader.is_done() {
            return Ok(Some(None));
        }
        loop {
            match self.reader.next(&mut self.connection.input).map_err(|error| Cut::malformed(&error))? {
                Event::NeedMore => return Ok(None),
                Event::Output(output) => return Ok(Some(Some(output))),
                Event::Error(text) => self.stderr.note(&text),
                Event::End { status: ProtocolStatus::Complete, .. } => return Ok(Some(None)),
                Event::End { status, .. } => return Err(Cut::refused(status)),
            }
        }
    }

    /// When the patience with the server ends; `None` while the client is waited for. `first` is for the first byte of the
    /// answer, since `began`.
    pub(super) fn deadline(&self, first: Option<Instant>) -> Option<Instant> {
        let timeouts = &self.settings.timeouts;
        match (self.stalled, first, self.waiting) {
            (Some(stalled), ..) => Some(stalled + timeouts.idle),
            (_, Some(asked), _) => Some(asked + timeouts.first_byte),
            (_, None, Some(since)) if self.is_sent() => Some(since + timeouts.idle),
            _ => None,
        }
    }

    /// Whether nothing more will be sent, be it done or not.
    pub(super) fn is_sent(&self) -> bool {
        matches!(self.sending, Sending::Done | Sending::Stopped)
    }

    /// The answer has ended well. The connection is kept where both sides are through with this request, and no other
    /// may wait for the process behind it: one that serves an idle connection accepts none.
    pub(super) fn end(mut self) {
        self.newcomer = None;
        let server = self.lease.server();
        server.succeeded();
        let max_idle = self.settings.keep_alive.max_idle;
        let through =
            self.reader.is_done() && self.sending == Sending::Done && self.connection.input.is_empty();
        if max_idle > 0 && through && !server.has_newcomers() {
            self.connection.answers += 1;
            self.connection.shrink();
            server.idle.put(self.connection, Instant::now(), self.settings.keep_alive.timeout, max_idle);
        }
    }

    /// The server has failed.
    pub(super) fn failed(&self, failure: Failure) {
        self.lease.server().failed(&self.upstream, failure);
    }
}

impl Cut {
    pub(super) fn closed(cause: &str) -> Self {
        Cut { failure: Failure::Closed, cause: cause.to_owned(), refused: false }
    }

    pub(super) fn malformed(cause: &dyn std::fmt::Display) -> Self {
        Cut { failure: Failure::Malformed, cause: cause.to_string(), refused: false }
    }

    fn refused(status: ProtocolStatus) -> Self {
        let (failure, cause) = match status {
            ProtocolStatus::Overloaded => (Failure::Overloaded, "overloaded"),
            ProtocolStatus::CannotMultiplex => {
                (Failure::Closed, "the connection was said to have a request already")
            }
            ProtocolStatus::UnknownRole => (Failure::Closed, "no responder"),
            ProtocolStatus::Complete => (Failure::Closed, "ended"),
        };
        Cut { failure, cause: cause.to_owned(), refused: true }
    }
}

/// What a script has written for the log, as much as is kept.
#[derive(Debug)]
pub(super) struct Stderr {
    route: Arc<str>,
    server: Arc<str>,
    text: Vec<u8>,
    /// Bytes beyond that.
    more: usize,
}

impl Stderr {
    pub(super) fn new(route: &Arc<str>, server: &Arc<str>) -> Self {
        Stderr { route: route.clone(), server: server.clone(), text: Vec::new(), more: 0 }
    }

    fn note(&mut self, text: &[u8]) {
        let kept = text.len().min(LARGEST_TEXT - self.text.len());
        self.text.extend_from_slice(&text[..kept]);
        self.more += text.len() - kept;
    }
}

/// However the request has ended.
impl Drop for Stderr {
    fn drop(&mut self) {
        if !self.text.is_empty() {
            let said = String::from_utf8_lossy(self.text.trim_ascii_end());
            tracing::warn!(
                route = %self.route,
                server = %self.server,
                more_bytes = self.more,
                ?said,
                "a script wrote to its error output"
            );
        }
    }
}

/// Larger pieces are written from where they are.
const LARGEST_COPY: usize = 16 << 10;

/// What is read at once.
const READ: usize = 16 << 10;

/// Bytes of one request's error output that are logged.
const LARGEST_TEXT: usize = 4 << 10;
