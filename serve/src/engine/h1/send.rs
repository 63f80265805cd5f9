//! Sending an answer: its head, and its content as it comes.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::{Body as _, Frame, SizeHint};
use playhouse_protocol::http1::encode;
use tokio::io::{AsyncRead, AsyncWrite};

use super::answer::{self, Asked, Framing};
use super::connection::Connection;
use super::exchange::Running;
use super::input::{Gone, Inbound};
use crate::engine::drain::Drain;
use crate::{Application, Body, BodyError, CachedAnswer, Outcome, RequestBodyError};

/// Why an answer is not complete.
#[derive(Debug)]
pub(super) enum Fault {
    /// The client has.
    Gone,
    /// The body has failed.
    Body(BodyError),
    /// The handler or the body has panicked, with this message.
    Panic(String),
    /// The body is longer or shorter than was announced.
    Length,
}

/// How far a body has come.
struct Answer {
    framing: Framing,
    /// All content, and what ends it, was put into the output.
    complete: bool,
}

/// How large a body is, and its first piece; `None` is its end.
type Beginning = (SizeHint, Poll<Option<Frame<Bytes>>>);

impl<IO: AsyncRead + AsyncWrite + Unpin + Send, A: Application> Connection<'_, IO, A> {
    /// Sends the answer. Whether the connection goes on.
    pub(super) async fn send(
        &mut self,
        drain: &mut Drain<impl Future<Output = ()> + Unpin>,
        asked: &Asked,
        running: &mut Running<'_, A>,
        inbound: &mut Inbound,
        response: &mut Response<Body>,
        mut keep: bool,
    ) -> Result<bool, Fault> {
        let mut substituted = None;
        loop {
            let mut cached = None;
            let has_content = asked.has_content(response.status());
            let body = response.body_mut();
            let begun = if has_content {
                poll_fn(|cx| Poll::Ready(first_frame(cx, body, &mut cached))).await
            } else {
                let size = guarded(|| body.size_hint()).unwrap_or_default();
                *body = Body::Empty;
                Ok((size, Poll::Ready(None)))
            };
            let (size, first) = match begun {
                Ok(begun) => begun,
                Err(fault) => {
                    let (status, outcome) = self.report(fault);
                    substituted = Some(outcome);
                    keep = false;
                    *response = answer::bare(status);
                    continue;
                }
            };
            if let Some(shared) = &self.shared {
                let abandoned = !inbound.complete && shared.is_abandoned();
                let waiting = shared.close_interim(self.request);
                let wanted = inbound.expects_continue
                    && first.is_pending()
                    && poll_fn(|cx| Poll::Ready(shared.demand(cx.waker()))).await.body;
                self.put_interim(waiting, inbound);
                if wanted {
                    self.put_continue(inbound);
                }
                keep &= !abandoned || !inbound.is_beyond_discard();
            }
            let framing = asked.framing(response, &size);
            let ends = answer::asks_to_close(response.headers())
                || framing == Framing::UntilClose
                || inbound.broken
                || inbound.expects_continue
                || (self.eof && self.input.is_empty());
            keep = keep && !ends && !poll_fn(|cx| Poll::Ready(drain.poll(cx).is_some())).await;
            running.status = Some(response.status());
            let mark = self.output.mark();
            let lines = cached.as_deref().map_or(&[][..], CachedAnswer::lines);
            answer::head(self.output.buf(), asked, response, lines, &size, framing, keep);
            let mut answer = Answer { framing, complete: framing == Framing::None };
            let body = response.body_mut();
            if let Some(cached) = &cached {
                self.put_content(&mut answer, body, cached.content(), &mut running.bytes)?;
            } else if let Poll::Ready(frame) = first {
                self.put(&mut answer, body, frame, &mut running.bytes)?;
            }
            match poll_fn(|cx| self.poll_answer(cx, &mut answer, body, &mut running.bytes, inbound)).await {
                Ok(()) => {
                    if let Some(outcome) = substituted {
                        running.exchange.record.outcome = Some(outcome);
                    }
                    return Ok(keep);
                }
                Err(Fault::Gone) => return Err(Fault::Gone),
                Err(fault) if substituted.is_none() && self.output.roll_back(mark) => {
                    let (status, outcome) = self.report(fault);
                    substituted = Some(outcome);
                    running.bytes = 0;
                    keep = false;
                    *response = answer::bare(status);
                }
                Err(fault) => return Err(fault),
            }
        }
    }

    fn poll_answer(
        &mut self,
        cx: &mut Context<'_>,
        answer: &mut Answer,
        body: &mut Body,
        bytes: &mut u64,
        inbound: &mut Inbound,
    ) -> Poll<Result<(), Fault>> {
        loop {
            while !answer.complete && self.output.has_room() {
                match guarded(|| Pin::new(&mut *body).poll_frame(cx)) {
                    Ok(Poll::Pending) => break,
                    Ok(Poll::Ready(frame)) => {
                        let frame = frame.transpose().map_err(Fault::Body)?;
                        self.put(answer, body, frame, bytes)?;
                    }
                    Err(fault) => return Poll::Ready(Err(fault)),
                }
            }
            let full = !answer.complete && !self.output.has_room();
            match self.poll_flush(cx) {
                Poll::Ready(Ok(())) if answer.complete => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) if full => continue,
                Poll::Ready(Ok(())) | Poll::Pending => {}
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Fault::Gone)),
            }
            match self.poll_request(cx, inbound, false) {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(Gone) => return Poll::Ready(Err(Fault::Gone)),
            }
        }
    }

    /// Puts a frame of content into the output; `None` is the end.
    fn put(
        &mut self,
        answer: &mut Answer,
        body: &Body,
        frame: Option<Frame<Bytes>>,
        bytes: &mut u64,
    ) -> Result<(), Fault> {
        let Some(frame) = frame else {
            match answer.framing {
                Framing::Length(left) if left > 0 => return Err(Fault::Length),
                Framing::Chunked if !answer.complete => {
                    self.output.buf().extend_from_slice(encode::LAST_CHUNK)
                }
                _ => {}
            }
            answer.complete = true;
            return Ok(());
        };
        match frame.into_data() {
            Ok(data) => self.put_content(answer, body, &data, bytes),
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers()
                    && answer.framing == Framing::Chunked
                {
                    encode::last_chunk(self.output.buf(), &trailers);
                    answer.complete = true;
                }
                Ok(())
            }
        }
    }

    /// Puts a piece of content into the output, framed. `body` is what may come behind it.
    fn put_content(
        &mut self,
        answer: &mut Answer,
        body: &Body,
        data: &Bytes,
        bytes: &mut u64,
    ) -> Result<(), Fault> {
        if data.is_empty() || answer.complete {
            return if data.is_empty() { Ok(()) } else { Err(Fault::Length) };
        }
        let size = data.len() as u64;
        match &mut answer.framing {
            Framing::Length(left) => {
                // What is too long is cut before its last piece: sent to its announced length, it would look whole.
                *left = left.checked_sub(size).ok_or(Fault::Length)?;
                answer.complete = *left == 0 && guarded(|| body.is_end_stream())?;
                self.output.put(data, b"");
            }
            Framing::Chunked => {
                encode::chunk_head(self.output.buf(), data.len());
                self.output.put(data, encode::CHUNK_END);
            }
            Framing::UntilClose | Framing::None => self.output.put(data, b""),
        }
        *bytes += size;
        Ok(())
    }

    /// What to answer in place of what has failed, and how the request is entered.
    pub(super) fn report(&self, fault: Fault) -> (StatusCode, Outcome) {
        match fault {
            Fault::Gone => (StatusCode::BAD_REQUEST, Outcome::ClientGone),
            Fault::Body(BodyError::Upstream(_)) => (StatusCode::BAD_GATEWAY, Outcome::UpstreamFailed),
            Fault::Body(BodyError::Request(error)) => (
                error.status(),
                if error == RequestBodyError::Gone { Outcome::ClientGone } else { Outcome::Rejected },
            ),
            Fault::Body(error @ (BodyError::File(_) | BodyError::Handler(_))) => {
                tracing::warn!(%error, "an answer was cut");
                (StatusCode::INTERNAL_SERVER_ERROR, Outcome::Killed)
            }
            Fault::Length => {
                tracing::error!("an answer was cut: its content is not as long as was announced");
                (StatusCode::INTERNAL_SERVER_ERROR, Outcome::Killed)
            }
            Fault::Panic(message) => {
                self.app.panicked(&self.info, &message);
                (StatusCode::INTERNAL_SERVER_ERROR, Outcome::Killed)
            }
        }
    }
}

/// How a body begins. That is asked for before the head is written: so both are one write, and a
/// body that fails at once is an answer of its own rather than a broken one. A `cached` answer is taken as a whole.
fn first_frame(
    cx: &mut Context<'_>,
    body: &mut Body,
    cached: &mut Option<Arc<CachedAnswer>>,
) -> Result<Beginning, Fault> {
    match std::mem::take(body) {
        Body::Empty => Ok((SizeHint::with_exact(0), Poll::Ready(None))),
        Body::Bytes(bytes) => {
            Ok((SizeHint::with_exact(bytes.len() as u64), Poll::Ready(Some(Frame::data(bytes)))))
        }
        Body::Cached(answer) => {
            let size = answer.content().len() as u64;
            *cached = Some(answer);
            Ok((SizeHint::with_exact(size), Poll::Ready(None)))
        }
        stream => {
            *body = stream;
            guarded(|| first_of_stream(cx, body))?
        }
    }
}

fn first_of_stream(cx: &mut Context<'_>, body: &mut Body) -> Result<Beginning, Fault> {
    let before = body.size_hint();
    let frame = match Pin::new(&mut *body).poll_frame(cx) {
        Poll::Pending => Poll::Pending,
        Poll::Ready(frame) => Poll::Ready(frame.transpose().map_err(Fault::Body)?),
    };
    let size = match &frame {
        _ if before.exact().is_some() => before,
        Poll::Pending => before,
        Poll::Ready(None) => SizeHint::with_exact(0),
        Poll::Ready(Some(frame)) if body.is_end_stream() && frame.is_data() => {
            SizeHint::with_exact(frame.data_ref().map_or(0, Bytes::len) as u64)
        }
        Poll::Ready(Some(_)) => before,
    };
    Ok((size, frame))
}

/// Runs what is not ours; a panic in it is an error.
fn guarded<T>(run: impl FnOnce() -> T) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| Fault::Panic(message(panic)))
}

pub(super) fn message(panic: Box<dyn std::any::Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(panic) => {
            panic.downcast::<&str>().map_or_else(|_| "no message".into(), |message| (*message).into())
        }
    }
}
