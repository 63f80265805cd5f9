//! Instances that end without having been asked to.

use std::io::Read;

use rustix::process::Signal;

use super::{gone, repeated, rounds, signal, stage};
use crate::harness::stage::{balances, lost_what_was_in_flight, moves, stop, untouched};
use crate::harness::{eventually, eventually_some};

#[test]
fn a_killed_instance_loses_what_was_in_flight_there_and_is_replaced() {
    let stage = stage(2, 3);
    let mut pids = stage.site.active(2);
    let before = stage.site.admin.settled_ledger();
    let load = stage.load();
    for _ in 0..rounds() {
        moves(&load, 100);
        let victim = pids[0];
        signal(victim, Signal::KILL);
        gone(victim);
        pids = eventually_some("another is active in its place", || {
            let now = stage.site.active(2);
            (!now.contains(&victim)).then_some(now)
        });
    }
    moves(&load, 200);
    let report = stop(load);
    assert_eq!(report.counts.lost, 0, "{report}");
    lost_what_was_in_flight(&report, rounds() as u64, "SIGKILL of an instance");
    balances(&stage.site, before, &report, "SIGKILL of an instance");
}

#[test]
fn a_killed_instance_that_was_starting_or_ready_loses_nothing() {
    let stage = stage(1, 3);
    let first = stage.site.active(1);
    let before = stage.site.admin.settled_ledger();
    let load = stage.load();
    for _ in 0..rounds() {
        assert!(stage.site.playhouse(&["scale", "2"]).status.success());
        // As soon as it is seen, whatever it has come to by then.
        let young = eventually_some("a second process is there", || {
            stage.site.instances().into_iter().find(|instance| !first.contains(&instance.pid))
        });
        if young.state == "active" {
            // Too late for this test: it may have something in flight.
            assert!(stage.site.playhouse(&["scale", "1"]).status.success());
            stage.site.active(1);
            continue;
        }
        signal(young.pid, Signal::KILL);
        gone(young.pid);
        stage.site.active(2);
        assert!(stage.site.playhouse(&["scale", "1"]).status.success());
        let left = stage.site.active(1);
        if left != first {
            // The one with fewer connections has left; the test goes on with the other.
            break;
        }
    }
    moves(&load, 200);
    let report = stop(load);
    lost_what_was_in_flight(&report, 1, "SIGKILL of a starting instance");
    balances(&stage.site, before, &report, "SIGKILL of a starting instance");
}

#[test]
fn a_killed_instance_that_was_draining_loses_what_it_had_left() {
    repeated(|| {
        let stage = stage(2, 3);
        stage.site.active(2);
        let before = stage.site.admin.settled_ledger();
        let load = stage.load();
        moves(&load, 100);
        // A client that reads slowly keeps one of them draining.
        let mut slow = std::net::TcpStream::connect(stage.site.address("http")).expect("a connection");
        rustix::net::sockopt::set_socket_recv_buffer_size(&slow, 4096).expect("a small buffer");
        std::io::Write::write_all(&mut slow, b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").expect("a request");
        let mut some = [0; 1024];
        slow.read_exact(&mut some).expect("the answer begins");
        for instance in stage.site.instances() {
            assert!(stage.site.playhouse(&["drain", &instance.name]).status.success());
        }
        let draining = eventually_some("the one with the slow client drains, alone", || {
            let instances = stage.site.instances();
            let draining: Vec<_> = instances.iter().filter(|instance| instance.state == "draining").collect();
            let active = instances.iter().filter(|instance| instance.state == "active").count();
            (draining.len() == 1 && active == 2).then(|| draining[0].clone())
        });
        signal(draining.pid, Signal::KILL);
        gone(draining.pid);
        stage.site.active(2);
        moves(&load, 100);
        let report = stop(load);
        // The slow uploads of the load may have been among what it had left, and WebSockets that had not answered its Close, and
        // nothing else.
        for failure in &report.failures {
            let stream = &failure.stream;
            assert!(stream.contains("slow upload") || stream.contains("tunnels"), "{failure}\n{report}");
        }
        assert_eq!(report.counts.lost, 0, "{report}");
        lost_what_was_in_flight(&report, 1, "SIGKILL of a draining instance");
        let ledger = stage.site.admin.settled_ledger();
        assert!(ledger.killed <= before.killed + report.counts.failed() + 1, "{ledger:?}");
    });
}

#[test]
fn a_stuck_instance_is_replaced_first_and_then_killed() {
    repeated(|| {
        let stage = stage(2, 3);
        let pids = stage.site.active(2);
        let before = stage.site.admin.settled_ledger();
        let load = stage.load();
        moves(&load, 100);
        let stuck = pids[0];
        signal(stuck, Signal::STOP);
        gone(stuck);
        let events = stage.site.admin.events();
        assert!(events.contains("no heartbeat"), "{events}");
        stage.site.active(2);
        moves(&load, 200);
        let report = stop(load);
        // What it had taken in, and what its queue gave it at the last moment.
        lost_what_was_in_flight(&report, 2, "SIGSTOP of an instance");
        balances(&stage.site, before, &report, "SIGSTOP of an instance");
    });
}

#[test]
fn every_part_of_the_controller_can_be_killed_and_nothing_is_lost() {
    repeated(|| {
        let stage = stage(2, 3);
        let pids = stage.site.active(2);
        let before = stage.site.admin.settled_ledger();
        let load = stage.load();
        let own: Vec<String> = stage
            .site
            .admin
            .paths()
            .into_iter()
            .filter(|path| path.starts_with("controller/") && path.matches('/').count() <= 2)
            .filter(|path| !path.contains("/admin/"))
            .collect();
        assert!(own.iter().any(|path| path == "controller/steward"), "{own:?}");
        for path in own {
            for how in ["kill", "panic", "stop"] {
                let restarts = stage.site.admin.restarts(&path);
                stage.site.admin.kill(&path, how);
                eventually(&format!("{path} is back after {how}"), || {
                    stage.site.admin.node(&path).is_some_and(|node| {
                        node["restarts"].as_u64() > Some(restarts) && node["state"] == "running"
                    })
                });
            }
        }
        assert_eq!(stage.site.active(2), pids);
        moves(&load, 100);
        let report = stop(load);
        untouched(&report, "kills in the controller");
        balances(&stage.site, before, &report, "kills in the controller");
    });
}
