//! Clients that are slow on purpose meet their deadlines.

use std::time::Duration;

use crate::harness::{Running, Scripted, Site, Wire, eventually, pattern};

const SHORT: &str =
    r#"timeouts: (tls: "300ms", head: "300ms", body: "300ms", idle: "600ms", write: "500ms")"#;

fn site() -> Running {
    Site::new()
        .listener("http", format!("(bind: \"127.0.0.1:0\", {SHORT})"))
        .file("public/hello.txt", "hello\n")
        .route(r#"(path: "/", to: Static(root: "public"))"#)
        .start()
}

#[test]
fn a_head_that_does_not_end_is_answered_with_408() {
    let site = site();
    let mut wire = site.wire();
    wire.send("GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ");
    let response = wire.response();
    assert_eq!(response.status, 408);
    assert_eq!(response.header("connection"), Some("close"));
    wire.expect_closed();
    let ledger = site.admin.settled_ledger();
    assert_eq!((ledger.accepted, ledger.rejected), (1, 1), "{ledger:?}");
}

#[test]
fn a_trickle_does_not_put_the_heads_deadline_off() {
    let site = site();
    let mut wire = site.wire();
    wire.patience(Duration::from_millis(50));
    wire.send("GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ");
    // A byte whenever nothing has come for a while; ends when the answer is there.
    let mut trickled = 0;
    while wire.pending().is_empty() {
        match wire.fill() {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                trickled += 1;
                assert!(trickled < 600, "the deadline is put off by every byte");
                let _ = wire.try_send("a");
            }
            Err(error) => panic!("{error}"),
            Ok(_) => {}
        }
    }
    assert_eq!(wire.response().status, 408);
}

#[test]
fn a_connection_without_a_request_is_closed_without_a_word() {
    let site = site();
    let mut silent = site.wire();
    let mut kept = site.wire();
    kept.send("GET /hello.txt HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(kept.response().status, 200);
    silent.expect_closed();
    kept.expect_closed();
    let ledger = site.admin.settled_ledger();
    assert_eq!((ledger.accepted, ledger.answered), (1, 1), "{ledger:?}");
}

#[test]
fn a_body_that_does_not_come_is_answered_with_408_and_the_upstream_sees_it_broken() {
    let upstream = Scripted::saying("reached\n");
    let site = Site::new()
        .listener("http", format!("(bind: \"127.0.0.1:0\", {SHORT})"))
        .server("up", upstream.address)
        .route(r#"(path: "/", to: Proxy("up"))"#)
        .start();
    let mut wire = site.wire();
    wire.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nsome");
    let response = wire.response();
    assert_eq!(response.status, 408);
    wire.expect_closed();
    assert!(upstream.requests().is_empty(), "the request was never whole");
    assert_eq!(site.admin.settled_ledger().rejected, 1);
}

#[test]
fn a_client_that_does_not_read_is_cut_off() {
    let site = site();
    site.write("public/big", pattern(64 << 20));
    let mut wire = site.wire();
    wire.send("GET /big HTTP/1.1\r\nHost: x\r\n\r\n");
    eventually("the request is accepted", || site.admin.ledger().accepted == 1);
    let ledger = site.admin.settled_ledger();
    assert_eq!(ledger.client_gone, 1, "{ledger:?}");
    eventually("its connection is gone", || site.admin.connections() == 0);
    let got = wire.rest();
    assert!(got.len() < 64 << 20);
}

#[test]
fn a_slow_reader_that_makes_progress_is_served_to_the_end() {
    let site = site();
    let content = pattern(2 << 20);
    site.write("public/big", &content);
    let mut wire = site.wire();
    wire.send("GET /big HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert!(wire.response().body == content);
}

#[test]
fn a_tls_handshake_that_does_not_end_is_cut_off() {
    let authority = crate::harness::Authority::new();
    let site = Site::new();
    authority.write(&site.path("."), "site", &["site.test"], crate::harness::Algorithm::Ecdsa);
    let tls = r#"tls: [(cert: "site.pem", key: "site.key")]"#;
    let site = site
        .listener("https", format!("(bind: \"127.0.0.1:0\", {tls}, {SHORT})"))
        .route(r#"(path: "/", to: Respond(status: 200, body: "x"))"#)
        .start();
    let mut silent = Wire::connect(site.address("https"));
    let mut half = Wire::connect(site.address("https"));
    half.send([0x16, 3, 1, 2, 0, 1]);
    silent.rest();
    half.rest();
    eventually("their connections are gone", || site.admin.connections() == 0);
}

#[test]
fn an_upstream_that_does_not_answer_is_504() {
    let upstream = Scripted::start(|mut connection| {
        // Reads the request and says nothing.
        while connection.request().is_some() {}
    });
    let value = format!(
        r#"(servers: ["{}"], timeouts: (connect: "500ms", first_byte: "300ms", idle: "300ms"))"#,
        upstream.address
    );
    let site = Site::new().upstream("up", value).route(r#"(path: "/", to: Proxy("up"))"#).start();
    let mut wire = site.wire();
    wire.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(wire.response().status, 504);
    assert_eq!(site.admin.settled_ledger().upstream_failed, 1);
    assert_eq!(upstream.requests().len(), 1, "what was sent is not sent again");
}

#[test]
fn an_upstream_that_stops_in_the_middle_cuts_the_answer() {
    let upstream = Scripted::start(|mut connection| {
        while connection.request().is_some() {
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this");
        }
    });
    let value = format!(r#"(servers: ["{}"], timeouts: (idle: "300ms"))"#, upstream.address);
    let site = Site::new().upstream("up", value).route(r#"(path: "/", to: Proxy("up"))"#).start();
    let mut wire = site.wire();
    wire.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    let error = wire.try_response(false).expect_err("the answer must not look whole");
    assert!(
        matches!(error.kind(), std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset),
        "{error}"
    );
    assert_eq!(site.admin.settled_ledger().upstream_failed, 1);
}
