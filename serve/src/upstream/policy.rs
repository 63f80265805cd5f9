//! What is decided about servers, and by whom.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::balance::Snapshot;
use super::{ProbeFailure, ProbeOk, Server, Upstream};
use crate::epoch::{Epoch, Stale};

/// What [`Upstream::decide`] has done.
#[derive(Debug)]
pub struct Decisions {
    /// When to decide again, unless [`Upstream::changed`] completes before.
    pub next: Duration,
    /// What has changed.
    pub events: Vec<Event>,
    /// Idle connections that were closed.
    pub closed: usize,
}

/// A change that an operator wants to know of.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Event {
    /// The upstream's name.
    pub upstream: Arc<str>,
    /// The server's address.
    pub server: Arc<str>,
    /// What has happened.
    #[serde(flatten)]
    pub change: Change,
}

/// What has happened to a server.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    /// Left out because requests to it failed.
    Ejected {
        /// Failures in a row.
        failures: u32,
        /// For how long, in milliseconds.
        for_ms: u64,
    },
    /// Left out because another instance of the site has seen requests to it fail.
    EjectedElsewhere {
        /// For how long, in milliseconds.
        for_ms: u64,
    },
    /// Back after its ejection.
    Readmitted,
    /// Active checks succeed again.
    Healthy,
    /// Active checks fail.
    Unhealthy {
        /// How the last one failed.
        cause: String,
    },
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of upstream {} ", self.server, self.upstream)?;
        match &self.change {
            Change::Ejected { failures, for_ms } => {
                write!(f, "is left out for {for_ms} ms after {failures} failures in a row")
            }
            Change::EjectedElsewhere { for_ms } => {
                write!(f, "is left out for {for_ms} ms, as another instance has seen it fail")
            }
            Change::Readmitted => f.write_str("takes part again"),
            Change::Healthy => f.write_str("is healthy again"),
            Change::Unhealthy { cause } => write!(f, "is unhealthy: {cause}"),
        }
    }
}

impl Upstream {
    /// Takes over as the one that decides; every earlier epoch is refused from here on.
    pub fn claim(&self) -> Epoch {
        self.owner.claim()
    }

    /// Takes over as the one that records probes; every earlier epoch is refused from here on.
    pub fn claim_checker(&self) -> Epoch {
        self.checker.claim()
    }

    /// Closes idle connections that have expired or were closed by their server, ejects servers that have failed too
    /// often in a row (never the last one that is eligible) and takes them back when their time is over, and publishes what
    /// requests go by.
    pub fn decide(&self, epoch: Epoch) -> Result<Decisions, Stale> {
        let _deciding = self.deciding.lock();
        self.owner.check(epoch)?;
        let now = Instant::now();
        let snapshot = self.snapshot();
        let mut decisions = Decisions { next: LONGEST_WAIT, events: Vec::new(), closed: 0 };
        // Those whose time is over come back first, so that they count among the others when one is to be ejected.
        for member in &snapshot.all {
            self.readmit(&member.server, &snapshot, now, &mut decisions);
        }
        for member in &snapshot.all {
            self.eject(&member.server, &snapshot, now, &mut decisions);
            let sweep = member.server.idle.sweep(now, snapshot.settings.keep_alive.max_idle);
            decisions.closed += sweep.closed;
            if sweep.left > 0 {
                decisions.wake_within(SWEEP);
            }
            if let Some(expiry) = sweep.next_expiry {
                decisions.wake_within(expiry.duration_since(now));
            }
        }
        self.publish_if_outdated(&snapshot);
        Ok(decisions)
    }

    /// Enters what a probe has found. A server changes its state after as many results in a row against it as
    /// `healthy_after` and `unhealthy_after` say; the change is published at once.
    pub fn record_probe(
        &self,
        epoch: Epoch,
        server: &Server,
        result: &Result<ProbeOk, ProbeFailure>,
    ) -> Result<Option<Event>, Stale> {
        let _deciding = self.deciding.lock();
        self.checker.check(epoch)?;
        let snapshot = self.snapshot();
        // A reload may have ended the checks, or the server, while this one was under way.
        let Some(health) = &snapshot.settings.health else { return Ok(None) };
        let mut verdict = server.verdict().lock();
        if result.is_ok() == server.is_healthy() {
            verdict.contrary_probes = 0;
            return Ok(None);
        }
        verdict.contrary_probes += 1;
        let needed = if result.is_ok() { health.healthy_after } else { health.unhealthy_after };
        if verdict.contrary_probes < needed.get() {
            return Ok(None);
        }
        verdict.contrary_probes = 0;
        server.set_healthy(result.is_ok());
        drop(verdict);
        self.publish_if_outdated(&snapshot);
        let change = match result {
            Ok(_) => Change::Healthy,
            Err(failure) => Change::Unhealthy { cause: failure.to_string() },
        };
        Ok(Some(self.event(server, change)))
    }

    fn readmit(&self, server: &Server, snapshot: &Snapshot, now: Instant, decisions: &mut Decisions) {
        let mut verdict = server.verdict().lock();
        let Some(until) = verdict.ejected_until else { return };
        if until > now && snapshot.settings.ejection.is_some() {
            decisions.wake_within(until.duration_since(now));
            return;
        }
        // Who has heard of an ejection has nothing to tell of its end.
        if !verdict.heard {
            self.told.tell(self.name(), server, Duration::ZERO);
        }
        server.set_ejected(&mut verdict, None);
        decisions.events.push(self.event(server, Change::Readmitted));
    }

    fn eject(&self, server: &Server, snapshot: &Snapshot, now: Instant, decisions: &mut Decisions) {
        let Some(ejection) = &snapshot.settings.ejection else { return };
        let failures = server.failures_in_row();
        if failures < ejection.failures.get() || !may_eject(server, snapshot) {
            return;
        }
        server.set_ejected(&mut server.verdict().lock(), Some(now + ejection.duration));
        self.told.tell(self.name(), server, ejection.duration);
        decisions.wake_within(ejection.duration);
        let for_ms = milliseconds(ejection.duration);
        decisions.events.push(self.event(server, Change::Ejected { failures, for_ms }));
    }

    pub(super) fn publish_if_outdated(&self, snapshot: &Snapshot) {
        if snapshot.is_outdated() {
            self.publish(Snapshot::new(snapshot.settings.clone(), snapshot.all.clone()));
        }
    }

    pub(super) fn event(&self, server: &Server, change: Change) -> Event {
        Event { upstream: self.name().clone(), server: server.name().clone(), change }
    }
}

/// Never the last one that is eligible, and nothing twice.
pub(super) fn may_eject(server: &Server, snapshot: &Snapshot) -> bool {
    server.is_eligible() && snapshot.all.iter().filter(|member| member.server.is_eligible()).count() > 1
}

pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Decisions {
    fn wake_within(&mut self, duration: Duration) {
        self.next = self.next.min(duration.max(SHORTEST_WAIT));
    }
}

/// How often the runtime's news of idle connections that were closed is looked at.
const SWEEP: Duration = Duration::from_secs(1);

/// New idle connections wake nobody, so the wait must end some time.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Rounding must not make a busy loop.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use http::StatusCode;
    use playhouse_config::model;

    use super::super::group::tests::{model, upstream};
    use super::*;
    use crate::metrics::Failure;

    fn pair() -> (Arc<Upstream>, Arc<Server>, Arc<Server>) {
        let upstream = upstream(&model("api", &["127.0.0.1:1", "127.0.0.1:2"]));
        let snapshot = upstream.snapshot();
        (upstream, snapshot.all[0].server.clone(), snapshot.all[1].server.clone())
    }

    fn fail(upstream: &Upstream, server: &Server, times: u32) {
        (0..times).for_each(|_| server.failed(upstream, Failure::Connect));
    }

    fn chosen(upstream: &Upstream) -> Vec<String> {
        let snapshot = upstream.snapshot();
        let mut names: Vec<String> = (0..snapshot.all.len() * 2)
            .filter_map(|_| upstream.choose(&snapshot, &[]))
            .map(|lease| lease.server().name().to_string())
            .collect();
        names.sort();
        names.dedup();
        names
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_fails_too_often_in_a_row_is_left_out_for_a_while() {
        let (upstream, first, _) = pair();
        let epoch = upstream.claim();
        fail(&upstream, &first, 4);
        first.succeeded();
        fail(&upstream, &first, 4);
        assert_eq!(upstream.decide(epoch).unwrap().events, []);
        fail(&upstream, &first, 1);
        upstream.changed().await;
        let decisions = upstream.decide(epoch).unwrap();
        assert_eq!(decisions.events[0].change, Change::Ejected { failures: 5, for_ms: 10_000 });
        assert_eq!(chosen(&upstream), ["127.0.0.1:2"]);
        assert_eq!(decisions.next, LONGEST_WAIT);

        tokio::time::advance(Duration::from_secs(9)).await;
        let decisions = upstream.decide(epoch).unwrap();
        assert_eq!((decisions.events.len(), decisions.next), (0, Duration::from_secs(1)));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(upstream.decide(epoch).unwrap().events[0].change, Change::Readmitted);
        assert_eq!(chosen(&upstream).len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn never_all_servers_are_ejected() {
        let (upstream, first, second) = pair();
        let epoch = upstream.claim();
        fail(&upstream, &first, 9);
        fail(&upstream, &second, 9);
        let events = upstream.decide(epoch).unwrap().events;
        assert_eq!(events.len(), 1);
        assert_eq!(chosen(&upstream), ["127.0.0.1:2"]);
        // The other follows as soon as the first is back.
        tokio::time::advance(Duration::from_secs(10)).await;
        let events = upstream.decide(epoch).unwrap().events;
        assert_eq!((&events[0].change, &*events[0].server), (&Change::Readmitted, "127.0.0.1:1"));
        assert_eq!(&*events[1].server, "127.0.0.1:2");
        assert_eq!(chosen(&upstream), ["127.0.0.1:1"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_decision_of_an_older_owner_is_refused_and_changes_nothing() {
        let (upstream, first, _) = pair();
        let older = upstream.claim();
        let newer = upstream.claim();
        fail(&upstream, &first, 5);
        assert_eq!(upstream.decide(older).unwrap_err(), Stale);
        assert_eq!(chosen(&upstream).len(), 2);
        assert_eq!(upstream.decide(newer).unwrap().events.len(), 1);
        assert_eq!(chosen(&upstream).len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reload_without_ejection_takes_everyone_back() {
        let table = super::super::Upstreams::default();
        let metrics = super::super::group::tests::upstream_metrics();
        let mut model = model("api", &["127.0.0.1:1", "127.0.0.1:2"]);
        table.apply(&[model.clone()], &metrics);
        let upstream = table.get("api").unwrap();
        let epoch = upstream.claim();
        fail(&upstream, &upstream.snapshot().all[0].server.clone(), 5);
        upstream.decide(epoch).unwrap();
        assert!(upstream.status().servers[0].ejected);
        model.ejection = None;
        table.apply(&[model], &metrics);
        assert_eq!(upstream.decide(epoch).unwrap().events[0].change, Change::Readmitted);
        assert_eq!(chosen(&upstream).len(), 2);
    }

    fn checked() -> (Arc<Upstream>, Arc<Server>, Arc<Server>) {
        let mut model = model("api", &["127.0.0.1:1", "127.0.0.1:2"]);
        model.health = Some(model::Health {
            path: "/healthz".into(),
            host: None,
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            healthy_after: NonZeroU32::new(2).unwrap(),
            unhealthy_after: NonZeroU32::new(3).unwrap(),
            statuses: (200, 399),
        });
        let upstream = upstream(&model);
        let snapshot = upstream.snapshot();
        (upstream, snapshot.all[0].server.clone(), snapshot.all[1].server.clone())
    }

    fn good() -> Result<ProbeOk, ProbeFailure> {
        Ok(ProbeOk { status: StatusCode::OK, duration: Duration::ZERO })
    }

    fn bad() -> Result<ProbeOk, ProbeFailure> {
        Err(ProbeFailure::Timeout)
    }

    #[test]
    fn health_changes_after_as_many_probes_as_are_asked_for() {
        let (upstream, first, _) = checked();
        let epoch = upstream.claim_checker();
        let changes = |result: &dyn Fn() -> Result<ProbeOk, ProbeFailure>| {
            upstream.record_probe(epoch, &first, &result()).unwrap().map(|event| event.change)
        };
        assert_eq!([changes(&bad), changes(&bad), changes(&good)], [None, None, None]);
        assert_eq!([changes(&bad), changes(&bad)], [None, None]);
        assert!(matches!(changes(&bad), Some(Change::Unhealthy { .. })));
        assert_eq!(chosen(&upstream), ["127.0.0.1:2"]);
        assert_eq!(changes(&good), None);
        assert_eq!(changes(&good), Some(Change::Healthy));
        assert_eq!(chosen(&upstream).len(), 2);
    }

    #[test]
    fn a_probe_of_an_older_checker_is_refused() {
        let (upstream, first, _) = checked();
        let older = upstream.claim_checker();
        upstream.claim_checker();
        assert_eq!(upstream.record_probe(older, &first, &bad()), Err(Stale));
    }

    #[test]
    fn when_no_server_is_healthy_all_are_asked() {
        let (upstream, first, second) = checked();
        let epoch = upstream.claim_checker();
        for server in [&first, &second] {
            (0..3).for_each(|_| {
                upstream.record_probe(epoch, server, &bad()).unwrap();
            });
        }
        assert!(upstream.status().panic);
        assert_eq!(chosen(&upstream).len(), 2);
        (0..2).for_each(|_| {
            upstream.record_probe(epoch, &second, &good()).unwrap();
        });
        assert!(!upstream.status().panic);
        assert_eq!(chosen(&upstream), ["127.0.0.1:2"]);
    }
}
