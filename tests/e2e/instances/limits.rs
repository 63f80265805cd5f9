//! What a client address may have, over all instances together.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Instant;

use rustix::process::{Pid, Signal};

use super::{gone, signal, with_instances};
use crate::harness::{Admin, Running, Site, Wire, eventually, eventually_some};

const REQUEST: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Three instances whose listener has these limits, once with one socket for all, once with a socket for each.
#[track_caller]
fn with_either_sharing(limits: &str, test: impl Fn(Running)) {
    for sharing in ["Inherited", "ReusePort"] {
        test(limited(limits, sharing, 3, 4));
    }
}

#[track_caller]
fn limited(limits: &str, sharing: &str, min: u32, max: u32) -> Running {
    let listener = format!(r#"(bind: "127.0.0.1:0", sharing: {sharing}, limits: ({limits}))"#);
    let site = with_instances(Site::new(), min, max)
        .listener("http", listener)
        .route(r#"(path: "/", to: Respond(status: 200, body: "ok\n"))"#)
        .start();
    site.active(min as usize);
    site
}

/// A connection on which a request was answered; `None` where it was closed instead.
fn admitted(address: SocketAddr) -> Option<Wire> {
    let mut wire = Wire::try_connect(address).ok()?;
    wire.try_send(REQUEST).ok()?;
    let response = wire.try_response(false).ok()?;
    assert_eq!(response.status, 200);
    Some(wire)
}

/// Opens many connections, from several threads at once; those that were admitted.
fn flood(address: SocketAddr) -> Vec<Wire> {
    let held = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..15).for_each(|_| held.lock().unwrap().extend(admitted(address))));
        }
    });
    held.into_inner().unwrap()
}

/// Exactly `limit` connections are admitted beside those that are held; they are held with them from then on.
#[track_caller]
fn fills_up(address: SocketAddr, held: &mut Vec<Wire>, limit: usize) {
    eventually(&format!("{limit} connections are admitted"), || {
        held.extend(flood(address));
        assert!(held.len() <= limit, "{} were admitted", held.len());
        held.len() == limit
    });
    let more = flood(address);
    assert!(more.is_empty(), "{} beyond {limit} were admitted", more.len());
}

/// The open connections of each instance, as it says itself.
fn connections(site: &Running) -> Vec<(Pid, u64)> {
    let own = |name: &str| Admin::new(site.state_dir().join(format!("{name}.sock"))).connections();
    site.instances().into_iter().map(|instance| (instance.pid, own(&instance.name))).collect()
}

/// Drops those connections whose instance has gone.
fn forget_broken(held: &mut Vec<Wire>) {
    held.retain_mut(|wire| {
        wire.try_send(REQUEST).is_ok() && wire.try_response(false).is_ok_and(|answer| answer.status == 200)
    });
}

#[test]
fn an_address_has_its_connections_over_all_instances_together() {
    with_either_sharing("connections_per_address: 9", |site| {
        let address = site.address("http");
        let mut held = Vec::new();
        fills_up(address, &mut held, 9);
        let busy = connections(&site);
        assert!(busy.iter().filter(|(_, open)| *open > 0).count() >= 2, "no single instance: {busy:?}");
        // What is closed anywhere can be had anywhere.
        held.truncate(4);
        fills_up(address, &mut held, 9);
    });
}

#[test]
fn what_a_killed_instance_had_leased_is_given_back() {
    with_either_sharing("connections_per_address: 9", |site| {
        let address = site.address("http");
        let mut held = Vec::new();
        for _ in 0..3 {
            fills_up(address, &mut held, 9);
            let (victim, open) = connections(&site).into_iter().max_by_key(|(_, open)| *open).expect("one");
            signal(victim, Signal::KILL);
            gone(victim);
            site.active(3);
            forget_broken(&mut held);
            assert_eq!(held.len(), 9 - open as usize);
        }
        fills_up(address, &mut held, 9);
    });
}

#[test]
fn a_controller_that_is_killed_and_comes_back_finds_what_is_leased() {
    with_either_sharing("connections_per_address: 9", |mut site| {
        let address = site.address("http");
        let pids = site.active(3);
        let mut held = Vec::new();
        fills_up(address, &mut held, 9);
        site.process.kill();
        assert!(flood(address).is_empty(), "without a controller");
        site.start_again();
        assert_eq!(site.active(3), pids);
        assert!(flood(address).is_empty(), "with the next one");
        held.truncate(2);
        fills_up(address, &mut held, 9);
        // One that dies while there is no controller is found dead by the next.
        let (victim, open) = connections(&site).into_iter().max_by_key(|(_, open)| *open).expect("one");
        site.process.kill();
        signal(victim, Signal::KILL);
        gone(victim);
        site.start_again();
        site.active(3);
        forget_broken(&mut held);
        assert_eq!(held.len(), 9 - open as usize);
        fills_up(address, &mut held, 9);
    });
}

#[test]
fn the_limit_holds_for_instances_beyond_the_number_that_there_was_room_for() {
    with_sharing_and_more("Inherited");
    with_sharing_and_more("ReusePort");
}

#[track_caller]
fn with_sharing_and_more(sharing: &str) {
    let mut site = limited("connections_per_address: 9", sharing, 1, 1);
    let address = site.address("http");
    let mut held = Vec::new();
    fills_up(address, &mut held, 9);
    held.truncate(5);
    // Places for 26 instances in place of 4.
    site.edit(|site| with_instances(site, 1, 12)).reload();
    assert_eq!(site.address("http"), address);
    assert!(site.playhouse(&["scale", "5"]).status.success());
    site.active(5);
    fills_up(address, &mut held, 9);
    // None of them is alone with its count: whoever has the connections, all know of them.
    held.clear();
    fills_up(address, &mut held, 9);
    let busy = connections(&site);
    assert!(busy.iter().filter(|(_, open)| *open > 0).count() >= 2, "{sharing}: {busy:?}");
}

#[test]
fn an_address_has_its_rate_over_all_instances_together() {
    with_either_sharing("rate: (per_second: 1, burst: 40)", |mut site| {
        let address = site.address("http");
        let started = Instant::now();
        let mut served = 0;
        let ask = |served: &mut usize| {
            for _ in 0..40 {
                let mut wire = Wire::connect(address);
                wire.send(REQUEST.repeat(3));
                for _ in 0..3 {
                    match wire.response().status {
                        200 => *served += 1,
                        status => assert_eq!(status, 429),
                    }
                }
            }
            // As long as the test has taken it has been given more.
            let most = 40 + 1 + started.elapsed().as_secs() as usize;
            assert!((40..=most).contains(served), "{served} of at most {most}");
        };
        ask(&mut served);
        // A rate that is used up stays so, whoever dies.
        let pids = site.active(3);
        signal(pids[0], Signal::KILL);
        gone(pids[0]);
        let pids = eventually_some("another is in its place", || {
            Some(site.active(3)).filter(|now| !now.contains(&pids[0]))
        });
        ask(&mut served);
        site.replace();
        assert_eq!(site.active(3), pids);
        ask(&mut served);
    });
}
