//! One try of a request on one connection, up to the head of its answer.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use http::StatusCode;
use playhouse_protocol::http1::{HeadLimits, ResponseError, ResponseHead, ResponseParser};
use tokio::time::Instant;

use super::body::Wire;
use super::fields::{RequestHead, strip_answer};
use crate::RequestBodyError;
use crate::exchange::Informational;
use crate::metrics::Failure;
use crate::tunnel::Upgrade;

/// Why a try has not led to an answer.
pub(super) enum AttemptError {
    /// The client has failed: no server can do better.
    Client(RequestBodyError),
    /// The server has.
    Server {
        failure: Failure,
        cause: String,
        /// Whether a byte of an answer had come.
        answered: bool,
    },
}

/// Sends the request and waits for the final head of the answer, passing interim ones on.
pub(super) async fn attempt(
    wire: &mut Wire,
    request: &RequestHead<'_>,
    informational: &Informational,
    upgrade: Option<&Upgrade>,
) -> Result<ResponseHead, AttemptError> {
    let started = Instant::now();
    let mut receiver = Receiver {
        parser: ResponseParser::new(LIMITS),
        request,
        informational,
        upgrade,
        continue_at: started + PATIENCE,
        waiting: None,
        received: false,
        interim: 0,
    };
    let head = poll_fn(|cx| receiver.poll(wire, cx)).await?;
    let asked = receiver.waiting.unwrap_or(started);
    wire.lease.server().metrics().answered(head.status, asked.elapsed());
    Ok(head)
}

struct Receiver<'a> {
    parser: ResponseParser,
    request: &'a RequestHead<'a>,
    informational: &'a Informational,
    /// What it was asked to switch to.
    upgrade: Option<&'a Upgrade>,
    /// When the content is sent without a 100.
    continue_at: Instant,
    /// Since when only the server is waited for.
    waiting: Option<Instant>,
    /// Whether a byte of an answer has come.
    received: bool,
    /// Interim answers so far.
    interim: usize,
}

impl Receiver<'_> {
    fn poll(&mut self, wire: &mut Wire, cx: &mut Context<'_>) -> Poll<Result<ResponseHead, AttemptError>> {
        loop {
            self.send(wire, cx)?;
            match self.poll_head(wire, cx) {
                Poll::Ready(Ok(head)) if self.switches(&head) => {
                    return Poll::Ready(self.switched(head));
                }
                Poll::Ready(Ok(head)) if head.status.is_informational() => {
                    self.interim(wire, head)?;
                    continue;
                }
                Poll::Ready(head) => return Poll::Ready(head),
                Poll::Pending => {}
            }
            let Some(deadline) = self.deadline(wire) else { return Poll::Pending };
            if wire.connection.timer.poll(deadline, cx).is_pending() {
                return Poll::Pending;
            }
            if !wire.sender.is_expecting() {
                let cause = "no answer in time".to_owned();
                return Poll::Ready(Err(self.failed(Failure::FirstByteTimeout, cause)));
            }
            wire.sender.proceed();
        }
    }

    fn send(&mut self, wire: &mut Wire, cx: &mut Context<'_>) -> Result<(), AttemptError> {
        if wire.sender.is_over() {
            return Ok(());
        }
        wire.poll_send(cx).map_err(AttemptError::Client)?;
        if wire.sender.is_over() {
            self.waiting = Some(Instant::now());
        }
        Ok(())
    }

    fn poll_head(
        &mut self,
        wire: &mut Wire,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ResponseHead, AttemptError>> {
        loop {
            if !wire.connection.input.is_empty() {
                match self.parser.parse(&mut wire.connection.input, self.request.method) {
                    Ok(Some(head)) => return Poll::Ready(Ok(head)),
                    Ok(None) => {}
                    Err(error) => return Poll::Ready(Err(self.malformed(error))),
                }
            }
            let cause = match wire.connection.poll_read(HEAD_READ, cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => "closed before it had answered".to_owned(),
                Poll::Ready(Ok(_)) => {
                    self.received = true;
                    continue;
                }
                Poll::Ready(Err(error)) => format!("failed before it had answered: {error}"),
            };
            return Poll::Ready(Err(self.failed(Failure::Closed, cause)));
        }
    }

    /// Whether it is the end of the exchange, as it was asked to be.
    fn switches(&self, head: &ResponseHead) -> bool {
        self.upgrade.is_some() && head.status == StatusCode::SWITCHING_PROTOCOLS
    }

    fn switched(&self, head: ResponseHead) -> Result<ResponseHead, AttemptError> {
        match self.upgrade.map(|upgrade| upgrade.check(&head.headers)) {
            Some(Err(cause)) => Err(self.failed(Failure::Malformed, cause.to_owned())),
            _ => Ok(head),
        }
    }

    fn interim(&mut self, wire: &mut Wire, mut head: ResponseHead) -> Result<(), AttemptError> {
        self.interim += 1;
        if self.interim > MOST_INTERIM {
            return Err(self.failed(Failure::Malformed, "too many interim answers".to_owned()));
        }
        if let Some(waiting) = &mut self.waiting {
            *waiting = Instant::now();
        }
        match head.status {
            // Whoever reads the content from the client tells it so.
            StatusCode::CONTINUE => wire.sender.proceed(),
            // Nothing was sent that would ask for it.
            StatusCode::SWITCHING_PROTOCOLS => {
                return Err(self.failed(Failure::Malformed, "switched protocols unasked".to_owned()));
            }
            _ => {
                strip_answer(&mut head, false);
                self.informational.send(head.status, head.headers);
            }
        }
        Ok(())
    }

    /// When the patience with whoever is waited for ends; `None` while that is the client.
    fn deadline(&self, wire: &Wire) -> Option<Instant> {
        let timeouts = &wire.settings.timeouts;
        if let Some(stalled) = wire.sender.stalled_since() {
            return Some(stalled + timeouts.idle);
        }
        if wire.sender.is_expecting() {
            return Some(self.continue_at);
        }
        self.waiting.map(|since| since + timeouts.first_byte)
    }

    fn malformed(&self, error: ResponseError) -> AttemptError {
        self.failed(Failure::Malformed, error.to_string())
    }

    fn failed(&self, failure: Failure, cause: String) -> AttemptError {
        AttemptError::Server { failure, cause, answered: self.received }
    }
}

/// What the head of an answer may measure; what other proxies take at most.
const LIMITS: HeadLimits = HeadLimits { bytes: 64 << 10, fields: 200 };

/// For the trailers of an answer.
pub(super) const TRAILER_LIMITS: HeadLimits = HeadLimits { bytes: 16 << 10, fields: 50 };

/// Most answers of an API are no longer than this, head and content.
const HEAD_READ: usize = 8 << 10;

/// How long a server is waited for that might not know `Expect` (RFC 9110 §10.1.1).
const PATIENCE: Duration = Duration::from_secs(1);

/// A server that sends more before its answer means no good.
const MOST_INTERIM: usize = 32;
