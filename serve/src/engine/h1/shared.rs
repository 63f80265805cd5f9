//! What the body of a request and its interim answers share with the connection. Both may be polled from anywhere,
//! another task included, and outlive their request; the connection alone reads and writes.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;

use crate::RequestBodyError;

/// Reads a request's body.
#[derive(Debug)]
pub struct BodyReader {
    shared: Arc<Shared>,
    /// The number of the request; when the connection is at another one, this body is over.
    request: u64,
    /// Has given its end or an error.
    ended: bool,
}

/// Queues interim answers.
#[derive(Clone, Debug)]
pub struct InformationalSender {
    shared: Arc<Shared>,
    request: u64,
}

/// One per connection, for the request it is at.
#[derive(Debug, Default)]
pub(super) struct Shared(Mutex<State>);

/// What the connection has to do for those who share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Demand {
    /// Read the body.
    pub(super) body: bool,
    /// Write interim answers.
    pub(super) interim: bool,
}

#[derive(Debug, Default)]
struct State {
    connection: Option<Waker>,
    /// No request up to this one sends interim answers any more.
    interim_closed: u64,
    interim: Vec<(StatusCode, HeaderMap)>,
    /// The request that `body` belongs to, 0 for none.
    request: u64,
    body: Body,
}

#[derive(Debug, Default)]
struct Body {
    limit: u64,
    /// Bytes given.
    given: u64,
    /// Bytes that the connection has not yet decoded, where that is known.
    remaining: Option<u64>,
    /// Decoded and not yet given.
    ready: Option<Result<Frame<Bytes>, RequestBodyError>>,
    /// Nothing comes behind `ready`.
    ended: bool,
    /// The reader waits for more.
    wanted: bool,
    reader: Option<Waker>,
    /// The reader was dropped.
    abandoned: bool,
    /// What the reader was given instead of an end.
    error: Option<RequestBodyError>,
}

impl Shared {
    /// The sender of a request's interim answers. Requests have numbers that grow: what belongs to an earlier request
    /// than the last one whose interim answers were [closed](Self::close_interim) is over.
    pub(super) fn sender(self: &Arc<Self>, request: u64) -> InformationalSender {
        InformationalSender { shared: self.clone(), request }
    }

    /// The body of a request, `remaining` bytes long where that was announced. [Ended](Self::end) with its request.
    pub(super) fn body(self: &Arc<Self>, request: u64, remaining: Option<u64>, limit: u64) -> BodyReader {
        let mut state = self.0.lock();
        state.request = request;
        state.body = Body { limit, remaining, ..Body::default() };
        BodyReader { shared: self.clone(), request, ended: false }
    }

    /// Ends the body: one that is still held elsewhere fails.
    pub(super) fn end(&self) {
        let mut state = self.0.lock();
        state.request = 0;
        let reader = std::mem::take(&mut state.body).reader;
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// What there is to do; `waker` is called when there is more.
    pub(super) fn demand(&self, waker: &Waker) -> Demand {
        let mut state = self.0.lock();
        if state.connection.as_ref().is_none_or(|known| !known.will_wake(waker)) {
            state.connection = Some(waker.clone());
        }
        Demand { body: state.body.wanted, interim: !state.interim.is_empty() }
    }

    /// The interim answers that wait.
    pub(super) fn take_interim(&self) -> Vec<(StatusCode, HeaderMap)> {
        std::mem::take(&mut self.0.lock().interim)
    }

    /// As [`Shared::take_interim`]; no more are taken from this request and those before.
    pub(super) fn close_interim(&self, request: u64) -> Vec<(StatusCode, HeaderMap)> {
        let mut state = self.0.lock();
        state.interim_closed = request;
        std::mem::take(&mut state.interim)
    }

    /// Gives the reader what it waits for: `None` is the end. `ended` says that nothing comes behind it.
    pub(super) fn deliver(
        &self,
        piece: Option<Result<Frame<Bytes>, RequestBodyError>>,
        ended: bool,
        remaining: Option<u64>,
    ) {
        let mut state = self.0.lock();
        let body = &mut state.body;
        body.wanted = false;
        body.ended |= ended || piece.is_none();
        body.ready = piece;
        body.remaining = remaining;
        let reader = body.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Whether nobody will read the rest of the body.
    pub(super) fn is_abandoned(&self) -> bool {
        self.0.lock().body.abandoned
    }

    /// What the body's reader was given instead of an end.
    pub(super) fn body_error(&self) -> Option<RequestBodyError> {
        self.0.lock().body.error
    }
}

impl BodyReader {
    /// Replaces the limit in bytes where one is given; what it is now.
    pub(crate) fn limit(&mut self, bytes: Option<u64>) -> u64 {
        let mut state = self.shared.0.lock();
        if state.request != self.request {
            return u64::MAX;
        }
        if let Some(bytes) = bytes {
            state.body.limit = bytes;
        }
        state.body.limit
    }

    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let mut state = self.shared.0.lock();
        if state.request != self.request {
            self.ended = true;
            return Poll::Ready(Some(Err(RequestBodyError::Gone)));
        }
        let connection = state.connection.clone();
        let body = &mut state.body;
        let announced = body.remaining.unwrap_or(0).saturating_add(body.given);
        let piece = match body.ready.take() {
            _ if announced > body.limit => Err(RequestBodyError::TooLarge),
            Some(Ok(frame)) => {
                body.given += frame.data_ref().map_or(0, Bytes::len) as u64;
                if body.given > body.limit { Err(RequestBodyError::TooLarge) } else { Ok(frame) }
            }
            Some(Err(error)) => Err(error),
            None if body.ended => {
                self.ended = true;
                return Poll::Ready(None);
            }
            None => {
                body.wanted = true;
                if body.reader.as_ref().is_none_or(|known| !known.will_wake(cx.waker())) {
                    body.reader = Some(cx.waker().clone());
                }
                drop(state);
                // Polled from the connection's own task, the connection looks here itself when the poll is over.
                if let Some(connection) = connection.filter(|known| !known.will_wake(cx.waker())) {
                    connection.wake();
                }
                return Poll::Pending;
            }
        };
        if let Err(error) = piece {
            body.error = Some(error);
            body.abandoned = true;
            self.ended = true;
        }
        Poll::Ready(Some(piece))
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        if self.ended {
            return true;
        }
        let state = self.shared.0.lock();
        state.request == self.request && state.body.ended && state.body.ready.is_none()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        let state = self.shared.0.lock();
        if self.ended || state.request != self.request {
            return SizeHint::default();
        }
        let ready = match &state.body.ready {
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len) as u64,
            _ => 0,
        };
        match state.body.remaining {
            Some(remaining) => SizeHint::with_exact(remaining + ready),
            None => SizeHint::default(),
        }
    }
}

impl Drop for BodyReader {
    fn drop(&mut self) {
        let mut state = self.shared.0.lock();
        if state.request == self.request {
            let body = &mut state.body;
            body.abandoned = true;
            body.wanted = false;
            body.ready = None;
            body.reader = None;
        }
    }
}

impl InformationalSender {
    /// Makes it that of a later request of the connection that `shared` is of; `false` where it is another's.
    pub(super) fn renew(&mut self, shared: &Arc<Shared>, request: u64) -> bool {
        self.request = request;
        Arc::ptr_eq(&self.shared, shared)
    }

    /// See [`crate::exchange::Informational::send`].
    pub fn send(&self, status: StatusCode, headers: HeaderMap) {
        let mut state = self.shared.0.lock();
        let valid = status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS;
        if !valid || self.request <= state.interim_closed || state.interim.len() == MAX_INTERIM {
            return;
        }
        state.interim.push((status, headers));
        let connection = state.connection.clone();
        drop(state);
        if let Some(connection) = connection {
            connection.wake();
        }
    }
}

/// Interim answers that may wait to be written; an upstream server decides how many it sends.
const MAX_INTERIM: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(reader: &mut BodyReader) -> Poll<Option<Result<Bytes, RequestBodyError>>> {
        let poll = reader.poll_frame(&mut Context::from_waker(Waker::noop()));
        poll.map_ok(|frame| frame.into_data().expect("data"))
    }

    #[test]
    fn a_body_ends_with_its_request() {
        let shared = Arc::<Shared>::default();
        let mut reader = shared.body(1, Some(5), 10);
        assert_eq!(reader.size_hint().exact(), Some(5));
        assert!(poll(&mut reader).is_pending());
        shared.end();
        assert_eq!(poll(&mut reader), Poll::Ready(Some(Err(RequestBodyError::Gone))));
        assert_eq!(poll(&mut reader), Poll::Ready(None));
        let second = shared.body(2, None, 10);
        drop(reader);
        assert!(!shared.is_abandoned(), "the first reader has no part in the second request");
        drop(second);
        assert!(shared.is_abandoned());
    }

    #[test]
    fn a_body_is_asked_for_only_when_it_is_polled_and_given_once() {
        let shared = Arc::<Shared>::default();
        let mut reader = shared.body(1, Some(3), 10);
        assert!(!shared.demand(Waker::noop()).body);
        assert!(poll(&mut reader).is_pending());
        assert!(shared.demand(Waker::noop()).body);
        shared.deliver(Some(Ok(Frame::data(Bytes::from_static(b"abc")))), true, Some(0));
        assert!(!shared.demand(Waker::noop()).body);
        assert_eq!((reader.size_hint().exact(), reader.is_end_stream()), (Some(3), false));
        assert_eq!(poll(&mut reader), Poll::Ready(Some(Ok(Bytes::from_static(b"abc")))));
        assert!(reader.is_end_stream());
        assert_eq!(poll(&mut reader), Poll::Ready(None));
    }

    #[test]
    fn interim_answers_are_bounded_and_only_for_a_request_that_has_no_final_one() {
        let shared = Arc::<Shared>::default();
        let first = shared.sender(1);
        for _ in 0..100 {
            first.send(StatusCode::EARLY_HINTS, HeaderMap::new());
        }
        first.send(StatusCode::OK, HeaderMap::new());
        first.send(StatusCode::SWITCHING_PROTOCOLS, HeaderMap::new());
        assert_eq!(shared.take_interim().len(), MAX_INTERIM);
        first.send(StatusCode::PROCESSING, HeaderMap::new());
        assert_eq!(shared.close_interim(1).len(), 1);
        first.send(StatusCode::PROCESSING, HeaderMap::new());
        assert!(shared.take_interim().is_empty());
        shared.sender(2).send(StatusCode::PROCESSING, HeaderMap::new());
        assert_eq!(shared.take_interim().len(), 1);
    }
}
