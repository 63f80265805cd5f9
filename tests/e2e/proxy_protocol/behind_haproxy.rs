//! HAProxy in `mode tcp` in front of a site, over a Unix socket.

use std::net::SocketAddr;

use playhouse_chaos::{Class, Expect, Load, Protocol, Stream};
use rustix::process::Signal;

use super::{from, refused, site, told};
use crate::harness::stage::{balances, moves, stop};
use crate::harness::{Algorithm, Authority, Haproxy, Running, Site, Wire, curl, eventually, eventually_some};

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

/// Frontends in the clear, with version 1 and 2 of the header, in front of this socket of a site.
fn in_front_of(site: &Running, socket: &str) -> Haproxy {
    let socket = site.path(socket).display().to_string();
    Haproxy::start(2, |addresses| {
        let [one, two] = addresses else { panic!("two frontends") };
        format!(
            "frontend one\n  bind {one}\n  default_backend one\nfrontend two\n  bind {two}\n  default_backend two\n\
             backend one\n  server site unix@{socket} send-proxy\nbackend two\n  server site unix@{socket} send-proxy-v2\n"
        )
    })
}

#[test]
fn limits_are_for_the_clients_of_haproxy() {
    let upstream = told();
    let site = site(
        r#"(bind: "unix:edge.sock", proxy_protocol: Required,
            limits: (connections_per_address: 2, rate: (per_second: 1, burst: 4)))"#,
        &upstream,
    );
    let haproxy = in_front_of(&site, "edge.sock");
    for (number, frontend) in (20..).step_by(10).zip(&haproxy.addresses) {
        let (one, other) = ([127, 0, 0, number], [127, 0, 0, number + 1]);
        let mut held = [from(one, *frontend), from(one, *frontend)];
        for wire in &mut held {
            wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(wire.response().status, 200);
        }
        from(one, *frontend).expect_closed();
        let mut wire = from(other, *frontend);
        wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(20));
        let statuses: Vec<u16> = (0..20).map(|_| wire.response().status).collect();
        assert!(statuses[..4] == [200; 4] && statuses.contains(&429), "{statuses:?}");
    }
}

#[test]
fn clients_of_haproxy_lose_no_more_by_deaths_than_their_own_would() {
    let site = Site::new()
        .field("instances: (min: 2, max: 3, scaling: (up_at: 1.0, down_at: 0.0))")
        .listener("edge", r#"(bind: "unix:edge.sock", proxy_protocol: Required)"#)
        .route(r#"(path: "/", to: Respond("hello\n"))"#)
        .start();
    let mut pids = site.active(2);
    let haproxy = in_front_of(&site, "edge.sock");
    let load = |frontend: SocketAddr| {
        let hello = || Expect::body("hello\n");
        Load::new(frontend)
            .stream(Stream::get(Protocol::Http1KeepAlive, "/", hello()).name("kept").concurrency(4))
            .stream(Stream::get(Protocol::Http1NewConnection, "/", hello()).name("new").concurrency(2))
            .stream(Stream::get(Protocol::Http2 { streams: 4 }, "/", hello()).name("h2"))
            .start()
            .expect("the load starts")
    };
    let in_flight = 4 + 2 + 4;
    for frontend in haproxy.addresses.clone() {
        let before = site.admin.settled_ledger();
        let running = load(frontend);
        for how in ["kill", "panic"] {
            for instance in site.instances() {
                moves(&running, 100);
                site.admin.kill_and_see_it_back(&format!("{}/listeners/edge", instance.name), how);
            }
        }
        moves(&running, 100);
        let report = stop(running);
        assert!(report.is_clean(), "{report}");
        let spent = balances(&site, before, &report, "kills of acceptors");
        assert_eq!(spent.killed, 0, "{spent:?}");

        let before = site.admin.settled_ledger();
        let running = load(frontend);
        moves(&running, 200);
        let victim = pids[0];
        rustix::process::kill_process(victim, Signal::KILL).expect("a process of the site");
        pids = eventually_some("another is active in its place", || {
            let now = site.active(2);
            (!now.contains(&victim)).then_some(now)
        });
        moves(&running, 200);
        let report = stop(running);
        for failure in &report.failures {
            let broken = matches!(failure.class, Class::InFlight | Class::InFlightReused | Class::Unsent);
            assert!(broken, "{failure}\n{report}");
        }
        assert!(report.counts.failed() <= in_flight, "{report}");
        balances(&site, before, &report, "SIGKILL of an instance");
    }
}
