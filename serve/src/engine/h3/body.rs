//! The content of a request, as its DATA frames arrive.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::{Frame, SizeHint};
use playhouse_protocol::http3::{Code, Event, qpack};
use tokio::time::{Instant, Sleep};

use super::InformationalSender;
use super::head;
use super::reader::{ReadError, Reader};
use crate::RequestBodyError;
use crate::engine::h2::head::{are_valid_values, strip_trailers};

/// Reads a request's body. What was taken is given back to the stream's window, so that the client sends as fast as the
/// body is read.
#[derive(Debug)]
pub struct BodyReader {
    reader: Reader,
    /// As announced.
    length: Option<u64>,
    read: u64,
    limit: u64,
    sections: qpack::Limits,
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
    /// The trailers have come.
    Trailers,
    Ended,
    Failed(RequestBodyError),
}

impl BodyReader {
    pub(super) fn new(
        reader: Reader,
        length: Option<u64>,
        limit: u64,
        sections: qpack::Limits,
        timeout: Duration,
        expectation: Option<InformationalSender>,
    ) -> Self {
        BodyReader {
            reader,
            length,
            read: 0,
            limit,
            sections,
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
            State::Data => self.reader.is_at_end() && self.is_whole(),
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

    fn is_whole(&self) -> bool {
        self.length.is_none_or(|length| length == self.read)
    }

    fn poll_progress(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Frame<Bytes>>, RequestBodyError>> {
        match self.state {
            State::Data | State::Trailers => {}
            State::Ended => return Poll::Ready(Ok(None)),
            State::Failed(error) => return Poll::Ready(Err(error)),
        }
        let event = ready!(self.reader.poll_event(cx)).map_err(|error| match error {
            ReadError::Gone => RequestBodyError::Gone,
            ReadError::TooLarge => RequestBodyError::TooLarge,
            ReadError::Broken | ReadError::Incomplete => RequestBodyError::Malformed,
        });
        Poll::Ready(match event {
            Ok(Some(Event::Data(data))) => {
                self.read = self.read.saturating_add(data.len() as u64);
                if self.length.is_some_and(|length| self.read > length) {
                    Err(self.malformed())
                } else if self.read > self.limit {
                    Err(RequestBodyError::TooLarge)
                } else {
                    Ok(Some(Frame::data(data)))
                }
            }
            Ok(Some(Event::Headers(section))) if self.is_whole() => {
                self.state = State::Trailers;
                self.trailers(section).map(|trailers| Some(Frame::trailers(trailers)))
            }
            Ok(Some(Event::Headers(_))) => Err(self.malformed()),
            Ok(None) if self.is_whole() => {
                self.state = State::Ended;
                Ok(None)
            }
            Ok(None) => Err(self.malformed()),
            Err(error) => Err(error),
        })
    }

    fn trailers(&mut self, section: Bytes) -> Result<HeaderMap, RequestBodyError> {
        let fields = qpack::decode(section, self.sections).map_err(|error| match error {
            qpack::DecodeError::Broken => {
                self.reader.broken_section();
                RequestBodyError::Malformed
            }
            qpack::DecodeError::TooLarge => RequestBodyError::TooLarge,
        })?;
        let mut trailers = match head::trailers(fields) {
            Some(trailers) if are_valid_values(&trailers) => trailers,
            _ => return Err(self.malformed()),
        };
        strip_trailers(&mut trailers);
        Ok(trailers)
    }

    /// RFC 9114 §4.1.2
    fn malformed(&mut self) -> RequestBodyError {
        self.reader.stop_with(Code::MessageError);
        RequestBodyError::Malformed
    }
}
