//! One upstream: its servers, its settings, and who may decide about them.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use playhouse_config::model;
use tokio::sync::Notify;

use super::balance::{Member, Snapshot};
use super::shared::Told;
use super::{Lease, Server, ServerStatus, UpstreamStatus};
use crate::epoch::Owner;
use crate::metrics::Metrics;

/// A group of servers that answer the same requests.
#[derive(Debug)]
pub struct Upstream {
    name: Arc<str>,
    snapshot: ArcSwap<Snapshot>,
    /// The next place in the snapshot's order.
    cursor: AtomicUsize,
    /// Who evicts and ejects: the pool actor.
    pub(super) owner: Owner,
    /// Who records probes: the health checker.
    pub(super) checker: Owner,
    /// Held while anything is decided and published: decisions are one after another, and an epoch that was checked
    /// under it stays good until the decision is out.
    pub(super) deciding: Mutex<()>,
    changed: Notify,
    /// What other instances are told.
    pub(super) told: Told,
}

impl Upstream {
    /// An upstream as the site file has it; all servers are taken for healthy until something is known.
    pub fn new(model: &model::Upstream, metrics: &Metrics) -> Arc<Self> {
        Self::telling(model, metrics, Told::default())
    }

    /// An upstream of a table, whose observers it tells what it decides.
    pub(super) fn telling(model: &model::Upstream, metrics: &Metrics, told: Told) -> Arc<Self> {
        let members = members(model, &[], metrics);
        Arc::new(Upstream {
            name: model.name.clone(),
            snapshot: ArcSwap::from_pointee(Snapshot::new(Arc::new(model.clone()), members)),
            cursor: AtomicUsize::new(0),
            owner: Owner::default(),
            checker: Owner::default(),
            deciding: Mutex::new(()),
            changed: Notify::new(),
            told,
        })
    }

    /// Its name in the site file.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// What requests go by: settings, servers, and those among them that are eligible.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Completes when there is something to decide before the time that was said: a server has failed too often, or a
    /// reload has changed the settings. For the one that decides; keeps one signal for it while it is away.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// What is known of it.
    pub fn status(&self) -> UpstreamStatus {
        let snapshot = self.snapshot.load();
        UpstreamStatus {
            name: self.name.clone(),
            eligible: snapshot.eligible.len(),
            panic: snapshot.panic,
            servers: snapshot.all.iter().map(ServerStatus::of).collect(),
        }
    }

    /// Makes it what the site file says; servers that keep their address keep what is known of them.
    pub(super) fn apply(&self, model: &model::Upstream, metrics: &Metrics) {
        let _deciding = self.deciding.lock();
        let before = self.snapshot.load_full();
        let after = members(model, &before.all, metrics);
        for member in &before.all {
            if !after.iter().any(|kept| Arc::ptr_eq(&kept.server, &member.server)) {
                member.server.retire();
            }
        }
        if model.health.is_none() {
            after.iter().for_each(|member| member.server.forget_health());
        }
        self.publish(Snapshot::new(Arc::new(model.clone()), after));
        self.changed.notify_one();
    }

    /// Makes these its settings, and leaves its servers as they are; for an upstream whose servers come and go.
    pub(crate) fn set_settings(&self, model: &model::Upstream) {
        let _deciding = self.deciding.lock();
        let all = self.snapshot.load().all.clone();
        if model.health.is_none() {
            all.iter().for_each(|member| member.server.forget_health());
        }
        self.publish(Snapshot::new(Arc::new(model.clone()), all));
        self.changed.notify_one();
    }

    /// Makes these its servers, each with the same share; for an upstream whose servers come and go. Of those that are left
    /// out idle connections are closed; requests in flight on them go on.
    pub(crate) fn serve_by(&self, servers: &[Arc<Server>]) {
        let _deciding = self.deciding.lock();
        let before = self.snapshot.load_full();
        for member in &before.all {
            if !servers.iter().any(|kept| Arc::ptr_eq(kept, &member.server)) {
                member.server.retire();
            }
        }
        let members = servers.iter().map(|server| Member { server: server.clone(), weight: 1 }).collect();
        self.publish(Snapshot::new(before.settings.clone(), members));
        self.changed.notify_one();
    }

    /// The site file no longer has it: closes idle connections, and those in use after their answer.
    pub(super) fn retire(&self) {
        let _deciding = self.deciding.lock();
        self.snapshot.load().all.iter().for_each(|member| member.server.retire());
    }

    /// Chooses an eligible server that has not been tried, and counts the request as in flight on it. When all eligible
    /// ones have been tried, the others are asked too, before `None`.
    pub(crate) fn choose(&self, snapshot: &Snapshot, tried: &[Arc<Server>]) -> Option<Lease> {
        snapshot.choose(&self.cursor, tried).map(|server| server.lease())
    }

    /// Wakes the one that decides.
    pub(super) fn wake(&self) {
        self.changed.notify_one();
    }

    /// For the holder of `deciding`.
    pub(super) fn publish(&self, snapshot: Snapshot) {
        self.snapshot.store(Arc::new(snapshot));
    }
}

/// The servers of `model`, those that are `known` by their address taken over.
fn members(model: &model::Upstream, known: &[Member], metrics: &Metrics) -> Vec<Member> {
    let member = |server: &model::Server| {
        let same = known.iter().find(|member| *member.server.address() == server.address);
        let state = match same {
            Some(member) => member.server.clone(),
            None => Arc::new(Server::new(&model.name, server.address.clone(), metrics)),
        };
        Member { server: state, weight: server.weight.get() }
    };
    model.servers.iter().map(member).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::num::NonZeroU32;

    use super::*;

    /// An upstream's model with servers of weight 1.
    pub(crate) fn model(name: &str, servers: &[&str]) -> model::Upstream {
        let server = |address: &&str| model::Server {
            address: model::Address::Tcp(address.parse().unwrap()),
            weight: NonZeroU32::MIN,
        };
        model::Upstream {
            name: name.into(),
            servers: servers.iter().map(server).collect(),
            protocol: Default::default(),
            proxy_protocol: None,
            balance: model::Balance::RoundRobin,
            health: None,
            ejection: Some(model::Ejection::default()),
            timeouts: model::UpstreamTimeouts::default(),
            keep_alive: model::KeepAlive::default(),
            retries: 2,
        }
    }

    pub(crate) fn upstream_metrics() -> Metrics {
        Metrics::default()
    }

    pub(crate) fn upstream(model: &model::Upstream) -> Arc<Upstream> {
        Upstream::new(model, &upstream_metrics())
    }
}
