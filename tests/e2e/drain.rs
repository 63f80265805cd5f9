//! Stopping: what is in flight finishes, nothing new begins, and the process ends as soon as it can.

use std::sync::Mutex;
use std::sync::mpsc::{self, Sender};
use std::time::Instant;

use rustix::process::Signal;

use crate::harness::{PATIENCE, Running, Scripted, Site, Wire, eventually};

/// A site before an upstream that answers when told to.
fn slow(drain: &str) -> (Running, Scripted, Sender<()>) {
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let upstream = Scripted::start(move |mut connection| {
        if connection.request().is_some() && wait.lock().unwrap().recv_timeout(PATIENCE).is_ok() {
            connection.send(crate::harness::ok("finished"));
        }
    });
    let site = Site::new()
        .field(format!("drain_timeout: \"{drain}\""))
        .server("up", upstream.address)
        .route(r#"(path: "/", to: Respond(status: 200, body: "hello"))"#)
        .route(r#"(path: "/slow", to: Proxy("up"))"#)
        .start();
    (site, upstream, go)
}

#[test]
fn a_stopping_site_finishes_what_is_in_flight_and_refuses_the_rest() {
    for signal in [Signal::TERM, Signal::INT] {
        let (mut site, upstream, go) = slow("30s");
        let address = site.address("http");
        let mut idle = site.wire();
        idle.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(idle.response().text(), "hello");
        let mut busy = site.wire();
        busy.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
        eventually("the slow request is under way", || upstream.requests().len() == 1);
        site.process.signal(signal);
        idle.expect_closed();
        eventually("new connections are refused", || Wire::try_connect(address).is_err());
        assert!(site.process.ended().is_none(), "it waits for what is in flight");
        go.send(()).unwrap();
        let response = busy.response();
        assert_eq!((response.text().as_str(), response.header("connection")), ("finished", Some("close")));
        busy.expect_closed();
        assert_eq!(site.process.wait().code(), Some(0), "{}", site.process.output());
    }
}

#[test]
fn a_drain_ends_with_the_last_request_and_not_with_its_deadline() {
    let (mut site, _upstream, _go) = slow("1h");
    let mut idle = site.wire();
    idle.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    idle.response();
    site.stop();
    assert_eq!(site.process.wait().code(), Some(0));
}

#[test]
fn what_outlasts_the_drain_is_cut() {
    let (mut site, upstream, _go) = slow("500ms");
    let mut busy = site.wire();
    busy.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
    eventually("the slow request is under way", || upstream.requests().len() == 1);
    let begun = Instant::now();
    site.stop();
    site.process.wait();
    assert!(begun.elapsed() < PATIENCE, "it does not wait for what does not end");
    assert!(busy.try_response(false).is_err());
}

#[test]
fn a_drain_lasts_as_long_as_the_last_reload_has_said() {
    let (mut site, upstream, _go) = slow("1h");
    site.edit(|site| site.field("drain_timeout: \"100ms\"")).reload();
    let mut busy = site.wire();
    busy.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
    eventually("the slow request is under way", || upstream.requests().len() == 1);
    site.stop();
    busy.expect_closed();
    assert_eq!(site.process.wait().code(), Some(0), "{}", site.process.output());
}

#[test]
fn a_second_interrupt_ends_a_drain_at_once() {
    let (mut site, upstream, _go) = slow("1h");
    let mut busy = site.wire();
    busy.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
    eventually("the slow request is under way", || upstream.requests().len() == 1);
    let address = site.address("http");
    site.process.signal(Signal::INT);
    eventually("new connections are refused", || Wire::try_connect(address).is_err());
    site.process.signal(Signal::INT);
    assert_eq!(site.process.wait().code(), Some(130));
}

#[test]
fn a_draining_site_is_not_ready_and_says_so() {
    let (site, upstream, go) = slow("30s");
    let mut busy = site.wire();
    busy.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
    eventually("the slow request is under way", || upstream.requests().len() == 1);
    let mut site = site;
    let admin = site.admin.clone();
    site.stop();
    eventually("it is not ready any more", || !admin.ready());
    go.send(()).unwrap();
    assert_eq!(busy.response().text(), "finished");
    assert_eq!(site.process.wait().code(), Some(0));
}

/// A site that waits for long for the next request of a connection.
fn patient() -> Running {
    Site::new()
        .listener("http", "(bind: \"127.0.0.1:0\", timeouts: (drain_idle: \"25s\"))")
        .field("drain_timeout: \"30s\"")
        .route(r#"(path: "/", to: Respond(status: 200, body: "hello"))"#)
        .start()
}

#[test]
fn clients_that_go_on_asking_while_the_site_stops_lose_no_request() {
    const GET: &str = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut site = patient();
    let (answered, first) = mpsc::channel();
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let (mut wire, answered) = (site.wire(), answered.clone());
            std::thread::spawn(move || {
                loop {
                    let response = wire.send(GET).response();
                    assert_eq!(response.text(), "hello");
                    let _ = answered.send(());
                    if response.header("connection") == Some("close") {
                        return wire.expect_closed();
                    }
                }
            })
        })
        .collect();
    for _ in 0..200 {
        first.recv_timeout(PATIENCE).unwrap();
    }
    site.process.signal(Signal::TERM);
    for client in clients {
        client.join().unwrap();
    }
    assert_eq!(site.process.wait().code(), Some(0));
}

#[test]
fn a_connection_that_has_not_asked_yet_when_the_site_stops_is_answered() {
    let mut site = patient();
    let (mut used, mut new) = (site.wire(), site.wire());
    used.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").response();
    let address = site.address("http");
    eventually("both are accepted", || site.admin.connections() == 2);
    site.process.signal(Signal::TERM);
    eventually("new connections are refused", || Wire::try_connect(address).is_err());
    for wire in [&mut used, &mut new] {
        let response = wire.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").response();
        assert_eq!((response.text().as_str(), response.header("connection")), ("hello", Some("close")));
    }
    assert_eq!(site.process.wait().code(), Some(0));
}
