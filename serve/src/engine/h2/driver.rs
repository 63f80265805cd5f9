//! One connection: turns between the frames, the streams and the wire, and keeps its deadlines.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use h2::Reason;
use h2::server::{Builder, Connection};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep};

use super::in_flight::{InFlight, Shared};
use super::leftover::{HELD, Leftovers};
use super::stream;
use super::wire::Wire;
use crate::engine::Settings;
use crate::engine::drain::Drain;
use crate::{Application, ConnectionInfo, Outcome};

/// Serves one connection to its end. `prefix` is what was read of it already.
pub(crate) async fn serve<A: Application>(
    io: impl AsyncRead + AsyncWrite + Unpin + Send,
    prefix: BytesMut,
    info: Arc<ConnectionInfo>,
    settings: &Settings,
    application: &Arc<A>,
    mut drain: Drain<impl Future<Output = ()> + Send + Unpin>,
) {
    let shared = Arc::new(Shared {
        application: application.clone(),
        info,
        limits: settings.limits.clone(),
        timeouts: settings.timeouts.clone(),
        client_gone: AtomicBool::new(false),
        draining: Arc::default(),
    });
    let wire = Wire::new(io, prefix.freeze());
    let greeted = {
        let mut handshake = pin!(builder(settings).handshake(wire.clone()));
        let greeting = std::future::poll_fn(|cx| {
            if let Poll::Ready(greeted) = handshake.as_mut().poll(cx) {
                return Poll::Ready(greeted.ok());
            }
            match wire.poll_flush_all(cx) {
                Poll::Pending | Poll::Ready(Ok(_)) => Poll::Pending,
                Poll::Ready(Err(_)) => Poll::Ready(None),
            }
        });
        let greeting = tokio::time::timeout(settings.timeouts.head, greeting);
        drain.grace(settings.timeouts.drain_idle, greeting).await
    };
    let Some(Ok(Some(connection))) = greeted else { return };
    let gone = Driver::new(connection, wire.clone(), shared).run(stream::open, drain).await;
    if !gone {
        // The peer is to read our last frames before the socket goes.
        let closing = std::future::poll_fn(|cx| match wire.poll_close(cx) {
            Poll::Ready(Ok(())) => wire.poll_linger(cx),
            Poll::Ready(Err(_)) => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        });
        let _ = tokio::time::timeout(LINGER, closing).await;
    }
}

fn builder(settings: &Settings) -> Builder {
    let limits = &settings.limits;
    // RFC 9113 §6.5.2 counts 32 bytes more for each field than an HTTP/1.1 head does.
    let header_list = limits.header_bytes.saturating_add(32 * limits.header_count);
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(u32::try_from(header_list).unwrap_or(u32::MAX))
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(limits.streams.max(20) as usize)
        .max_local_error_reset_streams(Some(LOCAL_RESETS))
        .data_frame_budget(SMALL_DATA)
        .enable_connect_protocol();
    builder
}

/// What a client may send of one body before it is read.
const STREAM_WINDOW: u32 = 256 << 10;
/// What it may send of all.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// What a stream may queue: enough to keep a fast link busy between two turns.
const SEND_BUFFER: usize = 64 << 10;
/// Resets that the client may provoke in the life of a connection (CVE-2025-8671).
const LOCAL_RESETS: usize = 512;
/// What small DATA frames may cost, at 256 bytes each less their payload, before they are read. More than a turn of the
/// [`Wire`] can bring, so that only streams that do not read their frames come near it.
const SMALL_DATA: usize = 2 << 20;
/// For streams that a client had queued behind the answer to our PING: they are sent with it, or at its next turn.
const BEHIND: Duration = Duration::from_millis(20);
/// How long the peer may take to close after we have.
const LINGER: Duration = Duration::from_secs(1);

/// What the connection waits for, each with a deadline of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// The client's first frame.
    Greeting,
    /// The rest of a head, which is the so-manieth.
    Head(u64),
    /// The transport to take more than this.
    Write(u64),
    /// The client to end a request that was answered.
    Leftover,
    /// The request after so many. Those that are answered as soon as they are read leave no other trace of having come.
    Idle(u64),
    /// The client to answer the PING between the two GOAWAYs.
    Drain,
    /// The client to send what it had queued when it answered the PING.
    Behind,
    /// The client to see that we are closing.
    Close,
}

struct Driver<A: Application, IO, F> {
    connection: Connection<Wire<IO>, Bytes>,
    wire: Wire<IO>,
    shared: Arc<Shared<A>>,
    streams: FuturesUnordered<F>,
    /// Answered, but perhaps not flushed yet.
    finished: Vec<InFlight<A>>,
    leftovers: Leftovers,
    deadline: Deadline,
    draining: bool,
    closing: bool,
    /// Requests whose head has begun and that are in the ledger.
    entered: u64,
}

impl<A, IO, F> Driver<A, IO, F>
where
    A: Application,
    IO: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = InFlight<A>>,
{
    fn new(connection: Connection<Wire<IO>, Bytes>, wire: Wire<IO>, shared: Arc<Shared<A>>) -> Self {
        Driver {
            connection,
            wire,
            shared,
            streams: FuturesUnordered::new(),
            finished: Vec::new(),
            leftovers: Leftovers::default(),
            deadline: Deadline::default(),
            draining: false,
            closing: false,
            entered: 0,
        }
    }

    /// Runs to the connection's end; whether the client is gone.
    async fn run(
        mut self,
        open: impl Fn(
            &Arc<Shared<A>>,
            http::Request<h2::RecvStream>,
            h2::server::SendResponse<Bytes>,
        ) -> Option<F>,
        mut drain: Drain<impl Future<Output = ()> + Unpin>,
    ) -> bool {
        std::future::poll_fn(|cx| {
            if !self.draining && drain.poll(cx).is_some() {
                self.draining = true;
                self.shared.draining.raise();
                self.leftovers.clear();
                // GOAWAY with the highest stream there can be, and a PING: when that is answered, everything that the
                // client sent before it knew has arrived, and the GOAWAY with the last stream follows
                // (RFC 9113 §6.8).
                self.wire.hold_ack();
                self.connection.graceful_shutdown();
            }
            self.poll(cx, &open)
        })
        .await
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        open: &impl Fn(
            &Arc<Shared<A>>,
            http::Request<h2::RecvStream>,
            h2::server::SendResponse<Bytes>,
        ) -> Option<F>,
    ) -> Poll<bool> {
        loop {
            loop {
                match self.connection.poll_accept(cx) {
                    Poll::Ready(Some(Ok((request, respond)))) => {
                        self.entered += 1;
                        self.streams.extend(open(&self.shared, request, respond));
                    }
                    Poll::Ready(Some(Err(error))) => {
                        tracing::debug!(%error, "h2 connection");
                        let gone = error.is_io() || error.is_remote();
                        return self.end(cx, gone);
                    }
                    Poll::Ready(None) => return self.end(cx, false),
                    Poll::Pending => break,
                }
            }
            let before = self.finished.len();
            while let Poll::Ready(Some(mut flight)) = self.streams.poll_next_unpin(cx) {
                if let Some(stream) = flight.leftover.take()
                    && !self.draining
                {
                    self.leftovers.hold(stream);
                }
                self.finished.push(flight);
            }
            if self.finished.len() > before {
                // Their frames are in `h2`'s queues: one more turn takes them to the wire.
                continue;
            }
            if let Some(breach) = self.wire.breach()
                && !self.closing
            {
                tracing::debug!(?breach, client = %self.shared.info.peer, "h2 breach");
                self.close(breach.reason());
                continue;
            }
            let flushed = match self.wire.poll_flush_all(cx) {
                Poll::Ready(Ok(more)) if more => continue,
                Poll::Ready(Ok(_)) => {
                    self.settle();
                    if !self.wire.reading().1 {
                        // All that was read has gone through `h2`: what did not come out, it has refused by itself.
                        // While we drain, those are streams after the last one of our GOAWAY.
                        self.enter_others(if self.draining { Outcome::Shed } else { Outcome::Rejected });
                    }
                    true
                }
                Poll::Ready(Err(_)) => return self.end(cx, true),
                Poll::Pending => false,
            };
            if self.wire.next_turn() {
                continue;
            }
            self.leftovers.expire();
            let wait = self.wait(flushed);
            self.deadline.set(wait);
            match self.deadline.poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Wait::Greeting | Wait::Head(_)) => self.close(Reason::ENHANCE_YOUR_CALM),
                Poll::Ready(Wait::Behind) => self.wire.release_ack(),
                Poll::Ready(Wait::Leftover) => self.leftovers.clear(),
                // Drained: the PING has not been answered, and there is nothing to be lost.
                Poll::Ready(Wait::Idle(_) | Wait::Drain) => self.close(Reason::NO_ERROR),
                Poll::Ready(Wait::Write(_) | Wait::Close) => return self.end(cx, true),
            }
        }
    }

    /// What to wait for now, and how long.
    fn wait(&self, flushed: bool) -> Option<(Wait, Duration)> {
        let timeouts = &self.shared.timeouts;
        let (greeted, in_head, heads) = self.wire.reading();
        let idle = self.streams.is_empty();
        if self.closing {
            Some((Wait::Close, LINGER))
        } else if self.draining && self.wire.holds_ack() {
            Some((Wait::Behind, BEHIND))
        } else if self.draining && idle && flushed {
            Some((Wait::Drain, LINGER))
        } else if !flushed {
            Some((Wait::Write(self.wire.written()), timeouts.write))
        } else if !greeted {
            Some((Wait::Greeting, timeouts.head))
        } else if in_head {
            Some((Wait::Head(heads), timeouts.head))
        } else if idle && !self.leftovers.is_empty() {
            Some((Wait::Leftover, HELD))
        } else if idle {
            self.wire.release();
            Some((Wait::Idle(heads), timeouts.idle))
        } else {
            None
        }
    }

    /// Ends the connection with a GOAWAY; what is in flight is given up.
    fn close(&mut self, reason: Reason) {
        self.closing = true;
        self.shared.client_gone.store(true, Ordering::Relaxed);
        self.streams = FuturesUnordered::new();
        self.leftovers.clear();
        self.connection.abrupt_shutdown(reason);
    }

    /// All that was sent has reached the kernel.
    fn settle(&mut self) {
        if !self.finished.is_empty() {
            let answered = self.finished.drain(..).filter_map(|flight| flight.settle().then_some(())).count();
            self.wire.answered(answered);
        }
    }

    fn end(&mut self, cx: &mut Context<'_>, gone: bool) -> Poll<bool> {
        if !gone && matches!(self.wire.poll_flush_all(cx), Poll::Ready(Ok(_))) {
            self.settle();
        }
        self.shared.client_gone.store(true, Ordering::Relaxed);
        self.enter_others(if gone { Outcome::ClientGone } else { Outcome::Rejected });
        Poll::Ready(gone)
    }
}

impl<A: Application, IO, F> Driver<A, IO, F> {
    /// Enters the requests that have begun and that `h2` did not give us.
    fn enter_others(&mut self, outcome: Outcome) {
        let heads = self.wire.heads();
        for _ in self.entered..heads {
            self.shared.application.ledger().accept().end(outcome);
            if outcome == Outcome::Rejected {
                self.shared.application.refused(&self.shared.info, None);
            }
        }
        self.entered = self.entered.max(heads);
    }
}

impl<A: Application, IO, F> Drop for Driver<A, IO, F> {
    fn drop(&mut self) {
        self.enter_others(Outcome::Killed);
    }
}

/// One timer for all waits. It is set back only when it has gone off, not at every change: a busy connection changes
/// between waiting and not waiting thousands of times a second.
#[derive(Default)]
struct Deadline {
    due: Option<(Wait, Instant)>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Deadline {
    /// The same wait as before goes on; any other begins now.
    fn set(&mut self, wait: Option<(Wait, Duration)>) {
        match (wait, self.due) {
            (Some((wait, _)), Some((current, _))) if wait == current => {}
            (wait, _) => self.due = wait.map(|(wait, duration)| (wait, Instant::now() + duration)),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Wait> {
        let Some((wait, due)) = self.due else { return Poll::Pending };
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
        if sleep.deadline() > due {
            sleep.as_mut().reset(due);
        }
        while sleep.as_mut().poll(cx).is_ready() {
            if Instant::now() >= due {
                self.due = None;
                return Poll::Ready(wait);
            }
            sleep.as_mut().reset(due);
        }
        Poll::Pending
    }
}
