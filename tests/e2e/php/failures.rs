//! php-fpm with too much to do, recycled, killed and started again.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{KEEPING, root, site, under_load};
use crate::harness::{Fpm, Site, Wire, curl, eventually};

#[test]
fn processes_that_are_recycled_lose_nothing() {
    let fpm = Fpm::start(4, "pm.max_requests = 7");
    for (server, more) in [(fpm.unix(), ""), (fpm.unix(), KEEPING), (fpm.tcp(), KEEPING)] {
        let site = site(&server, more);
        let answered = || site.admin.ledger().answered;
        let counts = under_load(&site, 4, || eventually("enough are answered", || answered() > 600));
        assert_eq!(counts.failed.load(Ordering::Relaxed), 0, "{counts:?} {}", site.process.output());
        let opened = site.admin.metric("playhouse_upstream_connections_opened_total", &[]);
        let reused = site.admin.metric("playhouse_upstream_connections_reused_total", &[]);
        assert!((reused > 0.0) != more.is_empty() && opened > 80.0, "{opened} opened, {reused} reused");
        assert_eq!(site.admin.settled_ledger().upstream_failed, 0);
    }
}

#[test]
fn kills_of_the_pool_actor_cost_nothing() {
    let fpm = Fpm::start(4, "");
    let site = site(&fpm.unix(), KEEPING);
    let counts = under_load(&site, 4, || {
        for _ in 0..10 {
            for how in ["kill", "panic"] {
                site.admin.kill_and_see_it_back("instance-1/upstreams/php/pool", how);
            }
        }
        eventually("enough are answered", || site.admin.ledger().answered > 300);
    });
    assert_eq!(counts.failed.load(Ordering::Relaxed), 0, "{}", site.process.output());
    assert_eq!(site.admin.settled_ledger().upstream_failed, 0);
}

#[test]
fn a_killed_process_costs_its_own_request_and_a_restart_what_comes_meanwhile() {
    let mut fpm = Fpm::start(4, "");
    for keeping in ["ejection: Off", "ejection: Off, keep_alive: (max_idle: 4)"] {
        let site = site(&fpm.unix(), keeping);
        let right = |counts: u64| site.admin.ledger().answered > counts;
        let counts = under_load(&site, 4, || {
            for _ in 0..20 {
                let before = site.admin.ledger().answered;
                fpm.kill_one();
                eventually("it goes on", || right(before + 10));
            }
            fpm.kill();
            eventually("it is missed", || site.admin.ledger().upstream_failed > 20);
            fpm.start_again();
            let before = site.admin.ledger().answered;
            eventually("it goes on", || right(before + 100));
        });
        assert!(counts.right.load(Ordering::Relaxed) > 200, "{counts:?}");
        let ledger = site.admin.settled_ledger();
        assert_eq!(ledger.accepted, ledger.answered + ledger.upstream_failed, "{ledger:?}");
        assert_eq!(ledger.upstream_failed, counts.failed.load(Ordering::Relaxed) as u64, "{ledger:?}");
    }
}

#[test]
fn while_all_processes_are_busy_requests_wait_and_idle_connections_block_nobody() {
    let fpm = Fpm::start(2, "");
    for more in ["", KEEPING] {
        let site = site(&fpm.unix(), more);
        let go = site.path("go");
        let slow = format!("GET /wait.php?silent&for={} HTTP/1.1\r\nHost: x\r\n\r\n", go.display());
        let quick = "POST /form.php HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
        let mut busy: Vec<Wire> = (0..2).map(|_| site.wire()).collect();
        for wire in &mut busy {
            wire.send(&slow);
        }
        eventually("both are busy", || site.admin.metric("playhouse_upstream_in_flight", &[]) == 2.0);
        let mut waiting: Vec<Wire> = (0..10).map(|_| site.wire()).collect();
        for wire in &mut waiting {
            wire.send(quick);
        }
        eventually("all are on their way", || site.admin.metric("playhouse_upstream_in_flight", &[]) == 12.0);
        std::fs::write(&go, "").unwrap();
        for wire in busy.iter_mut().chain(&mut waiting) {
            assert_eq!(wire.response().status, 200);
        }
        // With both processes behind idle connections, what needs one of its own gets it at once.
        let begun = Instant::now();
        for _ in 0..20 {
            curl([site.url("http", "/session.php")]).expect(200);
            curl(["-d", "a=1", &site.url("http", "/form.php")]).expect(200);
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "no idle connection has to expire for it");
        assert_eq!(site.admin.settled_ledger().upstream_failed, 0);
    }
}

#[test]
fn a_full_queue_makes_requests_wait_and_at_last_says_504() {
    // One at work, and a queue of one or two behind it.
    let fpm = Fpm::start(1, "listen.backlog = 1");
    for server in [fpm.unix(), fpm.tcp()] {
        let site = site(&server, "timeouts: (connect: \"20s\")");
        let go = site.path("go");
        let mut slow = site.wire();
        slow.send(format!("GET /wait.php?silent&for={} HTTP/1.1\r\nHost: x\r\n\r\n", go.display()));
        let mut waiting: Vec<Wire> = (0..10).map(|_| site.wire()).collect();
        for (number, wire) in waiting.iter_mut().enumerate() {
            wire.send(format!("GET /index.php?{number} HTTP/1.1\r\nHost: x\r\n\r\n"));
        }
        eventually("all are on their way", || site.admin.metric("playhouse_upstream_in_flight", &[]) == 11.0);
        std::fs::write(&go, "").unwrap();
        assert_eq!(slow.response().status, 200);
        for (number, wire) in waiting.iter_mut().enumerate() {
            let answer = wire.response();
            assert!(answer.text().contains(&format!("\"QUERY_STRING\":\"{number}\"")), "{answer:?}");
        }
        assert_eq!(site.admin.settled_ledger().upstream_failed, 0);
    }
    let site = site(&fpm.unix(), "timeouts: (connect: \"300ms\"), retries: 0, ejection: Off");
    let go = site.path("go");
    let slow = format!("GET /wait.php?silent&for={} HTTP/1.1\r\nHost: x\r\n\r\n", go.display());
    let mut wires: Vec<Wire> = (0..10).map(|_| site.wire()).collect();
    for wire in &mut wires {
        wire.send(&slow);
    }
    let failures = || site.admin.metric("playhouse_upstream_failures_total", &["kind=\"connect_timeout\""]);
    eventually("those that do not fit have given up", || failures() >= 7.0);
    std::fs::write(&go, "").unwrap();
    let statuses: Vec<u16> = wires.iter_mut().map(|wire| wire.response().status).collect();
    let count = |status| statuses.iter().filter(|seen| **seen == status).count();
    assert!(count(200) >= 1 && count(504) >= 7 && count(200) + count(504) == 10, "{statuses:?}");
}

#[test]
fn idle_connections_of_all_instances_together_leave_processes_for_others() {
    let fpm = Fpm::start(4, "");
    let site = Site::new()
        .field("instances: (min: 3, max: 3)")
        .upstream("php", format!("(servers: [\"{}\"], keep_alive: (max_idle: 3))", fpm.unix()))
        .route(format!("(path: \"/\", to: FastCgi(upstream: \"php\", root: \"{}\"))", root()))
        .start();
    site.active(3);
    let idle = || site.admin.metric("playhouse_upstream_idle_connections", &[]);
    // Until each of the three has one.
    eventually("all keep their share", || {
        curl([site.url("http", "/session.php")]).expect(200);
        idle() == 3.0
    });
    for _ in 0..20 {
        curl([site.url("http", "/session.php")]).expect(200);
        curl(["-d", "a=1", &site.url("http", "/form.php")]).expect(200);
        assert!(idle() <= 3.0);
    }
    assert_eq!(site.admin.settled_ledger().upstream_failed, 0);
}

#[test]
fn a_script_that_is_too_slow_is_answered_with_504() {
    let fpm = Fpm::start(2, "");
    let site = site(&fpm.unix(), "timeouts: (first_byte: \"300ms\", idle: \"300ms\")");
    let never = site.path("never");
    let target = format!("/wait.php?silent&for={}", never.display());
    curl([site.url("http", &target)]).expect(504);
    // Behind its beginning it is cut, and does not look whole.
    let target = format!("/wait.php?for={}", never.display());
    let answer = curl([site.url("http", &target)]);
    assert!(answer.exit != 0 && answer.status == 200, "{answer:?}");
    std::fs::write(&never, "").unwrap();
    assert_eq!(site.admin.settled_ledger().upstream_failed, 2);
}

#[test]
fn without_php_fpm_it_is_502_and_files_are_served_all_the_same() {
    let mut fpm = Fpm::start(1, "");
    let site = site(&fpm.unix(), "");
    fpm.kill();
    curl([site.url("http", "/session.php")]).expect(502);
    curl([site.url("http", "/assets/style.css")]).expect(200);
}
