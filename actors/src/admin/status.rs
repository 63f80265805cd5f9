//! `/v1/status`: the site at a glance. Fields are added, never renamed.

use playhouse_serve::ledger::Totals;
use playhouse_serve::upstream::UpstreamStatus;

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
    /// Messages between actors, ever. A request sends none.
    pub messages: u64,
    /// Actors whose thread does not come back just now.
    pub blocked: Vec<String>,
    /// The last events, oldest first.
    pub events: Vec<Event>,
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
}

/// One process that serves.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct InstanceStatus {
    /// Its name.
    pub id: String,
    /// Its process.
    pub pid: u32,
    /// `active` or `draining`.
    pub state: String,
    /// Counts upgrades and rolls.
    pub generation: u64,
    /// Open connections.
    pub connections: usize,
    /// Resident memory.
    pub rss_bytes: u64,
    /// CPU seconds used so far.
    pub cpu: f64,
    /// The requests' outcomes.
    pub ledger: Totals,
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
            }
        });
        let own = InstanceStatus {
            id: instance.tree().root().name().to_owned(),
            pid,
            state: instance.state().as_str().to_owned(),
            generation: instance.generation(),
            connections: instance.connections(),
            rss_bytes: resident_bytes(),
            cpu: cpu_seconds(),
            ledger,
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
            messages: instance.tree().messages(),
            blocked: instance.tree().blocked_threads(),
            events: instance.tree().events().recent(RECENT_EVENTS),
        }
    }
}

fn cpu_seconds() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

const RECENT_EVENTS: usize = 50;
