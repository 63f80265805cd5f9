//! `/v1/status`: the site at a glance. Fields are added, never renamed.

use playhouse_serve::ledger::Totals;
use playhouse_serve::net::QuicEndpoint;
use playhouse_serve::upstream::UpstreamStatus;

use crate::apps::status::AppStatus;
use crate::control::resident_bytes;
use crate::instance::Instance;
use crate::supervision::Event;

/// The site at a glance.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Status {
    /// Its name.
    pub site: String,
    /// What is running.
    pub build: String,
    /// The process.
    pub pid: u32,
    /// Since its start, in milliseconds.
    pub uptime_ms: u64,
    /// Whether every part of it is up.
    pub ready: bool,
    /// Whether it is draining.
    pub stopping: bool,
    /// Where it listens.
    pub listeners: Vec<ListenerStatus>,
    /// The admin interface's own addresses.
    pub admin: Vec<String>,
    /// The processes that serve.
    pub instances: Vec<InstanceStatus>,
    /// The requests' outcomes.
    pub ledger: Totals,
    /// Upstreams and their servers.
    pub upstreams: Vec<UpstreamStatus>,
    /// Apps and their processes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub apps: Vec<AppStatus>,
    /// Messages between actors, ever. A request sends none.
    pub messages: u64,
    /// Actors whose thread does not come back just now.
    pub blocked: Vec<String>,
    /// The last events, oldest first.
    pub events: Vec<Event>,
    /// The controller's process, where there is one: `pid`, `build` and `uptime_ms` above are its too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<ControllerStatus>,
    /// How many instances there should be, where there is a controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaler: Option<ScalerStatus>,
    /// Memory for more of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStatus>,
    /// The most connections of one instance by the mean; 1 where all have the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<f64>,
}

/// The controller's process.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct ControllerStatus {
    /// Its process.
    pub pid: u32,
    /// Resident memory.
    pub rss_bytes: u64,
    /// CPU seconds used so far.
    pub cpu: f64,
}

/// How many instances there should be, and why.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct ScalerStatus {
    /// So many are to be active.
    pub wanted: u32,
    /// Between these.
    pub min: u32,
    /// Between these.
    pub max: u32,
    /// What is so just now, for people.
    pub reason: String,
    /// How many an operator has asked for, if one has.
    #[serde(rename = "override")]
    pub asked: Option<u32>,
    /// The last change and why, for people.
    pub last_change: Option<String>,
    /// How near those that serve are to where another is wanted: from 1 on, it is.
    pub pressure: f64,
    /// Why none is started just now, if one is missing.
    pub refused: Option<String>,
}

/// Memory for more instances.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct MemoryStatus {
    /// Bytes that are left, of the host or below the nearest limit of a control group; `None` where that is unknown.
    pub available: Option<u64>,
    /// Whether memory keeps the number of instances down, or is about to.
    pub pressure: bool,
}

/// One listener.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct ListenerStatus {
    /// Its name.
    pub name: String,
    /// Where it listens, a port 0 resolved.
    pub address: String,
    /// Its open connections.
    pub connections: usize,
    /// Accepted streams that wait for their connection.
    pub waiting: usize,
    /// Streams accepted, ever.
    pub accepted: u64,
    /// Errors of accept, ever.
    pub accept_errors: u64,
    /// How the packets of HTTP/3 find their process, where it is offered: `alone`, where there is one; `kernel`, by a
    /// program there; `forwarded`, where that is refused, by whoever gets them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http3: Option<String>,
}

/// One process that serves.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct InstanceStatus {
    /// Its name.
    pub id: String,
    /// Its process.
    pub pid: u32,
    /// `starting`, `ready`, `active`, `stuck` or `draining`.
    pub state: String,
    /// Counts the processes that the site has started.
    pub generation: u64,
    /// What it runs.
    pub build: String,
    /// Since its start, or since its controller has taken it over, in milliseconds.
    pub age_ms: u64,
    /// Open connections.
    pub connections: usize,
    /// Resident memory.
    pub rss_bytes: u64,
    /// CPU seconds used so far.
    pub cpu: f64,
    /// CPUs used over the last few seconds, 1 being one of them all the time; `None` where nobody samples it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_share: Option<f64>,
    /// Requests accepted each second, over the last few seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_second: Option<f64>,
    /// How near it is to where there should be another: from 1 on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure: Option<f64>,
    /// The requests' outcomes.
    pub ledger: Totals,
    /// Why it has not answered for itself, so that its listeners and upstreams are not in the sums.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unanswered: Option<String>,
}

impl Status {
    pub(super) fn of(instance: &Instance) -> Self {
        let site = instance.site();
        let ledger = instance.ledger();
        let pid = std::process::id();
        let listeners = site.sockets.all().into_iter().map(|socket| {
            let counts = socket.counts();
            ListenerStatus {
                name: socket.name().to_string(),
                address: socket.address().to_owned(),
                connections: counts.open,
                waiting: counts.waiting,
                accepted: counts.accepted,
                accept_errors: counts.errors,
                http3: socket.quic().map(|quic| steering(&quic).to_owned()),
            }
        });
        let own = InstanceStatus {
            id: instance.tree().root().name().to_owned(),
            pid,
            state: instance.state().as_str().to_owned(),
            generation: instance.generation(),
            build: instance.build().to_owned(),
            age_ms: instance.uptime().as_millis() as u64,
            connections: instance.connections(),
            rss_bytes: resident_bytes(),
            cpu: cpu_seconds(),
            ledger,
            ..InstanceStatus::default()
        };
        Status {
            site: site.name.to_string(),
            build: instance.build().to_owned(),
            pid,
            uptime_ms: instance.uptime().as_millis() as u64,
            ready: instance.is_ready(),
            stopping: instance.is_stopping(),
            listeners: listeners.collect(),
            admin: instance.admin_addresses(),
            instances: vec![own],
            ledger,
            upstreams: site.upstreams.status(),
            apps: AppStatus::all(instance.apps()),
            messages: instance.tree().messages(),
            blocked: instance.tree().blocked_threads(),
            events: instance.tree().events().recent(RECENT_EVENTS),
            ..Status::default()
        }
    }

    /// Adds what another process of the site says of the parts that each has: listeners, upstreams, messages and
    /// blocked threads.
    pub fn add(&mut self, other: Status) {
        for listener in other.listeners {
            match self.listeners.iter_mut().find(|known| known.name == listener.name) {
                Some(sum) => {
                    sum.connections += listener.connections;
                    sum.waiting += listener.waiting;
                    sum.accepted += listener.accepted;
                    sum.accept_errors += listener.accept_errors;
                    sum.http3 = sum.http3.take().or(listener.http3);
                }
                None => self.listeners.push(listener),
            }
        }
        for upstream in other.upstreams {
            match self.upstreams.iter_mut().find(|known| known.name == upstream.name) {
                Some(sum) => add_upstream(sum, upstream),
                None => self.upstreams.push(upstream),
            }
        }
        self.messages += other.messages;
        self.blocked.extend(other.blocked);
    }
}

fn steering(quic: &QuicEndpoint) -> &'static str {
    match quic.group() {
        None => "alone",
        Some(group) if group.is_steered() => "kernel",
        Some(_) => "forwarded",
    }
}

/// Each process checks servers by itself: one is healthy if it is for all, and eligible are as many as for the worst off.
fn add_upstream(sum: &mut UpstreamStatus, other: UpstreamStatus) {
    sum.eligible = sum.eligible.min(other.eligible);
    sum.panic |= other.panic;
    for server in other.servers {
        match sum.servers.iter_mut().find(|known| known.address == server.address) {
            Some(sum) => {
                sum.healthy &= server.healthy;
                sum.ejected |= server.ejected;
                sum.in_flight += server.in_flight;
                sum.idle += server.idle;
                sum.requests += server.requests;
                sum.failures += server.failures;
            }
            None => sum.servers.push(server),
        }
    }
}

/// Of this process, so far.
pub(crate) fn cpu_seconds() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

pub(crate) const RECENT_EVENTS: usize = 50;

#[cfg(test)]
mod tests {
    use super::*;

    fn page(connections: usize, healthy: bool) -> Status {
        let page = serde_json::json!({
            "of a later build": [1],
            "listeners": [{"name": "http", "address": "127.0.0.1:80", "connections": connections, "accepted": 5}],
            "upstreams": [{"name": "api", "eligible": 1, "panic": false, "servers": [
                {"address": "127.0.0.1:9", "weight": 1, "healthy": healthy, "ejected": false,
                 "in_flight": 1, "idle": 2, "requests": 3, "failures": 0},
            ]}],
            "messages": 7,
        });
        serde_json::from_value(page).unwrap()
    }

    #[test]
    fn pages_of_several_processes_are_one() {
        let mut sum = Status::default();
        sum.add(page(2, true));
        sum.add(page(3, false));
        assert_eq!(
            (sum.listeners.len(), sum.listeners[0].connections, sum.listeners[0].accepted),
            (1, 5, 10)
        );
        let server = &sum.upstreams[0].servers[0];
        assert_eq!((server.healthy, server.in_flight, server.requests), (false, 2, 6));
        assert_eq!((sum.messages, &*sum.listeners[0].address), (14, "127.0.0.1:80"));
    }
}
