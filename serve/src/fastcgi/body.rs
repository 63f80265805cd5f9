//! The content of an answer, as the script writes it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::Instant;

use super::wire::{Cut, Wire};
use crate::BodyError;
use crate::metrics::Failure;

/// The content of an answer, read from the server as it is polled, and never otherwise. What is left of the request's
/// content is sent meanwhile. At a clean end the connection goes back to its pool, if that keeps any; dropped before, it is
/// closed, so that the script learns that nobody listens.
pub(super) struct FastCgiBody {
    /// Read already.
    pub(super) ready: Option<Bytes>,
    /// Bytes that the script still owes, where it has said how many there are; those of `ready` not among them.
    pub(super) owed: Option<u64>,
    /// `None` once the answer has ended, well or not.
    pub(super) wire: Option<Wire>,
}

impl FastCgiBody {
    /// The next of the output. What is beyond the announced length is left out: the client would take it for the beginning
    /// of another answer.
    pub(super) fn count(owed: &mut Option<u64>, mut output: Bytes) -> Bytes {
        if let Some(owed) = owed {
            output.truncate(usize::try_from(*owed).unwrap_or(usize::MAX));
            *owed -= output.len() as u64;
        }
        output
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        loop {
            if let Some(data) = self.ready.take() {
                self.end_if_ended();
                return Poll::Ready(Some(Ok(data)));
            }
            let Some(wire) = &mut self.wire else { return Poll::Ready(None) };
            if let Err(error) = wire.poll_send(cx) {
                self.wire = None;
                return Poll::Ready(Some(Err(error.into())));
            }
            let output = match wire.poll_output(cx) {
                Poll::Ready(output) => output,
                Poll::Pending => {
                    wire.waiting.get_or_insert_with(Instant::now);
                    let Some(deadline) = wire.deadline(None) else { return Poll::Pending };
                    ready!(wire.connection.timer.poll(deadline, cx));
                    Err(Cut {
                        failure: Failure::BodyTimeout,
                        cause: "stalled within its answer".to_owned(),
                        refused: false,
                    })
                }
            };
            match output {
                Ok(Some(output)) => {
                    let output = Self::count(&mut self.owed, output);
                    self.ready = Some(output).filter(|output| !output.is_empty());
                }
                Ok(None) if self.owed.is_none_or(|owed| owed == 0) => self.end(),
                Ok(None) => return self.fail(Cut::closed("the content is shorter than its Content-Length")),
                Err(cut) => return self.fail(cut),
            }
        }
    }

    /// Who knows the length does not ask again behind the last byte; the end has mostly come with it.
    fn end_if_ended(&mut self) {
        if self.owed == Some(0)
            && let Some(wire) = &mut self.wire
            && matches!(wire.output_at_hand(), Ok(Some(None)))
        {
            self.end();
        }
    }

    fn end(&mut self) {
        if let Some(wire) = self.wire.take() {
            wire.end();
        }
    }

    fn fail(&mut self, cut: Cut) -> Poll<Option<Result<Bytes, BodyError>>> {
        if let Some(wire) = self.wire.take() {
            let failure = if cut.failure == Failure::BodyTimeout { cut.failure } else { Failure::Body };
            wire.failed(failure);
        }
        Poll::Ready(Some(Err(BodyError::Upstream(cut.cause))))
    }
}

impl http_body::Body for FastCgiBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.get_mut().poll(cx).map(|data| data.map(|data| data.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.wire.is_none() && self.ready.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let ready = self.ready.as_ref().map_or(0, Bytes::len) as u64;
        match self.owed {
            Some(owed) => SizeHint::with_exact(ready + owed),
            None if self.wire.is_none() => SizeHint::with_exact(ready),
            None => SizeHint::new(),
        }
    }
}
