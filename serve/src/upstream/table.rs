//! All upstreams of a site, by name.

use std::collections::HashSet;
use std::sync::Arc;

use dashmap::DashMap;
use parking_lot::Mutex;
use playhouse_config::model;
use playhouse_protocol::control::ServerHealth;
use tokio::sync::broadcast;

use super::shared::Told;
use super::{Event, Upstream, UpstreamStatus};
use crate::metrics::Metrics;

/// All upstreams of a site, by name. Empty until [`Upstreams::apply`].
#[derive(Debug, Default)]
pub struct Upstreams {
    by_name: DashMap<Arc<str>, Arc<Upstream>>,
    /// Held while a site file is applied, so that two do not mix.
    applying: Mutex<()>,
    told: Told,
}

impl Upstreams {
    /// Makes the table what the site file says, at the start and at each reload. Upstreams that keep their name, and
    /// servers that keep their address, keep health, ejection, counters and idle connections. Idle connections of those
    /// that are gone are closed; requests in flight on them go on.
    pub fn apply(&self, models: &[model::Upstream], metrics: &Metrics) {
        let _applying = self.applying.lock();
        let kept: HashSet<&str> = models.iter().map(|model| &*model.name).collect();
        self.by_name.retain(|name, upstream| {
            let keep = kept.contains(&**name);
            if !keep {
                upstream.retire();
            }
            keep
        });
        for model in models {
            let known = self.by_name.get(&model.name).map(|entry| entry.value().clone());
            match known {
                Some(upstream) => upstream.apply(model, metrics),
                None => {
                    let upstream = Upstream::telling(model, metrics, self.told.clone());
                    self.by_name.insert(model.name.clone(), upstream);
                }
            }
        }
    }

    /// What this instance itself decides about servers by the requests that it has seen fail: ejections and their ends,
    /// from now on. Whoever is told falls behind without holding anybody up, and then misses the oldest.
    pub fn observe(&self) -> broadcast::Receiver<ServerHealth> {
        self.told.observe()
    }

    /// The ejections that are in force, for an observer that has come late or fallen behind: those that were heard of too,
    /// since who has decided them may be gone.
    pub fn ejections(&self) -> Vec<ServerHealth> {
        self.all().iter().flat_map(|upstream| upstream.ejections()).collect()
    }

    /// Takes over what another instance has decided about a server. An upstream or server that is not known here, a time
    /// that is over, and an end of an ejection that this instance has decided itself, change nothing; nobody is ejected
    /// for longer than the site file says, and never the last one that is eligible. Observers are not told.
    pub fn apply_health(&self, health: &ServerHealth) -> Option<Event> {
        self.get(&health.upstream)?.apply_health(health)
    }

    /// The upstream of this name.
    pub fn get(&self, name: &str) -> Option<Arc<Upstream>> {
        self.by_name.get(name).map(|entry| entry.value().clone())
    }

    /// All upstreams, by name.
    pub fn all(&self) -> Vec<Arc<Upstream>> {
        let mut all: Vec<_> = self.by_name.iter().map(|entry| entry.value().clone()).collect();
        all.sort_by(|a, b| a.name().cmp(b.name()));
        all
    }

    /// What is known of all upstreams, by name.
    pub fn status(&self) -> Vec<UpstreamStatus> {
        self.all().iter().map(|upstream| upstream.status()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::group::tests::{model, upstream_metrics};
    use super::*;

    #[tokio::test]
    async fn a_reload_keeps_the_state_of_what_stays() {
        let metrics = upstream_metrics();
        let table = Upstreams::default();
        table.apply(
            &[model("api", &["127.0.0.1:1", "127.0.0.1:2"]), model("old", &["127.0.0.1:9"])],
            &metrics,
        );
        let api = table.get("api").unwrap();
        let old = table.get("old").unwrap();
        let first = api.snapshot().all[0].server.clone();
        first.failed(&api, crate::metrics::Failure::Connect);
        let lease = first.lease();

        let mut changed = model("api", &["127.0.0.1:1", "127.0.0.1:3"]);
        changed.retries = 7;
        table.apply(&[changed], &metrics);

        let after = table.get("api").unwrap();
        assert!(Arc::ptr_eq(&api, &after), "the same upstream");
        assert_eq!(after.snapshot().settings.retries, 7);
        assert!(Arc::ptr_eq(&first, &after.snapshot().all[0].server), "the same server");
        let status = after.status();
        assert_eq!((status.servers[0].failures, status.servers[0].in_flight), (1, 1));
        assert_eq!(status.servers[1].address, "127.0.0.1:3");
        assert!(table.get("old").is_none());
        assert!(old.snapshot().all[0].server.is_retired());
        drop(lease);
        assert_eq!(after.status().servers[0].in_flight, 0);
    }
}
