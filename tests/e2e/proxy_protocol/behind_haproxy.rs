//! HAProxy in `mode tcp` in front of a site, over a Unix socket.

use std::net::SocketAddr;

use super::{refused, site, told};
use crate::harness::{Algorithm, Authority, Haproxy, Wire, curl, eventually};

/// Frontends in the clear with version 1 and 2 of the header, and one where TLS ends at HAProxy.
fn configuration(addresses: &[SocketAddr], socket: &str, certificate: &str) -> String {
    let [one, two, tls] = addresses else { panic!("three frontends") };
    let check = "check inter 50ms check-send-proxy";
    format!(
        "frontend one\n  bind {one}\n  default_backend one\n\
         frontend two\n  bind {two}\n  default_backend two\n\
         frontend tls\n  bind {tls} ssl crt {certificate} alpn h2,http/1.1\n  default_backend tls\n\
         backend one\n  server site unix@{socket} send-proxy {check}\n\
         backend two\n  server site unix@{socket} send-proxy-v2 {check}\n\
         backend tls\n  server site unix@{socket} send-proxy-v2-ssl proxy-v2-options authority,crc32c {check}\n"
    )
}

#[test]
fn haproxy_in_front_over_a_unix_socket_names_its_clients() {
    let (upstream, authority) = (told(), Authority::new());
    let site = site(r#"(bind: "unix:edge.sock", mode: "0660", proxy_protocol: Required)"#, &upstream);
    let (chain, key) = authority.sign(&["shop.test"], Algorithm::Ecdsa);
    site.write("haproxy.pem", format!("{chain}{key}"));
    site.write("authority.pem", authority.pem());
    let path = |name: &str| site.path(name).to_str().unwrap().to_owned();
    let haproxy =
        Haproxy::start(3, |addresses| configuration(addresses, &path("edge.sock"), &path("haproxy.pem")));
    let [one, two, tls] = haproxy.addresses[..] else { panic!("three frontends") };

    for (frontend, from) in [(one, "127.0.0.1"), (two, "127.0.0.3")] {
        for version in ["--http1.1", "--http2-prior-knowledge"] {
            let url = format!("http://{frontend}/");
            let answer = curl([version, "--interface", from, &url]).expect(200);
            assert_eq!(answer.text(), format!("{from} http {frontend}"));
        }
    }
    for version in ["--http1.1", "--http2"] {
        let (authority, connect) = (path("authority.pem"), format!("shop.test:443:{tls}"));
        let url = "https://shop.test/";
        let arguments = [version, "--interface", "127.0.0.4", "--cacert", &authority, "--connect-to"];
        let answer = curl(arguments.into_iter().chain([&*connect, url])).expect(200);
        assert_eq!(answer.text(), "127.0.0.4 https shop.test");
        assert_eq!(answer.version, if version == "--http2" { "2" } else { "1.1" });
    }
    let read = || std::fs::read_to_string(site.path("access.log")).unwrap_or_default();
    eventually("the lines are written", || read().lines().count() == 6);
    for line in read().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let proxied = line["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0."));
        assert!(proxied && line["proxy"] == "unix", "{line}");
        let tls = line["tls"].as_str().is_some_and(|version| version.starts_with("TLSv1."));
        assert_eq!(tls, line["scheme"] == "https", "{line}");
    }

    // Its checks come all the while, and are nothing to speak of.
    let accepted = || site.admin.metric("playhouse_connections_accepted_total", &["listener=\"http\""]);
    let before = accepted();
    eventually("it has checked some more", || accepted() > before + 20.0);
    assert_eq!(refused(&site), 0.0);
    assert!(!site.process.output().contains("PROXY"), "{}", site.process.output());

    // Connections through it outlive an acceptor, and keep their client.
    let mut wire = Wire::connect(two);
    for _ in 0..3 {
        wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(wire.response().text(), "127.0.0.1 http a");
        site.admin.kill_and_see_it_back("instance-1/listeners/http", "kill");
    }
    assert_eq!(site.admin.settled_ledger().killed, 0);
}
