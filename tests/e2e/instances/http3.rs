//! HTTP/3 where there are several instances: the kernel finds the one whose connection a packet is of.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{gone, rounds, signal, with_instances};
use crate::harness::{BINARY, eventually, eventually_some, pattern, script, tool};
use crate::http3::{Client, Secure, balances, failures, load, moves, sha256};

fn secure(min: u32, max: u32) -> Secure {
    let secure = Secure::start_with("", |site| with_instances(site, min, max));
    secure.site.active(min as usize);
    secure
}

/// Of the load.
const CONNECTIONS: u64 = 8;
const IN_FLIGHT: u64 = 4 * CONNECTIONS;

#[test]
fn from_one_to_three_instances_and_back_no_request_is_lost() {
    let secure = secure(1, 3);
    let mut load = load(&secure, CONNECTIONS);
    for _ in 0..rounds() {
        for count in [3, 1] {
            assert!(secure.site.playhouse(&["scale", &count.to_string()]).status.success());
            secure.site.active(count);
            moves(&secure, 300);
        }
    }
    load.go_on();
    let said = load.said();
    assert_eq!(said["failed"], json!({}), "{said}");
    balances(&secure, &said);
}

#[test]
fn new_connections_come_to_every_instance() {
    let secure = secure(3, 3);
    let mut clients: Vec<_> = (0..24).map(|_| secure.client("follow", &[])).collect();
    clients.iter_mut().for_each(Client::ready);
    let counts = eventually_some("they are counted", || {
        let status = secure.site.admin.status();
        let count = |instance: &Value| instance["connections"].as_u64().expect("a number");
        let counts: Vec<_> = status["instances"].as_array().expect("instances").iter().map(count).collect();
        (counts.iter().sum::<u64>() == 24).then_some(counts)
    });
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    for mut client in clients {
        client.go_on();
        assert_eq!(client.said(), json!({"status": [200, 200]}));
    }
}

#[test]
fn a_killed_instance_costs_its_own_connections_and_no_others() {
    let secure = secure(3, 4);
    let mut held: Vec<_> = (0..12).map(|_| secure.client("follow", &[])).collect();
    held.iter_mut().for_each(Client::ready);
    let connections = |pid: rustix::process::Pid| {
        let status = secure.site.admin.status();
        let instances = status["instances"].as_array().expect("instances").clone();
        let of = |instance: &Value| instance["pid"].as_i64() == Some(pid.as_raw_nonzero().get().into());
        instances.iter().find(|instance| of(instance)).expect("it is there")["connections"].as_u64().unwrap()
    };
    let pids = secure.site.active(3);
    eventually("all are counted", || pids.iter().map(|pid| connections(*pid)).sum::<u64>() == 12);
    let victim = pids[0];
    let lost = connections(victim);
    signal(victim, Signal::KILL);
    gone(victim);
    let mut cut = 0;
    for mut client in held {
        client.go_on();
        let said = client.said();
        match said.get("failed") {
            // Long before any deadline: whoever is there now has the key.
            Some(why) => {
                assert_eq!(why, "closed 0x0 stateless reset");
                cut += 1;
            }
            None => assert_eq!(said, json!({"status": [200, 200]})),
        }
    }
    assert_eq!(cut, lost);
    eventually("another is active in its place", || !secure.site.active(3).contains(&victim));
    assert_eq!(secure.run("basics", &[])["missing"], 404);
}

#[test]
fn instances_that_are_killed_under_load_lose_what_they_had_in_flight() {
    let secure = secure(2, 3);
    let mut pids = secure.site.active(2);
    let mut load = load(&secure, CONNECTIONS);
    for _ in 0..rounds() {
        moves(&secure, 200);
        let victim = pids[0];
        signal(victim, Signal::KILL);
        gone(victim);
        pids = eventually_some("another is active in its place", || {
            let now = secure.site.active(2);
            (!now.contains(&victim)).then_some(now)
        });
    }
    moves(&secure, 200);
    load.go_on();
    let said = load.said();
    assert!(failures(&said) <= (IN_FLIGHT + CONNECTIONS) * rounds() as u64, "{said}");
    balances(&secure, &said);
}

#[test]
fn a_connection_moves_from_port_to_port_while_instances_come_and_go() {
    let secure = secure(1, 3);
    secure.site.write("files/big", pattern(20 << 20));
    let first = secure.site.active(1)[0];
    let mut client = secure.client("wander", &["/files/big"]);
    client.ready();
    client.tell("move");
    assert!(secure.site.playhouse(&["scale", "3"]).status.success());
    let pids = secure.site.active(3);
    (0..3).for_each(|_| client.tell("move"));
    let victim = *pids.iter().find(|pid| **pid != first).unwrap();
    signal(victim, Signal::KILL);
    gone(victim);
    client.tell("move");
    eventually("another is active in its place", || !secure.site.active(3).contains(&victim));
    client.tell("move");
    // The one with the connection is not the one with the fewest.
    assert!(secure.site.playhouse(&["scale", "2"]).status.success());
    secure.site.active(2);
    client.tell("move");
    client.go_on_with("end");
    let said = client.said();
    assert_eq!(
        (&said["ports"], &said["status"]),
        (&json!(7), &json!([200, 200, 200, 200, 200, 200, 200])),
        "{said}"
    );
    assert_eq!(said["sha256"], sha256(&secure.site, "files/big"));
    secure.all_answered();
}

#[test]
fn connections_live_on_when_the_controller_is_killed_and_adopts() {
    let mut secure = secure(2, 3);
    let mut before: Vec<_> = (0..6).map(|_| secure.client("follow", &[])).collect();
    before.iter_mut().for_each(Client::ready);
    let pids = secure.site.active(2);
    secure.site.process.kill();
    // Without one, and with the next.
    let mut now = before.pop().unwrap();
    now.go_on();
    assert_eq!(now.said(), json!({"status": [200, 200]}));
    secure.site.start_again();
    assert_eq!(secure.site.active(2), pids);
    for mut client in before {
        client.go_on();
        assert_eq!(client.said(), json!({"status": [200, 200]}));
    }
    assert!(secure.site.playhouse(&["scale", "3"]).status.success());
    secure.site.active(3);
    for _ in 0..6 {
        assert_eq!(secure.run("basics", &[])["missing"], 404);
    }
    secure.all_answered();
}

#[test]
fn an_upgrade_under_load_loses_no_request() {
    let secure = secure(2, 3);
    let mut load = load(&secure, CONNECTIONS);
    for _ in 0..2 {
        moves(&secure, 100);
        let before = secure.site.active(2);
        let output = secure.site.playhouse(&["upgrade"]);
        assert!(output.status.success(), "{output:?}");
        eventually("two others are active", || {
            let instances = secure.site.instances();
            instances.len() == 2
                && instances.iter().all(|new| new.state == "active" && !before.contains(&new.pid))
        });
        moves(&secure, 200);
    }
    load.go_on();
    let said = load.said();
    assert_eq!(said["failed"], json!({}), "{said}");
    balances(&secure, &said);
}

#[test]
fn how_packets_find_their_instance_is_in_the_status() {
    let secure = secure(1, 2);
    let kernel = |status: &Value| status["listeners"][0]["http3"] == "kernel";
    eventually("the instance has said so", || kernel(&secure.site.admin.status()));
}

#[test]
fn a_reload_takes_http3_away_and_gives_it_back() {
    let mut secure = secure(2, 3);
    let mut client = secure.client("follow", &[]);
    client.ready();
    for offered in [false, true, false, true] {
        let listener = format!(
            r#"(bind: "127.0.0.1:0", tls: [(cert: "default.pem", key: "default.key")], http3: {offered})"#
        );
        secure.site.edit(|site| site.listener("https", listener)).reload();
    }
    client.go_on();
    assert_eq!(client.said(), json!({"status": [200, 200]}));
    assert_eq!(secure.run("basics", &[])["missing"], 404);
    secure.all_answered();
}

#[test]
fn where_the_kernel_refuses_the_program_the_instances_pass_packets_on() {
    let mut secure = secure(2, 3);
    secure.site.stop();
    assert!(secure.site.process.wait().success());
    let refuse = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/upstreams/refuse_steering.py");
    let python = tool("python3", "python3-venv");
    let text = format!("#!/bin/sh\nexec {} {refuse} {BINARY} \"$@\"\n", python.display());
    let refusing = script(&secure.site, "refusing", &text);
    secure.site.start_again_by(&refusing);
    secure.site.active(2);
    let forwarded = |status: &Value| status["listeners"][0]["http3"] == "forwarded";
    eventually("the instances have said so", || forwarded(&secure.site.admin.status()));

    secure.site.write("files/big", pattern(5 << 20));
    let mut wanderers: Vec<_> = (0..4).map(|_| secure.client("wander", &["/files/big"])).collect();
    wanderers.iter_mut().for_each(Client::ready);
    let mut load = load(&secure, CONNECTIONS);
    moves(&secure, 200);
    assert!(secure.site.playhouse(&["scale", "3"]).status.success());
    secure.site.active(3);
    for mut client in wanderers {
        (0..2).for_each(|_| client.tell("move"));
        client.go_on_with("end");
        let said = client.said();
        assert_eq!((&said["ports"], &said["status"]), (&json!(2), &json!([200, 200])), "{said}");
        assert_eq!(said["sha256"], sha256(&secure.site, "files/big"));
    }
    assert!(secure.site.playhouse(&["scale", "2"]).status.success());
    secure.site.active(2);
    moves(&secure, 200);
    load.go_on();
    let said = load.said();
    assert_eq!(said["failed"], json!({}), "{said}");
    // Three requests of each wanderer beside those of the load.
    let answered = said["answered"].as_u64().unwrap() + 4 * 3;
    assert_eq!(secure.site.admin.settled_ledger().answered, answered);
}
