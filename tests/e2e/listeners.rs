//! TCP over IPv4 and IPv6, Unix sockets.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use crate::harness::{Process, Site, curl, exists};

const HELLO: &str = r#"(path: "/", to: Respond(status: 200, body: "hello\n"))"#;

#[test]
fn a_unix_socket_serves_with_the_mode_that_the_site_file_says() {
    let site = Site::new().listener("http", r#"(bind: "unix:edge.sock", mode: "0660")"#).route(HELLO).start();
    let socket = site.path("edge.sock");
    for option in ["--http1.1", "--http2-prior-knowledge"] {
        let answer =
            curl([option.as_ref(), "--unix-socket".as_ref(), socket.as_os_str(), "http://x/".as_ref()]);
        assert_eq!(answer.expect(200).text(), "hello\n");
    }
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o660);
    assert!(site.admin.listener("http").unwrap().starts_with("unix:"));
    let mut site = site;
    site.stop();
    assert_eq!(site.process.wait().code(), Some(0));
    assert!(!exists(&socket), "a stopped site leaves no socket file");
}

#[test]
fn a_stale_socket_file_is_replaced_and_a_live_one_is_an_error() {
    let site = Site::new().listener("http", r#"(bind: "unix:edge.sock")"#).route(HELLO);
    // A listener that is gone leaves its file.
    drop(UnixListener::bind(site.path("edge.sock")).unwrap());
    let site = site.start();
    let socket = site.path("edge.sock");
    curl(["--unix-socket".as_ref(), socket.as_os_str(), "http://x/".as_ref()]).expect(200);
    drop(site);

    let site = Site::new().listener("http", r#"(bind: "unix:edge.sock")"#).route(HELLO);
    let _live = UnixListener::bind(site.path("edge.sock")).unwrap();
    let mut process = Process::start("playhouse", &mut site.command());
    assert_eq!(process.wait().code(), Some(1), "{}", process.output());
    assert!(process.output().contains("edge.sock"), "{}", process.output());
}

#[test]
fn an_address_in_use_is_an_error_that_names_it() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let site = Site::new().listener("http", format!("(bind: \"{address}\")")).route(HELLO);
    let mut process = Process::start("playhouse", &mut site.command());
    assert_eq!(process.wait().code(), Some(1), "{}", process.output());
    assert!(process.output().contains(&address.to_string()), "{}", process.output());
}

#[test]
fn ipv6_is_served() {
    let site = Site::new().listener("http", r#"(bind: "[::1]:0")"#).route(HELLO).start();
    assert_eq!(curl(["-g", &site.url("http", "/")]).expect(200).text(), "hello\n");
}

#[test]
fn an_ipv6_wildcard_takes_both_families_unless_it_is_told_not_to() {
    let site = Site::new()
        .listener("http", r#"(bind: "[::]:0")"#)
        .listener("six", r#"(bind: "[::]:0", only_v6: true)"#)
        .route(HELLO)
        .start();
    let (both, six) = (site.address("http").port(), site.address("six").port());
    curl(["-g", &format!("http://[::1]:{both}/")]).expect(200);
    curl(["-g", &format!("http://127.0.0.1:{both}/")]).expect(200);
    curl(["-g", &format!("http://[::1]:{six}/")]).expect(200);
    assert_eq!(curl(["-g", &format!("http://127.0.0.1:{six}/")]).exit, 7, "IPv4 is refused");
}

#[test]
fn a_client_that_connects_and_leaves_costs_nothing() {
    let site = Site::new().route(HELLO).start();
    for _ in 0..200 {
        drop(site.wire());
    }
    crate::harness::eventually("all connections are gone", || site.admin.connections() == 0);
    let ledger = site.admin.settled_ledger();
    assert_eq!(ledger.accepted, 0, "no first byte, no request: {ledger:?}");
    curl([&site.url("http", "/")]).expect(200);
}
