//! Carries bytes both ways.

mod closing;
mod direction;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use futures_util::future::BoxFuture;
use playhouse_config::model::{ClientTimeouts, OnReload};
use playhouse_protocol::websocket::{Sender, control::code};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use self::closing::Closing;
use self::direction::{Broken, Close, Direction};
use super::plan::Terms;
use super::upgrade::random_key;
use super::{Begun, Duplex, Reason, Summary, Watch};
use crate::Outcome;
use crate::engine::panic_message;
use crate::metrics::{Passed, TunnelMetrics};
use crate::upstream::Timer;

/// The client's side, as the engine has it.
pub(crate) trait Near: AsyncRead + AsyncWrite + Unpin + Send {
    /// Ready when the client has reset its side, where that can be seen without reading or writing.
    fn poll_reset(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    /// Whether what drops a tunnel is that the client has gone.
    fn is_lost(&self) -> bool {
        false
    }
}

/// On a connection of its own, whatever the client does is seen by reading and writing.
impl<IO: Duplex> Near for &mut IO {}

/// The other side.
pub(super) struct Far<IO> {
    pub(super) io: IO,
    /// Read behind the head of the answer.
    pub(super) prefix: BytesMut,
    /// How long it may take nothing.
    pub(super) write: Duration,
}

/// How a tunnel has ended.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) outcome: Outcome,
    /// The client must not take it for an end in order.
    pub(crate) abort: bool,
    /// The client may still send.
    pub(crate) client_open: bool,
    /// What the endpoint has panicked with.
    pub(crate) panic: Option<String>,
}

/// One side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Client,
    Upstream,
}

/// A tunnel that is open.
pub(super) struct Relay<'a, N: Near, IO> {
    near: &'a mut N,
    far: IO,
    /// From the client.
    up: Direction,
    /// To the client.
    down: Direction,
    websocket: bool,
    terms: Arc<Terms>,
    replaced: Option<Watch>,
    near_write: Duration,
    far_write: Duration,
    started: Instant,
    /// When something was last passed on.
    moved: Instant,
    /// When a Ping of ours was sent that nothing has come after.
    pinged: Option<Instant>,
    /// When one was last sent.
    last_ping: Option<Instant>,
    /// How many were.
    pings: u32,
    /// Who has closed first, and when.
    first: Option<(Side, Instant)>,
    /// We end it.
    closing: Option<Closing>,
    /// The endpoint of the embedding program, where it is one that we speak with.
    task: Option<BoxFuture<'static, ()>>,
    panic: Option<String>,
    /// Frames that could not be told apart came from the beginning.
    broken: Option<(Side, Broken)>,
    timer: Timer,
    metrics: Option<&'a TunnelMetrics>,
    summary: &'a mut Summary,
    ended: bool,
}

/// Counts that it has ended, whatever ends it.
impl<N: Near, IO> Drop for Relay<'_, N, IO> {
    fn drop(&mut self) {
        // By name: a `&mut` to any stream is a side, too, and knows nothing.
        if !self.ended && N::is_lost(self.near) {
            self.summary.reason = self.lost(Side::Client).0;
        }
        if let Some(metrics) = self.metrics {
            metrics.closed(self.summary.reason);
        }
    }
}

impl<N: Near, IO> Relay<'_, N, IO> {
    /// How it has ended where the sides have closed by themselves.
    fn closed(&self) -> (Reason, Outcome) {
        let orderly = |direction: &Direction| !self.websocket || direction.close_seen;
        match self.first {
            Some((Side::Upstream, _)) if orderly(&self.down) => (Reason::Upstream, Outcome::Answered),
            Some((Side::Upstream, _)) => (Reason::UpstreamFailed, Outcome::UpstreamFailed),
            _ if orderly(&self.up) => (Reason::Client, Outcome::Answered),
            _ => (Reason::ClientGone, Outcome::ClientGone),
        }
    }

    /// How it ends when a side is lost.
    fn lost(&self, side: Side) -> (Reason, Outcome) {
        if let Some(closing) = &self.closing {
            return (closing.reason, closing.outcome);
        }
        match side {
            // What is left of it once it has said that it closes does not matter.
            Side::Client if self.up.close_seen => self.closed(),
            Side::Client => (Reason::ClientGone, Outcome::ClientGone),
            Side::Upstream => (Reason::UpstreamFailed, Outcome::UpstreamFailed),
        }
    }
}

impl<'a, N: Near, IO: Duplex> Relay<'a, N, IO> {
    #[allow(clippy::too_many_arguments, reason = "called once, by what has just taken them apart")]
    pub(super) fn new(
        near: &'a mut N,
        begun: Begun,
        far: Far<IO>,
        websocket: Option<bool>,
        terms: Arc<Terms>,
        timeouts: &ClientTimeouts,
        metrics: Option<&'a TunnelMetrics>,
        summary: &'a mut Summary,
    ) -> Self {
        if let Some(metrics) = metrics {
            metrics.opened();
        }
        let mut up = Direction::new(Sender::Client, websocket);
        let mut down = Direction::new(Sender::Server, websocket);
        let mut broken = up.push(&begun.prefix).err().map(|error| (Side::Client, error));
        if let Err(error) = down.push(&far.prefix) {
            broken.get_or_insert((Side::Upstream, error));
        }
        up.source_ended = begun.eof;
        let now = Instant::now();
        let watched = terms.settings.on_reload != OnReload::Keep;
        Relay {
            near,
            far: far.io,
            up,
            down,
            websocket: websocket.is_some(),
            replaced: watched.then(|| Watch::new(terms.replaced.clone())),
            terms,
            near_write: timeouts.write,
            far_write: far.write,
            started: now,
            moved: now,
            pinged: None,
            last_ping: None,
            pings: 0,
            first: None,
            closing: None,
            task: None,
            panic: None,
            broken,
            timer: Timer::default(),
            metrics,
            summary,
            ended: false,
        }
    }

    /// With an endpoint that runs as long as the tunnel, and closes it when it ends.
    pub(super) fn beside(mut self, task: BoxFuture<'static, ()>) -> Self {
        self.task = Some(task);
        self.down.close_at_end = Some(Close { code: code::NORMAL, key: None });
        self
    }

    /// To the end.
    pub(super) async fn run(mut self, mut drain: impl FnMut(&mut Context<'_>) -> Option<Instant>) -> End {
        let end = std::future::poll_fn(|cx| {
            let polled = self.poll(cx, &mut drain);
            self.account();
            polled
        })
        .await;
        let (reason, outcome) = end;
        self.ended = true;
        self.summary.reason = if self.panic.is_some() { Reason::UpstreamFailed } else { reason };
        if let Some(panic) = self.panic.take() {
            // It was told, between two frames.
            let outcome = Outcome::Killed;
            return End { outcome, abort: false, client_open: !self.up.source_ended, panic: Some(panic) };
        }
        let abort = matches!(outcome, Outcome::ClientGone | Outcome::UpstreamFailed | Outcome::Killed);
        End { outcome, abort, client_open: !self.up.source_ended, panic: None }
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        drain: &mut impl FnMut(&mut Context<'_>) -> Option<Instant>,
    ) -> Poll<(Reason, Outcome)> {
        if let Some((side, broken)) = self.broken.take()
            && let Some(end) = self.broken(side, broken)
        {
            return Poll::Ready(end);
        }
        loop {
            if let Some(since) = drain(cx) {
                self.drained(since);
            }
            if let Some(since) = self.replaced.as_mut().and_then(|watch| watch.poll(cx)) {
                self.replaced = None;
                self.reloaded(since);
            }
            self.poll_task(cx);
            if self.near.poll_reset(cx).is_ready() {
                return Poll::Ready(self.lost(Side::Client));
            }
            let up = self.up.poll(cx, &mut *self.near, &mut self.far);
            let down = self.down.poll(cx, &mut self.far, &mut *self.near);
            let mut again = false;
            for (from, to, result) in
                [(Side::Client, Side::Upstream, up), (Side::Upstream, Side::Client, down)]
            {
                let ended = match result {
                    Ok(()) => continue,
                    Err(Broken::Sink) => self.broken(to, Broken::Sink),
                    Err(broken) => self.broken(from, broken),
                };
                if let Some(end) = ended {
                    return Poll::Ready(end);
                }
                again = true;
            }
            self.note();
            if let Some(end) = self.over() {
                return Poll::Ready(end);
            }
            if again {
                // There is something to be said now, or nothing more to be waited for.
                continue;
            }
            let Some((at, due)) = self.due() else { return Poll::Pending };
            if self.timer.poll(at, cx).is_pending() {
                return Poll::Pending;
            }
            if let Some(end) = self.fall_due(due) {
                return Poll::Ready(end);
            }
        }
    }

    /// Lets the endpoint run. When it has ended, or panicked, nothing that the client sends has a reader any more.
    fn poll_task(&mut self, cx: &mut Context<'_>) {
        let Some(task) = &mut self.task else { return };
        match catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(cx))) {
            Ok(Poll::Pending) => return,
            Ok(Poll::Ready(())) => {}
            Err(panic) => {
                self.panic = Some(panic_message(&*panic).to_owned());
                self.down.close_at_end = Some(Close { code: code::INTERNAL_ERROR, key: None });
            }
        }
        self.task = None;
        self.up.give_up_sink();
    }

    /// Notes what has happened: signs of life, and who has closed first.
    fn note(&mut self) {
        let heard = std::mem::take(&mut self.up.heard);
        self.down.heard = false;
        if heard {
            self.pinged = None;
        }
        if std::mem::take(&mut self.up.moved) | std::mem::take(&mut self.down.moved) {
            self.moved = Instant::now();
        }
        if self.first.is_none() {
            let ended = |direction: &Direction| direction.source_ended || direction.close_seen;
            let side = match (ended(&self.up), ended(&self.down)) {
                (true, _) => Side::Client,
                (false, true) => Side::Upstream,
                (false, false) => return,
            };
            self.first = Some((side, Instant::now()));
        }
    }

    /// How it has ended, if it has.
    fn over(&self) -> Option<(Reason, Outcome)> {
        if let Some(closing) = &self.closing {
            // Both have been told and have answered, or are gone.
            let answered = |direction: &Direction| direction.close_seen || direction.source_ended;
            let told = |direction: &Direction| {
                (direction.close_sent || direction.sink_shut) && direction.is_written()
            };
            let done = if self.websocket {
                told(&self.up) && told(&self.down) && answered(&self.up) && answered(&self.down)
            } else {
                self.up.is_over() && self.down.is_over()
            };
            return done.then_some((closing.reason, closing.outcome));
        }
        // A server that has closed, and takes nothing, is not waited for.
        (self.up.sink_shut && self.down.is_over()).then(|| self.closed())
    }

    /// A side is lost, or cannot be understood any more.
    fn broken(&mut self, side: Side, broken: Broken) -> Option<(Reason, Outcome)> {
        match (side, broken) {
            (Side::Client, Broken::Source | Broken::Sink) => Some(self.lost(side)),
            // It takes nothing more; what it has sent before is still to come.
            (Side::Upstream, Broken::Sink) => {
                self.up.give_up_sink();
                self.first.get_or_insert((Side::Upstream, Instant::now()));
                None
            }
            (Side::Upstream, Broken::Source) if self.down.close_seen || self.closing.is_some() => {
                self.down.source_ended = true;
                None
            }
            (Side::Upstream, Broken::Source) => Some(self.lost(side)),
            (side, Broken::Frames(error)) => {
                tracing::debug!(?side, %error, "a WebSocket is closed for what is no frame");
                let outcome = match side {
                    Side::Client => Outcome::Rejected,
                    Side::Upstream => Outcome::UpstreamFailed,
                };
                self.close_both(code::PROTOCOL_ERROR, Reason::Protocol, outcome);
                None
            }
        }
    }

    /// Tells the counters what has gone by since they were last told.
    fn account(&mut self) {
        let summary = &mut *self.summary;
        let (up, down) = (self.up.counts().frames, self.down.counts().frames);
        let passed = Passed {
            bytes: [self.up.written - summary.bytes_from_client, self.down.written - summary.bytes_to_client],
            frames: [
                up.saturating_sub(summary.frames_from_client),
                down.saturating_sub(summary.frames_to_client),
            ],
        };
        if passed == Passed::default() {
            return;
        }
        summary.bytes_from_client += passed.bytes[0];
        summary.bytes_to_client += passed.bytes[1];
        summary.frames_from_client += passed.frames[0];
        summary.frames_to_client += passed.frames[1];
        if let Some(metrics) = self.metrics {
            metrics.passed(&passed);
        }
    }

    /// A Close for the client, and one for the server, which is sent masked frames.
    fn closes(&self, code: u16) -> (Close, Close) {
        let key = random_key(&self.terms.random);
        (Close { code, key: None }, Close { code, key: Some(key) })
    }
}

#[cfg(test)]
#[path = "../tests/relay.rs"]
mod tests;
