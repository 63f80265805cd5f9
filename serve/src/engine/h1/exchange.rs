//! One request: handled, answered, entered.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use http::{HeaderMap, Request, Response, StatusCode, Uri, Version};
use playhouse_protocol::http1::{BodyDecoder, BodyLength, encode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use super::answer::{self, Asked};
use super::connection::Connection;
use super::input::{Gone, Inbound, TRAILERS};
use super::send::{Fault, message};
use crate::application::End;
use crate::engine::drain::Drain;
use crate::exchange::{Informational, Record};
use crate::ledger::Ticket;
use crate::tunnel::Tunnel;
use crate::{Application, Body, CachedAnswer, Exchange, Ledger, Outcome, RequestBody, RequestBodyError};

/// What comes behind the request, for the connection.
#[derive(Debug)]
pub(super) enum Then {
    /// A next one; this one had ended at that time.
    Next(Instant),
    /// The end.
    Close,
    /// The end, but the client may still send.
    Linger,
    /// The end, in the middle of an answer, or because the client has gone.
    Abort,
}

/// A request that has its exchange. Dropped before its end, it was killed.
pub(super) struct Running<'a, A: Application> {
    app: &'a Arc<A>,
    pub(super) exchange: &'a mut Exchange,
    ticket: Option<Ticket<&'a Ledger>>,
    /// The status of the answer, once it has begun.
    pub(super) status: Option<StatusCode>,
    /// Bytes of content that were put into the output.
    pub(super) bytes: u64,
}

impl<A: Application> Running<'_, A> {
    pub(super) fn end(&mut self, outcome: Outcome) -> Instant {
        let now = Instant::now();
        if let Some(ticket) = self.ticket.take() {
            ticket.end(outcome);
            let duration = now.duration_since(self.exchange.record.started);
            let end = End { outcome, status: self.status, bytes_sent: self.bytes, duration };
            self.app.ended(self.exchange, &end);
        }
        now
    }
}

impl<A: Application> Drop for Running<'_, A> {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            self.end(Outcome::Killed);
        }
    }
}

impl<'a, IO: AsyncRead + AsyncWrite + Unpin + Send, A: Application> Connection<'a, IO, A> {
    /// Has a request answered.
    pub(super) async fn exchange(
        &mut self,
        drain: &mut Drain<impl Future<Output = ()> + Unpin>,
        ticket: Ticket<&'a Ledger>,
        started: Instant,
    ) -> Then {
        let mut exchange = self.next_exchange(started);
        let running =
            Running { app: self.app, exchange: &mut exchange, ticket: Some(ticket), status: None, bytes: 0 };
        let then = self.answer(drain, running).await;
        self.exchange = Some(exchange);
        then
    }

    async fn answer(
        &mut self,
        drain: &mut Drain<impl Future<Output = ()> + Unpin>,
        mut running: Running<'_, A>,
    ) -> Then {
        let head = self.parser.head();
        let (length, expects, client_keeps) = (head.body, head.expect_continue, head.keep_alive);
        let request = &mut running.exchange.request;
        let version = request.version();
        let asked = Asked::new(request.method(), version);
        let (body, mut inbound) = self.body(length, expects);
        let inbound = &mut inbound;
        *request.body_mut() = body;

        let app = self.app;
        // Put in its place by whoever makes it: it is large, and there are many layers in between.
        let mut response = None;
        let handled = {
            let (exchange, response) = (&mut *running.exchange, &mut response);
            let handler = AssertUnwindSafe(async move { *response = Some(app.handle(exchange).await) });
            let mut handler = pin!(handler.catch_unwind());
            poll_fn(|cx| self.poll_handler(cx, handler.as_mut(), inbound)).await
        };
        // What the handler has not taken of the request's content, nobody reads.
        drop(std::mem::take(running.exchange.request.body_mut()));

        if inbound.complete
            && version == Version::HTTP_11
            && let Some((tunnel, headers)) = response.as_mut().and_then(take_tunnel)
        {
            let then = Box::pin(self.tunnel(drain, &mut running, tunnel, headers)).await;
            self.end_request(&mut running);
            return then;
        }
        let mut killed = false;
        let mut failed = StatusCode::INTERNAL_SERVER_ERROR;
        match handled {
            Ok(()) => {}
            Err(Fault::Gone) => {
                running.end(Outcome::ClientGone);
                self.end_request(&mut running);
                return Then::Abort;
            }
            Err(fault) => (failed, _) = self.report(fault),
        }
        let response = response.get_or_insert_with(|| {
            killed = true;
            answer::bare(failed)
        });
        if !asked.admits(response.status()) {
            tracing::error!(status = response.status().as_u16(), "a handler gave no final answer");
            killed = true;
            *response = answer::bare(StatusCode::INTERNAL_SERVER_ERROR);
        }
        if !asked.has_content(response.status()) {
            CachedAnswer::spread(response);
        }
        let keep = client_keeps && !killed;
        match self.send(drain, &asked, &mut running, inbound, response, keep).await {
            Ok(keep) => {
                let outcome = if killed { Outcome::Killed } else { self.outcome(&running) };
                let now = running.end(outcome);
                self.end_request(&mut running);
                if keep && self.discard(inbound).await {
                    return Then::Next(now);
                }
                let nothing_comes = !client_keeps && inbound.complete && self.input.is_empty();
                if self.eof || nothing_comes { Then::Close } else { Then::Linger }
            }
            Err(fault) => {
                running.bytes = running.bytes.saturating_sub(self.output.unsent() as u64);
                let (_, outcome) = self.report(fault);
                running.end(outcome);
                self.end_request(&mut running);
                Then::Abort
            }
        }
    }

    /// The exchange of the request whose head the parser has: that of the request before, made this one's. Its content is
    /// still to come.
    fn next_exchange(&mut self, started: Instant) -> Box<Exchange> {
        self.request += 1;
        let mut exchange = self.exchange.take().unwrap_or_else(|| {
            Box::new(Exchange {
                request: Request::default(),
                connection: self.info.clone(),
                informational: Informational::Unsupported,
                record: Record::new(started),
            })
        });
        let request = &mut exchange.request;
        // Piece by piece: as a whole it is copied at every step on its way.
        let head = self.parser.head();
        std::mem::swap(request.method_mut(), &mut head.method);
        std::mem::swap(request.uri_mut(), &mut head.uri);
        std::mem::swap(request.headers_mut(), &mut head.headers);
        *request.version_mut() = head.version;
        // Whatever a handler has put there.
        request.extensions_mut().clear();
        if !Arc::ptr_eq(&exchange.connection, &self.info) {
            exchange.connection = self.info.clone();
        }
        exchange.record.renew(started);
        if head.version == Version::HTTP_11 {
            let shared = self.shared.get_or_insert_default();
            let renewed = match &mut exchange.informational {
                Informational::H1(sender) => sender.renew(shared, self.request),
                _ => false,
            };
            if !renewed {
                exchange.informational = Informational::H1(shared.sender(self.request));
            }
        } else {
            exchange.informational = Informational::Unsupported;
        }
        exchange
    }

    /// The content of a request, as the handler gets it, and as the connection has it.
    fn body(&mut self, length: BodyLength, expects_continue: bool) -> (RequestBody, Inbound) {
        let limit = self.settings.limits.body_bytes;
        let none = || Inbound::new(BodyDecoder::new(BodyLength::None, TRAILERS), false);
        match length {
            BodyLength::None | BodyLength::Length(0) => (RequestBody::Empty, none()),
            BodyLength::Length(length) if length <= limit && length <= self.input.len() as u64 => {
                let content = self.input.split_to(length as usize).freeze();
                (RequestBody::Bytes(content), none())
            }
            length => {
                let decoder = BodyDecoder::new(length, TRAILERS);
                let shared = self.shared.get_or_insert_default();
                let reader = shared.body(self.request, decoder.remaining(), limit);
                self.lends_body = true;
                (RequestBody::H1(reader), Inbound::new(decoder, expects_continue))
            }
        }
    }

    fn poll_handler(
        &mut self,
        cx: &mut Context<'_>,
        mut handler: Pin<&mut impl Future<Output = std::thread::Result<()>>>,
        inbound: &mut Inbound,
    ) -> Poll<Result<(), Fault>> {
        loop {
            if let Poll::Ready(handled) = handler.as_mut().poll(cx) {
                return Poll::Ready(handled.map_err(|panic| Fault::Panic(message(panic))));
            }
            match self.poll_request(cx, inbound, true) {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(Gone) => return Poll::Ready(Err(Fault::Gone)),
            }
        }
    }

    /// The request's side while the handler or the answer's body waits: content, interim answers (`interim`: as long as
    /// the final one has not begun), deadlines. Whether who waits has been given something.
    pub(super) fn poll_request(
        &mut self,
        cx: &mut Context<'_>,
        inbound: &mut Inbound,
        interim: bool,
    ) -> Result<bool, Gone> {
        let (wanted, informed) = match &self.shared {
            Some(shared) => {
                let demand = shared.demand(cx.waker());
                (demand.body, demand.interim)
            }
            None => (false, false),
        };
        if interim {
            if informed
                && self.output.has_room()
                && let Some(shared) = &self.shared
            {
                let waiting = shared.take_interim();
                self.put_interim(waiting, inbound);
            }
            if wanted {
                self.put_continue(inbound);
            }
            if let Poll::Ready(Err(_)) = self.poll_flush(cx) {
                return Err(Gone);
            }
        }
        if self.poll_inbound(cx, inbound, wanted)? {
            return Ok(true);
        }
        if let Some(deadline) = inbound.deadline
            && self.timer.poll(cx, deadline).is_ready()
        {
            inbound.deadline = None;
            inbound.broken = true;
            if let Some(shared) = &self.shared {
                shared.deliver(Some(Err(RequestBodyError::Timeout)), false, None);
            }
            return Ok(true);
        }
        match self.poll_half_closed(cx, inbound) {
            Poll::Ready(()) => Err(Gone),
            Poll::Pending => Ok(false),
        }
    }

    pub(super) fn put_interim(&mut self, waiting: Vec<(StatusCode, HeaderMap)>, inbound: &mut Inbound) {
        for (status, headers) in waiting {
            // 100 is for a client that waits for it, once.
            if status == StatusCode::CONTINUE && !std::mem::take(&mut inbound.expects_continue) {
                continue;
            }
            answer::interim(self.output.buf(), status, &headers);
        }
    }

    pub(super) fn put_continue(&mut self, inbound: &mut Inbound) {
        if std::mem::take(&mut inbound.expects_continue) {
            self.output.buf().extend_from_slice(encode::CONTINUE);
        }
    }

    /// Lets go of the request. Its memory serves for the next one.
    fn end_request(&mut self, running: &mut Running<'_, A>) {
        if std::mem::take(&mut self.lends_body)
            && let Some(shared) = &self.shared
        {
            shared.end();
        }
        let request = &mut running.exchange.request;
        self.parser.recycle(request.headers_mut());
        // It holds on to the memory that it was read into, as the fields do.
        *request.uri_mut() = Uri::default();
    }

    /// How an answer that was sent in full is entered.
    fn outcome(&self, running: &Running<'_, A>) -> Outcome {
        let refused = running.status.is_some_and(|status| status.is_client_error())
            && self.shared.as_ref().is_some_and(|shared| shared.body_error().is_some());
        running.exchange.record.outcome.unwrap_or(if refused { Outcome::Rejected } else { Outcome::Answered })
    }
}

/// The tunnel that the handler has answered with, and the fields of its answer.
fn take_tunnel(response: &mut Response<Body>) -> Option<(Box<Tunnel>, HeaderMap)> {
    match response.body_mut() {
        body @ Body::Tunnel(_) => match std::mem::take(body) {
            Body::Tunnel(tunnel) => Some((tunnel, std::mem::take(response.headers_mut()))),
            _ => None,
        },
        _ => None,
    }
}
