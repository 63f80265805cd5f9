//! A site with instances under a real systemd, by the unit files of the documentation.

mod machine;

use std::net::SocketAddr;
use std::path::Path;

use playhouse_chaos::{Expect, Load, Protocol, Stream};
use serde_json::Value;

use crate::harness::stage::{moves, stop};
use crate::harness::{BINARY, curl, eventually, eventually_some, relabelled};
use machine::Machine;

#[test]
fn a_site_with_instances_is_a_service() {
    let Some(machine) = Machine::boot("a_site_with_instances_is_a_service") else { return };
    // A watchdog that a test can wait for.
    machine.unit("playhouse@.service.d/test.conf", "[Service]\nWatchdogSec=2\n");
    machine.site("shop", &shop(""));
    machine.succeeds("systemctl", &["start", UNIT]);
    assert_eq!(machine.show(UNIT, "ActiveState"), "active");
    let (address, pids) = active(&machine);
    assert!(machine.show(UNIT, "StatusText").starts_with("2 of 2 instances serve"));
    eventually("systemd keeps the socket", || machine.show(UNIT, "NFileDescriptorStore") == "1");
    for pid in &pids {
        let environment = machine.succeeds("cat", &[&format!("/proc/{pid}/environ")]);
        for name in ["LISTEN_", "NOTIFY_SOCKET", "WATCHDOG_"] {
            assert!(!environment.split('\0').any(|text| text.starts_with(name)), "{environment:?}");
        }
    }
    let load = load(address);
    moves(&load, 50);

    // A reload is one for systemd too; one that is refused changes nothing.
    machine.site("shop", &shop(NEW_ROUTE));
    machine.succeeds("systemctl", &["reload", UNIT]);
    assert_eq!(curl([&*format!("http://{address}/new")]).body, b"new\n");
    machine.site("shop", "( broken");
    assert!(!machine.run("systemctl", &["reload", UNIT]).status.success());
    assert_eq!(machine.show(UNIT, "ActiveState"), "active");
    assert_eq!(curl([&*format!("http://{address}/new")]).body, b"new\n");
    machine.site("shop", &shop(NEW_ROUTE));

    // The main process is killed: the next adopts.
    let main = machine.show(UNIT, "MainPID");
    machine.succeeds("systemctl", &["kill", "--signal=KILL", "--kill-whom=main", UNIT]);
    let main = another_main(&machine, &main);
    assert_eq!(machine.show(UNIT, "NRestarts"), "1");
    assert_eq!(active(&machine), (address, pids.clone()));

    // It stands still: the watchdog ends it, and the next adopts.
    machine.succeeds("kill", &["-STOP", &main]);
    let main = another_main(&machine, &main);
    assert_eq!(machine.show(UNIT, "NRestarts"), "2");
    assert_eq!(active(&machine), (address, pids.clone()));

    // Another build: the main process stays, the instances are others. And fed is the watchdog from there on too.
    let folder = tempfile::tempdir().expect("a folder");
    let next = folder.path().join("next");
    relabelled(&next, "9.9.9-next");
    machine.install(&next);
    machine.succeeds("playhouse", &["upgrade", "--state-dir", STATE]);
    eventually("both are the new build", || {
        let (_, now) = active(&machine);
        let build = |instance: &Value| instance["build"] == "9.9.9-next";
        let status = machine.status("shop").unwrap_or_default();
        now.iter().all(|pid| !pids.contains(pid))
            && status["instances"].as_array().is_some_and(|instances| instances.iter().all(build))
    });
    assert_eq!(machine.show(UNIT, "MainPID"), main);
    let (_, pids) = active(&machine);
    moves(&load, 200);
    let report = stop(load);
    assert!(report.is_clean(), "{report}");
    // More than the watchdog's time after the upgrade, as the load's end was.
    machine.succeeds("systemctl", &["kill", "--signal=HUP", "--kill-whom=main", UNIT]);
    eventually("a reload by signal is over", || {
        machine.status("shop").is_some_and(|status| status["events"].to_string().contains("reload"))
    });
    assert_eq!(machine.show(UNIT, "NRestarts"), "2");

    // A restart: all processes are others, the socket is the same, and who comes meanwhile waits.
    let load = Load::new(address)
        .stream(
            Stream::get(Protocol::Http1NewConnection, "/", Expect::body("ok\n")).name("new").concurrency(2),
        )
        .start()
        .expect("the load starts");
    moves(&load, 20);
    machine.succeeds("systemctl", &["restart", UNIT]);
    let (same, others) = active(&machine);
    assert_eq!(same, address, "the descriptor store has the socket");
    assert!(others.iter().all(|pid| !pids.contains(pid)));
    moves(&load, 20);
    let report = stop(load);
    assert!(report.is_clean(), "{report}");

    // And a stop is a stop, of all.
    machine.succeeds("systemctl", &["stop", UNIT]);
    assert_eq!(machine.show(UNIT, "ActiveState"), "inactive");
    assert_eq!(machine.show(UNIT, "Result"), "success");
    for pid in &others {
        assert!(!machine.run("test", &["-e", &format!("/proc/{pid}")]).status.success(), "{pid} is there");
    }
    assert!(!machine.run("test", &["-e", STATE]).status.success(), "{STATE} is there");
}

#[test]
fn sockets_of_systemd_outlive_the_site() {
    let Some(machine) = Machine::boot("sockets_of_systemd_outlive_the_site") else { return };
    let socket = "[Socket]\nListenStream=/run/shop.sock\nFileDescriptorName=edge\n";
    machine.unit("playhouse@.socket", socket);
    machine.site(
        "shop",
        &shop("").replace("127.0.0.1:0\")", "127.0.0.1:0\"), \"edge\": (bind: \"unix:/run/shop.sock\")"),
    );
    machine.succeeds("systemctl", &["start", "playhouse@shop.socket"]);
    let ask =
        || machine.succeeds("curl", &["-sS", "-m", "20", "--unix-socket", "/run/shop.sock", "http://x/"]);
    // Nobody runs: the first client starts the site, and waits for it.
    assert_eq!(machine.show(UNIT, "ActiveState"), "inactive");
    assert_eq!(ask(), "ok");
    let (_, pids) = active(&machine);
    let main = machine.show(UNIT, "MainPID");
    // The next controller gets it from the instances, the next build too.
    machine.succeeds("systemctl", &["kill", "--signal=KILL", "--kill-whom=main", UNIT]);
    another_main(&machine, &main);
    assert_eq!(ask(), "ok");
    assert_eq!(active(&machine).1, pids);
    machine.succeeds("playhouse", &["upgrade", "--state-dir", STATE]);
    eventually("both are others", || active(&machine).1.iter().all(|pid| !pids.contains(pid)));
    assert_eq!(ask(), "ok");
    machine.succeeds("systemctl", &["restart", UNIT]);
    assert_eq!(ask(), "ok");
    // Whoever comes after the stop starts it again.
    machine.succeeds("systemctl", &["stop", UNIT]);
    assert_eq!(machine.show(UNIT, "ActiveState"), "inactive");
    assert_eq!(ask(), "ok");
    // It answers before it says that it is ready.
    eventually("it is active", || machine.show(UNIT, "ActiveState") == "active");
}

#[test]
fn a_site_in_one_process_comes_back_with_its_sockets() {
    let Some(machine) = Machine::boot("a_site_in_one_process_comes_back_with_its_sockets") else { return };
    machine.site("shop", &shop("").replace("instances: (min: 2, max: 3),", ""));
    machine.succeeds("systemctl", &["start", UNIT]);
    let address = address(&machine).expect("it is ready");
    eventually("systemd keeps the socket", || machine.show(UNIT, "NFileDescriptorStore") == "1");
    let load = Load::new(address)
        .stream(Stream::get(Protocol::Http1NewConnection, "/", Expect::body("ok\n")).name("new"))
        .start()
        .expect("the load starts");
    moves(&load, 20);
    let main = machine.show(UNIT, "MainPID");
    machine.succeeds("systemctl", &["kill", "--signal=KILL", "--kill-whom=main", UNIT]);
    another_main(&machine, &main);
    moves(&load, 20);
    machine.install(Path::new(BINARY));
    machine.succeeds("systemctl", &["restart", UNIT]);
    moves(&load, 20);
    let report = stop(load);
    // What the killed one was answering, and nobody was refused.
    let counts = report.counts;
    assert!(counts.failed() <= 1 && counts.refused == 0, "{report}");
    assert_eq!(self::address(&machine), Some(address));
}

fn shop(more: &str) -> String {
    format!(
        r#"(
            name: "shop",
            drain_timeout: "5s",
            instances: (min: 2, max: 3),
            listeners: {{ "http": (bind: "127.0.0.1:0") }},
            routes: [ (path: "/", to: Respond(status: 200, body: "ok\n")), {more} ],
        )"#
    )
}

fn load(address: SocketAddr) -> playhouse_chaos::Running {
    let ok = || Expect::body("ok\n");
    Load::new(address)
        .stream(Stream::get(Protocol::Http1KeepAlive, "/", ok()).name("kept").rate(100.0))
        .stream(Stream::get(Protocol::Http1NewConnection, "/", ok()).name("new").rate(100.0))
        .stream(Stream::get(Protocol::Http2 { streams: 2 }, "/", ok()).name("h2").rate(100.0))
        .start()
        .expect("the load starts")
}

fn address(machine: &Machine) -> Option<SocketAddr> {
    let status = machine.status("shop")?;
    let listeners = status["listeners"].as_array()?;
    let http = listeners.iter().find(|listener| listener["name"] == "http")?;
    http["address"].as_str()?.parse().ok()
}

/// Waits until two instances are active, and no others are there; where the site listens, and their numbers.
#[track_caller]
fn active(machine: &Machine) -> (SocketAddr, Vec<i64>) {
    eventually_some("two instances are active, and no other is there", || {
        let status = machine.status("shop")?;
        let instances = status["instances"].as_array()?;
        let active = instances.iter().all(|instance| instance["state"] == "active");
        let mut pids: Vec<_> = instances.iter().filter_map(|instance| instance["pid"].as_i64()).collect();
        pids.sort_unstable();
        (active && pids.len() == 2 && status["ready"] == true).then_some(())?;
        Some((address(machine)?, pids))
    })
}

#[track_caller]
fn another_main(machine: &Machine, before: &str) -> String {
    eventually_some("another main process is ready", || {
        let main = machine.show(UNIT, "MainPID");
        (main != "0" && main != before && machine.show(UNIT, "ActiveState") == "active").then_some(main)
    })
}

const UNIT: &str = "playhouse@shop.service";
const STATE: &str = "/run/playhouse/shop";
const NEW_ROUTE: &str = r#"(path: "/new", to: Respond(status: 200, body: "new\n")),"#;
