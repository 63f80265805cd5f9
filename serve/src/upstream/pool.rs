//! The idle connections to one server.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Connection, Owner};

/// The idle connections to one server. The one used last is taken first: it is the least likely to have been closed, and
/// those that are not needed run into their timeout.
#[derive(Debug, Default)]
pub(crate) struct IdlePool {
    // Held for a few instructions. What is taken out is closed after the lock has been given back.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Oldest first.
    connections: VecDeque<Idle>,
    retired: bool,
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: Instant,
    until: Instant,
}

impl IdlePool {
    /// The connection of this owner that was used last, if it is idle for no longer than `youngest` and has neither
    /// expired nor been closed by the server. Those that have are closed on the way.
    pub(crate) fn take(&self, owner: Owner, now: Instant, youngest: Option<Duration>) -> Option<Connection> {
        loop {
            let idle = {
                let mut state = self.state.lock();
                // The very last, but where connections have owners.
                let place = state.connections.iter().rposition(|idle| idle.connection.owner == owner)?;
                let since = state.connections[place].since;
                if youngest.is_some_and(|limit| now.duration_since(since) > limit) {
                    return None;
                }
                state.connections.remove(place)?
            };
            if idle.until > now && idle.connection.is_quiet() {
                return Some(idle.connection);
            }
        }
    }

    /// Keeps a connection for `keep`; beyond `max_idle` the oldest is closed.
    pub(crate) fn put(&self, connection: Connection, now: Instant, keep: Duration, max_idle: usize) {
        let idle = Idle { connection, since: now, until: now + keep };
        let _closed = {
            let mut state = self.state.lock();
            if state.retired || max_idle == 0 {
                Some(idle)
            } else {
                state.connections.push_back(idle);
                if state.connections.len() > max_idle { state.connections.pop_front() } else { None }
            }
        };
    }

    /// Closes what has expired, what its server has closed, and the oldest beyond `max_idle`.
    pub(super) fn sweep(&self, now: Instant, max_idle: usize) -> Sweep {
        let mut closed = Vec::new();
        let mut state = self.state.lock();
        let mut index = 0;
        while index < state.connections.len() {
            let over = state.connections.len() > max_idle;
            let idle = &state.connections[index];
            if over || idle.until <= now || !idle.connection.is_quiet() {
                closed.extend(state.connections.remove(index));
            } else {
                index += 1;
            }
        }
        let next_expiry = state.connections.iter().map(|idle| idle.until).min();
        let sweep = Sweep { closed: closed.len(), left: state.connections.len(), next_expiry };
        drop(state);
        drop(closed);
        sweep
    }

    /// Closes all, and keeps none from here on.
    pub(super) fn retire(&self) {
        let _closed = {
            let mut state = self.state.lock();
            state.retired = true;
            std::mem::take(&mut state.connections)
        };
    }

    pub(super) fn is_retired(&self) -> bool {
        self.state.lock().retired
    }

    pub(super) fn len(&self) -> usize {
        self.state.lock().connections.len()
    }
}

/// What a sweep has found.
#[derive(Debug)]
pub(super) struct Sweep {
    pub(super) closed: usize,
    pub(super) left: usize,
    pub(super) next_expiry: Option<Instant>,
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixStream;

    use super::*;
    use crate::net::Stream;

    const MINUTE: Duration = Duration::from_secs(60);

    fn pair() -> (Connection, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        (Connection::new(Stream::Unix(near)), far)
    }

    #[tokio::test(start_paused = true)]
    async fn the_connection_used_last_is_taken_first_and_expired_ones_never() {
        let pool = IdlePool::default();
        let (mut first, _a) = pair();
        let (mut second, _b) = pair();
        (first.answers, second.answers) = (1, 2);
        pool.put(first, Instant::now(), MINUTE, 8);
        tokio::time::advance(MINUTE / 2).await;
        pool.put(second, Instant::now(), MINUTE, 8);
        let taken = pool.take(Owner::Anyone, Instant::now(), None).unwrap();
        assert_eq!(taken.answers, 2);
        assert!(
            pool.take(Owner::Anyone, Instant::now(), Some(Duration::from_secs(1))).is_none(),
            "too old for this request"
        );
        assert_eq!(pool.len(), 1);
        tokio::time::advance(MINUTE / 2).await;
        assert!(pool.take(Owner::Anyone, Instant::now(), None).is_none());
        assert_eq!(pool.len(), 0);
    }

    #[tokio::test]
    async fn a_connection_carries_nobody_but_its_owner() {
        let pool = IdlePool::default();
        let owners = [Owner::Client(1), Owner::Client(2), Owner::Anyone];
        let far_ends: Vec<_> = owners
            .into_iter()
            .map(|owner| {
                let (mut connection, far) = pair();
                connection.owner = owner;
                pool.put(connection, Instant::now(), MINUTE, 8);
                far
            })
            .collect();
        assert!(pool.take(Owner::Client(3), Instant::now(), None).is_none());
        for owner in owners {
            assert_eq!(pool.take(owner, Instant::now(), None).unwrap().owner, owner);
            assert!(pool.take(owner, Instant::now(), None).is_none());
        }
        drop(far_ends);
    }

    #[tokio::test]
    async fn the_oldest_makes_room() {
        let pool = IdlePool::default();
        let mut far_ends = Vec::new();
        for number in 0..3 {
            let (mut connection, far) = pair();
            connection.answers = number;
            far_ends.push(far);
            pool.put(connection, Instant::now(), MINUTE, 2);
        }
        let numbers: Vec<_> = std::iter::from_fn(|| pool.take(Owner::Anyone, Instant::now(), None))
            .map(|taken| taken.answers)
            .collect();
        assert_eq!(numbers, [2, 1]);
    }

    #[tokio::test]
    async fn a_connection_that_was_closed_or_has_stray_bytes_is_not_taken() {
        let pool = IdlePool::default();
        let (closed, far) = pair();
        drop(far);
        let (stray, mut far) = pair();
        far.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").await.unwrap();
        pool.put(closed, Instant::now(), MINUTE, 8);
        pool.put(stray, Instant::now(), MINUTE, 8);
        // Lets the runtime learn of both.
        tokio::task::yield_now().await;
        tokio::time::timeout(MINUTE, async {
            while pool.sweep(Instant::now(), 8).left > 0 {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
    }

    #[tokio::test]
    async fn a_retired_pool_keeps_nothing() {
        let pool = IdlePool::default();
        let (before, _a) = pair();
        pool.put(before, Instant::now(), MINUTE, 8);
        pool.retire();
        let (after, _b) = pair();
        pool.put(after, Instant::now(), MINUTE, 8);
        assert_eq!(pool.len(), 0);
    }
}
