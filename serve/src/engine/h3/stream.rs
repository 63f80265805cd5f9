//! One request stream: a request, its handling, and its answer.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::header::EXPECT;
use http::{Method, Request, Response, StatusCode};
use playhouse_protocol::http3::{Code, Event, qpack};
use quinn::{RecvStream, SendStream};
use tokio::time::{Instant, timeout, timeout_at};

use super::body::BodyReader;
use super::content::Content;
use super::early;
use super::in_flight::{Beginning, InFlight, Shared, section_size};
use super::interim::InformationalSender;
use super::reader::{Faults, ReadError, Reader};
use super::sender::{Sender, refuse};
use super::tunnel;
use crate::engine::h2::head::{Prepared, is_websocket, prepare, refusal};
use crate::engine::h2::unswitched;
use crate::engine::panic_message;
use crate::exchange::{Informational, Record};
use crate::tunnel::ExtendedConnect;
use crate::{Application, Body, CachedAnswer, Exchange, Outcome, RequestBody};

/// How a stream has ended, for who counts what a client costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// With an answer, or without one by no fault of the client.
    Answered,
    /// Cut, by the client or because of it.
    Cut,
}

/// Serves one request stream to its end.
pub(super) async fn serve<A: Application>(
    shared: Arc<Shared<A>>,
    send: SendStream,
    recv: RecvStream,
) -> Ending {
    let mut sender = Sender::new(send, shared.timeouts.write);
    let faults = Arc::new(Faults(shared.connection.clone()));
    let mut reader = Reader::new(recv, section_size(&shared.limits), faults);
    let opened = Instant::now();
    let deadline = opened + shared.timeouts.head;
    match timeout_at(deadline, poll_fn(|cx| reader.poll_begun(cx))).await {
        Ok(Ok(true)) => {}
        Ok(Ok(false)) => {
            sender.reset(Code::RequestIncomplete);
            return Ending::Cut;
        }
        Ok(Err(_)) | Err(_) => {
            // Nothing was read, and nothing done.
            reader.stop_with(Code::RequestRejected);
            sender.reset(Code::RequestRejected);
            return Ending::Cut;
        }
    }
    let beginning = Beginning::new(&shared);
    let started = Instant::now();
    let head = timeout_at(deadline, poll_fn(|cx| poll_head(&shared, &mut reader, cx))).await;
    let (request, ended) = match head {
        Ok(Ok(head)) => head,
        Ok(Err(Refusal::Status(status, method))) => {
            return reject(beginning, &mut sender, status, &method).await;
        }
        Err(_) => return reject(beginning, &mut sender, StatusCode::REQUEST_TIMEOUT, &Method::GET).await,
        Ok(Err(Refusal::Malformed(code))) => {
            reader.stop_with(code);
            sender.reset(code);
            beginning.refused(None);
            return Ending::Cut;
        }
        Ok(Err(Refusal::Broken)) => {
            beginning.refused(None);
            return Ending::Cut;
        }
        Ok(Err(Refusal::Gone)) => {
            sender.reset(Code::RequestCancelled);
            beginning.gone();
            return Ending::Cut;
        }
    };
    let mut request = request;
    let mut record = Record::new(started);
    if !shared.early.is_over() {
        if shared.early.admits(&request, ended) {
            early::mark(&mut request);
            record.early = true;
        } else if !early::ended(&shared.early, |cx| sender.poll_stopped(cx)).await {
            sender.reset(Code::RequestCancelled);
            beginning.gone();
            return Ending::Cut;
        }
    }
    let Some(ticket) = beginning.into_ticket() else { return Ending::Cut };
    let interim = InformationalSender::default();
    let mut connect = None;
    let body = if is_websocket(&request) {
        // The GET that it would be over HTTP/1.1; what comes behind it is no content.
        *request.method_mut() = Method::GET;
        request.extensions_mut().remove::<h2::ext::Protocol>();
        request.extensions_mut().insert(ExtendedConnect);
        connect = Some(reader);
        RequestBody::Empty
    } else if ended {
        RequestBody::Empty
    } else {
        RequestBody::H3(Box::new(body(&shared, &request, reader, &interim)))
    };
    let exchange = Exchange {
        request: request.map(|()| body),
        connection: shared.info.clone(),
        informational: Informational::H3(interim.clone()),
        record,
    };
    answer(InFlight::new(shared, exchange, ticket), sender, interim, connect).await
}

/// Why a request is not handled.
enum Refusal {
    /// It is answered with this, in the way that its method asks for.
    Status(StatusCode, Method),
    /// Its stream ends with this code (RFC 9114 §4.1.2).
    Malformed(Code),
    /// The connection has been closed because of it.
    Broken,
    /// The client has given it up.
    Gone,
}

/// The head, and whether it is all of the request.
fn poll_head<A: Application>(
    shared: &Shared<A>,
    reader: &mut Reader,
    cx: &mut Context<'_>,
) -> Poll<Result<(Request<()>, bool), Refusal>> {
    let Poll::Ready(event) = reader.poll_event(cx) else { return Poll::Pending };
    Poll::Ready(match event {
        Ok(Some(Event::Headers(section))) => head(shared, reader, section, cx),
        // Content does not come before a head: the decoder sees to it.
        Ok(Some(Event::Data(_)) | None) | Err(ReadError::Incomplete) => {
            Err(Refusal::Malformed(Code::RequestIncomplete))
        }
        Err(ReadError::Gone) => Err(Refusal::Gone),
        Err(ReadError::Broken) => Err(Refusal::Broken),
        Err(ReadError::TooLarge) => Err(too_large()),
    })
}

fn head<A: Application>(
    shared: &Shared<A>,
    reader: &mut Reader,
    section: Bytes,
    cx: &mut Context<'_>,
) -> Result<(Request<()>, bool), Refusal> {
    let fields = qpack::decode(section, shared.sections()).map_err(|error| match error {
        qpack::DecodeError::Broken => {
            reader.broken_section();
            Refusal::Broken
        }
        qpack::DecodeError::TooLarge => too_large(),
    })?;
    let request = super::head::request(fields).ok_or(Refusal::Malformed(Code::MessageError))?;
    if let Some(status) = refusal(&request, shared.limits.header_count) {
        return Err(Refusal::Status(status, request.method().clone()));
    }
    let ended = reader.poll_end(cx).map_err(|_| Refusal::Gone)?;
    if ended && super::head::content_length(request.headers()).is_some_and(|length| length > 0) {
        return Err(Refusal::Malformed(Code::MessageError));
    }
    Ok((request, ended))
}

fn too_large() -> Refusal {
    Refusal::Status(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, Method::GET)
}

fn body<A: Application>(
    shared: &Shared<A>,
    request: &Request<()>,
    reader: Reader,
    interim: &InformationalSender,
) -> BodyReader {
    let headers = request.headers();
    let expect = headers.get(EXPECT);
    let expects = expect.is_some_and(|expect| expect.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    BodyReader::new(
        reader,
        super::head::content_length(headers),
        shared.limits.body_bytes,
        shared.sections(),
        shared.timeouts.body,
        expects.then(|| interim.clone()),
    )
}

async fn reject<A: Application>(
    beginning: Beginning<A>,
    sender: &mut Sender,
    status: StatusCode,
    method: &Method,
) -> Ending {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = status;
    let sent = refuse(sender, &prepare(response, method).head).await;
    beginning.refused(sent.then_some(status));
    acknowledged(sender).await;
    Ending::Cut
}

enum Handled {
    Response(Response<Body>),
    Panicked,
    ClientGone,
    Interim(Bytes),
}

async fn answer<A: Application>(
    mut flight: InFlight<A>,
    mut sender: Sender,
    interim: InformationalSender,
    connect: Option<Reader>,
) -> Ending {
    let handled = match (handle(&mut flight, &mut sender, &interim).await, connect) {
        (Handled::Response(response), Some(reader)) => match response.into_parts() {
            (head, Body::Tunnel(tunnel)) => {
                return Box::pin(tunnel::run(flight, sender, &interim, reader, head, *tunnel)).await;
            }
            // A success would be taken for a tunnel.
            (head, _) if head.status.is_success() => Handled::Response(unswitched()),
            (head, body) => Handled::Response(Response::from_parts(head, body)),
        },
        (handled, _) => handled,
    };
    let (response, outcome) = match handled {
        Handled::Response(response) => {
            (response, flight.exchange.record.outcome.unwrap_or(Outcome::Answered))
        }
        Handled::Panicked => {
            let mut response = Response::new(Body::Empty);
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            (response, Outcome::Killed)
        }
        Handled::ClientGone | Handled::Interim(_) => {
            sender.reset(Code::RequestCancelled);
            flight.ended(Outcome::ClientGone);
            return Ending::Cut;
        }
    };
    if let Err(outcome) = respond(&mut flight, &mut sender, &interim, response).await {
        flight.ended(outcome);
        // What fails behind us is not the client's doing.
        let is_clients = matches!(outcome, Outcome::ClientGone | Outcome::Rejected);
        return if is_clients { Ending::Cut } else { Ending::Answered };
    }
    flight.sent(outcome);
    // What is left of the request's body is not wanted.
    *flight.exchange.request.body_mut() = RequestBody::Empty;
    settled(&mut flight, &mut sender).await
}

/// All of the answer is on its way: what becomes of it.
pub(super) async fn settled<A: Application>(flight: &mut InFlight<A>, sender: &mut Sender) -> Ending {
    match acknowledged(sender).await {
        Some(true) => {
            flight.arrived();
            Ending::Answered
        }
        Some(false) => {
            match flight.shared.connection.close_reason() {
                Some(error) => flight.shared.lost(&error),
                None => flight.ended(Outcome::ClientGone),
            }
            Ending::Cut
        }
        None => {
            sender.reset(Code::RequestCancelled);
            flight.ended(Outcome::ClientGone);
            Ending::Cut
        }
    }
}

/// Waits until the client has acknowledged all of the answer: whether it has; `None` where it takes too long.
async fn acknowledged(sender: &mut Sender) -> Option<bool> {
    timeout(ACKNOWLEDGED, poll_fn(|cx| sender.poll_stopped(cx))).await.ok()
}

/// For as much as is kept of an answer to get there at 16 KiB a second.
const ACKNOWLEDGED: Duration = Duration::from_secs(128);

/// Has the request handled, and sends interim answers meanwhile.
async fn handle<A: Application>(
    flight: &mut InFlight<A>,
    sender: &mut Sender,
    interim: &InformationalSender,
) -> Handled {
    let shared = flight.shared.clone();
    let exchange = &mut flight.exchange;
    let mut handling =
        pin!(AssertUnwindSafe(async { shared.application.handle(exchange).await }).catch_unwind());
    loop {
        let handled = poll_fn(|cx| match handling.as_mut().poll(cx) {
            Poll::Ready(Ok(response)) => Poll::Ready(Handled::Response(response)),
            Poll::Ready(Err(panic)) => {
                shared.application.panicked(&shared.info, panic_message(&*panic));
                Poll::Ready(Handled::Panicked)
            }
            Poll::Pending => match interim.poll_next(cx) {
                Poll::Ready(frames) => Poll::Ready(Handled::Interim(frames)),
                Poll::Pending => sender.poll_stopped(cx).map(|_| Handled::ClientGone),
            },
        })
        .await;
        match handled {
            Handled::Interim(frames) => {
                if sender.frames(frames).await.is_err() {
                    return Handled::ClientGone;
                }
            }
            handled => return handled,
        }
    }
}

/// Sends head and body.
async fn respond<A: Application>(
    flight: &mut InFlight<A>,
    sender: &mut Sender,
    interim: &InformationalSender,
    mut response: Response<Body>,
) -> Result<(), Outcome> {
    CachedAnswer::spread(&mut response);
    let Prepared { head, body, length } = prepare(response, flight.exchange.request.method());
    sender.head(interim.close(), head.status(), head.headers());
    flight.status = Some(head.status());
    match body {
        Some(body) => Content { flight, sender, length }.send(body).await,
        None => sender.finish().await,
    }
}
