//! Headers that are written to servers.

use std::sync::{Arc, Mutex};

use super::{REQUEST, SIGNATURE, told};
use crate::harness::{Haproxy, Real, Running, Scripted, Site, curl, eventually, ok};

/// A server that reads a header of version 1 or 2 on each connection, and answers with it.
fn echoing(headers: Arc<Mutex<Vec<Vec<u8>>>>) -> Scripted {
    Scripted::start(move |mut connection| {
        let Ok(mut header) = connection.wire.take(12) else { return };
        if header == *SIGNATURE {
            let Ok(rest) = connection.wire.take(4) else { return };
            let length = usize::from(u16::from_be_bytes([rest[2], rest[3]]));
            header.extend(rest);
            header.extend(connection.wire.take(length).unwrap());
        } else {
            while !header.ends_with(b"\r\n") {
                header.extend(connection.wire.take(1).unwrap());
            }
        }
        headers.lock().unwrap().push(header.clone());
        while connection.request().is_some() {
            let said = header.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            connection.send(ok(&said));
        }
    })
}

fn site(upstream: &Scripted, more: &str) -> Running {
    Site::new()
        .upstream("up", format!("(servers: [\"{}\"], {more})", upstream.address))
        .route(r#"(path: "/", to: Proxy("up"))"#)
        .start()
}

#[test]
fn a_server_is_told_who_the_client_is_and_no_client_gets_anothers_connection() {
    for (version, begin) in [("V1", &b"PROXY TCP4 127.0.0.1 127.0.0.1 "[..]), ("V2", SIGNATURE)] {
        let headers: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let upstream = echoing(headers.clone());
        let site = site(&upstream, &format!("proxy_protocol: {version}"));
        let mut first = site.wire();
        let said: Vec<String> = (0..3)
            .map(|_| {
                first.send(REQUEST);
                first.response().text()
            })
            .collect();
        assert!(said.iter().all(|one| *one == said[0]), "{said:?}");
        assert_eq!(upstream.accepted(), 1, "the client has its own connection, and keeps it");
        let mut second = site.wire();
        for _ in 0..2 {
            second.send(REQUEST);
            assert_ne!(second.response().text(), said[0]);
            first.send(REQUEST);
            assert_eq!(first.response().text(), said[0]);
        }
        assert_eq!(upstream.accepted(), 2);
        assert!(headers.lock().unwrap().iter().all(|header| header.starts_with(begin)));
        // A client that comes later gets none of those that are idle.
        drop((first, second));
        for count in 3..6 {
            curl([site.url("http", "/")]).expect(200);
            assert_eq!(upstream.accepted(), count);
        }
    }
}

#[test]
fn version_2_says_whether_the_client_has_come_over_tls() {
    let headers: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let upstream = echoing(headers.clone());
    let authority = crate::harness::Authority::new();
    let site = Site::new()
        .listener("https", r#"(bind: "127.0.0.1:0", tls: [(cert: "a.pem", key: "a.key")])"#)
        .upstream("up", format!("(servers: [\"{}\"], proxy_protocol: V2)", upstream.address))
        .route(r#"(path: "/", to: Proxy("up"))"#);
    authority.write(&site.path("."), "a", &["a.test"], crate::harness::Algorithm::Ecdsa);
    let site = site.file("authority.pem", authority.pem()).start();
    let connect = format!("a.test:443:{}", site.address("https"));
    let cacert = site.path("authority.pem");
    curl(["--cacert", cacert.to_str().unwrap(), "--connect-to", &connect, "https://a.test/"]).expect(200);
    let header = headers.lock().unwrap().pop().unwrap();
    let has = |part: &[u8]| header.windows(part.len()).any(|window| window == part);
    assert!(has(b"\x02\x00\x06a.test") && has(b"\x21\x00\x07TLSv1.3"), "{header:?}");
}

#[test]
fn health_checks_speak_for_themselves() {
    for (version, expected) in [("V1", &b"PROXY UNKNOWN\r\n"[..]), ("V2", b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0")]
    {
        let headers: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let upstream = echoing(headers.clone());
        let _site =
            site(&upstream, &format!("proxy_protocol: {version}, health: (path: \"/\", interval: \"20ms\")"));
        eventually("it was checked", || headers.lock().unwrap().len() >= 2);
        assert!(headers.lock().unwrap().iter().all(|header| header == expected));
    }
}

#[test]
fn nginx_and_haproxy_take_the_headers_and_believe_them() {
    let nginx = Real::nginx_behind_proxy();
    let behind = told();
    let haproxy = Haproxy::start(1, |addresses| {
        let address = addresses[0];
        format!(
            "listen all\n  mode http\n  bind {address} accept-proxy\n  option forwardfor\n  server s {}\n",
            behind.address
        )
    });
    for version in ["V1", "V2"] {
        let up = |name: &str, address| {
            (name.to_owned(), format!("(servers: [\"{address}\"], proxy_protocol: {version})"))
        };
        let mut site = Site::new();
        for (name, upstream) in [up("nginx", nginx.address), up("haproxy", haproxy.addresses[0])] {
            site =
                site.upstream(&name, upstream).route(format!("(path: \"/{name}\", to: Proxy(\"{name}\"))"));
        }
        let site = site.start();
        for from in ["127.0.0.5", "127.0.0.6"] {
            let get = |path: &str| curl(["--interface", from, &site.url("http", path)]).expect(200).text();
            let said = get("/nginx");
            assert!(said.starts_with(&format!("{from} ")), "{said}");
            get("/haproxy");
            // What we say, and what HAProxy makes of the header.
            let request = behind.requests().pop().unwrap();
            let addresses: Vec<&str> = request
                .headers
                .iter()
                .filter(|(name, _)| name.eq_ignore_ascii_case("x-forwarded-for"))
                .map(|(_, value)| value.as_str())
                .collect();
            assert_eq!(addresses, [from, from], "{version}");
        }
    }
}
