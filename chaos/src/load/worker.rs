//! The clients: each sends a request, waits for what becomes of it, and goes on.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::account::Account;
use super::exchange::Exchange;
use super::report::{Class, Failure, Sent};
use super::stream::{Protocol, Stream};
use super::target::{Socket, Target, Wire};
use super::{http1, http2};

/// Between a failure and the next request of the same client, so that a server that is down is asked again and again
/// but not in a busy loop.
const AFTER_FAILURE: Duration = Duration::from_millis(1);

/// What the clients are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Run,
    Pause,
    Stop,
}

/// What the clients of one stream share.
pub(super) struct Shared {
    index: usize,
    stream: Stream,
    target: Target,
    tls: Option<tokio_rustls::TlsConnector>,
    authority: String,
    account: Arc<Account>,
    phase: watch::Receiver<Phase>,
    next: AtomicU64,
    ends: Option<Instant>,
    /// Between two requests of one client, where the stream has a rate.
    pace: Option<Duration>,
}

/// Why a request failed, as far as the protocol can tell.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) class: Class,
    pub(super) sent: Sent,
    pub(super) answered: u64,
    pub(super) detail: String,
}

impl Fault {
    /// Before anything was sent.
    pub(super) fn before(class: Class, detail: impl ToString) -> Fault {
        Fault { class, sent: Sent::None, answered: 0, detail: detail.to_string() }
    }
}

/// A connection that was just made.
pub(super) struct Connected {
    pub(super) socket: Socket,
    pub(super) wire: Arc<Wire>,
    pub(super) number: u64,
    pub(super) begun: Instant,
}

impl Shared {
    pub(super) fn new(
        index: usize,
        stream: Stream,
        target: &Target,
        account: Arc<Account>,
        phase: watch::Receiver<Phase>,
    ) -> Shared {
        let target = stream.target.as_ref().unwrap_or(target).clone();
        let (alpn, per_connection): (&[u8], _) = match stream.protocol {
            Protocol::Http2 { streams } => (b"h2", streams.max(1)),
            Protocol::Http1KeepAlive | Protocol::Http1NewConnection => (b"http/1.1", 1),
        };
        let clients = stream.concurrency * per_connection;
        Shared {
            index,
            tls: stream.tls.as_ref().map(|tls| tls.connector(alpn)),
            authority: target.authority(),
            ends: stream.duration.map(|duration| account.started + duration),
            pace: stream.rate.map(|rate| Duration::from_secs_f64(clients as f64 / rate.max(1e-6))),
            next: AtomicU64::new(0),
            target,
            stream,
            account,
            phase,
        }
    }

    /// The next request's number, once it is time for it; `None` is the end.
    async fn next(&self, phase: &mut watch::Receiver<Phase>, due: &mut Option<Instant>) -> Option<u64> {
        loop {
            let now =
                phase.wait_for(|phase| *phase != Phase::Pause).await.map_or(Phase::Stop, |phase| *phase);
            if now == Phase::Stop || self.ends.is_some_and(|ends| Instant::now() >= ends) {
                return None;
            }
            if let Some(at) = *due {
                tokio::select! {
                    () = sleep_until(at) => *due = None,
                    _ = phase.changed() => {}
                }
                continue;
            }
            // Counted first and the phase looked at again after: either this client sees a pause, or the pause sees
            // this request.
            self.account.begun(self.index);
            if *phase.borrow() == Phase::Run {
                break;
            }
            self.account.not_begun(self.index);
        }
        *due = self.pace.map(|pace| Instant::now() + pace);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        if id >= self.stream.requests {
            self.account.not_begun(self.index);
            return None;
        }
        Some(id)
    }

    /// Connects, with TLS where the stream has it.
    async fn connect(&self, deadline: Instant) -> Result<Connected, Fault> {
        let begun = Instant::now();
        let (socket, wire) = match timeout_at(deadline, self.target.connect()).await {
            Ok(Ok(connected)) => connected,
            Ok(Err(error)) => return Err(Fault::before(Class::Refused, error)),
            Err(_) => return Err(Fault::before(Class::Refused, "no connection within the deadline")),
        };
        let number = self.account.connected(self.index);
        let socket: Socket = match (&self.tls, &self.stream.tls) {
            (Some(connector), Some(tls)) => {
                match timeout_at(deadline, connector.connect(tls.name().clone(), socket)).await {
                    Ok(Ok(stream)) => {
                        let negotiated = stream.get_ref().1.alpn_protocol();
                        if matches!(self.stream.protocol, Protocol::Http2 { .. }) && negotiated != Some(b"h2")
                        {
                            return Err(Fault::before(Class::Wrong, "the server did not choose h2"));
                        }
                        Box::new(stream)
                    }
                    // An alert or a certificate that does not fit is an answer, and a wrong one.
                    Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                        return Err(Fault::before(Class::Wrong, format!("TLS: {error}")));
                    }
                    Ok(Err(error)) => return Err(Fault::before(Class::Unsent, format!("TLS: {error}"))),
                    Err(_) => return Err(Fault::before(Class::Lost, "no TLS handshake within the deadline")),
                }
            }
            _ => socket,
        };
        Ok(Connected { socket, wire, number, begun })
    }

    fn failed(&self, id: u64, connection: Option<u64>, begun: Instant, fault: Fault) {
        let Fault { class, sent, answered, detail } = fault;
        let begun = begun - self.account.started;
        let stream = String::new();
        let failure = Failure { stream, id, connection, class, sent, answered, begun, at: begun, detail };
        self.account.failed(self.index, failure);
    }

    fn exchange(&self, id: u64) -> Exchange {
        (self.stream.generator)(id)
    }
}

/// A client of HTTP/1.1, with at most one connection.
pub(super) async fn http1(shared: Arc<Shared>) {
    let keep_alive = shared.stream.protocol == Protocol::Http1KeepAlive;
    let mut phase = shared.phase.clone();
    let mut due = None;
    let mut kept: Option<http1::Connection> = None;
    while let Some(id) = shared.next(&mut phase, &mut due).await {
        let exchange = shared.exchange(id);
        let begun = Instant::now();
        let deadline = begun + shared.stream.deadline;
        if let Some(connection) = &mut kept {
            match connection.idle() {
                http1::Idle::Open => {}
                http1::Idle::Closed => {
                    shared.account.idle_close(shared.index);
                    kept = None;
                }
                http1::Idle::Unsolicited => {
                    let fault = Fault::before(Class::Wrong, "bytes that no request asked for");
                    shared.failed(id, Some(connection.number), begun, fault);
                    kept = None;
                    continue;
                }
            }
        }
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => match shared.connect(deadline).await {
                Ok(connected) => http1::Connection::new(connected),
                Err(fault) => {
                    shared.failed(id, None, begun, fault);
                    sleep(AFTER_FAILURE).await;
                    continue;
                }
            },
        };
        let first = (connection.answers == 0).then_some(connection.begun);
        match connection.exchange(&exchange, &shared.authority, keep_alive, deadline).await {
            Ok(reusable) => {
                shared.account.answered(shared.index, begun, first);
                kept = (reusable && keep_alive).then_some(connection);
            }
            Err((fault, reusable)) => {
                shared.failed(id, Some(connection.number), begun, fault);
                kept = (reusable && keep_alive).then_some(connection);
                sleep(AFTER_FAILURE).await;
            }
        }
    }
}

/// A client of HTTP/2, which shares the connection in `slot` with others and replaces it when it is no good any more.
pub(super) async fn http2(shared: Arc<Shared>, slot: Arc<Mutex<Option<Arc<http2::Connection>>>>) {
    let mut phase = shared.phase.clone();
    let mut due = None;
    while let Some(id) = shared.next(&mut phase, &mut due).await {
        let exchange = shared.exchange(id);
        let begun = Instant::now();
        let deadline = begun + shared.stream.deadline;
        let result = loop {
            let connection = match usable(&shared, &slot, deadline).await {
                Ok(connection) => connection,
                Err(fault) => break Err((fault, None)),
            };
            let scheme = if shared.tls.is_some() { "https" } else { "http" };
            let end = connection.exchange(&exchange, scheme, &shared.authority, deadline).await;
            match end {
                http2::End::Answered => break Ok(connection.note_answer().then_some(connection.begun)),
                // The server ended it while this request had no stream yet; only on a fresh connection is that a failure.
                http2::End::ClosedBefore(_) if connection.has_answered() && Instant::now() < deadline => {
                    if connection.retire() {
                        shared.account.idle_close(shared.index);
                    }
                }
                http2::End::ClosedBefore(detail) => {
                    connection.retire();
                    break Err((Fault::before(Class::Unsent, detail), Some(connection.number)));
                }
                http2::End::Failed(fault) => break Err((fault, Some(connection.number))),
            }
        };
        match result {
            Ok(first_on) => shared.account.answered(shared.index, begun, first_on),
            Err((fault, connection)) => {
                shared.failed(id, connection, begun, fault);
                sleep(AFTER_FAILURE).await;
            }
        }
    }
}

/// The shared connection, made anew where it has ended.
async fn usable(
    shared: &Shared,
    slot: &Mutex<Option<Arc<http2::Connection>>>,
    deadline: Instant,
) -> Result<Arc<http2::Connection>, Fault> {
    let Ok(mut slot) = timeout_at(deadline, slot.lock()).await else {
        return Err(Fault::before(Class::Refused, "no connection within the deadline"));
    };
    if let Some(connection) = &*slot {
        if connection.is_open() {
            return Ok(connection.clone());
        }
        if connection.retire() && connection.has_answered() {
            shared.account.idle_close(shared.index);
        }
    }
    *slot = None;
    let connected = shared.connect(deadline).await?;
    let connection = Arc::new(http2::Connection::new(connected, deadline).await?);
    *slot = Some(connection.clone());
    Ok(connection)
}
