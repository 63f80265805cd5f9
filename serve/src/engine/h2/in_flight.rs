//! One request between its head and its outcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use h2::SendStream;
use http::StatusCode;
use playhouse_config::model::{ClientTimeouts, Limits};

use crate::application::End;
use crate::ledger::Ticket;
use crate::tunnel::Signal;
use crate::{Application, ConnectionInfo, Exchange, Outcome};

/// What all streams of a connection share.
#[derive(Debug)]
pub(super) struct Shared<A> {
    pub(super) application: Arc<A>,
    pub(super) info: Arc<ConnectionInfo>,
    pub(super) limits: Limits,
    pub(super) timeouts: ClientTimeouts,
    /// The connection has ended by the client's doing: what is in flight ends as `ClientGone`, not as `Killed`.
    pub(super) client_gone: AtomicBool,
    /// The connection is to end: for streams that would not by themselves.
    pub(super) draining: Arc<Signal>,
}

/// One request, until its outcome is entered: by [`InFlight::settle`], or when it is dropped, whatever drops it.
#[derive(Debug)]
pub(super) struct InFlight<A: Application> {
    pub(super) shared: Arc<Shared<A>>,
    pub(super) exchange: Exchange,
    pub(super) status: Option<StatusCode>,
    pub(super) bytes_sent: u64,
    /// The stream, where it was answered before the request had ended.
    pub(super) leftover: Option<SendStream<Bytes>>,
    ticket: Option<Ticket>,
    /// The outcome once the last frame has reached the kernel.
    flushed: Option<Outcome>,
    /// The outcome whatever happens from here on.
    certain: Option<Outcome>,
}

impl<A: Application> InFlight<A> {
    pub(super) fn new(shared: Arc<Shared<A>>, exchange: Exchange, ticket: Ticket) -> Self {
        InFlight {
            shared,
            exchange,
            status: None,
            bytes_sent: 0,
            leftover: None,
            ticket: Some(ticket),
            flushed: None,
            certain: None,
        }
    }

    /// The last frame is on its way: this is the outcome if it gets there.
    pub(super) fn sent(&mut self, outcome: Outcome) {
        self.flushed = Some(outcome);
    }

    /// This is the outcome in any case.
    pub(super) fn ended(&mut self, outcome: Outcome) {
        self.certain = Some(outcome);
    }

    /// All that was sent has reached the kernel. Whether it was the whole answer.
    pub(super) fn settle(mut self) -> bool {
        let whole = self.certain.is_none() && self.flushed.is_some();
        self.certain = self.certain.or(self.flushed);
        whole
    }
}

impl<A: Application> Drop for InFlight<A> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        let outcome = self.certain.unwrap_or_else(|| {
            let gone = self.shared.client_gone.load(Ordering::Relaxed);
            // A tunnel may have been closed before its connection was.
            let closed = || self.exchange.record.tunnel.as_ref().is_some_and(|end| end.reason.is_orderly());
            match gone {
                true if closed() => Outcome::Answered,
                true => Outcome::ClientGone,
                false => Outcome::Killed,
            }
        });
        ticket.end(outcome);
        let end = End {
            outcome,
            status: self.status,
            bytes_sent: self.bytes_sent,
            duration: self.exchange.record.started.elapsed(),
        };
        self.shared.application.ended(&self.exchange, &end);
    }
}
