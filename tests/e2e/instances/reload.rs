//! Another configuration for all instances, under load.

use super::{all_drained_without_loss, stage};
use crate::harness::stage::{Stage, balances, moves, stop, untouched};
use crate::harness::{Site, curl, eventually};

/// Reloads what `change` makes of the site, under load; no request is lost, and no process is replaced.
#[track_caller]
fn reloads(stage: &mut Stage, change: impl FnOnce(Site) -> Site) {
    let pids = stage.site.active(2);
    let before = stage.site.admin.settled_ledger();
    let load = stage.load();
    moves(&load, 100);
    stage.site.edit(change).reload();
    moves(&load, 200);
    let report = stop(load);
    untouched(&report, "reload");
    balances(&stage.site, before, &report, "reload");
    assert_eq!(stage.site.active(2), pids);
}

/// The answers of many connections, so that every instance is asked.
#[track_caller]
fn all_answer(stage: &Stage, target: &str, text: &str) {
    let url = stage.site.url("http", target);
    for _ in 0..20 {
        assert_eq!(curl([&*url]).body, text.as_bytes());
    }
}

#[test]
fn a_changed_route_is_in_force_everywhere() {
    let mut stage = stage(2, 3);
    reloads(&mut stage, |site| site.route(r#"(path: "/new", to: Respond(status: 200, body: "new\n"))"#));
    all_answer(&stage, "/new", "new\n");
}

#[test]
fn a_changed_upstream_is_in_force_everywhere() {
    let mut stage = stage(2, 3);
    let other = playhouse_chaos::Upstream::start().expect("an upstream starts");
    let server = other.server().to_string();
    reloads(&mut stage, |site| {
        site.server("other", server)
            .route(r#"(path: "/other/", to: Proxy(upstream: "other", strip_prefix: true))"#)
    });
    all_answer(&stage, "/other/id/7", "7");
}

#[test]
fn a_new_listener_is_served_by_all_and_a_removed_one_is_closed() {
    let mut stage = stage(2, 3);
    reloads(&mut stage, |site| site.listener("more", r#"(bind: "127.0.0.1:0")"#));
    let url = stage.site.url("more", "/hello.txt");
    for _ in 0..20 {
        assert_eq!(curl([&*url]).body, b"hello\n");
    }
    let address = stage.site.address("more");
    reloads(&mut stage, |site| site.without_listener("more"));
    eventually("nobody listens there any more", || std::net::TcpStream::connect(address).is_err());
}

#[test]
fn a_changed_certificate_is_used_by_all() {
    use crate::harness::{Algorithm, Authority};
    let stage = stage(2, 3);
    let pids = stage.site.active(2);
    let load = stage.load();
    moves(&load, 100);
    let other = Authority::new();
    other.write(&stage.site.path("."), "other", &["other.test"], Algorithm::Ecdsa);
    let mut stage = stage;
    stage.site.edit(|site| {
        site.listener("tls2", r#"(bind: "127.0.0.1:0", tls: [(cert: "other.pem", key: "other.key")])"#)
    });
    stage.site.reload();
    let address = stage.site.address("tls2");
    stage.site.write("ca.pem", other.pem());
    let ca = stage.site.path("ca.pem").display().to_string();
    for _ in 0..10 {
        let resolve = format!("other.test:{}:127.0.0.1", address.port());
        let url = format!("https://other.test:{}/hello.txt", address.port());
        assert_eq!(curl(["--cacert", &ca, "--resolve", &resolve, &url]).body, b"hello\n");
    }
    let report = stop(load);
    untouched(&report, "another certificate");
    assert_eq!(stage.site.active(2), pids);
}

#[test]
fn a_broken_file_changes_nothing_and_says_so() {
    let mut stage = stage(2, 3);
    let pids = stage.site.active(2);
    let load = stage.load();
    moves(&load, 100);
    for broken in ["(", "(name: \"other\", listeners: {}, routes: [])"] {
        stage.site.write("site.ron", broken);
        let output = stage.site.playhouse(&["reload"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(!output.stderr.is_empty());
    }
    // One that only shows when it is put into force: the port is taken.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    stage.site.edit(|site| site.listener("taken", format!(r#"(bind: "{address}")"#)));
    assert_eq!(stage.site.playhouse(&["reload"]).status.code(), Some(1));
    moves(&load, 200);
    let report = stop(load);
    untouched(&report, "a broken file");
    assert_eq!(stage.site.active(2), pids);
}

#[test]
fn other_threads_roll_the_instances_one_by_one() {
    let mut stage = stage(2, 3);
    let pids = stage.site.active(2);
    let before = stage.site.admin.settled_ledger();
    let load = stage.load();
    moves(&load, 100);
    stage.site.edit(|site| site.field("threads: 2"));
    stage.site.reload();
    eventually("two others are active, and nobody else is there", || {
        let instances = stage.site.instances();
        instances.len() == 2
            && instances.iter().all(|instance| instance.state == "active" && !pids.contains(&instance.pid))
    });
    moves(&load, 200);
    let report = stop(load);
    all_drained_without_loss(&report);
    balances(&stage.site, before, &report, "a roll");
}
