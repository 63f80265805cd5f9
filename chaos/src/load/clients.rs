//! The clients: each sends a request, waits for what becomes of it, and goes on.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout_at};

use super::exchange::Exchange;
use super::multiplexed::{Multiplexed, NoStream};
use super::report::Class;
use super::stream::Protocol;
use super::tunnel::{Ended, From, Messages, To, Tunnel};
use super::worker::{Fault, Shared};
use super::{http1, http2};

/// Between a failure and the next request of the same client, so that a server that is down is asked again and again
/// but not in a busy loop.
const AFTER_FAILURE: Duration = Duration::from_millis(1);

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
                    failed(&shared, id, None, begun, fault).await;
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
                failed(&shared, id, Some(connection.number), begun, fault).await;
                kept = (reusable && keep_alive).then_some(connection);
            }
        }
    }
}

/// A client of HTTP/2 or HTTP/3, which shares the connection in `slot` with others and replaces it when it is no good any more.
pub(super) async fn multiplexed<C: Multiplexed>(shared: Arc<Shared>, slot: Arc<Mutex<Option<Arc<C>>>>) {
    let mut phase = shared.phase.clone();
    let mut due = None;
    while let Some(id) = shared.next(&mut phase, &mut due).await {
        let exchange = shared.exchange(id);
        let begun = Instant::now();
        let deadline = begun + shared.stream.deadline;
        let result = match opened(&shared, &slot, &exchange, deadline).await {
            Ok((connection, stream)) => match connection.exchange(stream, &exchange, deadline).await {
                Ok(()) => Ok(connection.life().note_answer()),
                Err(fault) => Err((fault, Some(connection.life().number))),
            },
            Err(failed) => Err(failed),
        };
        match result {
            Ok(first_on) => shared.account.answered(shared.index, begun, first_on),
            Err((fault, connection)) => failed(&shared, id, connection, begun, fault).await,
        }
    }
}

/// A stream for a request, on the shared connection or on the next ones where it is ending.
async fn opened<C: Multiplexed>(
    shared: &Shared,
    slot: &Mutex<Option<Arc<C>>>,
    exchange: &Exchange,
    deadline: Instant,
) -> Result<(Arc<C>, C::Opened), (Fault, Option<u64>)> {
    loop {
        let connection = usable(shared, slot, deadline).await.map_err(|fault| (fault, None))?;
        let life = connection.life();
        match connection.open(exchange, shared, deadline).await {
            Ok(stream) => return Ok((connection, stream)),
            // The server ended it while this request had no stream yet: a client takes another. On a fresh connection it is a
            // failure, but where the server has said that it goes: it may have been about to when it accepted.
            Err(NoStream::Closed { told, .. })
                if (told || life.has_answered()) && Instant::now() < deadline =>
            {
                if life.retire() {
                    shared.account.idle_close(shared.index);
                }
            }
            Err(NoStream::Closed { detail, .. }) => {
                life.retire();
                return Err((Fault::before(Class::Unsent, detail), Some(life.number)));
            }
            Err(NoStream::Failed(fault)) => return Err((fault, Some(life.number))),
        }
    }
}

/// The shared connection, made anew where it has ended.
async fn usable<C: Multiplexed>(
    shared: &Shared,
    slot: &Mutex<Option<Arc<C>>>,
    deadline: Instant,
) -> Result<Arc<C>, Fault> {
    let Ok(mut slot) = timeout_at(deadline, slot.lock()).await else {
        return Err(Fault::before(Class::Refused, "no connection within the deadline"));
    };
    if let Some(connection) = &*slot {
        let life = connection.life();
        if life.is_open() {
            return Ok(connection.clone());
        }
        if life.retire() && life.has_answered() {
            shared.account.idle_close(shared.index);
        }
    }
    *slot = None;
    let connection = Arc::new(C::connect(shared, deadline).await?);
    *slot = Some(connection.clone());
    Ok(connection)
}

/// A client of WebSockets over HTTP/1.1, with one at a time.
pub(super) async fn http1_tunnels(shared: Arc<Shared>, messages: Messages) {
    let mut phase = shared.phase.clone();
    let mut due = None;
    while let Some(id) = shared.next(&mut phase, &mut due).await {
        let exchange = shared.exchange(id);
        let begun = Instant::now();
        let deadline = begun + shared.stream.deadline;
        let mut connection = match shared.connect(deadline).await {
            Ok(connected) => http1::Connection::new(connected),
            Err(fault) => {
                failed(&shared, id, None, begun, fault).await;
                continue;
            }
        };
        let number = connection.number;
        if let Err((fault, _)) = connection.exchange(&exchange, &shared.authority, true, deadline).await {
            failed(&shared, id, Some(number), begun, fault).await;
            continue;
        }
        shared.account.opened(shared.index, begun, Some(connection.begun));
        let (socket, read) = connection.into_tunnel();
        let (from, to) = tokio::io::split(socket);
        let result = tunnel(&shared, id, &messages).run(From::Http1(from, read), To::Http1(to)).await;
        ended(&shared, id, number, begun, result).await;
    }
}

/// A client of WebSockets over HTTP/2, one at a time on the connection that it shares with others.
pub(super) async fn http2_tunnels(
    shared: Arc<Shared>,
    slot: Arc<Mutex<Option<Arc<http2::Connection>>>>,
    messages: Messages,
) {
    let mut phase = shared.phase.clone();
    let mut due = None;
    while let Some(id) = shared.next(&mut phase, &mut due).await {
        let exchange = shared.exchange(id);
        let begun = Instant::now();
        let deadline = begun + shared.stream.deadline;
        let (connection, stream) = match opened(&shared, &slot, &exchange, deadline).await {
            Ok(opened) => opened,
            Err((fault, connection)) => {
                failed(&shared, id, connection, begun, fault).await;
                continue;
            }
        };
        let (from, to) = match connection.switch(stream, &exchange, deadline).await {
            Ok(switched) => switched,
            Err(fault) => {
                failed(&shared, id, Some(connection.life().number), begun, fault).await;
                continue;
            }
        };
        shared.account.opened(shared.index, begun, connection.life().note_answer());
        let result = tunnel(&shared, id, &messages).run(From::Http2(from), To::Http2(to)).await;
        ended(&shared, id, connection.life().number, begun, result).await;
    }
}

fn tunnel<'a>(shared: &'a Shared, id: u64, messages: &'a Messages) -> Tunnel<'a, impl Fn(Instant) + use<'a>> {
    Tunnel {
        id,
        messages,
        deadline: shared.stream.deadline,
        ends: shared.ends,
        phase: shared.phase.clone(),
        came_back: |begun| shared.account.came_back(shared.index, begun),
    }
}

async fn ended(shared: &Shared, id: u64, connection: u64, begun: Instant, result: Result<Ended, Fault>) {
    match result {
        Ok(ended) => shared.account.ended(shared.index, ended),
        Err(fault) => failed(shared, id, Some(connection), begun, fault).await,
    }
}

async fn failed(shared: &Shared, id: u64, connection: Option<u64>, begun: Instant, fault: Fault) {
    shared.failed(id, connection, begun, fault);
    sleep(AFTER_FAILURE).await;
}
