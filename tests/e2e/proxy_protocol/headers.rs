//! Headers byte by byte, from proxies and from those who only say that they are.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;

use super::{
    LOCAL, OPTIONAL, OVER_TLS, REQUEST, REQUIRED, asked, from, refused, site, told, unspecified, v1, v2,
};
use crate::harness::{Algorithm, Authority, Site, Wire, curl, eventually};

#[test]
fn a_header_of_either_version_says_who_the_client_is() {
    let upstream = told();
    let site = site(REQUIRED, &upstream);
    assert_eq!(asked(site.wire(), &v1("192.0.2.1")), "192.0.2.1 http shop.test");
    let six = b"PROXY TCP6 2001:db8::7 2001:db8::1 50000 443\r\n";
    assert_eq!(asked(site.wire(), six), "2001:db8::7 http shop.test");
    assert_eq!(asked(site.wire(), &v2([192, 0, 2, 2], b"")), "192.0.2.2 http shop.test");
    assert_eq!(asked(site.wire(), &v2([192, 0, 2, 3], OVER_TLS)), "192.0.2.3 https shop.test");
    // Who does not say who the client is, is the client.
    assert_eq!(asked(site.wire(), b"PROXY UNKNOWN\r\n"), "127.0.0.1 http shop.test");
    assert_eq!(asked(site.wire(), LOCAL), "127.0.0.1 http shop.test");
    // Of a family that is not said, what stands beside the address holds.
    assert_eq!(asked(site.wire(), &unspecified(OVER_TLS)), "127.0.0.1 https shop.test");
    let read = || std::fs::read_to_string(site.path("access.log")).unwrap_or_default();
    eventually("the lines are written", || read().lines().count() == 7);
    let lines: Vec<Value> = read().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let entry = |index: usize| {
        let line: &Value = &lines[index];
        ["peer", "proxy", "scheme", "tls"].map(|name| line[name].as_str().unwrap_or("-"))
    };
    assert_eq!(entry(0), ["192.0.2.1", "127.0.0.1", "http", "-"]);
    assert_eq!(entry(3), ["192.0.2.3", "127.0.0.1", "https", "TLSv1.3"]);
    assert_eq!(entry(5), ["127.0.0.1", "-", "http", "-"]);
    assert_eq!(entry(6), ["127.0.0.1", "127.0.0.1", "https", "TLSv1.3"]);
    assert_eq!(refused(&site), 0.0);
}

#[test]
fn a_header_may_come_in_pieces_and_its_requests_behind_it() {
    let upstream = told();
    let site = site(REQUIRED, &upstream);
    for header in [v1("192.0.2.1"), v2([192, 0, 2, 1], OVER_TLS)] {
        let mut wire = site.wire();
        for byte in &header {
            wire.send([*byte]);
        }
        for _ in 0..3 {
            wire.send(REQUEST);
            assert!(wire.response().text().starts_with("192.0.2.1 "));
        }
    }
    // HTTP/2 by prior knowledge.
    let url = site.url("http", "/");
    let answer = curl(["--haproxy-protocol", "--http2-prior-knowledge", &url]).expect(200);
    assert!(answer.text().starts_with("127.0.0.1 http "), "{answer:?}");
}

#[test]
fn a_header_stands_before_tls() {
    let (upstream, authority) = (told(), Authority::new());
    let listener = r#"(bind: "127.0.0.1:0", tls: [(cert: "a.pem", key: "a.key")],
                       proxy_protocol: Required(trusted: ["127.0.0.1"]))"#;
    let site = Site::new()
        .listener("https", listener)
        .server("up", upstream.address)
        .route(r#"(path: "/", to: Proxy("up"))"#);
    authority.write(&site.path("."), "a", &["a.test"], Algorithm::Ecdsa);
    let site = site.file("authority.pem", authority.pem()).start();
    let address = site.address("https");
    for version in ["--http1.1", "--http2"] {
        let cacert = site.path("authority.pem");
        let arguments = [version, "--haproxy-protocol", "--cacert", cacert.to_str().unwrap(), "--connect-to"];
        let answer =
            curl(arguments.into_iter().chain([&*format!("a.test:443:{address}"), "https://a.test/"]));
        assert_eq!(answer.expect(200).text(), "127.0.0.1 https a.test");
    }
    // In one piece with a handshake, too; and a handshake without it is none.
    let mut tcp = std::net::TcpStream::connect(address).unwrap();
    tcp.write_all(&v1("192.0.2.9")).unwrap();
    let name = "a.test".try_into().unwrap();
    let client = rustls::ClientConnection::new(authority.client(&[b"http/1.1"]), name).unwrap();
    let mut wire = Wire::over(rustls::StreamOwned::new(client, tcp));
    wire.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert_eq!(wire.response().text(), "192.0.2.9 https a.test");
    let plain = ["--cacert", site.path("authority.pem").to_str().unwrap(), "--connect-to"].map(str::to_owned);
    let answer = curl(plain.into_iter().chain([format!("a.test:443:{address}"), "https://a.test/".into()]));
    assert_eq!(answer.status, 0, "{answer:?}");
}

#[test]
fn what_is_no_whole_header_is_closed_without_an_answer() {
    let upstream = told();
    let listener = r#"(bind: "127.0.0.1:0", proxy_protocol: Required(trusted: ["127.0.0.1"]),
                       timeouts: (proxy_header: "300ms"))"#;
    let site = site(listener, &upstream);
    let oversized = [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff"[..], &[7; 4000]].concat();
    let mut bad_checksum = v2([192, 0, 2, 1], b"\x03\x00\x04\0\0\0\0");
    bad_checksum.extend_from_slice(REQUEST.as_bytes());
    let headers: Vec<Vec<u8>> = vec![
        REQUEST.into(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(),
        b"PROXY TCP4 192.0.2.1 198.51.100.7 50000\r\n".into(),
        b"PROXY TCP4 192.0.2.1 198.51.100.7 50000 443 \r\n".into(),
        b"PROXY TCP9 a b c d\r\n".into(),
        format!("PROXY UNKNOWN {}\r\n", "x".repeat(200)).into(),
        b"\r\n\r\n\0\r\nQUIT\n\x31\x11\x00\x0c".into(),
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x04\x01\x02\x03\x04".into(),
        v2([192, 0, 2, 1], b"\x02\x00\xffshort"),
        oversized,
        bad_checksum,
    ];
    let count = headers.len();
    for header in headers {
        let mut wire = site.wire();
        let _ = wire.try_send(&header);
        assert_eq!(wire.rest(), b"", "{:?}", String::from_utf8_lossy(&header));
    }
    // Cut off at every byte, by the end of the stream.
    let header = v2([192, 0, 2, 1], OVER_TLS);
    let six = b"PROXY TCP6 2001:db8::7 2001:db8::1 50000 443\r\n".to_vec();
    let mut cuts = 0;
    for header in [&header, &v1("192.0.2.1"), &six] {
        for length in 1..header.len() {
            let mut wire = site.wire();
            wire.send(&header[..length]).finish();
            assert_eq!(wire.rest(), b"", "cut at {length}");
            cuts += 1;
        }
    }
    // Or by silence.
    let mut slow = site.wire();
    slow.send(&header[..20]);
    slow.expect_closed();
    let expected = (count + cuts + 1) as f64;
    eventually("all are counted", || refused(&site) == expected);
    assert_eq!(site.admin.settled_ledger().accepted, 0);
    assert_eq!(upstream.accepted(), 0);
    let warnings = site.process.stderr().iter().filter(|line| line.contains("PROXY header")).count();
    assert_eq!(warnings, 1, "who can connect cannot fill the log\n{}", site.process.output());
    assert_eq!(asked(site.wire(), &header), "192.0.2.1 https shop.test");
}

#[test]
fn the_longest_headers_are_read_and_longer_ones_are_not() {
    let upstream = told();
    let site = site(REQUIRED, &upstream);
    // 107 bytes, as the specification says of version 1.
    let unknown = |length: usize| {
        let frame = "PROXY UNKNOWN \r\n".len();
        format!("PROXY UNKNOWN {}\r\n", "x".repeat(length - frame)).into_bytes()
    };
    // 4 KiB of what is ignored, in version 2: a head of 16 bytes, addresses of 12, a TLV's three.
    let padded = |length: usize| {
        let value = length - 16 - 12 - 3;
        let tlv = [&[0xee][..], &(value as u16).to_be_bytes(), &vec![0; value]].concat();
        v2([192, 0, 2, 1], &tlv)
    };
    assert_eq!(asked(site.wire(), &unknown(107)), "127.0.0.1 http shop.test");
    assert_eq!(asked(site.wire(), &padded(4096)), "192.0.2.1 http shop.test");
    for header in [unknown(108), padded(4097), padded(65_000)] {
        let mut wire = site.wire();
        let _ = wire.try_send([&header, REQUEST.as_bytes()].concat());
        assert_eq!(wire.rest(), b"", "{} bytes", header.len());
    }
    eventually("they are counted", || refused(&site) == 3.0);
}

#[test]
fn health_checks_of_proxies_make_no_noise() {
    let upstream = told();
    let site = site(REQUIRED, &upstream);
    for _ in 0..20 {
        drop(site.wire());
        let mut local = site.wire();
        local.send(LOCAL).finish();
        local.expect_closed();
    }
    eventually("all are gone", || site.admin.connections() == 0);
    assert_eq!((refused(&site), site.admin.settled_ledger().accepted), (0.0, 0));
    assert!(!site.process.output().contains("PROXY"), "{}", site.process.output());
}

#[test]
fn a_forged_header_of_somebody_who_is_not_trusted_is_refused() {
    let upstream = told();
    let stranger = |listener: SocketAddr| from([127, 0, 0, 9], listener);
    let required = site(REQUIRED, &upstream);
    for header in [v1("192.0.2.1"), v2([192, 0, 2, 1], b""), LOCAL.to_vec(), Vec::new()] {
        let mut wire = stranger(required.address("http"));
        let _ = wire.try_send([&header, REQUEST.as_bytes()].concat());
        assert_eq!(wire.rest(), b"");
    }
    eventually("they are counted", || refused(&required) == 4.0);
    assert_eq!(upstream.accepted(), 0);

    // Where none is required a stranger is a client like any other, whose header is no request.
    let optional = site(OPTIONAL, &upstream);
    assert_eq!(asked(stranger(optional.address("http")), b""), "127.0.0.9 http shop.test");
    for header in [v1("192.0.2.1"), v2([192, 0, 2, 1], b"")] {
        let mut wire = stranger(optional.address("http"));
        wire.send([&header, REQUEST.as_bytes()].concat());
        assert_eq!(wire.response().status, 400);
    }
    assert_eq!(upstream.requests().len(), 1);
    // A proxy may leave it out.
    assert_eq!(asked(optional.wire(), b""), "127.0.0.1 http shop.test");
    assert_eq!(asked(optional.wire(), &v1("192.0.2.1")), "192.0.2.1 http shop.test");
    let mut undecided = optional.wire();
    undecided.send("P").send("RO").send("XY TCP4 192.0.2.4 198.51.100.7 1 2\r").send("\n").send(REQUEST);
    assert_eq!(undecided.response().text(), "192.0.2.4 http shop.test");
    let mut other = optional.wire();
    other.send("P").send("UT / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(other.response().text(), "127.0.0.1 http a");
}

#[test]
fn limits_are_for_the_client_and_not_for_its_proxy() {
    let upstream = told();
    let listener = r#"(bind: "127.0.0.1:0", proxy_protocol: Required(trusted: ["127.0.0.0/8"]),
                       limits: (connections_per_address: 2, rate: (per_second: 1, burst: 3)))"#;
    let site = site(listener, &upstream);
    let begin = |client: &str| {
        let mut wire = site.wire();
        wire.send([&v1(client), REQUEST.as_bytes()].concat());
        wire
    };
    let mut held: Vec<Wire> = Vec::new();
    for client in 1..=20 {
        for _ in 0..2 {
            let mut wire = begin(&format!("192.0.2.{client}"));
            assert_eq!(wire.response().status, 200);
            held.push(wire);
        }
    }
    // One too many for this client; the next one has its own count.
    begin("192.0.2.1").expect_closed();
    assert_eq!(site.admin.metric("playhouse_connections_refused_total", &["listener=\"http\""]), 1.0);
    let mut wire = begin("192.0.2.200");
    wire.send(REQUEST.repeat(19));
    let statuses: Vec<u16> = (0..20).map(|_| wire.response().status).collect();
    assert!(statuses[..3] == [200; 3] && statuses.contains(&429), "{statuses:?}");
    // Given back with the connection.
    held.truncate(38);
    eventually("a place is free", || {
        let mut wire = begin("192.0.2.20");
        wire.try_response(false).is_ok_and(|answer| answer.status == 200 || answer.status == 429)
    });
    // A proxy that speaks for itself has no limit: it is asked by all of its instances.
    for _ in 0..10 {
        assert!(asked(site.wire(), LOCAL).starts_with("127.0.0.1 "));
    }
}

#[test]
fn a_drain_does_not_wait_for_a_header() {
    let upstream = told();
    let mut site = site(REQUIRED, &upstream);
    let (mut silent, mut within) = (site.wire(), site.wire());
    within.send(&v1("192.0.2.1")[..9]);
    eventually("both are there", || site.admin.connections() == 2);
    site.stop();
    assert_eq!(silent.rest(), b"");
    assert_eq!(within.rest(), b"");
    assert_eq!(site.process.wait().code(), Some(0));
}

#[test]
fn a_reload_may_begin_to_require_headers() {
    let upstream = told();
    let free = r#"(bind: "127.0.0.1:0")"#;
    let mut site = site(free, &upstream);
    let mut before = site.wire();
    before.send(REQUEST);
    assert_eq!(before.response().status, 200);
    let address = site.address("http");
    site.edit(|site| site.listener("http", REQUIRED)).reload();
    assert_eq!(site.address("http"), address);
    before.send(REQUEST);
    assert_eq!(before.response().text(), "127.0.0.1 http shop.test", "who was there goes on");
    let mut without = site.wire();
    without.send(REQUEST);
    assert_eq!(without.rest(), b"");
    assert_eq!(asked(site.wire(), &v1("192.0.2.1")), "192.0.2.1 http shop.test");
}

#[test]
fn a_killed_acceptor_loses_no_connection_that_has_not_sent_its_header() {
    let upstream = told();
    let site = site(REQUIRED, &upstream);
    let mut wires: Vec<Wire> = (0..20).map(|_| site.wire()).collect();
    eventually("all are there", || site.admin.connections() == 20);
    site.admin.kill_and_see_it_back("instance-1/listeners/http", "kill");
    for wire in &mut wires {
        wire.send([&v1("192.0.2.1"), REQUEST.as_bytes()].concat());
        assert_eq!(wire.response().text(), "192.0.2.1 http shop.test");
    }
}

#[test]
fn on_a_unix_socket_whoever_can_connect_is_believed() {
    let upstream = told();
    let site = site(r#"(bind: "unix:edge.sock", mode: "0600", proxy_protocol: Required)"#, &upstream);
    let path = site.path("edge.sock");
    assert_eq!(asked(Wire::connect_unix(&path), &v1("192.0.2.1")), "192.0.2.1 http shop.test");
    assert_eq!(asked(Wire::connect_unix(&path), LOCAL), "- http shop.test");
    let mut plain = std::os::unix::net::UnixStream::connect(&path).unwrap();
    plain.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    plain.write_all(REQUEST.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert_eq!(answer, b"");
}
