//! Another configuration for all instances, under load.

use std::cell::{Cell, RefCell};
use std::net::TcpStream;
use std::process::Command;

use playhouse_chaos::Upstream;

use super::{all_drained_without_loss, rounds, stage};
use crate::harness::stage::{Stage, balances, moves, stop, untouched};
use crate::harness::{Algorithm, Site, curl, eventually};

/// In each round, reloads what `change` makes of the site, under load, and lets `look` see that it is in force. No request is
/// lost, and no process is replaced. `look` gives the number of requests that it has made.
#[track_caller]
fn reloads(
    stage: &mut Stage,
    mut change: impl FnMut(&Stage, usize) -> Box<dyn FnOnce(Site) -> Site>,
    look: impl Fn(&Stage, usize) -> u64,
) {
    let pids = stage.site.active(2);
    let mut before = stage.site.admin.settled_ledger();
    let load = stage.load();
    for round in 0..2 * rounds() {
        moves(&load, 50);
        let change = change(stage, round);
        stage.site.edit(change).reload();
        let looked = look(stage, round);
        before.accepted += looked;
        before.answered += looked;
    }
    moves(&load, 200);
    let report = stop(load);
    untouched(&report, "reload");
    balances(&stage.site, before, &report, "reload");
    assert_eq!(stage.site.active(2), pids);
}

/// The answers of many connections, so that every instance is asked.
#[track_caller]
fn all_answer(stage: &Stage, listener: &str, target: &str, text: &str) -> u64 {
    let url = stage.site.url(listener, target);
    for _ in 0..CONNECTIONS {
        assert_eq!(curl([&*url]).body, text.as_bytes());
    }
    CONNECTIONS
}

/// With two instances and one accept queue, all but certainly to both.
const CONNECTIONS: u64 = 12;

#[test]
fn a_changed_route_is_in_force_everywhere() {
    reloads(
        &mut stage(2, 3),
        |_, round| {
            let route = format!(r#"(path: "/new/{round}", to: Respond(status: 200, body: "new {round}\n"))"#);
            Box::new(|site| site.route(route))
        },
        |stage, round| {
            let target = format!("/new/{round}");
            all_answer(stage, "http", &target, &format!("new {round}\n"))
        },
    );
}

#[test]
fn a_changed_upstream_is_in_force_everywhere() {
    let mut stage = stage(2, 3);
    let second = Upstream::start().expect("an upstream starts");
    let mut other = None;
    reloads(
        &mut stage,
        |stage, round| {
            // The one before is gone with it: who still asks that one gets no answer.
            let other = other.insert(Upstream::start().expect("an upstream starts"));
            let (other, first, second) = (other.server(), stage.upstream.server(), second.server());
            // What the load asks comes and goes too.
            let servers = match round % 3 {
                0 => format!(r#"["{first}", "{second}"]"#),
                1 => format!(r#"["{second}"]"#),
                _ => format!(r#"["{first}"]"#),
            };
            Box::new(move |site| {
                let site = site.server("other", other).upstream("up", format!("(servers: {servers})"));
                match round {
                    0 => site.route(r#"(path: "/other/", to: Proxy(upstream: "other", strip_prefix: true))"#),
                    _ => site,
                }
            })
        },
        |stage, _| all_answer(stage, "http", "/other/id/7", "7"),
    );
}

#[test]
fn a_new_listener_is_served_by_all_and_a_removed_one_is_closed() {
    let address = Cell::new(None);
    reloads(
        &mut stage(2, 3),
        |_, round| {
            Box::new(move |site| match round % 2 {
                0 => site.listener("more", r#"(bind: "127.0.0.1:0")"#),
                _ => site.without_listener("more"),
            })
        },
        |stage, round| match address.take().filter(|_| round % 2 == 1) {
            Some(address) => {
                eventually("nobody listens there any more", || TcpStream::connect(address).is_err());
                0
            }
            None => {
                address.set(Some(stage.site.address("more")));
                all_answer(stage, "more", "/hello.txt", "hello\n")
            }
        },
    );
}

#[test]
fn a_changed_certificate_is_used_by_all() {
    let shown = RefCell::new(Vec::new());
    reloads(
        &mut stage(2, 3),
        |stage, _| {
            let folder = stage.site.path(".");
            stage.authority.write(&folder, "site", &["site.test"], Algorithm::Ecdsa);
            stage.site.write("ca.pem", stage.authority.pem());
            Box::new(|site| site)
        },
        |stage, _| {
            // Each instance looks at the files for itself, twice a second.
            let mut looked = 0;
            let mut is_new = || {
                looked += 1;
                certificate(stage) != *shown.borrow()
            };
            eventually("all show the new certificate", || (0..CONNECTIONS).all(|_| is_new()));
            shown.replace(certificate(stage));
            looked + 1
        },
    );
}

/// What a new client is shown by the listener `https`, as PEM.
#[track_caller]
fn certificate(stage: &Stage) -> Vec<u8> {
    let port = stage.site.address("https").port();
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail", "--output", "/dev/null", "--write-out", "%{certs}"]);
    curl.arg("--cacert").arg(stage.site.path("ca.pem"));
    curl.arg("--resolve").arg(format!("site.test:{port}:127.0.0.1"));
    let output = curl.arg(format!("https://site.test:{port}/hello.txt")).output().expect("curl runs");
    assert!(output.status.success() && !output.stdout.is_empty(), "{output:?}");
    output.stdout
}

#[test]
fn a_broken_file_changes_nothing_and_says_so() {
    let mut stage = stage(2, 3);
    let pids = stage.site.active(2);
    let load = stage.load();
    moves(&load, 100);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    for _ in 0..rounds() {
        for broken in ["(", "(name: \"other\", listeners: {}, routes: [])"] {
            stage.site.write("site.ron", broken);
            let output = stage.site.playhouse(&["reload"]);
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            assert!(!output.stderr.is_empty());
        }
        // One that only shows when it is put into force: the port is taken.
        stage.site.edit(|site| site.listener("taken", format!(r#"(bind: "{address}")"#)));
        assert_eq!(stage.site.playhouse(&["reload"]).status.code(), Some(1));
        moves(&load, 100);
    }
    let report = stop(load);
    untouched(&report, "a broken file");
    assert_eq!(stage.site.active(2), pids);
}

#[test]
fn other_threads_roll_the_instances_one_by_one() {
    let mut stage = stage(2, 3);
    let before = stage.site.admin.settled_ledger();
    let load = stage.load();
    for round in 0..rounds() {
        moves(&load, 100);
        let pids = stage.site.active(2);
        stage.site.edit(|site| site.field(format!("threads: {}", 1 + (round + 1) % 2)));
        stage.site.reload();
        eventually("two others are active, and nobody else is there", || {
            let instances = stage.site.instances();
            instances.len() == 2
                && instances
                    .iter()
                    .all(|instance| instance.state == "active" && !pids.contains(&instance.pid))
        });
    }
    moves(&load, 200);
    let report = stop(load);
    all_drained_without_loss(&report);
    balances(&stage.site, before, &report, "a roll");
}
