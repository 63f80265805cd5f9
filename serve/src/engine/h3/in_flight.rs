//! One request between its first byte and its outcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use http::StatusCode;
use playhouse_config::model::{ClientTimeouts, Limits};
use playhouse_protocol::http3::{Code, qpack};

use super::early::Early;
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
    pub(super) connection: quinn::Connection,
    pub(super) early: Early,
    /// The connection is to end: for streams that would not by themselves.
    pub(super) draining: Arc<Signal>,
    /// [`OPEN`], [`LOST`] or [`CLOSED`].
    end: AtomicU8,
}

const OPEN: u8 = 0;
/// It has ended by the client's doing.
const LOST: u8 = 1;
/// The client has closed it in order.
const CLOSED: u8 = 2;

impl<A: Application> Shared<A> {
    pub(super) fn new(
        application: Arc<A>,
        info: Arc<ConnectionInfo>,
        limits: Limits,
        timeouts: ClientTimeouts,
        connection: quinn::Connection,
        early: Early,
    ) -> Self {
        let (draining, end) = (Arc::default(), AtomicU8::new(OPEN));
        Shared { application, info, limits, timeouts, connection, early, draining, end }
    }

    /// Whether it has ended by the client's doing.
    pub(super) fn is_lost(&self) -> bool {
        self.end.load(Ordering::Relaxed) != OPEN
    }

    /// The connection has ended by the client's doing: what is in flight ends as `ClientGone`, not as `Killed`.
    pub(super) fn lost(&self, error: &quinn::ConnectionError) {
        let in_order = matches!(
            error,
            quinn::ConnectionError::ApplicationClosed(_) | quinn::ConnectionError::ConnectionClosed(_)
        );
        self.end.store(if in_order { CLOSED } else { LOST }, Ordering::Relaxed);
    }

    /// Ends the connection, because of the client.
    pub(super) fn close(&self, code: Code, reason: &'static str) {
        tracing::debug!(?code, reason, client = %self.info.peer, "h3 connection closed");
        self.end.store(LOST, Ordering::Relaxed);
        self.connection.close(super::code(code), reason.as_bytes());
    }

    /// What a field section may be, decoded.
    pub(super) fn sections(&self) -> qpack::Limits {
        let fields = self.limits.header_count + PSEUDO_FIELDS;
        qpack::Limits { size: section_size(&self.limits), fields }
    }

    /// The outcome of what has none of its own.
    fn outcome(&self) -> Outcome {
        if self.is_lost() { Outcome::ClientGone } else { Outcome::Killed }
    }
}

/// RFC 9114 §4.2.2 counts 32 bytes more for each field than an HTTP/1.1 head does.
pub(super) fn section_size(limits: &Limits) -> usize {
    limits.header_bytes.saturating_add(32 * limits.header_count)
}

/// `:method`, `:scheme`, `:authority`, `:path`
const PSEUDO_FIELDS: usize = 4;

/// A request whose head is not there yet.
#[derive(Debug)]
pub(super) struct Beginning<A: Application> {
    shared: Arc<Shared<A>>,
    ticket: Option<Ticket>,
}

impl<A: Application> Beginning<A> {
    pub(super) fn new(shared: &Arc<Shared<A>>) -> Self {
        Beginning { shared: shared.clone(), ticket: Some(shared.application.ledger().accept()) }
    }

    /// The head is there.
    pub(super) fn into_ticket(mut self) -> Option<Ticket> {
        self.ticket.take()
    }

    /// It was refused, with this status where one was sent.
    pub(super) fn refused(mut self, status: Option<StatusCode>) {
        if let Some(ticket) = self.ticket.take() {
            ticket.end(Outcome::Rejected);
            self.shared.application.refused(&self.shared.info, status);
        }
    }

    /// The client has given it up.
    pub(super) fn gone(mut self) {
        if let Some(ticket) = self.ticket.take() {
            ticket.end(Outcome::ClientGone);
        }
    }
}

impl<A: Application> Drop for Beginning<A> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            ticket.end(self.shared.outcome());
        }
    }
}

/// One request, until its outcome is entered: when it is dropped, whatever drops it.
#[derive(Debug)]
pub(super) struct InFlight<A: Application> {
    pub(super) shared: Arc<Shared<A>>,
    pub(super) exchange: Exchange,
    pub(super) status: Option<StatusCode>,
    pub(super) bytes_sent: u64,
    ticket: Option<Ticket>,
    /// All of the answer has been given to QUIC, and after how long: this is the outcome if it arrives.
    sent: Option<(Outcome, Duration)>,
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
            ticket: Some(ticket),
            sent: None,
            certain: None,
        }
    }

    /// The end of the answer is on its way: this is the outcome if it gets there.
    pub(super) fn sent(&mut self, outcome: Outcome) {
        self.sent = Some((outcome, self.exchange.record.started.elapsed()));
    }

    /// The client has all of it.
    pub(super) fn arrived(&mut self) {
        self.certain = self.sent.map(|(outcome, _)| outcome);
    }

    /// This is the outcome in any case.
    pub(super) fn ended(&mut self, outcome: Outcome) {
        self.certain = Some(outcome);
    }
}

impl<A: Application> Drop for InFlight<A> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        let outcome = self.certain.unwrap_or_else(|| match self.sent {
            // Who closes in order does not say any more what it has received.
            Some((outcome, _)) if self.shared.end.load(Ordering::Relaxed) == CLOSED => outcome,
            _ => self.shared.outcome(),
        });
        ticket.end(outcome);
        let end = End {
            outcome,
            status: self.status,
            bytes_sent: self.bytes_sent,
            duration: self.sent.map_or_else(|| self.exchange.record.started.elapsed(), |(_, after)| after),
        };
        self.shared.application.ended(&self.exchange, &end);
    }
}
