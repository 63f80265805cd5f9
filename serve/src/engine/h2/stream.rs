//! One stream: a request, its handling, and its answer.

use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::FutureExt;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONTENT_LENGTH, EXPECT};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Body as _;
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};

use super::body::BodyReader;
use super::head::{self, Prepared};
use super::in_flight::{InFlight, Shared};
use super::tunnel;
use crate::engine::panic_message;
use crate::exchange::{Informational, Record};
use crate::tunnel::ExtendedConnect;
use crate::{Application, Body, BodyError, CachedAnswer, Exchange, Outcome, RequestBody, RequestBodyError};

/// Sends interim answers on a stream until its final answer begins.
#[derive(Clone, Debug)]
pub struct InformationalSender(Arc<Mutex<Responder>>);

#[derive(Debug)]
struct Responder {
    /// `None` once the final answer has begun.
    respond: Option<SendResponse<Bytes>>,
    interim: u32,
}

impl InformationalSender {
    fn new(respond: SendResponse<Bytes>) -> Self {
        InformationalSender(Arc::new(Mutex::new(Responder { respond: Some(respond), interim: 0 })))
    }

    /// See [`Informational::send`].
    pub fn send(&self, status: StatusCode, mut headers: HeaderMap) {
        if !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS {
            return;
        }
        let responder = &mut *self.0.lock();
        if responder.interim == INTERIM_ANSWERS {
            return;
        }
        responder.interim += 1;
        if let Some(respond) = &mut responder.respond {
            head::strip(&mut headers);
            let mut response = Response::new(());
            *response.status_mut() = status;
            *response.headers_mut() = headers;
            // Fails only where the stream has ended, which whoever handles the request learns otherwise.
            let _ = respond.send_informational(response);
        }
    }

    /// Ready when the client has reset the stream or the connection has ended.
    fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.0.lock().respond {
            Some(respond) => respond.poll_reset(cx).map(|_| ()),
            None => Poll::Pending,
        }
    }

    pub(super) fn take(&self) -> Option<SendResponse<Bytes>> {
        self.0.lock().respond.take()
    }
}

/// They are queued without back-pressure, so that their number needs a bound.
const INTERIM_ANSWERS: u32 = 32;

/// Enters a request in the ledger, and gives the future that answers it; `None` where it is refused at once.
pub(super) fn open<A: Application>(
    shared: &Arc<Shared<A>>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> Option<impl Future<Output = InFlight<A>> + use<A>> {
    let started = Instant::now();
    let ticket = shared.application.ledger().accept();
    if let Some(status) = head::refusal(&request, shared.limits.header_count) {
        let mut response = Response::new(Body::Empty);
        *response.status_mut() = status;
        let prepared = head::prepare(response, request.method());
        let sent = respond.send_response(prepared.head, true).is_ok();
        ticket.end(Outcome::Rejected);
        shared.application.refused(&shared.info, sent.then_some(status));
        return None;
    }
    let sender = InformationalSender::new(respond);
    let websocket = head::is_websocket(&request);
    let (mut parts, stream) = request.into_parts();
    let mut connect = None;
    let body = if websocket {
        // The GET that it would be over HTTP/1.1; what comes behind it is no content.
        parts.method = Method::GET;
        parts.extensions.remove::<h2::ext::Protocol>();
        parts.extensions.insert(ExtendedConnect);
        connect = Some(stream);
        RequestBody::Empty
    } else if stream.is_end_stream() {
        RequestBody::Empty
    } else {
        let length = parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let expects = parts
            .headers
            .get(EXPECT)
            .is_some_and(|expect| expect.as_bytes().eq_ignore_ascii_case(b"100-continue"));
        RequestBody::H2(Box::new(BodyReader::new(
            stream,
            length,
            shared.limits.body_bytes,
            shared.timeouts.body,
            expects.then(|| sender.clone()),
        )))
    };
    let exchange = Exchange {
        request: Request::from_parts(parts, body),
        connection: shared.info.clone(),
        informational: Informational::H2(sender.clone()),
        record: Record::new(started),
    };
    Some(answer(InFlight::new(shared.clone(), exchange, ticket), sender, connect))
}

enum Handled {
    Response(Response<Body>),
    Panicked,
    ClientGone,
}

async fn answer<A: Application>(
    mut flight: InFlight<A>,
    sender: InformationalSender,
    mut connect: Option<RecvStream>,
) -> InFlight<A> {
    let has_content = !flight.exchange.request.body().is_end_stream()
        || connect.as_ref().is_some_and(|stream| !stream.is_end_stream());
    let handled = {
        let shared = flight.shared.clone();
        let exchange = &mut flight.exchange;
        let mut handling =
            pin!(AssertUnwindSafe(async { shared.application.handle(exchange).await }).catch_unwind());
        std::future::poll_fn(|cx| match handling.as_mut().poll(cx) {
            Poll::Ready(Ok(response)) => Poll::Ready(Handled::Response(response)),
            Poll::Ready(Err(panic)) => {
                shared.application.panicked(&shared.info, panic_message(&*panic));
                Poll::Ready(Handled::Panicked)
            }
            Poll::Pending => sender.poll_reset(cx).map(|()| Handled::ClientGone),
        })
        .await
    };
    let handled = match handled {
        Handled::Response(response) => match (response.into_parts(), connect.take()) {
            ((head, Body::Tunnel(tunnel)), Some(stream)) => {
                return Box::pin(tunnel::run(flight, &sender, stream, head, *tunnel)).await;
            }
            // A success would be taken for a tunnel.
            ((head, _), Some(_)) if head.status.is_success() => Handled::Response(unswitched()),
            ((head, body), _) => Handled::Response(Response::from_parts(head, body)),
        },
        handled => handled,
    };
    let (response, outcome) = match handled {
        Handled::Response(response) => {
            let outcome = flight.exchange.record.outcome.unwrap_or(Outcome::Answered);
            (response, outcome)
        }
        Handled::Panicked => {
            let mut response = Response::new(Body::Empty);
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            (response, Outcome::Killed)
        }
        Handled::ClientGone => {
            flight.ended(Outcome::ClientGone);
            return flight;
        }
    };
    match respond(&mut flight, &sender, response).await {
        Ok(stream) => {
            flight.sent(outcome);
            // Whoever has taken the body may have read it to its end, which does no harm here.
            let body = flight.exchange.request.body();
            let ended = matches!(body, RequestBody::H2(_)) && body.is_end_stream();
            flight.leftover = (has_content && !ended).then_some(stream);
        }
        Err(outcome) => flight.ended(outcome),
    }
    // What is left of the request's body is not wanted.
    *flight.exchange.request.body_mut() = RequestBody::Empty;
    flight
}

/// In place of an answer that would promise a tunnel.
pub(in crate::engine) fn unswitched() -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = StatusCode::NOT_IMPLEMENTED;
    response
}

/// Sends head and body.
async fn respond<A: Application>(
    flight: &mut InFlight<A>,
    sender: &InformationalSender,
    mut response: Response<Body>,
) -> Result<SendStream<Bytes>, Outcome> {
    CachedAnswer::spread(&mut response);
    let Some(mut respond) = sender.take() else { return Err(Outcome::ClientGone) };
    let Prepared { head, body, length } = head::prepare(response, flight.exchange.request.method());
    let status = head.status();
    let stream = respond.send_response(head, body.is_none()).map_err(|_| Outcome::ClientGone)?;
    flight.status = Some(status);
    match body {
        Some(body) => BodySender { flight, stream, length, stall: None }.send(body).await,
        None => Ok(stream),
    }
}

/// Sends a body under the stream's and the connection's flow control.
struct BodySender<'a, A: Application> {
    flight: &'a mut InFlight<A>,
    stream: SendStream<Bytes>,
    /// How long the body must become.
    length: Option<u64>,
    stall: Option<Pin<Box<Sleep>>>,
}

/// What a body gave.
enum Piece {
    Data { data: Bytes, last: bool },
    Trailers(HeaderMap),
    End,
}

impl<A: Application> BodySender<'_, A> {
    async fn send(mut self, body: Body) -> Result<SendStream<Bytes>, Outcome> {
        // What is in memory needs none of what follows.
        if let Body::Bytes(data) = body {
            self.data(data, true).await?;
            return Ok(self.stream);
        }
        let mut body = body;
        loop {
            let piece = std::future::poll_fn(|cx| self.poll_piece(&mut body, cx)).await;
            match piece {
                Ok(Piece::Data { data, last }) => {
                    self.data(data, last).await?;
                    if last {
                        return Ok(self.stream);
                    }
                }
                Ok(Piece::Trailers(mut trailers)) => {
                    self.check_length(0, true)?;
                    head::strip_trailers(&mut trailers);
                    self.stream.send_trailers(trailers).map_err(|_| Outcome::ClientGone)?;
                    return Ok(self.stream);
                }
                Ok(Piece::End) => {
                    self.data(Bytes::new(), true).await?;
                    return Ok(self.stream);
                }
                Err(outcome) => return Err(self.reset(outcome)),
            }
        }
    }

    /// A panic or an error of the body is an outcome; so is a client that goes while we wait for the body.
    fn poll_piece(&mut self, body: &mut Body, cx: &mut Context<'_>) -> Poll<Result<Piece, Outcome>> {
        let polled = std::panic::catch_unwind(AssertUnwindSafe(|| {
            let frame = Pin::new(&mut *body).poll_frame(cx);
            let last = frame.is_ready() && body.is_end_stream();
            (frame, last)
        }));
        let (frame, last) = match polled {
            Ok(polled) => polled,
            Err(panic) => {
                let shared = &self.flight.shared;
                shared.application.panicked(&shared.info, panic_message(&*panic));
                return Poll::Ready(Err(Outcome::Killed));
            }
        };
        match frame {
            Poll::Ready(Some(Ok(frame))) => Poll::Ready(Ok(match frame.into_data() {
                Ok(data) => Piece::Data { data, last },
                Err(frame) => frame.into_trailers().map_or(Piece::End, Piece::Trailers),
            })),
            Poll::Ready(Some(Err(error))) => {
                tracing::debug!(%error, "the content of an answer has failed");
                Poll::Ready(Err(outcome_of(&error)))
            }
            Poll::Ready(None) => Poll::Ready(Ok(Piece::End)),
            Poll::Pending => self.stream.poll_reset(cx).map(|_| Err(Outcome::ClientGone)),
        }
    }

    /// Sends data as the client's windows allow.
    async fn data(&mut self, mut data: Bytes, last: bool) -> Result<(), Outcome> {
        self.check_length(data.len() as u64, last)?;
        while !data.is_empty() {
            let capacity = self.capacity(data.len()).await?;
            let piece = data.split_to(capacity.min(data.len()));
            let length = piece.len() as u64;
            let end = last && data.is_empty();
            self.stream.send_data(piece, end).map_err(|_| Outcome::ClientGone)?;
            self.flight.bytes_sent += length;
            if end {
                return Ok(());
            }
        }
        if last {
            self.stream.send_data(Bytes::new(), true).map_err(|_| Outcome::ClientGone)?;
        }
        Ok(())
    }

    /// Waits until some of `wanted` may be sent. A client that opens no window within the write deadline is gone.
    async fn capacity(&mut self, wanted: usize) -> Result<usize, Outcome> {
        self.stream.reserve_capacity(wanted);
        let capacity = self.stream.capacity();
        if capacity > 0 {
            return Ok(capacity);
        }
        let deadline = Instant::now() + self.flight.shared.timeouts.write;
        let stall = match &mut self.stall {
            Some(stall) => {
                stall.as_mut().reset(deadline);
                stall
            }
            None => self.stall.insert(Box::pin(tokio::time::sleep_until(deadline))),
        };
        let stream = &mut self.stream;
        let granted = std::future::poll_fn(|cx| match stream.poll_capacity(cx) {
            Poll::Ready(Some(Ok(capacity))) => Poll::Ready(Ok(capacity)),
            Poll::Ready(_) => Poll::Ready(Err(None)),
            Poll::Pending => stall.as_mut().poll(cx).map(|()| Err(Some(Reason::CANCEL))),
        })
        .await;
        granted.map_err(|stalled| {
            if let Some(reason) = stalled {
                self.stream.send_reset(reason);
            }
            Outcome::ClientGone
        })
    }

    /// A body that becomes longer or shorter than its head says is cut by a reset, never ended as if it were whole.
    fn check_length(&mut self, more: u64, last: bool) -> Result<(), Outcome> {
        let Some(length) = self.length else { return Ok(()) };
        let sent = self.flight.bytes_sent.saturating_add(more);
        if sent > length || (last && sent < length) {
            tracing::error!(length, sent, "the content of an answer is not as long as its Content-Length");
            return Err(self.reset(Outcome::Killed));
        }
        Ok(())
    }

    fn reset(&mut self, outcome: Outcome) -> Outcome {
        self.stream.send_reset(Reason::INTERNAL_ERROR);
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
