//! Waiting for a request.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use super::connection::Connection;
use crate::engine::drain::{Drain, waiting};
use crate::ledger::Ticket;
use crate::{Application, Ledger};

/// What has come.
pub(super) enum Next<'a> {
    /// A request, whose head the parser has; its first byte was read at this time.
    Head(Ticket<&'a Ledger>, Instant),
    /// No request, but something to be answered with this status.
    Refused(Ticket<&'a Ledger>, StatusCode),
    /// The client has gone in the middle of a head.
    Gone(Ticket<&'a Ledger>),
    /// Nothing, and the connection is over: closed by the client, or idle for too long.
    Idle,
    /// Nothing, and the connection is to end.
    Drained,
}

impl<'a, IO: AsyncRead + AsyncWrite + Unpin + Send, A: Application> Connection<'a, IO, A> {
    /// Waits for the next request. `idle_since` is when the one before had ended.
    pub(super) async fn next_head(
        &mut self,
        drain: &mut Drain<impl Future<Output = ()> + Unpin>,
        idle_since: Instant,
    ) -> Next<'a> {
        let mut begun = None;
        // Many connections have one request only, or none for long behind their first.
        if self.request == 1 {
            self.shrink();
        }
        let mut shrunk = self.request <= 1;
        poll_fn(|cx| self.poll_head(cx, drain, idle_since, &mut begun, &mut shrunk)).await
    }

    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        drain: &mut Drain<impl Future<Output = ()> + Unpin>,
        idle_since: Instant,
        begun: &mut Option<(Ticket<&'a Ledger>, Instant)>,
        shrunk: &mut bool,
    ) -> Poll<Next<'a>> {
        loop {
            if begun.is_none() && !self.input.is_empty() && self.parser.begin(&mut self.input) {
                *begun = Some((self.app.ledger().accept_borrowed(), Instant::now()));
            }
            if let Some((ticket, started)) = begun.take() {
                match self.parser.parse(&mut self.input) {
                    Ok(Some(_)) => return Poll::Ready(Next::Head(ticket, started)),
                    Ok(None) => *begun = Some((ticket, started)),
                    Err(error) => return Poll::Ready(Next::Refused(ticket, error.status())),
                }
            }
            match self.poll_fill(cx) {
                Poll::Ready(Ok(0)) | Poll::Ready(Err(_)) => {
                    return Poll::Ready(begun.take().map_or(Next::Idle, |(ticket, _)| Next::Gone(ticket)));
                }
                Poll::Ready(Ok(_)) => continue,
                Poll::Pending => {}
            }
            let timeouts = &self.settings.timeouts;
            let drained = drain.poll(cx);
            let deadline = match (&begun, drained) {
                (Some((_, started)), _) => *started + timeouts.head,
                (None, Some(since)) => since.max(idle_since) + waiting(timeouts.drain_idle),
                (None, None) if *shrunk => idle_since + timeouts.idle,
                (None, None) => idle_since + timeouts.idle.min(SHRINK),
            };
            if self.timer.poll(cx, deadline).is_pending() {
                return Poll::Pending;
            }
            if let Some((ticket, _)) = begun.take() {
                return Poll::Ready(Next::Refused(ticket, StatusCode::REQUEST_TIMEOUT));
            }
            if drained.is_some() {
                return Poll::Ready(Next::Drained);
            }
            if *shrunk {
                return Poll::Ready(Next::Idle);
            }
            self.shrink();
            *shrunk = true;
        }
    }
}

/// After this a connection is idle rather than between two requests, and gives its buffers back.
const SHRINK: Duration = Duration::from_secs(1);
