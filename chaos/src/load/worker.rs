//! What the clients of a stream share: when the next request is begun, and how connections are made.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::account::Account;
use super::exchange::Exchange;
use super::report::{Class, Failure, Sent};
use super::stream::{Protocol, Stream};
use super::target::{Socket, Target, Wire};

/// What the clients are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Run,
    Pause,
    Stop,
}

/// What the clients of one stream share.
pub(super) struct Shared {
    pub(super) index: usize,
    pub(super) stream: Stream,
    pub(super) target: Target,
    pub(super) tls: Option<tokio_rustls::TlsConnector>,
    pub(super) authority: String,
    pub(super) account: Arc<Account>,
    pub(super) phase: watch::Receiver<Phase>,
    next: AtomicU64,
    pub(super) ends: Option<Instant>,
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
            Protocol::Http3 { streams } => (b"h3", streams.max(1)),
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
    pub(super) async fn next(
        &self,
        phase: &mut watch::Receiver<Phase>,
        due: &mut Option<Instant>,
    ) -> Option<u64> {
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
    pub(super) async fn connect(&self, deadline: Instant) -> Result<Connected, Fault> {
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

    pub(super) fn failed(&self, id: u64, connection: Option<u64>, begun: Instant, fault: Fault) {
        let Fault { class, sent, answered, detail } = fault;
        let begun = begun - self.account.started;
        let stream = String::new();
        let failure = Failure { stream, id, connection, class, sent, answered, begun, at: begun, detail };
        self.account.failed(self.index, failure);
    }

    pub(super) fn exchange(&self, id: u64) -> Exchange {
        (self.stream.generator)(id)
    }
}
