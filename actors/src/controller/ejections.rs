//! The servers that instances have left out because requests to them failed, for instances that start later.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use playhouse_protocol::control::ServerHealth;

/// The ejections that were told, until they are over. A controller that starts again is told of them by the instances that
/// it adopts.
#[derive(Debug, Default)]
pub struct Ejections(Mutex<HashMap<Server, u64>>);

/// Upstream and address, as in the site file.
type Server = (String, String);

impl Ejections {
    /// Notes what an instance has decided about a server. Where several have ejected it, the longest counts.
    pub(super) fn note(&self, health: &ServerHealth) {
        self.note_at(health, now());
    }

    /// What is in force.
    pub(super) fn in_force(&self) -> Vec<ServerHealth> {
        self.in_force_at(now())
    }

    fn note_at(&self, health: &ServerHealth, now: u64) {
        let mut servers = self.0.lock();
        servers.retain(|_, until| *until > now);
        let server = (health.upstream.clone(), health.server.clone());
        let until = health.ejected_until_unix_ms;
        if until <= now {
            servers.remove(&server);
        } else if servers.len() < MOST || servers.contains_key(&server) {
            let noted = servers.entry(server).or_default();
            *noted = until.max(*noted);
        }
    }

    fn in_force_at(&self, now: u64) -> Vec<ServerHealth> {
        let servers = self.0.lock();
        let in_force = servers.iter().filter(|(_, until)| **until > now);
        in_force
            .map(|((upstream, server), until)| ServerHealth {
                upstream: upstream.clone(),
                server: server.clone(),
                ejected_until_unix_ms: *until,
            })
            .collect()
    }
}

/// Milliseconds of Unix time.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// More than the servers of any site: names come over a link.
const MOST: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn says(server: &str, ejected_until_unix_ms: u64) -> ServerHealth {
        ServerHealth { upstream: "api".into(), server: server.into(), ejected_until_unix_ms }
    }

    #[test]
    fn an_ejection_is_kept_until_it_is_over_or_taken_back() {
        let ejections = Ejections::default();
        ejections.note_at(&says("a:1", 200), 100);
        ejections.note_at(&says("b:1", 300), 100);
        ejections.note_at(&says("c:1", 100), 100);
        let servers = |now| {
            let mut servers: Vec<_> =
                ejections.in_force_at(now).into_iter().map(|health| health.server).collect();
            servers.sort();
            servers
        };
        assert_eq!(servers(150), ["a:1", "b:1"]);
        assert_eq!(servers(200), ["b:1"]);
        ejections.note_at(&says("b:1", 0), 210);
        assert!(servers(210).is_empty());
    }

    #[test]
    fn of_several_ejections_of_a_server_the_longest_counts() {
        let ejections = Ejections::default();
        for until in [200, 400, 300] {
            ejections.note_at(&says("a:1", until), 100);
        }
        assert_eq!(ejections.in_force_at(100), [says("a:1", 400)]);
    }

    #[test]
    fn what_is_kept_is_bounded_whatever_is_said() {
        let ejections = Ejections::default();
        for number in 0..2 * MOST {
            ejections.note_at(&says(&number.to_string(), 200), 100);
        }
        assert_eq!(ejections.in_force_at(100).len(), MOST);
        ejections.note_at(&says("new", 400), 300);
        assert_eq!(ejections.in_force_at(300), [says("new", 400)]);
    }
}
