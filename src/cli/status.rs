//! `playhouse status`

use std::fmt::Write;

use anyhow::Context;
use clap::Args;
use serde::Deserialize;

use super::orphans::NO_CONTROLLER;
use super::output::{Output, Tone, age, count, size};
use super::target::{Found, Target};

/// Show a running site at a glance.
///
/// Listeners, upstream servers, what has become of every request so far, and the last events.
#[derive(Debug, Args)]
pub(super) struct Status {
    #[command(flatten)]
    target: Target,
}

/// What is shown. Another build may say more, or not all of it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Page {
    site: String,
    build: String,
    pid: u32,
    uptime_ms: u64,
    ready: bool,
    stopping: bool,
    listeners: Vec<Listener>,
    admin: Vec<String>,
    instances: Vec<Instance>,
    ledger: serde_json::Map<String, serde_json::Value>,
    upstreams: Vec<Upstream>,
    apps: Vec<App>,
    blocked: Vec<String>,
    events: Vec<Event>,
    controller: Option<Controller>,
    scaler: Option<Scaler>,
    memory: Option<Memory>,
    spread: Option<f64>,
    /// Made up of what instances without a controller say.
    orphaned: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Controller {
    rss_bytes: u64,
    cpu: f64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Scaler {
    wanted: u64,
    min: u64,
    max: u64,
    reason: String,
    #[serde(rename = "override")]
    asked: Option<u64>,
    last_change: Option<String>,
    refused: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Memory {
    available: Option<u64>,
    pressure: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Listener {
    name: String,
    address: String,
    connections: u64,
    waiting: u64,
    accepted: u64,
    accept_errors: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Instance {
    id: String,
    pid: u32,
    state: String,
    generation: u64,
    build: String,
    age_ms: u64,
    connections: u64,
    rss_bytes: u64,
    cpu: f64,
    cpu_share: Option<f64>,
    requests_per_second: Option<f64>,
    pressure: Option<f64>,
    unanswered: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Upstream {
    name: String,
    servers: Vec<Server>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Server {
    address: String,
    healthy: bool,
    ejected: bool,
    in_flight: u64,
    idle: u64,
    requests: u64,
    failures: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct App {
    name: String,
    state: String,
    wanted: u64,
    processes: Vec<AppProcess>,
    failures: u64,
    last_failure: Option<String>,
    waiting: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AppProcess {
    place: u32,
    pid: u32,
    state: String,
    age_ms: u64,
    address: String,
    healthy: bool,
    ejected: bool,
    in_flight: u64,
    requests: u64,
    rss_bytes: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Event {
    unix_ms: u64,
    path: String,
    message: String,
}

impl Status {
    pub(super) fn execute(self, output: Output) -> anyhow::Result<()> {
        let page = match self.target.find()? {
            Found::Site(admin) => admin.get("/v1/status")?,
            Found::Orphans(orphans) => {
                let mut page = serde_json::to_value(orphans.status())?;
                // There should be one, and is not.
                page["controller"] = serde_json::Value::Null;
                page["orphaned"] = true.into();
                page
            }
        };
        if output.is_json() {
            return output.json(&page);
        }
        let page = serde_json::from_value(page).context("/v1/status: not what was expected")?;
        output.text(&render(&page, output, now()))
    }
}

fn render(page: &Page, output: Output, now: u64) -> String {
    let plain = |text: &str| output.toned(Tone::Plain, text);
    let state = match (page.stopping, page.ready) {
        (false, _) if page.orphaned => output.toned(Tone::Bad, "no controller"),
        (true, _) => output.toned(Tone::Warning, "draining"),
        (_, true) => output.toned(Tone::Good, "ready"),
        _ => output.toned(Tone::Bad, "not ready"),
    };
    let mut text = format!("{} · {state} · up {}", plain(&page.site), age(page.uptime_ms));
    if !page.orphaned {
        text += &format!(" · pid {}", page.pid);
    }
    text += &format!(" · playhouse {}\n", plain(&page.build));
    if page.orphaned {
        text += &output.toned(Tone::Warning, NO_CONTROLLER);
        text.push('\n');
    }
    // Writing to a string does not fail, here and below.
    text.push_str("\nlisteners\n");
    for listener in &page.listeners {
        let (name, address) = (plain(&listener.name), plain(&listener.address));
        let (open, accepted) = (count(listener.connections, "connection"), listener.accepted);
        let _ = write!(text, "  {name:<16} {address:<28} {open}, {accepted} accepted");
        for (number, what) in [(listener.waiting, "waiting"), (listener.accept_errors, "errors of accept")] {
            if number > 0 {
                text += &output.toned(Tone::Warning, &format!(", {number} {what}"));
            }
        }
        text.push('\n');
    }
    for address in &page.admin {
        let _ = writeln!(text, "  {:<16} {}", "(admin)", plain(address));
    }
    if !page.upstreams.is_empty() {
        text.push_str("\nupstreams\n");
    }
    for upstream in &page.upstreams {
        for server in &upstream.servers {
            let health = match (server.healthy, server.ejected) {
                (false, _) => output.toned(Tone::Bad, "unhealthy"),
                (_, true) => output.toned(Tone::Warning, "ejected"),
                _ => output.toned(Tone::Good, "healthy"),
            };
            let (name, address) = (plain(&upstream.name), plain(&server.address));
            let _ = write!(
                text,
                "  {name:<16} {address:<28} {health}, {} in flight, {} idle, {}",
                server.in_flight,
                server.idle,
                count(server.requests, "request")
            );
            if server.failures > 0 {
                text += &output.toned(Tone::Warning, &format!(", {} failed", server.failures));
            }
            text.push('\n');
        }
    }
    text += &apps(page, output);
    text += &instances(page, output);
    text.push_str("\nrequests\n");
    let known = LEDGER.iter().filter_map(|name| Some((*name, page.ledger.get(*name)?)));
    let others = page.ledger.iter().map(|(name, value)| (&**name, value));
    for (name, value) in known.chain(others.filter(|(name, _)| !LEDGER.contains(name))) {
        let tone = match name {
            "accepted" | "in_flight" | "answered" => Tone::Plain,
            _ if value == 0 => Tone::Faint,
            _ => Tone::Warning,
        };
        let line = format!("{:>12} {}", value.to_string(), name.replace('_', " "));
        text += &format!("  {}\n", output.toned(tone, &line));
    }
    for path in &page.blocked {
        let line = output.toned(Tone::Bad, &format!("the thread that runs {path}"));
        text += &format!("\nblocked\n  {line}\n");
    }
    if !page.events.is_empty() {
        text.push_str("\nevents\n");
    }
    for event in page.events.iter().rev().take(EVENTS).rev() {
        let ago = output.toned(Tone::Faint, &format!("{:>8} ago", age(now.saturating_sub(event.unix_ms))));
        let _ = writeln!(text, "  {ago}  {}  {}", plain(&event.path), plain(&event.message));
    }
    text
}

fn apps(page: &Page, output: Output) -> String {
    let plain = |text: &str| output.toned(Tone::Plain, text);
    let mut text = String::new();
    if !page.apps.is_empty() {
        text.push_str("\napps\n");
    }
    for app in &page.apps {
        let state = match &*app.state {
            "serving" => output.toned(Tone::Good, "serving"),
            "failing" => output.toned(Tone::Bad, "failing"),
            other => output.toned(Tone::Warning, other),
        };
        let serving = app.processes.iter().filter(|process| process.state == "serving").count();
        let _ = write!(text, "  {:<16} {state}, {serving} of {} wanted", plain(&app.name), app.wanted);
        for (number, what) in [(app.waiting, "waiting"), (app.failures, "failed")] {
            if number > 0 {
                text += &output.toned(Tone::Warning, &format!(", {number} {what}"));
            }
        }
        if let Some(why) = &app.last_failure {
            text += &output.toned(Tone::Bad, &format!(", {why}"));
        }
        text.push('\n');
        for process in &app.processes {
            let state = match (&*process.state, process.healthy, process.ejected) {
                ("serving", true, false) => output.toned(Tone::Good, "serving"),
                ("serving", false, _) => output.toned(Tone::Bad, "unhealthy"),
                ("serving", ..) => output.toned(Tone::Warning, "ejected"),
                (other, ..) => output.toned(Tone::Warning, other),
            };
            let _ = writeln!(
                text,
                "    {:<14} pid {:<8} {state}, {}, {} in flight, {}, {}, at {}",
                process.place,
                process.pid,
                age(process.age_ms),
                process.in_flight,
                count(process.requests, "request"),
                size(process.rss_bytes),
                plain(&process.address),
            );
        }
    }
    text
}

fn instances(page: &Page, output: Output) -> String {
    let plain = |text: &str| output.toned(Tone::Plain, text);
    let mut text = String::from("\ninstances\n");
    for instance in &page.instances {
        let state = match &*instance.state {
            "active" => output.toned(Tone::Good, "active"),
            "stuck" | "gone" => output.toned(Tone::Bad, &instance.state),
            other => output.toned(Tone::Warning, other),
        };
        let _ = write!(
            text,
            "  {:<16} pid {:<8} {state}, {}, {}, {:.1} s of CPU",
            plain(&instance.id),
            instance.pid,
            count(instance.connections, "connection"),
            size(instance.rss_bytes),
            instance.cpu
        );
        if let Some(share) = instance.cpu_share {
            let _ = write!(text, " ({:.0} % now)", share * 100.0);
        }
        if let Some(rate) = instance.requests_per_second {
            let _ = write!(text, ", {rate:.0} requests/s");
        }
        if let Some(pressure) = instance.pressure {
            let _ = write!(text, ", pressure {pressure:.2}");
        }
        if page.scaler.is_some() || page.orphaned {
            let _ = write!(text, ", the site's {}, {}", ordinal(instance.generation), age(instance.age_ms));
        }
        if !instance.build.is_empty() && instance.build != page.build {
            text += &output.toned(Tone::Warning, &format!(", playhouse {}", instance.build));
        }
        if let Some(why) = &instance.unanswered {
            text += &output.toned(Tone::Bad, &format!(", {why}"));
        }
        text.push('\n');
    }
    if let Some(Controller { rss_bytes, cpu }) = page.controller {
        let what = format!("{}, {cpu:.1} s of CPU", size(rss_bytes));
        let _ = writeln!(text, "  {:<16} pid {:<8} {what}", "controller", page.pid);
    }
    if let Some(scaler) = &page.scaler {
        let by = match scaler.asked {
            Some(_) => "an operator's number".to_owned(),
            None => format!("of {} to {}", scaler.min, scaler.max),
        };
        let _ = writeln!(text, "  {:<16} {} ({by}): {}", "wanted", scaler.wanted, plain(&scaler.reason));
        if let Some(change) = &scaler.last_change {
            let _ = writeln!(text, "  {:<16} {}", "last change", plain(change));
        }
        if let Some(refused) = &scaler.refused {
            let _ = writeln!(text, "  {:<16} {}", "not started", output.toned(Tone::Bad, refused));
        }
    }
    if let Some(Memory { available: Some(available), pressure }) = page.memory {
        let left = format!("{} left", size(available));
        let left = if pressure { output.toned(Tone::Warning, &format!("{left}, too little")) } else { left };
        let _ = writeln!(text, "  {:<16} {left}", "memory");
    }
    if let Some(spread) = page.spread.filter(|_| page.instances.len() > 1) {
        let _ =
            writeln!(text, "  {:<16} {spread:.2} times the mean has the busiest, by connections", "spread");
    }
    text
}

/// `1st`, `2nd`, `11th`.
fn ordinal(number: u64) -> String {
    let end = match (number % 100, number % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{number}{end}")
}

fn now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}

/// In the order of a request's life: what came in, then what has become of it.
const LEDGER: [&str; 8] =
    ["accepted", "in_flight", "answered", "rejected", "shed", "client_gone", "upstream_failed", "killed"];

/// How many events are shown.
const EVENTS: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_another_build_is_shown_as_far_as_it_goes() {
        let page = serde_json::json!({
            "site": "shop",
            "ready": true,
            "new": {"field": 1},
            "listeners": [{"name": "http", "address": "127.0.0.1:8080", "connections": 3}],
            "ledger": {"accepted": 5, "in_flight": 0},
            "events": [{"unix_ms": 1_000, "path": "instance-1", "message": "a\u{1b}[2J"}],
        });
        let text = render(&serde_json::from_value(page).unwrap(), Output::new(true), 3_000);
        assert!(text.starts_with("shop · ready"), "{text}");
        assert!(text.contains("127.0.0.1:8080") && text.contains("5 accepted"), "{text}");
        assert!(text.contains("2s ago") && !text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn apps_are_shown_with_their_processes_and_why_they_fail() {
        let page = serde_json::json!({"site": "shop", "apps": [
            {"name": "blog", "state": "serving", "wanted": 2, "failures": 1, "processes": [
                {"place": 1, "pid": 7, "state": "serving", "healthy": true, "age_ms": 2_000, "requests": 1,
                 "rss_bytes": 2048, "address": "unix:/x"},
                {"place": 2, "pid": 8, "state": "starting"}]},
            {"name": "bad", "state": "failing", "wanted": 1, "last_failure": "place 1: \u{1b}exit"},
        ]});
        let text = render(&serde_json::from_value(page).unwrap(), Output::new(true), 0);
        for part in [
            "blog             serving, 1 of 2 wanted, 1 failed\n",
            "1              pid 7        serving, 2s, 0 in flight, 1 request, 2.0 KiB, at unix:/x\n",
            "pid 8        starting",
            "bad              failing, 0 of 1 wanted, place 1: \u{fffd}exit\n",
        ] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
    }

    #[test]
    fn a_controller_says_what_it_wants_and_of_each_instance_how_it_is() {
        let page = serde_json::json!({
            "site": "shop", "ready": true, "pid": 7, "build": "1.0.0",
            "controller": {"pid": 7, "rss_bytes": 2048, "cpu": 0.5},
            "scaler": {"wanted": 3, "min": 1, "max": 4, "reason": "too much", "override": null},
            "memory": {"available": 1 << 30, "pressure": true},
            "spread": 1.25,
            "instances": [
                {"id": "instance-1", "pid": 8, "state": "active", "generation": 11, "build": "1.0.0",
                 "connections": 1, "cpu": 1.0, "cpu_share": 0.25, "requests_per_second": 12.0, "age_ms": 61_000},
                {"id": "instance-2", "pid": 9, "state": "stuck", "build": "0.9.0", "unanswered": "no answer\u{1b}"},
            ],
        });
        let text = render(&serde_json::from_value(page).unwrap(), Output::new(true), 0);
        for part in [
            "active, 1 connection, 0 B, 1.0 s of CPU (25 % now), 12 requests/s, the site's 11th, 1m 1s\n",
            "stuck, 0 connections",
            ", playhouse 0.9.0, no answer\u{fffd}\n",
            "controller       pid 7        2.0 KiB, 0.5 s of CPU\n",
            "3 (of 1 to 4): too much\n",
            "1.0 GiB left, too little",
            "1.25 times",
        ] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
    }

    #[test]
    fn a_site_without_its_controller_says_so() {
        let page = serde_json::json!({"site": "shop", "orphaned": true, "controller": null,
            "instances": [{"id": "instance-1", "pid": 8, "state": "active", "generation": 2}]});
        let text = render(&serde_json::from_value(page).unwrap(), Output::new(true), 0);
        assert!(text.starts_with("shop · no controller · ") && text.contains(NO_CONTROLLER), "{text}");
        assert!(text.contains("the site's 2nd"), "{text}");
    }
}
