//! What the status says of instances, beside what the kernel and the clients know.

use std::collections::{BTreeSet, HashSet};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use playhouse_chaos::{Expect, Load, Protocol, Stream};
use rustix::process::Pid;
use serde_json::Value;

use super::{resident, stage};
use crate::harness::stage::{block_on, stop};
use crate::harness::{PATIENCE, Running, Wire, eventually, eventually_some, tool};

/// Connections from the outside that a process has at a port, as the kernel lists them.
fn established(pid: Pid, at: SocketAddr) -> u64 {
    let local = format!(":{:04X}", at.port());
    let sockets = std::fs::read_to_string("/proc/net/tcp").expect("/proc/net/tcp");
    // Fields of proc(5): number, local and remote address, state (01 is established), and the inode as the tenth.
    let inodes: BTreeSet<String> = sockets
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields.len() > 9 && fields[1].ends_with(&local) && fields[3] == "01")
        .map(|fields| format!("socket:[{}]", fields[9]))
        .collect();
    let open = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).expect("its descriptors");
    let links = open.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.filter(|link| inodes.contains(&*link.to_string_lossy())).count() as u64
}

/// Seconds of CPU that a process has used.
fn cpu(pid: Pid) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).expect("its stat");
    let fields: Vec<&str> = stat.rsplit(") ").next().expect("fields").split(' ').collect();
    // Fields 14 and 15 of proc(5), counted behind the name; the clock ticks a hundred times a second everywhere.
    (fields[11].parse::<f64>().expect("a number") + fields[12].parse::<f64>().expect("a number")) / 100.0
}

fn pid(instance: &Value) -> Pid {
    instance["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32)).expect("a pid")
}

fn number(instance: &Value, field: &str) -> f64 {
    instance[field].as_f64().unwrap_or_else(|| panic!("no {field} in {instance}"))
}

/// The status as a person sees it, on a terminal.
fn as_shown(site: &Running) -> String {
    let binary = env!("CARGO_BIN_EXE_playhouse");
    let command = format!("'{binary}' status --state-dir '{}'", site.state_dir().display());
    let mut terminal = Command::new(tool("script", "bsdutils"));
    terminal.args(["-qec", &command, "/dev/null"]).env("NO_COLOR", "1").stdin(Stdio::null());
    String::from_utf8(terminal.output().expect("script runs").stdout).expect("text")
}

fn instances(site: &Running) -> Vec<Value> {
    site.admin.status()["instances"].as_array().expect("instances").clone()
}

#[test]
fn every_field_of_an_instance_agrees_with_what_the_kernel_and_the_clients_know() {
    let stage = stage(3, 4);
    let pids = stage.site.active(3);
    let address = stage.site.address("http");
    let began: Vec<f64> = pids.iter().map(|pid| cpu(*pid)).collect();
    // Connections that stay, and as many requests a second as are asked for.
    let held: Vec<_> = (0..60).map(|_| answered(address)).collect();
    let rate = 120.0;
    let load = Load::new(address)
        .stream(
            Stream::get(Protocol::Http1KeepAlive, "/hello.txt", Expect::body("hello\n"))
                .concurrency(6)
                .rate(rate),
        )
        .start()
        .expect("the load starts");
    block_on(load.answers(1, PATIENCE)).expect("an answer");

    let all = eventually_some("the connections are those that the kernel lists", || {
        let all = instances(&stage.site);
        let agree =
            |instance: &Value| number(instance, "connections") as u64 == established(pid(instance), address);
        (all.len() == 3 && all.iter().all(agree)).then_some(all)
    });
    assert_eq!(all.iter().map(pid).collect::<HashSet<_>>(), pids.iter().copied().collect());
    let generations: BTreeSet<_> = all.iter().map(|instance| number(instance, "generation") as u64).collect();
    assert_eq!(generations, BTreeSet::from([1, 2, 3]));
    let connections: f64 = all.iter().map(|instance| number(instance, "connections")).sum();
    assert_eq!(connections, 66.0);
    for instance in &all {
        assert_eq!(instance["state"], "active");
        assert!(Path::new(&format!("/proc/{}", pid(instance).as_raw_nonzero())).exists());
        assert!(number(instance, "age_ms") <= stage.site.admin.status()["uptime_ms"].as_f64().expect("ms"));
    }

    eventually("memory is what the kernel says", || {
        instances(&stage.site).iter().all(|instance| {
            let (said, true_now) = (number(instance, "rss_bytes"), resident(pid(instance)) as f64);
            said > true_now * 0.8 && said < true_now * 1.25
        })
    });
    eventually("CPU time is what the kernel says", || {
        let before: Vec<f64> = pids.iter().map(|pid| cpu(*pid)).collect();
        let all = instances(&stage.site);
        all.iter().all(|instance| {
            let place = pids.iter().position(|known| *known == pid(instance)).expect("one of them");
            // As of its last heartbeat; the kernel counts in ticks of 10 ms.
            let said = number(instance, "cpu");
            said >= began[place] - 0.02 && said <= cpu(pids[place]) + 0.02 && said >= before[place] - 2.0
        })
    });
    eventually("as many requests a second as are sent", || {
        let sum: f64 = instances(&stage.site)
            .iter()
            .map(|instance| instance["requests_per_second"].as_f64().unwrap_or(0.0))
            .sum();
        (rate * 0.7..=rate * 1.3).contains(&sum)
    });
    eventually("the spread is that of the connections, and each has a pressure", || {
        let status = stage.site.admin.status();
        let all = status["instances"].as_array().expect("instances");
        let open: Vec<f64> = all.iter().map(|instance| number(instance, "connections")).collect();
        let most = open.iter().copied().fold(0.0, f64::max);
        let spread = most * open.len() as f64 / open.iter().sum::<f64>();
        let said = status["spread"].as_f64().expect("a spread");
        let pressed =
            |instance: &Value| instance["pressure"].as_f64().is_some_and(|pressure| pressure >= 0.0);
        (said - spread).abs() < 0.01 && all.iter().all(pressed)
    });
    let shown = as_shown(&stage.site);
    for instance in &all {
        let id = instance["id"].as_str().expect("an id");
        let line = shown.lines().find(|line| line.trim_start().starts_with(id));
        let line = line.unwrap_or_else(|| panic!("no {id} in {shown}"));
        let own = format!("pid {}", pid(instance).as_raw_nonzero());
        for what in [&*own, "active", "connections", "MiB", "of CPU", "requests/s", "pressure", "the site's"]
        {
            assert!(line.contains(what), "no {what:?} in {line}");
        }
    }
    for what in ["wanted", "spread", "memory", "events", "after its start"] {
        assert!(shown.contains(what), "no {what:?} in {shown}");
    }
    let report = stop(load);
    assert!(report.is_clean(), "{report}");
    drop(held);
    eventually("the connections are gone", || {
        instances(&stage.site).iter().all(|instance| instance["connections"] == 0)
    });
}

#[test]
fn it_is_said_how_many_instances_are_wanted_and_why() {
    let stage = stage(1, 3);
    stage.site.active(1);
    let scaler = || stage.site.admin.status()["scaler"].clone();
    eventually("what there is, and why", || {
        let scaler = scaler();
        let why = scaler["reason"].as_str().unwrap_or_default().to_owned();
        scaler["wanted"] == 1 && scaler["override"].is_null() && why.contains("CPU")
    });
    assert!(stage.site.playhouse(&["scale", "3"]).status.success());
    stage.site.active(3);
    let said = scaler();
    assert_eq!(
        (&said["wanted"], &said["override"], &said["min"], &said["max"]),
        (&3.into(), &3.into(), &1.into(), &3.into())
    );
    assert!(said["reason"].as_str().expect("a reason").contains("operator"), "{said}");
    assert!(said["last_change"].as_str().expect("a change").contains("from 1 to 3"), "{said}");
    let ages = || -> Vec<f64> { instances(&stage.site).iter().map(|one| number(one, "age_ms")).collect() };
    let (before, uptime) = (ages(), stage.site.admin.status()["uptime_ms"].as_f64().expect("ms"));
    assert!(before.iter().all(|age| *age <= uptime), "{before:?} {uptime}");
    eventually("they grow older", || ages().iter().zip(&before).all(|(now, before)| now > before));
    assert!(stage.site.playhouse(&["scale", "auto"]).status.success());
    eventually("the number is left to the load again", || scaler()["override"].is_null());
    let events = stage.site.admin.events();
    assert!(events.contains("3 instead of 1 instances"), "{events}");
}

/// A connection that has been answered, and stays open.
#[track_caller]
fn answered(address: SocketAddr) -> Wire {
    let mut wire = Wire::connect(address);
    wire.send("GET /hello.txt HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(wire.response().status, 200);
    wire
}
