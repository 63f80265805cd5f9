//! Balancing, health checks, ejection, and retries of what was not sent.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use crate::harness::{Running, Scripted, Site, eventually, ok};

const ROUTE: &str = r#"(path: "/", to: Proxy("up"))"#;

/// Status and content of `GET TARGET` over a connection of its own.
fn get(site: &Running, target: &str) -> (u16, String) {
    let mut wire = site.wire();
    wire.send(format!("GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
    let response = wire.response();
    (response.status, response.text())
}

/// An address of this machine where nothing listens.
fn nobody() -> SocketAddr {
    // Each caller has an address of the loopback network to itself, so that nobody takes the port meanwhile.
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let address = SocketAddr::from((
        [127, 65, (std::process::id() % 250) as u8, NEXT.fetch_add(1, Ordering::Relaxed) as u8],
        0,
    ));
    TcpListener::bind(address).and_then(|listener| listener.local_addr()).expect("loopback")
}

#[test]
fn round_robin_follows_the_weights() {
    let (one, two) = (Scripted::saying("one"), Scripted::saying("two"));
    let site = Site::new()
        .upstream("up", format!(r#"(servers: [(address: "{}", weight: 3), "{}"])"#, one.address, two.address))
        .route(ROUTE)
        .start();
    let mut counts = BTreeMap::<String, usize>::new();
    for _ in 0..40 {
        *counts.entry(get(&site, "/").1).or_default() += 1;
    }
    assert_eq!(counts, BTreeMap::from([("one".into(), 30), ("two".into(), 10)]));
}

#[test]
fn least_connections_avoids_the_busy_server() {
    let (release, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let busy = Scripted::answering(move |_| {
        // Until the sender is dropped.
        let _ = wait.lock().unwrap().recv();
        ok("busy")
    });
    let free = Scripted::saying("free");
    let site = Site::new()
        .upstream(
            "up",
            format!(r#"(servers: ["{}", "{}"], balance: LeastConnections)"#, busy.address, free.address),
        )
        .route(ROUTE)
        .start();
    // Until the busy one holds a request.
    let mut held = None;
    for sent in 1..=3 {
        let mut wire = site.wire();
        wire.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        eventually("a server has it", || busy.requests().len() + free.requests().len() == sent);
        if !busy.requests().is_empty() {
            held = Some(wire);
            break;
        }
        assert_eq!(wire.response().text(), "free");
    }
    let mut held = held.expect("among idle servers they take turns");
    for _ in 0..20 {
        assert_eq!(get(&site, "/").1, "free");
    }
    drop(release);
    assert_eq!(held.response().text(), "busy");
}

#[test]
fn a_server_that_does_not_listen_costs_no_request_while_another_does() {
    let alive = Scripted::saying("alive");
    let site = Site::new()
        .upstream("up", format!(r#"(servers: ["{}", "{}"])"#, nobody(), alive.address))
        .route(ROUTE)
        .start();
    for _ in 0..50 {
        assert_eq!(get(&site, "/"), (200, "alive".into()));
    }
    let mut wire = site.wire();
    wire.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi");
    assert_eq!(wire.response().status, 200, "nothing of it was sent to the dead one");
    let ledger = site.admin.settled_ledger();
    assert_eq!(ledger.upstream_failed, 0, "{ledger:?}");
}

#[test]
fn without_any_server_that_listens_the_answer_is_502() {
    let site = Site::new()
        .upstream("up", format!(r#"(servers: ["{}", "{}"])"#, nobody(), nobody()))
        .route(ROUTE)
        .start();
    for _ in 0..20 {
        assert_eq!(get(&site, "/").0, 502);
    }
    assert_eq!(site.admin.settled_ledger().upstream_failed, 20);
}

#[test]
fn a_server_whose_check_fails_gets_no_requests_until_it_succeeds_again() {
    let healthy = Arc::new(AtomicBool::new(true));
    let one = {
        let healthy = healthy.clone();
        Scripted::answering(move |request| {
            if request.target == "/healthz" && !healthy.load(Ordering::SeqCst) {
                return b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n".to_vec();
            }
            ok("one")
        })
    };
    let two = Scripted::saying("two");
    let health = r#"health: (path: "/healthz", interval: "50ms", timeout: "2s", unhealthy_after: 2)"#;
    let site = Site::new()
        .upstream("up", format!(r#"(servers: ["{}", "{}"], {health})"#, one.address, two.address))
        .route(ROUTE)
        .start();
    let ten = || (0..10).map(|_| get(&site, "/").1).collect::<Vec<_>>();
    eventually("both get requests", || ten().iter().any(|said| said == "one"));
    healthy.store(false, Ordering::SeqCst);
    eventually("the unhealthy one gets none", || ten().iter().all(|said| said == "two"));
    healthy.store(true, Ordering::SeqCst);
    eventually("it gets requests again", || ten().iter().any(|said| said == "one"));
    let checks = one.requests().iter().filter(|request| request.target == "/healthz").count();
    assert!(checks >= 3, "{checks} checks");
    assert_eq!(site.admin.settled_ledger().upstream_failed, 0);
}

#[test]
fn when_all_are_unhealthy_the_answer_is_503_or_what_they_say() {
    let upstream = Scripted::answering(|request| {
        if request.target == "/healthz" {
            return b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n".to_vec();
        }
        ok("up all the same")
    });
    let health = r#"health: (path: "/healthz", interval: "50ms", unhealthy_after: 1)"#;
    let site = Site::new()
        .upstream("up", format!(r#"(servers: ["{}"], {health})"#, upstream.address))
        .route(ROUTE)
        .start();
    eventually("a check was made", || upstream.requests().iter().any(|request| request.target == "/healthz"));
    let (status, _) = get(&site, "/");
    assert!(matches!(status, 200 | 502 | 503), "{status}");
}

#[test]
fn a_server_that_fails_again_and_again_is_left_out_for_a_while() {
    let failing = Arc::new(AtomicBool::new(true));
    let bad = {
        let failing = failing.clone();
        Scripted::start(move |mut connection| {
            while connection.request().is_some() {
                if failing.load(Ordering::SeqCst) || !connection.send(ok("bad")) {
                    return;
                }
            }
        })
    };
    let good = Scripted::saying("good");
    let site = Site::new()
        .upstream(
            "up",
            format!(
                r#"(servers: ["{}", "{}"], ejection: (failures: 3, duration: "2s"))"#,
                bad.address, good.address
            ),
        )
        .route(ROUTE)
        .start();
    let statuses: Vec<u16> = (0..40).map(|_| get(&site, "/").0).collect();
    let failures = statuses.iter().filter(|status| **status == 502).count();
    assert!((3..=8).contains(&failures), "{statuses:?}");
    failing.store(false, Ordering::SeqCst);
    eventually("it is tried again", || get(&site, "/").1 == "bad");
}

#[test]
fn the_last_server_is_never_ejected() {
    let failing = Arc::new(AtomicBool::new(true));
    let only = {
        let failing = failing.clone();
        Scripted::start(move |mut connection| {
            while connection.request().is_some() {
                if failing.load(Ordering::SeqCst) || !connection.send(ok("only")) {
                    return;
                }
            }
        })
    };
    let site = Site::new()
        .upstream(
            "up",
            format!(r#"(servers: ["{}"], ejection: (failures: 1, duration: "1h"))"#, only.address),
        )
        .route(ROUTE)
        .start();
    for _ in 0..5 {
        assert_eq!(get(&site, "/").0, 502);
    }
    failing.store(false, Ordering::SeqCst);
    assert_eq!(get(&site, "/"), (200, "only".into()));
}

#[test]
fn a_server_that_restarts_is_used_again_at_once() {
    let mut upstream = Scripted::saying("first");
    let site = Site::new().server("up", upstream.address).route(ROUTE).start();
    assert_eq!(get(&site, "/"), (200, "first".into()));
    upstream.stop();
    assert_eq!(get(&site, "/").0, 502);
    let again = Scripted::answering_at(upstream.address, |_| ok("second"));
    eventually("the new one answers", || get(&site, "/") == (200, "second".into()));
    drop(again);
}

#[test]
fn a_host_name_is_resolved() {
    let upstream = Scripted::saying("by name");
    let site =
        Site::new().server("up", format!("localhost:{}", upstream.address.port())).route(ROUTE).start();
    assert_eq!(get(&site, "/"), (200, "by name".into()));
}

#[test]
fn the_status_metrics_count_each_server() {
    let upstream = Scripted::saying("ok");
    let site = Site::new().server("up", upstream.address).route(ROUTE).start();
    for _ in 0..5 {
        get(&site, "/");
    }
    let server = format!("server=\"{}\"", upstream.address);
    eventually("the server's requests are counted", || {
        let text = site.admin.metrics();
        text.lines().any(|line| {
            !line.starts_with('#')
                && line.contains("upstream=\"up\"")
                && line.contains(&server)
                && line.ends_with(" 5")
        })
    });
}
