//! The content of a request, as its DATA frames arrive.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use http::{HeaderMap, StatusCode};
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::InformationalSender;
use super::head::{are_valid_values, strip_trailers};
use crate::RequestBodyError;

/// Reads a request's body. What was taken is given back to the stream's window, so that the client sends as fast as the
/// body is read.
#[derive(Debug)]
pub struct BodyReader {
    stream: RecvStream,
    /// As announced.
    length: Option<u64>,
    read: u64,
    limit: u64,
    /// For the next progress.
    timeout: Duration,
    deadline: Option<Pin<Box<Sleep>>>,
    /// Where the client waits for a 100 before it sends (RFC 9110 §10.1.1).
    expectation: Option<InformationalSender>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Data,
    Trailers,
    Ended,
    Failed(RequestBodyError),
}

impl BodyReader {
    pub(super) fn new(
        stream: RecvStream,
        length: Option<u64>,
        limit: u64,
        timeout: Duration,
        expectation: Option<InformationalSender>,
    ) -> Self {
        BodyReader {
            stream,
            length,
            read: 0,
            limit,
            timeout,
            deadline: None,
            expectation,
            state: State::Data,
        }
    }

    /// Replaces the limit in bytes where one is given; what it is now.
    pub(crate) fn limit(&mut self, bytes: Option<u64>) -> u64 {
        self.limit = bytes.unwrap_or(self.limit);
        self.limit
    }

    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        let progress = match self.poll_progress(cx) {
            Poll::Ready(progress) => {
                self.expectation = None;
                self.deadline = None;
                progress
            }
            Poll::Pending => {
                if let Some(sender) = self.expectation.take() {
                    sender.send(StatusCode::CONTINUE, HeaderMap::new());
                }
                let timeout = self.timeout;
                let sleep = || Box::pin(tokio::time::sleep_until(Instant::now() + timeout));
                ready!(self.deadline.get_or_insert_with(sleep).as_mut().poll(cx));
                Err(RequestBodyError::Timeout)
            }
        };
        Poll::Ready(progress.inspect_err(|error| self.state = State::Failed(*error)).transpose())
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        match self.state {
            State::Data => self.stream.is_end_stream(),
            State::Ended => true,
            State::Trailers | State::Failed(_) => false,
        }
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        match self.length {
            Some(length) => SizeHint::with_exact(length.saturating_sub(self.read)),
            None => SizeHint::default(),
        }
    }

    fn poll_progress(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Frame<Bytes>>, RequestBodyError>> {
        loop {
            match self.state {
                State::Data => match ready!(self.stream.poll_data(cx)) {
                    // A frame without content is no progress.
                    Some(Ok(data)) if data.is_empty() => {}
                    Some(Ok(data)) => {
                        self.read = self.read.saturating_add(data.len() as u64);
                        if self.read > self.limit {
                            return Poll::Ready(Err(RequestBodyError::TooLarge));
                        }
                        // The stream may have ended by itself; then there is no window to fill.
                        let _ = self.stream.flow_control().release_capacity(data.len());
                        return Poll::Ready(Ok(Some(Frame::data(data))));
                    }
                    Some(Err(error)) => return Poll::Ready(Err(cause(&error))),
                    None => self.state = State::Trailers,
                },
                State::Trailers => {
                    let trailers = ready!(self.stream.poll_trailers(cx)).map_err(|error| cause(&error))?;
                    self.state = State::Ended;
                    if let Some(mut trailers) = trailers {
                        if !are_valid_values(&trailers) {
                            return Poll::Ready(Err(RequestBodyError::Malformed));
                        }
                        strip_trailers(&mut trailers);
                        return Poll::Ready(Ok(Some(Frame::trailers(trailers))));
                    }
                }
                State::Ended => return Poll::Ready(Ok(None)),
                State::Failed(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

/// `h2` itself resets a stream whose content does not fit its `content-length` or that breaks the protocol.
fn cause(error: &h2::Error) -> RequestBodyError {
    if error.is_library() { RequestBodyError::Malformed } else { RequestBodyError::Gone }
}
