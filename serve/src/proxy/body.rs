//! The content of the answer, as the server sends it.

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use playhouse_config::model;
use playhouse_protocol::http1::{BodyDecoder, Decoded};
use tokio::time::Instant;

use super::sender::{SendError, Sender};
use super::source::Source;
use crate::BodyError;
use crate::metrics::Failure;
use crate::upstream::{Connection, Lease, Owner, Upstream};

/// The content of an answer, read from the server as it is polled, and never otherwise. What is left of the request's
/// content is sent meanwhile. At a clean end the connection goes back to its pool; dropped before, it is closed, so that
/// the server learns that nobody listens.
pub struct UpstreamBody {
    /// Read already, to be given before anything else.
    pub(super) ready: Option<Bytes>,
    pub(super) trailers: Option<HeaderMap>,
    pub(super) decoder: BodyDecoder,
    /// `None` once the answer has ended, well or not.
    pub(super) wire: Option<Wire>,
    /// Whether the client takes trailers.
    pub(super) trailers_wanted: bool,
}

/// An exchange with a server under way.
pub(super) struct Wire {
    pub(super) connection: Connection,
    pub(super) sender: Sender,
    pub(super) source: Source,
    pub(super) upstream: Arc<Upstream>,
    pub(super) settings: Arc<model::Upstream>,
    pub(super) lease: Lease,
    /// Whether the server keeps the connection.
    pub(super) keep_alive: bool,
    /// How long the server has said it keeps it.
    pub(super) keep: Option<Duration>,
    /// Since when the server sends nothing, though it is waited for.
    pub(super) waiting: Option<Instant>,
}

/// Why the content ended before its end.
pub(super) struct Cut {
    pub(super) failure: Failure,
    pub(super) cause: String,
}

impl UpstreamBody {
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            if let Some(data) = self.ready.take() {
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            if let Some(trailers) = self.trailers.take()
                && self.trailers_wanted
            {
                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
            }
            let Some(wire) = &mut self.wire else { return Poll::Ready(None) };
            if let Err(error) = wire.poll_send(cx) {
                self.wire = None;
                return Poll::Ready(Some(Err(error.into())));
            }
            match ready!(wire.poll_decode(&mut self.decoder, cx)) {
                Ok(Decoded::Data(data)) => self.ready = Some(data),
                Ok(Decoded::Trailers(trailers)) => self.trailers = Some(trailers),
                // More is waited for in there.
                Ok(Decoded::NeedMore) => {}
                Ok(Decoded::End) => self.end(),
                Err(cut) => {
                    if let Some(wire) = self.wire.take() {
                        wire.failed(cut.failure);
                    }
                    return Poll::Ready(Some(Err(BodyError::Upstream(cut.cause))));
                }
            }
            // Who knows the length does not ask again after the last byte, and nobody does after the trailers.
            if self.decoder.is_end() {
                self.end();
            }
        }
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.wire.is_none() && self.ready.is_none() && self.trailers.is_none()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        // Trailers have no place behind a length, so an answer that has some is not given one.
        if self.trailers.is_some() && self.trailers_wanted {
            return SizeHint::new();
        }
        let ready = self.ready.as_ref().map_or(0, Bytes::len) as u64;
        match self.decoder.remaining() {
            Some(left) => SizeHint::with_exact(ready + left),
            None => SizeHint::new(),
        }
    }

    fn end(&mut self) {
        if let Some(wire) = self.wire.take() {
            wire.end();
        }
    }
}

impl Wire {
    /// Sends on. An error is the client's; the server's end of it shows in its answer.
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>) -> Result<(), crate::RequestBodyError> {
        if self.sender.is_over() {
            return Ok(());
        }
        match self.sender.poll(&mut self.connection, &mut self.source, cx) {
            Poll::Ready(Err(SendError::Client(error))) => Err(error),
            Poll::Ready(Err(SendError::Server)) => {
                self.sender.stop();
                Ok(())
            }
            Poll::Ready(Ok(())) | Poll::Pending => Ok(()),
        }
    }

    /// The next of the content, within the idle deadline.
    pub(super) fn poll_decode(
        &mut self,
        decoder: &mut BodyDecoder,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Decoded, Cut>> {
        loop {
            match decoder.decode(&mut self.connection.input) {
                Ok(Decoded::NeedMore) => {}
                Ok(decoded) => return Poll::Ready(Ok(decoded)),
                Err(error) => return Poll::Ready(Err(Cut::malformed(error))),
            }
            let wanted = decoder.remaining().map_or(CHUNKED_READ, |left| {
                usize::try_from(left).unwrap_or(usize::MAX).clamp(SMALLEST_READ, LARGEST_READ)
            });
            match self.connection.poll_read(wanted, cx) {
                Poll::Ready(Ok(0)) => {
                    self.keep_alive = false;
                    return Poll::Ready(decoder.eof().map(|()| Decoded::End).map_err(|_| Cut::closed()));
                }
                Poll::Ready(Ok(_)) => self.waiting = None,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(Cut::broken(&error))),
                Poll::Pending => {
                    let since = *self.waiting.get_or_insert_with(Instant::now);
                    // A server may wait for the client, whose slowness is the listener's affair.
                    let blames_client = !self.sender.is_over() && self.sender.stalled_since().is_none();
                    if !blames_client
                        && self.connection.timer.poll(since + self.settings.timeouts.idle, cx).is_ready()
                    {
                        return Poll::Ready(Err(Cut::stalled()));
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    /// The answer has ended well. The connection is kept where both sides are through with this request.
    pub(super) fn end(mut self) {
        let server = self.lease.server();
        server.succeeded();
        if self.keep_alive && self.sender.is_done() && self.connection.input.is_empty() {
            self.connection.answers += 1;
            self.connection.shrink();
            let settings = &self.settings.keep_alive;
            let mut keep = self.keep.map_or(settings.timeout, |keep| keep.min(settings.timeout));
            if self.connection.owner != Owner::Anyone {
                keep = keep.min(PRIVATE);
            }
            server.idle.put(self.connection, Instant::now(), keep, settings.max_idle);
        }
    }

    /// The server has failed within its answer.
    pub(super) fn failed(self, failure: Failure) {
        self.lease.server().failed(&self.upstream, failure);
    }
}

impl Cut {
    pub(super) fn malformed(error: playhouse_protocol::http1::BodyError) -> Self {
        Cut { failure: Failure::Body, cause: error.to_string() }
    }

    fn closed() -> Self {
        Cut { failure: Failure::Body, cause: "closed within its answer".to_owned() }
    }

    fn broken(error: &std::io::Error) -> Self {
        Cut { failure: Failure::Body, cause: format!("failed within its answer: {error}") }
    }

    fn stalled() -> Self {
        Cut { failure: Failure::BodyTimeout, cause: "stalled within its answer".to_owned() }
    }
}

impl std::fmt::Debug for UpstreamBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UpstreamBody").field("decoder", &self.decoder).finish_non_exhaustive()
    }
}

/// A connection that serves one client alone is not kept for long: the client may be gone.
const PRIVATE: Duration = Duration::from_secs(5);

const SMALLEST_READ: usize = 4 << 10;
const LARGEST_READ: usize = 64 << 10;
/// Where the length is not known.
const CHUNKED_READ: usize = 16 << 10;
