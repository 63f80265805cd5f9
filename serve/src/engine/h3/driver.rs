//! One connection: its handshake, its streams, its deadlines, and its end.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use playhouse_protocol::http3::{Code, MAX_VARINT, encode};
use quinn::{Connection, RecvStream, SendStream};
use tokio::time::{Instant, timeout};

use super::critical::{self, Seen};
use super::early::{Early, Handshake};
use super::in_flight::{Shared, section_size};
use super::stream::{self, Ending};
use crate::engine::Settings;
use crate::engine::drain::Drain;
use crate::net::QuicIncoming;
use crate::tls::{self, ListenerTls};
use crate::{Application, ConnectionInfo, Outcome};

/// Serves one connection to its end, from its first packet on.
pub(crate) async fn serve<A: Application>(
    incoming: QuicIncoming,
    mut info: ConnectionInfo,
    tls: &ListenerTls,
    settings: &Settings,
    application: &Arc<A>,
    mut drain: Drain<impl Future<Output = ()> + Send + Unpin>,
) {
    let begun = begin(incoming, tls, settings, &mut info, &**application);
    let Some(Some(begun)) = drain.grace(settings.timeouts.drain_idle, begun).await else { return };
    let shared = Arc::new(Shared::new(
        application.clone(),
        Arc::new(info),
        settings.limits.clone(),
        settings.timeouts.clone(),
        begun.connection,
        begun.early,
    ));
    let Some(control) = open_control(&shared).await else { return };
    let connection = shared.connection.clone();
    Driver { shared, control, next_stream: 0, ending: Phase::Open }.run(begun.handshake, drain).await;
    farewell(&connection).await;
}

/// A connection that requests may come on.
struct Begun {
    connection: Connection,
    early: Early,
    /// Where it goes on.
    handshake: Option<Handshake>,
}

/// Waits for the handshake; where early data is taken, only until it is known what the client asks for.
async fn begin<A: Application>(
    incoming: QuicIncoming,
    tls: &ListenerTls,
    settings: &Settings,
    info: &mut ConnectionInfo,
    application: &A,
) -> Option<Begun> {
    let failed = |info: &ConnectionInfo, reason: &str| {
        application.handshake_failed(info, reason);
        None
    };
    let is_shown = incoming.is_validated();
    let (mut connecting, counted) = match incoming.accept() {
        Ok(accepted) => accepted,
        Err(error) => return failed(info, &error.to_string()),
    };
    let started = Instant::now();
    let connected = async {
        if tls.takes_early_data() {
            connecting.handshake_data().await?;
            // A server's always may be used at once.
            match connecting.into_0rtt() {
                Ok((connection, ended)) => return Ok((connection, Some(ended))),
                Err(others) => connecting = others,
            }
        }
        Ok((connecting.await?, None))
    };
    match timeout(settings.timeouts.tls, connected).await {
        Ok(Ok((connection, ended))) => {
            let data = connection.handshake_data().and_then(|data| data.downcast().ok());
            let server_name =
                data.and_then(|data: Box<quinn::crypto::rustls::HandshakeData>| data.server_name);
            info.tls = Some(tls::quic_info(tls, server_name));
            let left = settings.timeouts.tls.saturating_sub(started.elapsed());
            let (early, handshake) = match ended {
                Some(ended) => {
                    let early = Early::begun(is_shown, info.rate.is_some());
                    (early, Some(Handshake::new(ended, left, counted)))
                }
                None => (Early::over(), None),
            };
            Some(Begun { connection, early, handshake })
        }
        Ok(Err(error)) => {
            let error: quinn::ConnectionError = error;
            failed(info, &error.to_string())
        }
        Err(_) => failed(info, "too slow"),
    }
}

/// Opens our control stream. It is never ended (RFC 9114 §6.2.1).
async fn open_control<A: Application>(shared: &Shared<A>) -> Option<SendStream> {
    let opening = async {
        let mut control = shared.connection.open_uni().await.ok()?;
        let mut settings = BytesMut::new();
        encode::control_stream(&mut settings, section_size(&shared.limits) as u64);
        control.write_chunk(settings.freeze()).await.ok()?;
        Some(control)
    };
    let opened = timeout(shared.timeouts.head, opening).await.ok().flatten();
    if opened.is_none() {
        shared.close(Code::ExcessiveLoad, "no room for a control stream");
    }
    opened
}

/// Waits until the close is on its way: the endpoint, and perhaps the process, may be gone right after.
async fn farewell(connection: &Connection) {
    let sent = async {
        // Where the client has closed there is nothing to be sent.
        while connection.close_reason() == Some(quinn::ConnectionError::LocallyClosed)
            && connection.stats().frame_tx.connection_close == 0
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let _ = timeout(FAREWELL, sent).await;
}

/// How far the end of a connection has come.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Open,
    /// The client knows that it is to open no more streams, or will soon: those that are on their way are served until
    /// then (RFC 9114 §5.2).
    Warned {
        until: Instant,
    },
    /// It has been told which stream is the last. It is to hear so before the connection is closed.
    Last {
        until: Instant,
    },
}

struct Driver<A> {
    shared: Arc<Shared<A>>,
    control: SendStream,
    /// The first request stream that was not accepted.
    next_stream: u64,
    ending: Phase,
}

impl<A: Application> Driver<A> {
    async fn run(mut self, mut handshake: Option<Handshake>, drain: impl Future<Output = ()>) {
        let mut drain = pin!(drain);
        let connection = self.shared.connection.clone();
        let mut requests = FuturesUnordered::new();
        let mut others = FuturesUnordered::new();
        let (seen, mut resets) = (Arc::new(Seen::default()), Resets::new());
        let mut control_stopped = pin!(self.control.stopped());
        let (mut drained, mut idle_since) = (false, Instant::now());
        let mut timer = pin!(tokio::time::sleep_until(idle_since + self.shared.timeouts.idle));
        loop {
            let due = match self.ending {
                Phase::Warned { until } => Some(until),
                _ if !requests.is_empty() => None,
                Phase::Last { until } => Some(until),
                Phase::Open => Some(idle_since + self.shared.timeouts.idle),
            };
            if let Some(due) = due
                && timer.deadline() != due
            {
                timer.as_mut().reset(due);
            }
            tokio::select! {
                biased;
                () = &mut drain, if !drained => {
                    drained = true;
                    self.shared.draining.raise();
                    if matches!(self.ending, Phase::Open) {
                        self.warn().await;
                    }
                }
                // Before streams, so that what comes with its end is not taken for early.
                in_time = Handshake::over(&mut handshake) => {
                    handshake = None;
                    if !self.handshake_is_over(in_time) {
                        return finish(requests).await;
                    }
                }
                accepted = connection.accept_bi() => match accepted {
                    Ok((send, recv)) => {
                        if let Some((send, recv)) = self.admit(send, recv) {
                            requests.push(stream::serve(self.shared.clone(), send, recv));
                        }
                    }
                    Err(error) => {
                        // Where we have closed it, that was because of the client.
                        self.shared.lost(&error);
                        tracing::debug!(%error, "h3 connection");
                        return finish(requests).await;
                    }
                },
                Ok(recv) = connection.accept_uni() => others.push(critical::read(recv, seen.clone())),
                Some(ending) = requests.next(), if !requests.is_empty() => {
                    idle_since = Instant::now();
                    if ending == Ending::Cut && !resets.take(idle_since) {
                        self.shared.close(Code::ExcessiveLoad, "too many requests were given up");
                    }
                }
                Some(read) = others.next(), if !others.is_empty() => if let Err(code) = read {
                    self.shared.close(code, "");
                },
                _ = &mut control_stopped => {
                    match connection.close_reason() {
                        Some(error) => self.shared.lost(&error),
                        None => self.shared.close(Code::ClosedCriticalStream, "our control stream is not wanted"),
                    }
                    return finish(requests).await;
                }
                () = timer.as_mut(), if due.is_some() => match self.ending {
                    // An idle connection ends as a drained one does: a request may be on its way.
                    Phase::Open => self.warn().await,
                    Phase::Warned { .. } => self.name_last().await,
                    Phase::Last { .. } => return,
                },
            }
        }
    }

    /// Whether the connection goes on.
    fn handshake_is_over(&self, in_time: bool) -> bool {
        let failed = |reason: &str| self.shared.application.handshake_failed(&self.shared.info, reason);
        if !in_time {
            failed("too slow");
            self.shared.close(Code::NoError, "the handshake is too slow");
            return false;
        }
        match self.shared.connection.close_reason() {
            Some(error) => {
                failed(&error.to_string());
                self.shared.lost(&error);
                false
            }
            None => {
                self.shared.early.end();
                true
            }
        }
    }

    /// A stream that the client opens: it is served, unless the client knows of a last one before it.
    fn admit(&mut self, mut send: SendStream, mut recv: RecvStream) -> Option<(SendStream, RecvStream)> {
        let stream = u64::from(quinn::VarInt::from(send.id()));
        if matches!(self.ending, Phase::Last { .. }) {
            let code = super::code(Code::RequestRejected);
            // They fail only where the client has given it up already.
            let _ = (send.reset(code), recv.stop(code));
            self.shared.application.ledger().accept().end(Outcome::Shed);
            return None;
        }
        self.next_stream = stream + STREAM_STEP;
        Some((send, recv))
    }

    /// Tells the client to open no more streams, without naming the last: it may have opened some already.
    async fn warn(&mut self) {
        self.goaway(LARGEST_STREAM).await;
        self.ending = Phase::Warned { until: self.heard_by() };
    }

    async fn name_last(&mut self) {
        self.goaway(self.next_stream).await;
        self.ending = Phase::Last { until: self.heard_by() };
    }

    /// By when the client has heard what it is told now, and has what it sent before been heard by us.
    fn heard_by(&self) -> Instant {
        let round_trip = (self.shared.connection.rtt() * 2).min(LONGEST_ROUND_TRIP);
        Instant::now() + round_trip + HEARING
    }

    async fn goaway(&mut self, stream: u64) {
        let mut frame = BytesMut::new();
        encode::goaway(&mut frame, stream);
        // A client that gives no room for it needs no farewell.
        let _ = timeout(LONGEST_ROUND_TRIP, self.control.write_chunk(frame.freeze())).await;
    }
}

impl<A> Drop for Driver<A> {
    fn drop(&mut self) {
        // Nothing is changed by it where the connection is closed already.
        let code = if matches!(self.ending, Phase::Open) { Code::InternalError } else { Code::NoError };
        self.shared.connection.close(super::code(code), b"");
    }
}

/// The connection is over; streams find out by themselves, and enter what has become of them. What waits for something
/// else is dropped.
async fn finish(mut requests: FuturesUnordered<impl Future<Output = Ending>>) {
    let rest = async { while requests.next().await.is_some() {} };
    let _ = timeout(Duration::ZERO, rest).await;
}

/// How often a client may have requests cut before they cost more than they are worth (CVE-2023-44487, CVE-2025-8671).
struct Resets {
    left: u32,
    of_a_life: u32,
    filled: Instant,
}

impl Resets {
    fn new() -> Self {
        Resets { left: RESETS_MAXIMUM, of_a_life: RESETS_OF_A_LIFE, filled: Instant::now() }
    }

    fn take(&mut self, now: Instant) -> bool {
        let seconds = now.saturating_duration_since(self.filled).as_secs();
        if seconds > 0 {
            let more = u32::try_from(seconds).unwrap_or(u32::MAX).saturating_mul(RESETS_PER_SECOND);
            self.left = self.left.saturating_add(more).min(RESETS_MAXIMUM);
            self.filled += Duration::from_secs(seconds);
        }
        let (Some(left), Some(of_a_life)) = (self.left.checked_sub(1), self.of_a_life.checked_sub(1)) else {
            return false;
        };
        (self.left, self.of_a_life) = (left, of_a_life);
        true
    }
}

/// As over HTTP/2.
const RESETS_MAXIMUM: u32 = 500;
const RESETS_PER_SECOND: u32 = 50;
const RESETS_OF_A_LIFE: u32 = 10_000;
/// Between the numbers of two request streams.
const STREAM_STEP: u64 = 4;
/// The largest number of a request stream (RFC 9114 §5.2).
const LARGEST_STREAM: u64 = MAX_VARINT - 3;
const LONGEST_ROUND_TRIP: Duration = Duration::from_secs(1);
/// For the program behind the client's sockets to get to what has arrived: a busy one takes longer than its network. Until then
/// it sends what would have to be refused.
const HEARING: Duration = Duration::from_millis(250);
/// For the close to get to the kernel.
const FAREWELL: Duration = Duration::from_millis(200);

#[cfg(test)]
mod unit {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn resets_are_made_good_with_time_but_not_for_ever() {
        let mut resets = Resets::new();
        let cut = |resets: &mut Resets| (0..).take_while(|_| resets.take(Instant::now())).count() as u32;
        assert_eq!(cut(&mut resets), RESETS_MAXIMUM);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(cut(&mut resets), 2 * RESETS_PER_SECOND);
        let mut life = RESETS_MAXIMUM + 2 * RESETS_PER_SECOND;
        while life < RESETS_OF_A_LIFE {
            tokio::time::advance(Duration::from_secs(60)).await;
            life += cut(&mut resets);
        }
        assert_eq!(life, RESETS_OF_A_LIFE);
    }
}
