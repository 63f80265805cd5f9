//! What dies while scripts run, and what that costs: the loss is counted, and the ledger balances.

use std::time::Duration;

use playhouse_chaos::{Body, Class, Exchange, Expect, Load, Protocol, Report, Stream};
use rustix::process::Signal;

use super::{root, site};
use crate::harness::stage::{balances, block_on, moves, stop};
use crate::harness::{Fpm, PATIENCE, Running, Site, eventually, eventually_some, full};

/// Idle connections are kept, and health is checked.
const UPSTREAM: &str =
    "keep_alive: (max_idle: 3), health: (path: \"/ping\", interval: \"100ms\", timeout: \"10s\")";

/// Scripts over HTTP/1.1 and HTTP/2, kept and new connections, with content that is sent slowly.
fn load(site: &Running) -> playhouse_chaos::Running {
    let kept = Protocol::Http1KeepAlive;
    let upload = || {
        let body = Body::Pattern { seed: 11, length: 5 * (16 << 10) };
        let length = body.length();
        Exchange::post("/echo.php", body, Expect::pattern(11, length)).pause(Duration::from_millis(50))
    };
    Load::new(site.address("http"))
        .stream(Stream::echo_id(kept, "/id.php/").name("scripts").concurrency(2))
        .stream(Stream::echo_id(Protocol::Http1NewConnection, "/id.php/").name("new").concurrency(2))
        .stream(Stream::echo_id(Protocol::Http2 { streams: 4 }, "/id.php/").name("h2 scripts"))
        .stream(Stream::repeat(kept, upload()).name("slow upload").deadline(PATIENCE))
        .stream(
            Stream::repeat(Protocol::Http2 { streams: 1 }, upload())
                .name("h2 slow upload")
                .deadline(PATIENCE),
        )
        .start()
        .expect("the load starts")
}

/// The requests that it has in flight at most.
const IN_FLIGHT: u64 = 2 + 2 + 4 + 1 + 1;

fn rounds() -> usize {
    if full() { 50 } else { 2 }
}

/// Each failure was on a connection that broke.
#[track_caller]
fn only_connections_were_lost(report: &Report, most: u64, how: &str) {
    for failure in &report.failures {
        let broken = matches!(failure.class, Class::InFlight | Class::InFlightReused | Class::Unsent);
        assert!(broken, "{how}: {failure}\n{report}");
    }
    let counts = report.counts;
    assert_eq!((counts.refused, counts.status, counts.wrong, counts.lost), (0, 0, 0, 0), "{how}: {report}");
    assert!(counts.failed() <= most, "{how}: more than {most} lost\n{report}");
}

#[test]
fn deaths_of_acceptors_pools_health_checkers_and_supervisors_cost_no_script() {
    let fpm = Fpm::start(6, "");
    let site = site(&fpm.unix(), UPSTREAM);
    for how in ["kill", "panic", "stall=600s"] {
        let before = site.admin.settled_ledger();
        let load = load(&site);
        for path in [
            "listeners/http",
            "listeners",
            "upstreams/php/pool",
            "upstreams/php/health",
            "upstreams/php",
            "upstreams",
            "access-log",
            "metrics",
        ] {
            moves(&load, 20);
            let path = format!("instance-1/{path}");
            // A supervisor has no work of its own to stall in.
            if site.admin.node(&path).is_some() {
                site.admin.kill_and_see_it_back(&path, how);
            }
        }
        moves(&load, 50);
        let report = stop(load);
        assert!(report.is_clean(), "{how}: {report}");
        let spent = balances(&site, before, &report, how);
        assert_eq!((spent.killed, spent.upstream_failed, spent.shed), (0, 0, 0), "{how}: {spent:?}");
    }
}

#[test]
fn killed_connections_lose_the_scripts_that_they_waited_for_alone() {
    let fpm = Fpm::start(6, "");
    let site = site(&fpm.unix(), UPSTREAM);
    for path in ["connections/shard-0", "connections", ""] {
        let path = format!("instance-1/{path}");
        let path = path.trim_end_matches('/');
        let before = site.admin.settled_ledger();
        let load = load(&site);
        for _ in 0..rounds() {
            moves(&load, 50);
            let killed_at = load.elapsed();
            site.admin.kill_and_see_it_back(path, "kill");
            block_on(load.recovery(killed_at, PATIENCE)).unwrap_or_else(|error| panic!("{path}: {error}"));
        }
        moves(&load, 100);
        let report = stop(load);
        only_connections_were_lost(&report, IN_FLIGHT * rounds() as u64, path);
        let spent = balances(&site, before, &report, path);
        assert_eq!((spent.upstream_failed, spent.shed), (0, 0), "{path}: {spent:?}");
    }
    // One alone, in the middle of its script, which is told by the end of its connection.
    let never = site.path("never");
    let request = format!("GET /wait.php?for={} HTTP/1.1\r\nHost: x\r\n\r\n", never.display());
    let mut one = site.wire();
    one.send(&request);
    assert_eq!(one.response_head().unwrap().status, 200);
    let is_connection =
        |path: &String| path.starts_with("instance-1/connections/shard-") && path.matches('/').count() == 3;
    let path = eventually_some("its actor alone", || {
        let paths: Vec<String> = site.admin.paths().into_iter().filter(is_connection).collect();
        (paths.len() == 1).then(|| paths[0].clone())
    });
    let mut other = site.wire();
    other.send(&request);
    assert_eq!(other.response_head().unwrap().status, 200);
    let killed = site.admin.ledger().killed;
    site.admin.kill(&path, "kill");
    one.rest();
    eventually("it is counted", || site.admin.ledger().killed == killed + 1);
    std::fs::write(&never, "").unwrap();
    assert_eq!(other.chunk().unwrap(), b"begun\n");
    assert_eq!(other.chunk().unwrap(), b"done\n");
}

#[test]
fn a_killed_instance_loses_the_scripts_that_it_waited_for() {
    let fpm = Fpm::start(8, "");
    let site = Site::new()
        .field("instances: (min: 2, max: 3, scaling: (up_at: 1.0, down_at: 0.0))")
        .upstream("php", format!("(servers: [\"{}\"], {UPSTREAM})", fpm.unix()))
        .route(format!("(path: \"/\", to: FastCgi(upstream: \"php\", root: \"{}\"))", root()))
        .start();
    let mut pids = site.active(2);
    let before = site.admin.settled_ledger();
    let load = load(&site);
    for _ in 0..rounds() {
        moves(&load, 50);
        let victim = pids[0];
        rustix::process::kill_process(victim, Signal::KILL).expect("a process of the site");
        pids = eventually_some("another is active in its place", || {
            let now = site.active(2);
            (!now.contains(&victim)).then_some(now)
        });
    }
    moves(&load, 100);
    let report = stop(load);
    only_connections_were_lost(&report, IN_FLIGHT * rounds() as u64, "SIGKILL of an instance");
    let spent = balances(&site, before, &report, "SIGKILL of an instance");
    assert_eq!((spent.upstream_failed, spent.shed), (0, 0), "{spent:?}");
}

#[test]
fn a_killed_process_costs_no_more_than_its_own_request() {
    let fpm = Fpm::start(6, "");
    for more in ["ejection: Off", "ejection: Off, keep_alive: (max_idle: 2)"] {
        let site = site(&fpm.unix(), more);
        let before = site.admin.settled_ledger();
        let load = load(&site);
        let kills = 5 * rounds() as u64;
        for _ in 0..kills {
            moves(&load, 20);
            fpm.kill_one();
        }
        moves(&load, 50);
        let report = stop(load);
        let counts = report.counts;
        assert_eq!((counts.refused, counts.wrong, counts.lost), (0, 0, 0), "{report}");
        assert!(counts.failed() <= kills, "more than {kills} lost\n{report}");
        let spent = balances(&site, before, &report, "SIGKILL of a process of php-fpm");
        assert_eq!((spent.upstream_failed, spent.killed), (counts.failed(), 0), "{spent:?}\n{report}");
    }
}

#[test]
fn a_reload_of_php_fpm_that_waits_for_its_scripts_loses_none() {
    let fpm = Fpm::start(6, "");
    for more in ["", "keep_alive: (max_idle: 2)"] {
        let site = site(&fpm.unix(), more);
        let before = site.admin.settled_ledger();
        let load = load(&site);
        for _ in 0..rounds() {
            moves(&load, 50);
            fpm.reload();
        }
        moves(&load, 100);
        let report = stop(load);
        assert!(report.is_clean(), "{report}\n{}", site.process.output());
        let spent = balances(&site, before, &report, "reload of php-fpm");
        assert_eq!(spent.upstream_failed, 0, "{spent:?}");
    }
}
