//! WebSockets on several instances: which of them end, and what they are told, whatever happens to processes.

use std::net::SocketAddr;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{gone, signal, with_instances};
use crate::harness::{Process, Real, Running, Site, eventually, eventually_some, python};

/// A site with so many instances, and clients that talk over WebSockets through it.
struct Talks {
    site: Running,
    clients: Process,
    _upstream: Real,
}

const COUNT: u64 = 60;

impl Talks {
    /// With `count` instances, of at least and at most so many.
    fn start(min: u32, max: u32, count: usize) -> Self {
        let upstream = Real::websockets();
        let site = with_instances(Site::new().field("drain_timeout: \"30s\""), min, max)
            .server("up", upstream.address)
            .route(r#"(path: "/ws/", to: Proxy("up"), tunnel: (on_reload: Close))"#)
            .start();
        site.active(min as usize);
        assert!(site.playhouse(&["scale", &count.to_string()]).status.success());
        site.active(count);
        let clients = talk(site.address("http"));
        Talks { site, clients, _upstream: upstream }
    }

    /// Those that are open, as all instances together count them.
    fn open(&self) -> u64 {
        let text = self.site.admin.get("/metrics").text();
        let lines = text.lines().filter(|line| line.starts_with("playhouse_tunnels{"));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    /// Ends the site, and gives what the clients have seen.
    fn finish(mut self) -> Value {
        self.site.stop();
        assert!(self.clients.wait().success(), "{}", self.clients.output());
        let last = self.clients.stdout().pop().expect("a line");
        let seen: Value = serde_json::from_str(&last).unwrap_or_else(|error| panic!("{error}: {last}"));
        // Each may have had one message on its way.
        assert!(seen["unanswered"].as_u64() <= Some(COUNT), "{seen}");
        self.site.process.wait();
        seen
    }

    /// Waits until those that are left have talked on.
    #[track_caller]
    fn talks_on(&self) {
        let answered = || {
            let lines = self.clients.stdout();
            let counts =
                lines.iter().rev().find_map(|line| line.strip_prefix("answered ")?.parse::<u64>().ok());
            counts.unwrap_or(0)
        };
        let before = answered();
        eventually("they talk on", || answered() > before + 2 * COUNT);
    }
}

fn talk(address: SocketAddr) -> Process {
    let mut command = python("websocket_client.py");
    command.args(["hold", &format!("ws://{address}/ws/hold"), &COUNT.to_string()]);
    let mut clients = Process::start("WebSocket clients", &mut command);
    clients.line("open", |line| (line == "open").then_some(()));
    clients
}

#[test]
fn scaling_in_says_1001_to_those_of_the_instance_that_leaves_and_touches_no_other() {
    let talks = Talks::start(1, 3, 3);
    assert!(talks.site.playhouse(&["scale", "2"]).status.success());
    talks.site.active(2);
    let left = eventually_some("those of one instance have ended", || {
        let open = talks.open();
        (open < COUNT).then_some(open)
    });
    assert!(left > 0, "all have ended");
    talks.talks_on();
    assert_eq!(talks.open(), left);
    assert_eq!(talks.finish()["codes"], json!({"1001": COUNT}));
}

#[test]
fn an_upgrade_says_1001_to_all_and_loses_no_more_than_what_was_on_its_way() {
    let mut talks = Talks::start(2, 3, 2);
    let next = talks.site.path("playhouse-next");
    std::fs::copy(env!("CARGO_BIN_EXE_playhouse"), &next).expect("a copy");
    let output = talks.site.playhouse(&["upgrade", &next.display().to_string()]);
    assert!(output.status.success(), "{output:?}");
    // All instances were replaced, so that all had to go, and to come back.
    assert!(talks.clients.wait().success(), "{}", talks.clients.output());
    let last = talks.clients.stdout().pop().expect("a line");
    let seen: Value = serde_json::from_str(&last).expect("JSON");
    assert_eq!(seen["codes"], json!({"1001": COUNT}), "{seen}");
    talks.clients = talk(talks.site.address("http"));
    assert_eq!(talks.finish()["codes"], json!({"1001": COUNT}));
}

#[test]
fn a_reload_of_another_route_and_the_death_of_the_controller_touch_none() {
    let mut talks = Talks::start(2, 3, 2);
    let pids = talks.site.active(2);
    for number in 0..3 {
        let route = format!(r#"(path: "/other{number}", to: Respond("x"))"#);
        talks.site.edit(|site| site.route(route));
        talks.site.reload();
    }
    talks.site.replace();
    assert_eq!(talks.site.active(2), pids);
    talks.talks_on();
    assert_eq!(talks.open(), COUNT);
    assert_eq!(talks.finish()["codes"], json!({"1001": COUNT}));
}

#[test]
fn a_killed_instance_takes_its_own_alone() {
    let talks = Talks::start(2, 3, 2);
    let victim = talks.site.active(2)[0];
    signal(victim, Signal::KILL);
    gone(victim);
    eventually("another is active in its place", || !talks.site.active(2).contains(&victim));
    talks.talks_on();
    let left = talks.open();
    assert!((1..COUNT).contains(&left), "{left} are left");
    let seen = talks.finish();
    assert_eq!(seen["codes"], json!({"1001": left, "1006": COUNT - left}), "{seen}");
}
