//! What the instances of a site tell each other about servers: each sees only its own requests fail.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use playhouse_protocol::control::ServerHealth;
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::policy::{may_eject, milliseconds};
use super::{Change, Event, Server, Upstream};

/// Where decisions are told. Telling costs nothing where nobody observes, and never waits.
#[derive(Clone, Debug)]
pub(super) struct Told(broadcast::Sender<ServerHealth>);

impl Told {
    pub(super) fn observe(&self) -> broadcast::Receiver<ServerHealth> {
        self.0.subscribe()
    }

    /// A server of this upstream is not to be chosen for a time; zero is that it may be again.
    pub(super) fn tell(&self, upstream: &str, server: &Server, remaining: Duration) {
        // An error is that there is no observer.
        let _ = self.0.send(health(upstream, server, remaining));
    }
}

impl Default for Told {
    fn default() -> Self {
        Told(broadcast::Sender::new(BACKLOG))
    }
}

impl Upstream {
    /// See [`super::Upstreams::apply_health`].
    pub(super) fn apply_health(&self, health: &ServerHealth) -> Option<Event> {
        let _deciding = self.deciding.lock();
        let snapshot = self.snapshot();
        let ejection = snapshot.settings.ejection.as_ref()?;
        let member = snapshot.all.iter().find(|member| **member.server.name() == *health.server)?;
        let server = &member.server;
        let mut verdict = server.verdict().lock();
        let change = if health.ejected_until_unix_ms == 0 {
            if !verdict.heard {
                return None;
            }
            server.set_ejected(&mut verdict, None);
            Change::Readmitted
        } else {
            let remaining = remaining(health)?.min(ejection.duration);
            let until = Instant::now() + remaining;
            if let Some(before) = verdict.ejected_until {
                verdict.ejected_until = Some(before.max(until));
                return None;
            }
            if !may_eject(server, &snapshot) {
                return None;
            }
            server.set_ejected(&mut verdict, Some(until));
            verdict.heard = true;
            Change::EjectedElsewhere { for_ms: milliseconds(remaining) }
        };
        drop(verdict);
        self.publish_if_outdated(&snapshot);
        // So that it is taken back in time.
        self.wake();
        Some(self.event(server, change))
    }

    pub(super) fn ejections(&self) -> Vec<ServerHealth> {
        let now = Instant::now();
        let ejected = |server: &Arc<Server>| {
            let until = server.verdict().lock().ejected_until.filter(|until| *until > now)?;
            Some(health(self.name(), server, until - now))
        };
        self.snapshot().all.iter().filter_map(|member| ejected(&member.server)).collect()
    }
}

fn health(upstream: &str, server: &Server, remaining: Duration) -> ServerHealth {
    let until =
        if remaining.is_zero() { 0 } else { milliseconds(since_epoch().saturating_add(remaining)).max(1) };
    ServerHealth {
        upstream: upstream.to_owned(),
        server: server.name().to_string(),
        ejected_until_unix_ms: until,
    }
}

/// `None` where the time is over.
fn remaining(health: &ServerHealth) -> Option<Duration> {
    Duration::from_millis(health.ejected_until_unix_ms)
        .checked_sub(since_epoch())
        .filter(|rest| !rest.is_zero())
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Far more than the servers of a site change in the time that an observer needs.
const BACKLOG: usize = 256;

#[cfg(test)]
mod tests {
    use playhouse_config::model;

    use super::super::Upstreams;
    use super::super::group::tests::{model, upstream_metrics};
    use super::*;
    use crate::metrics::Failure;

    const FIRST: &str = "127.0.0.1:1";
    const SECOND: &str = "127.0.0.1:2";

    fn with(change: impl FnOnce(&mut model::Upstream)) -> (Upstreams, Arc<Upstream>) {
        let mut model = model("api", &[FIRST, SECOND]);
        change(&mut model);
        let table = Upstreams::default();
        table.apply(&[model], &upstream_metrics());
        let upstream = table.get("api").unwrap();
        (table, upstream)
    }

    fn instance() -> (Upstreams, Arc<Upstream>) {
        with(|_| {})
    }

    fn fail(upstream: &Upstream, server: usize) {
        let server = upstream.snapshot().all[server].server.clone();
        (0..5).for_each(|_| server.failed(upstream, Failure::Connect));
    }

    fn ejected(upstream: &Upstream) -> [bool; 2] {
        let servers = upstream.status().servers;
        [servers[0].ejected, servers[1].ejected]
    }

    fn says(server: &str, ejected_until_unix_ms: u64) -> ServerHealth {
        ServerHealth { upstream: "api".to_owned(), server: server.to_owned(), ejected_until_unix_ms }
    }

    fn after(duration: Duration) -> u64 {
        milliseconds(since_epoch() + duration)
    }

    #[tokio::test(start_paused = true)]
    async fn what_one_instance_ejects_the_others_leave_out_for_as_long() {
        let (here, upstream) = instance();
        let mut observer = here.observe();
        let epoch = upstream.claim();
        fail(&upstream, 0);
        upstream.decide(epoch).unwrap();
        let health = observer.try_recv().unwrap();
        assert_eq!((&*health.upstream, &*health.server), ("api", FIRST));
        assert!(remaining(&health).unwrap() > Duration::from_secs(9));
        assert_eq!(here.ejections().len(), 1);

        let (there, other) = instance();
        let mut echo = there.observe();
        let (other_epoch, event) = (other.claim(), there.apply_health(&health).unwrap());
        assert!(matches!(event.change, Change::EjectedElsewhere { for_ms: 9_000..=10_000 }));
        assert_eq!(ejected(&other), [true, false]);
        assert_eq!(other.snapshot().eligible.len(), 1);
        other.changed().await;
        assert!(other.decide(other_epoch).unwrap().events.is_empty());
        assert_eq!(there.apply_health(&health), None, "said twice, it is no news");
        // Whoever comes late hears of it from either, for as long: the one that has decided may be gone.
        let late = there.ejections();
        assert_eq!((late.len(), &*late[0].server), (1, FIRST));
        assert!(late[0].ejected_until_unix_ms.abs_diff(health.ejected_until_unix_ms) < 1_000);

        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(upstream.decide(epoch).unwrap().events[0].change, Change::Readmitted);
        assert_eq!(other.decide(other_epoch).unwrap().events[0].change, Change::Readmitted);
        assert_eq!((ejected(&upstream), ejected(&other)), ([false; 2], [false; 2]));
        assert_eq!(observer.try_recv().unwrap(), says(FIRST, 0));
        assert!(echo.try_recv().is_err(), "what was heard is not told again");
        assert!(there.ejections().is_empty() && here.ejections().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_an_ejection_is_heard_by_those_that_heard_of_it() {
        let (table, upstream) = instance();
        table.apply_health(&says(FIRST, after(Duration::from_secs(5)))).unwrap();
        assert_eq!(table.apply_health(&says(FIRST, 0)).unwrap().change, Change::Readmitted);
        assert_eq!(upstream.snapshot().eligible.len(), 2);
        assert_eq!(table.apply_health(&says(FIRST, 0)), None);

        let epoch = upstream.claim();
        fail(&upstream, 0);
        upstream.decide(epoch).unwrap();
        assert_eq!(table.apply_health(&says(FIRST, 0)), None, "one's own verdict stands");
        assert_eq!(ejected(&upstream), [true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_server_is_never_left_out_whatever_is_heard() {
        let (table, upstream) = instance();
        let until = after(Duration::from_secs(5));
        assert!(table.apply_health(&says(FIRST, until)).is_some());
        assert_eq!(table.apply_health(&says(SECOND, until)), None);
        assert_eq!(ejected(&upstream), [true, false]);
        let (alone, only) = with(|model| model.servers.truncate(1));
        assert_eq!(alone.apply_health(&says(FIRST, until)), None);
        assert!(!only.status().servers[0].ejected);
    }

    #[tokio::test(start_paused = true)]
    async fn what_makes_no_sense_here_changes_nothing() {
        let (table, upstream) = instance();
        let until = after(Duration::from_secs(5));
        let elsewhere = ServerHealth { upstream: "other".to_owned(), ..says(FIRST, until) };
        for health in [elsewhere, says("127.0.0.1:3", until), says("", until), says(FIRST, 1), says(FIRST, 0)]
        {
            assert_eq!(table.apply_health(&health), None, "{health:?}");
        }
        assert_eq!(ejected(&upstream), [false; 2]);
        let (without, _) = with(|model| model.ejection = None);
        assert_eq!(without.apply_health(&says(FIRST, until)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_left_out_for_longer_than_the_site_file_says() {
        let (table, upstream) = instance();
        let epoch = upstream.claim();
        let event = table.apply_health(&says(FIRST, u64::MAX)).unwrap();
        assert_eq!(event.change, Change::EjectedElsewhere { for_ms: 10_000 });
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(table.apply_health(&says(FIRST, u64::MAX)), None);
        tokio::time::advance(Duration::from_secs(9)).await;
        upstream.decide(epoch).unwrap();
        assert_eq!(ejected(&upstream), [true, false], "another instance saw it fail later");
        tokio::time::advance(Duration::from_secs(1)).await;
        upstream.decide(epoch).unwrap();
        assert_eq!(ejected(&upstream), [false; 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_observer_that_sleeps_holds_nobody_up() {
        let (table, upstream) = instance();
        let mut observer = table.observe();
        let epoch = upstream.claim();
        for _ in 0..BACKLOG {
            fail(&upstream, 0);
            upstream.decide(epoch).unwrap();
            tokio::time::advance(Duration::from_secs(10)).await;
            upstream.decide(epoch).unwrap();
        }
        use broadcast::error::TryRecvError;
        assert_eq!(observer.try_recv(), Err(TryRecvError::Lagged(BACKLOG as u64)));
        assert!(observer.try_recv().is_ok());
    }
}
