//! The promise: what dies takes nothing with it but what the table of the design allows.
//!
//! Each row kills its actors again and again, in each way, under load whose every answer is checked, and then once more
//! under wrk and h2load. The loss is counted, recovery is seen and not slept for, and at the end the ledger balances.

use std::collections::HashSet;

use playhouse_chaos::{Class, Report};

use crate::harness::stage::{Stage, balances, block_on, lost_what_was_in_flight, moves, stop, untouched};
use crate::harness::{H2load, PATIENCE, Wrk, eventually, full};

#[test]
fn a_killed_acceptor_loses_no_connection() {
    Row::of(&["instance-1/listeners/http"]).loses_nothing();
}

#[test]
fn a_killed_tls_acceptor_loses_no_connection() {
    Row::of(&["instance-1/listeners/https"]).loses_nothing();
}

#[test]
fn a_killed_pool_actor_loses_no_request() {
    Row::of(&["instance-1/upstreams/up/pool"]).loses_nothing();
}

#[test]
fn a_killed_health_checker_loses_no_request() {
    Row::of(&["instance-1/upstreams/up/health"]).loses_nothing();
}

#[test]
fn killed_certificate_metrics_log_and_admin_actors_lose_nothing() {
    Row::of(&["instance-1/certificates", "instance-1/metrics", "instance-1/access-log", "instance-1/admin"])
        .loses_nothing();
}

#[test]
fn a_killed_listeners_supervisor_loses_no_connection() {
    Row::of(&["instance-1/listeners"]).loses_nothing();
}

#[test]
fn a_killed_upstreams_supervisor_loses_no_request() {
    Row::of(&["instance-1/upstreams"]).loses_nothing();
}

#[test]
fn a_killed_shard_loses_its_connections_only() {
    Row::of(&["instance-1/connections/shard-0"]).loses_connections();
}

#[test]
fn a_killed_connections_supervisor_loses_the_connections_only() {
    Row::of(&["instance-1/connections"]).loses_connections();
}

#[test]
fn acceptor_and_shard_killed_together_lose_nobody_who_waits() {
    Row { together: true, ..Row::of(&["instance-1/listeners/http", "instance-1/connections/shard-0"]) }
        .loses_connections();
}

#[test]
fn a_killed_root_loses_the_connections_and_the_process_lives() {
    Row::of(&["instance-1"]).loses_connections();
}

#[test]
fn a_killed_connection_loses_itself_only() {
    let stage = Stage::new();
    for how in HOWS {
        let before = stage.site.admin.settled_ledger();
        let load = stage.load();
        let mut killed = 0;
        for _ in 0..rounds() {
            moves(&load, 20);
            let Some(path) = stage.a_connection(killed) else { continue };
            // It may have ended by itself meanwhile.
            let answer = stage.site.admin.try_kill(&path, how);
            assert!(
                matches!(answer.status, 200..300 | 404 | 409),
                "{path}: {} {}",
                answer.status,
                answer.text()
            );
            killed += 1;
            if !how.starts_with("stall") {
                eventually("the connection is gone", || stage.site.admin.node(&path).is_none());
            }
        }
        moves(&load, 100);
        let report = stop(load);
        only_connections_were_lost(&report, how);
        let connections: HashSet<_> =
            report.failures.iter().map(|failure| (&failure.stream, failure.connection)).collect();
        assert!(
            connections.len() <= killed,
            "{how}: {killed} were killed, {} lost\n{report}",
            connections.len()
        );
        balances(&stage.site, before, &report, how);
    }
}

#[test]
fn a_shard_that_stalls_is_told_of_and_holds_nobody_up() {
    let stage = Stage::new();
    let before = stage.site.admin.settled_ledger();
    let load = stage.load();
    moves(&load, 50);
    let stalled_at = load.elapsed();
    stage.site.admin.kill("instance-1/connections/shard-0", "stall=5s");
    block_on(load.recovery(stalled_at, PATIENCE)).expect("new connections are served by the other shards");
    eventually("an event tells of it", || {
        let status = stage.site.admin.status();
        let events = status["events"].as_array().expect("events").clone();
        events.iter().any(|e| e["kind"] == "stalled" && e["path"] == "instance-1/connections/shard-0")
    });
    moves(&load, 200);
    let report = stop(load);
    untouched(&report, "stall=5s");
    balances(&stage.site, before, &report, "stall=5s");
}

/// One row of the table.
struct Row<'a> {
    paths: &'a [&'a str],
    /// Kill all of the paths at once, and not each in turn.
    together: bool,
}

impl<'a> Row<'a> {
    fn of(paths: &'a [&'a str]) -> Self {
        Row { paths, together: false }
    }

    /// Not one request is lost, and not one connection.
    #[track_caller]
    fn loses_nothing(&self) {
        let stage = Stage::new();
        for how in HOWS {
            let before = stage.site.admin.settled_ledger();
            let load = stage.load();
            self.kill_again_and_again(&stage, &load, how);
            let report = stop(load);
            untouched(&report, &format!("{:?} {how}", self.paths));
            let spent = balances(&stage.site, before, &report, how);
            assert_eq!(
                (spent.killed, spent.upstream_failed, spent.shed, spent.rejected),
                (0, 0, 0, 0),
                "{spent:?}"
            );
        }
        self.one_that_stalls_is_replaced(&stage);
        let (wrk, h2load) = self.kill_under_other_peoples_load(&stage);
        assert_eq!(wrk.failures(), 0, "{:?}: {wrk:?}", self.paths);
        assert_eq!(
            (h2load.failed, h2load.errored, h2load.timeout),
            (0, 0, 0),
            "{:?}: {h2load:?}",
            self.paths
        );
        stage.nobody_above_was_restarted(self.paths);
    }

    /// Open connections may break with what is in flight on them; every new connection is served, and no answer is
    /// wrong, short, or missing for ever.
    #[track_caller]
    fn loses_connections(&self) {
        let stage = Stage::new();
        let pid = stage.site.admin.status()["pid"].clone();
        for how in HOWS {
            let before = stage.site.admin.settled_ledger();
            let load = stage.load();
            let kills = self.kill_again_and_again(&stage, &load, how);
            let report = stop(load);
            only_connections_were_lost(&report, how);
            // Who only stalls is served without: connections do their own work.
            let deaths = if how.starts_with("stall") { 0 } else { kills };
            lost_what_was_in_flight(&report, deaths, &format!("{:?} {how}", self.paths));
            balances(&stage.site, before, &report, how);
        }
        let (wrk, h2load) = self.kill_under_other_peoples_load(&stage);
        assert_eq!((wrk.connect, wrk.timeout, wrk.refused), (0, 0, 0), "{:?}: {wrk:?}", self.paths);
        assert_eq!(h2load.timeout, 0, "{:?}: {h2load:?}", self.paths);
        assert_eq!(stage.site.admin.status()["pid"], pid, "it is the same process");
        stage.site.admin.settled_ledger();
        stage.nobody_above_was_restarted(self.paths);
    }

    /// Kills while the load goes on; gives the number of kills.
    fn kill_again_and_again(&self, stage: &Stage, load: &playhouse_chaos::Running, how: &str) -> u64 {
        let mut kills = 0;
        for _ in 0..rounds() {
            moves(load, 50);
            let killed_at = load.elapsed();
            kills += self.kill_once(stage, how);
            block_on(load.recovery(killed_at, PATIENCE))
                .unwrap_or_else(|error| panic!("{:?} {how}: {error}", self.paths));
        }
        moves(load, 200);
        kills
    }

    fn kill_once(&self, stage: &Stage, how: &str) -> u64 {
        let admin = &stage.site.admin;
        let stalls = how.starts_with("stall");
        let restarts = |path: &&str| admin.node(path).and_then(|node| node["restarts"].as_u64()).unwrap_or(0);
        if self.together {
            let before: Vec<u64> = self.paths.iter().map(restarts).collect();
            self.paths.iter().for_each(|path| drop(admin.kill(path, how)));
            for (path, before) in self.paths.iter().zip(before) {
                eventually(&format!("{path} is back after {how}"), || {
                    admin.node(path).is_some_and(|node| {
                        node["state"] == "running" && (stalls || node["restarts"].as_u64() > Some(before))
                    })
                });
            }
        } else {
            for path in self.paths {
                if stalls {
                    admin.kill(path, how);
                    eventually(&format!("{path} goes on"), || {
                        admin.node(path).is_some_and(|node| node["state"] == "running")
                    });
                } else {
                    admin.kill_and_see_it_back(path, how);
                }
            }
        }
        self.paths.len() as u64
    }

    /// An actor that stalls for longer than its deadline has a next incarnation.
    fn one_that_stalls_is_replaced(&self, stage: &Stage) {
        for path in self.paths {
            stage.site.admin.kill_and_see_it_back(path, "stall=600s");
        }
    }

    /// The same under wrk on files and h2load through the proxy.
    fn kill_under_other_peoples_load(&self, stage: &Stage) -> (Wrk, H2load) {
        let seconds = if full() { 60 } else { 3 };
        let mut wrk = Wrk::start(&stage.site.url("http", "/hello.txt"), 16, seconds);
        let h2load = H2load::start_for(&stage.site.url("http", "/up/bytes/100"), seconds, 2, 8);
        // Both of them: h2load does not come back when its connections end, so it must have had answers before.
        let (begun, forwarded) = (stage.site.admin.ledger().accepted, stage.upstream.requests());
        eventually("the load is on", || {
            stage.site.admin.ledger().accepted > begun + 200 && stage.upstream.requests() > forwarded + 100
        });
        for how in HOWS.iter().cycle() {
            if !wrk.running() {
                break;
            }
            self.kill_once(stage, how);
        }
        (wrk.finish(), h2load.finish())
    }
}

impl Stage {
    /// The path of some connection that is open; with other numbers they are others.
    fn a_connection(&self, number: usize) -> Option<String> {
        let mut paths = self.site.admin.paths();
        paths.retain(|path| {
            path.starts_with("instance-1/connections/shard-") && path.matches('/').count() == 3
        });
        let at = number * 7 % paths.len().max(1);
        paths.into_iter().nth(at)
    }

    /// What operators kill uses up no intensity: nothing has climbed to a supervisor above.
    fn nobody_above_was_restarted(&self, paths: &[&str]) {
        for path in paths {
            let mut above = *path;
            while let Some((parent, _)) = above.rsplit_once('/') {
                if let Some(node) = self.site.admin.node(parent) {
                    assert_eq!(node["restarts"], 0, "{parent} above {path}");
                }
                above = parent;
            }
        }
    }
}

/// How an operator may kill.
const HOWS: [&str; 4] = ["stop", "kill", "panic", "stall=300ms"];

/// Kills per way and row; in CI the least that means something.
fn rounds() -> usize {
    if full() { 200 } else { 4 }
}

/// Of what failed, each was on a connection that broke.
#[track_caller]
fn only_connections_were_lost(report: &Report, how: &str) {
    for failure in &report.failures {
        assert!(
            matches!(failure.class, Class::InFlight | Class::InFlightReused | Class::Unsent),
            "{how}: {failure}\n{report}"
        );
    }
    let counts = report.counts;
    assert_eq!((counts.refused, counts.status, counts.wrong, counts.lost), (0, 0, 0, 0), "{how}: {report}");
}
