//! The content of an answer, as DATA frames.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Body as _;
use playhouse_protocol::http3::Code;

use super::in_flight::InFlight;
use super::sender::Sender;
use crate::engine::h2::head::strip_trailers;
use crate::engine::panic_message;
use crate::{Application, Body, BodyError, Outcome, RequestBodyError};

/// Sends the content of an answer under the client's flow control.
pub(super) struct Content<'a, A: Application> {
    pub(super) flight: &'a mut InFlight<A>,
    pub(super) sender: &'a mut Sender,
    /// How long the content must become.
    pub(super) length: Option<u64>,
}

/// What a body gave.
enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
    End,
}

impl<A: Application> Content<'_, A> {
    /// Sends all of it, and ends the stream.
    pub(super) async fn send(mut self, mut body: Body) -> Result<(), Outcome> {
        loop {
            let mut first = true;
            let piece = poll_fn(|cx| match self.poll_piece(&mut body, cx) {
                // The head does not wait for content.
                Poll::Pending if std::mem::take(&mut first) && self.sender.has_pending() => {
                    Poll::Ready(Ok(None))
                }
                piece => piece.map(|piece| piece.map(Some)),
            })
            .await;
            let piece = match piece {
                Ok(Some(piece)) => piece,
                Ok(None) => {
                    self.sender.flush().await?;
                    continue;
                }
                Err(outcome) => return Err(self.cut(outcome)),
            };
            match piece {
                Piece::Data(data) if data.is_empty() => {}
                Piece::Data(data) => {
                    let length = data.len() as u64;
                    self.check_length(length, false)?;
                    self.sender.data(data).await?;
                    self.flight.bytes_sent += length;
                }
                Piece::Trailers(mut trailers) => {
                    self.check_length(0, true)?;
                    strip_trailers(&mut trailers);
                    self.sender.trailers(&trailers);
                    return self.sender.finish().await;
                }
                Piece::End => {
                    self.check_length(0, true)?;
                    return self.sender.finish().await;
                }
            }
        }
    }

    /// A panic or an error of the body is an outcome; so is a client that goes while we wait for the body.
    fn poll_piece(&mut self, body: &mut Body, cx: &mut Context<'_>) -> Poll<Result<Piece, Outcome>> {
        let polled = std::panic::catch_unwind(AssertUnwindSafe(|| {
            // The end may be known with the last piece, and then it goes with it.
            if body.is_end_stream() { Poll::Ready(None) } else { Pin::new(&mut *body).poll_frame(cx) }
        }));
        let frame = match polled {
            Ok(frame) => frame,
            Err(panic) => {
                let shared = &self.flight.shared;
                shared.application.panicked(&shared.info, panic_message(&*panic));
                return Poll::Ready(Err(Outcome::Killed));
            }
        };
        match frame {
            Poll::Ready(Some(Ok(frame))) => Poll::Ready(Ok(match frame.into_data() {
                Ok(data) => Piece::Data(data),
                Err(frame) => frame.into_trailers().map_or(Piece::End, Piece::Trailers),
            })),
            Poll::Ready(Some(Err(error))) => {
                tracing::debug!(%error, "the content of an answer has failed");
                Poll::Ready(Err(outcome_of(&error)))
            }
            Poll::Ready(None) => Poll::Ready(Ok(Piece::End)),
            Poll::Pending => self.sender.poll_stopped(cx).map(|_| Err(Outcome::ClientGone)),
        }
    }

    /// A body that becomes longer or shorter than its head says is cut by a reset, never ended as if it were whole.
    fn check_length(&mut self, more: u64, last: bool) -> Result<(), Outcome> {
        let Some(length) = self.length else { return Ok(()) };
        let sent = self.flight.bytes_sent.saturating_add(more);
        if sent > length || (last && sent < length) {
            tracing::error!(length, sent, "the content of an answer is not as long as its Content-Length");
            return Err(self.cut(Outcome::Killed));
        }
        Ok(())
    }

    fn cut(&mut self, outcome: Outcome) -> Outcome {
        self.sender.reset(Code::InternalError);
        outcome
    }
}

fn outcome_of(error: &BodyError) -> Outcome {
    match error {
        BodyError::Upstream(_) => Outcome::UpstreamFailed,
        BodyError::File(_) | BodyError::Handler(_) => Outcome::Killed,
        BodyError::Request(RequestBodyError::Gone) => Outcome::ClientGone,
        BodyError::Request(_) => Outcome::Rejected,
    }
}
