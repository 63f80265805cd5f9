//! The admin interface of a site with several instances: one page for all processes.

use std::collections::BTreeMap;
use std::thread;
use std::time::Instant;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{gone, signal, stage};
use crate::admin::assert_prometheus;
use crate::harness::stage::{Stage, moves, stop};
use crate::harness::{curl, eventually, eventually_some};

/// The counters of the site.
fn site_counters(text: &str) -> BTreeMap<String, f64> {
    let is_counter = |series: &str| series.starts_with("playhouse_ledger_") && series.contains("_total");
    let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
    let counters = lines.filter(|(series, _)| is_counter(series));
    counters.map(|(series, value)| (series.to_owned(), value.parse().expect("a number"))).collect()
}

fn answers(stage: &Stage, count: usize) {
    (0..count).for_each(|_| _ = curl([&stage.site.url("http", "/hello.txt")]).expect(200));
}

#[test]
fn the_tree_has_every_process_and_a_kill_finds_the_right_one() {
    let stage = stage(2, 3);
    stage.site.active(2);
    let admin = &stage.site.admin;
    let tree = eventually_some("both instances are in the tree", || {
        let tree = admin.tree();
        let paths = admin.paths();
        let has = |path: &str| paths.iter().any(|known| known == path);
        ["instance-1/listeners/http", "instance-2/listeners/http"]
            .iter()
            .all(|path| has(path))
            .then_some(tree)
    });
    assert_eq!(tree["path"], "controller");
    for path in ["controller/admin/socket", "controller/events", "controller/instances/instance-1"] {
        assert!(admin.node(path).is_some(), "no {path} in {tree}");
    }
    let before = admin.restarts("instance-1/listeners/http");
    for path in [
        "instance-2/listeners/http",
        "controller/events",
        "controller/instances/instance-1",
        "instance-1/admin",
    ] {
        admin.kill_and_see_it_back(path, "kill");
    }
    assert_eq!(admin.restarts("instance-1/listeners/http"), before);
    assert_eq!(admin.try_kill("instance-9/listeners", "kill").status, 404);
    assert_eq!(admin.try_kill("instance-1/listenerz", "kill").status, 404);
    assert_eq!(admin.try_kill("nonsense", "kill").status, 404);
    let said = stage.site.playhouse(&["--json", "kill", "instance-2/metrics", "--how", "panic"]);
    assert!(said.status.success(), "{said:?}");
    let shown = String::from_utf8(stage.site.playhouse(&["tree"]).stdout).expect("text");
    assert!(shown.contains("instance-2/metrics"), "{shown}");
    answers(&stage, 5);
}

#[test]
fn the_controllers_own_interface_can_be_killed_through_itself() {
    let stage = stage(1, 2);
    let pids = stage.site.active(1);
    let admin = &stage.site.admin;
    for path in ["controller/admin", "controller/admin/connections", "controller/admin/socket", "controller"]
    {
        let before = admin.restarts(path);
        assert_eq!(admin.try_kill(path, "kill").status, 200, "{path}");
        eventually(&format!("{path} is back"), || admin.ready() && admin.restarts(path) > before);
    }
    assert_eq!(stage.site.active(1), pids);
}

#[test]
fn metrics_of_all_processes_are_one_page_that_counts_nothing_twice() {
    let stage = stage(2, 3);
    let pids = stage.site.active(2);
    let admin = &stage.site.admin;
    answers(&stage, 20);
    admin.settled_ledger();
    eventually("each answer is in one instance's series", || {
        admin.metric(
            "playhouse_requests_total",
            &["listener=\"http\"", "outcome=\"answered\"", "status=\"2xx\""],
        ) == 20.0
    });
    let text = admin.metrics();
    let families = assert_prometheus(&text);
    for family in [
        "playhouse_instances",
        "playhouse_instances_wanted",
        "playhouse_memory_pressure",
        "playhouse_instance_starts_total",
        "playhouse_instance_failures_total",
        "playhouse_controller_adoptions_total",
    ] {
        assert!(families.contains(family), "no {family} in {families:?}");
    }
    assert_eq!(admin.metric("playhouse_instances", &["state=\"active\""]), 2.0);
    assert_eq!(admin.metric("playhouse_instances_wanted", &[]), 2.0);
    assert_eq!(admin.metric("playhouse_instance_up", &[]), 2.0);
    assert_eq!(admin.metric("playhouse_instance_starts_total", &[]), 2.0);
    for instance in ["1", "2", "controller"] {
        let label = format!("instance=\"{instance}\"");
        assert!(admin.metric("process_resident_memory_bytes", &[&label]) > 0.0, "{text}");
        assert_eq!(admin.metric("playhouse_build_info", &[&label]), 1.0, "{text}");
    }
    let ledger = admin.settled_ledger();
    assert_eq!(text.matches("\nplayhouse_ledger_accepted_total ").count(), 1, "{text}");
    assert_eq!(admin.metric("playhouse_ledger_accepted_total", &[]), ledger.accepted as f64);

    // An instance dies: what it has counted for the site stays.
    let before = site_counters(&admin.metrics());
    signal(pids[0], Signal::KILL);
    gone(pids[0]);
    let never_less = |now: &BTreeMap<String, f64>| {
        for (series, value) in &before {
            assert!(now[series] >= *value, "{series}: {} after {value}", now[series]);
        }
    };
    eventually("there are two again", || {
        let text = admin.metrics();
        assert_prometheus(&text);
        never_less(&site_counters(&text));
        admin.metric("playhouse_instances", &["state=\"active\""]) == 2.0
    });
    assert_eq!(admin.metric("playhouse_instance_failures_total", &["cause=\"crash\""]), 1.0);
}

#[test]
fn an_instance_that_is_stopped_holds_no_page_up() {
    let stage = stage(2, 3);
    let pids = stage.site.active(2);
    let admin = &stage.site.admin;
    signal(pids[1], Signal::STOP);
    let begun = Instant::now();
    // At once: it is seen to be stuck, and replaced, soon after.
    let (tree, status, up) = thread::scope(|scope| {
        let (tree, status) = (scope.spawn(|| admin.tree()), scope.spawn(|| admin.status()));
        let up = scope.spawn(|| admin.metric("playhouse_instance_up", &[]));
        (tree.join().expect("a tree"), status.join().expect("a status"), up.join().expect("metrics"))
    });
    let children = tree["children"].as_array().expect("children");
    assert_eq!(children.iter().filter(|child| child["state"] == "silent").count(), 1, "{tree}");
    let instances = status["instances"].as_array().expect("instances");
    assert_eq!(instances.iter().filter(|one| one["unanswered"].is_string()).count(), 1, "{status}");
    assert_eq!(up, 1.0);
    // Two seconds, and as much again many times for a busy machine; not for ever.
    assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
    gone(pids[1]);
    stage.site.active(2);
}

#[test]
fn sigkill_is_said_to_be_an_operators_and_costs_what_it_costs() {
    let stage = stage(2, 3);
    let pids = stage.site.active(2);
    let admin = &stage.site.admin;
    let said = stage.site.playhouse(&["kill", "instance-1", "--how", "sigkill"]);
    assert!(said.status.success(), "{said:?}");
    eventually("one of the two is another process", || {
        let now = stage.site.instances();
        now.len() == 2
            && now.iter().all(|one| one.state == "active")
            && now.iter().any(|one| !pids.contains(&one.pid))
    });
    assert_eq!(admin.metric("playhouse_instance_failures_total", &["cause=\"operator\""]), 1.0);
    assert_eq!(admin.metric("playhouse_instance_failures_total", &["cause=\"crash\""]), 0.0);
    assert!(admin.events().contains("by an operator"));
    assert_eq!(admin.try_kill("instance-1/listeners", "sigkill").status, 404);
}

#[test]
fn a_drained_instance_is_replaced_and_nothing_is_lost() {
    let stage = stage(2, 3);
    let pids = stage.site.active(2);
    let load = stage.load();
    moves(&load, 100);
    let drained = stage.site.playhouse(&["--json", "drain", "instance-2"]);
    assert!(drained.status.success(), "{drained:?}");
    let answer: Value = serde_json::from_slice(&drained.stdout).expect("JSON");
    assert_eq!(answer["instance"], "instance-2", "{answer}");
    eventually("it is gone, and there are two", || {
        let now = stage.site.instances();
        now.len() == 2
            && now.iter().all(|one| one.state == "active")
            && now.iter().filter(|one| pids.contains(&one.pid)).count() == 1
    });
    let report = stop(load);
    assert!(report.is_clean(), "{report}");
    for (name, status) in [("instance-77", 404), ("controller", 404)] {
        assert_eq!(stage.site.admin.post("/v1/drain", &json!({"instance": name})).status, status, "{name}");
    }
}

#[test]
fn events_of_all_processes_are_one_stream_that_outlives_the_controller() {
    let mut stage = stage(2, 3);
    let pids = stage.site.active(2);
    let numbers = |stage: &Stage| {
        let status = stage.site.admin.status();
        let events = status["events"].as_array().expect("events").clone();
        events.iter().map(|event| event["sequence"].as_u64().expect("a number")).collect::<Vec<_>>()
    };
    let ascends = |numbers: &[u64]| numbers.windows(2).all(|pair| pair[1] == pair[0] + 1);
    stage.site.admin.kill_and_see_it_back("instance-2/metrics", "panic");
    eventually("the controller tells of what happened in an instance", || {
        stage.site.admin.events().contains("instance-2/metrics")
    });
    let first = numbers(&stage);
    assert!(ascends(&first), "{first:?}");
    stage.site.replace();
    assert_eq!(stage.site.active(2), pids);
    // Of an instance that was adopted too.
    stage.site.admin.kill_and_see_it_back("instance-1/metrics", "kill");
    eventually("the next controller tells of it", || {
        stage.site.admin.events().contains("instance-1/metrics")
    });
    let second = numbers(&stage);
    assert!(ascends(&second) && second[0] > first[first.len() - 1], "{first:?}, then {second:?}");
}

#[test]
fn without_a_controller_each_instance_answers_for_itself() {
    let mut stage = stage(2, 3);
    let pids = stage.site.active(2);
    stage.site.process.kill();
    let run = |arguments: &[&str]| stage.site.playhouse(arguments);
    let status = run(&["--json", "status"]);
    let page: Value =
        serde_json::from_slice(&status.stdout).unwrap_or_else(|error| panic!("{error}: {status:?}"));
    assert_eq!((&page["controller"], &page["orphaned"]), (&Value::Null, &json!(true)), "{page}");
    assert_eq!(page["instances"].as_array().map(Vec::len), Some(2), "{page}");
    let tree: Value = serde_json::from_slice(&run(&["--json", "tree"]).stdout).expect("JSON");
    assert_eq!(tree["children"].as_array().map(Vec::len), Some(2), "{tree}");
    let killed = run(&["kill", "instance-2/metrics"]);
    assert!(killed.status.success(), "{killed:?}");
    for refused in
        [&["scale", "1"][..], &["reload"], &["drain", "instance-1"], &["upgrade"], &["kill", "controller"]]
    {
        let output = run(refused);
        assert_eq!(output.status.code(), Some(1), "{refused:?}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("no controller runs this site"), "{refused:?}: {said}");
    }
    // One of them is stuck: it cannot drain, and does not keep the other.
    signal(pids[1], Signal::STOP);
    let stopped = run(&["stop"]);
    assert!(stopped.status.success(), "{stopped:?}");
    assert!(String::from_utf8_lossy(&stopped.stderr).contains("was killed"), "{stopped:?}");
    pids.into_iter().for_each(gone);
}
