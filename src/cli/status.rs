//! `playhouse status`

use std::fmt::Write;

use clap::Args;
use serde::Deserialize;

use super::output::{Output, Tone, age, count, size};
use super::target::Target;

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
    blocked: Vec<String>,
    events: Vec<Event>,
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
    connections: u64,
    rss_bytes: u64,
    cpu: f64,
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
struct Event {
    unix_ms: u64,
    path: String,
    message: String,
}

impl Status {
    pub(super) fn execute(self, output: Output) -> anyhow::Result<()> {
        let admin = self.target.find()?;
        if output.is_json() {
            return output.json(&admin.get("/v1/status")?);
        }
        output.text(&render(&admin.read("/v1/status")?, output, now()))
    }
}

fn render(page: &Page, output: Output, now: u64) -> String {
    let state = match (page.stopping, page.ready) {
        (true, _) => output.toned(Tone::Warning, "draining"),
        (_, true) => output.toned(Tone::Good, "ready"),
        _ => output.toned(Tone::Bad, "not ready"),
    };
    let plain = |text: &str| output.toned(Tone::Plain, text);
    let mut text = format!(
        "{} · {state} · up {} · pid {} · playhouse {}\n",
        plain(&page.site),
        age(page.uptime_ms),
        page.pid,
        plain(&page.build)
    );
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
    text.push_str("\ninstances\n");
    for instance in &page.instances {
        let _ = writeln!(
            text,
            "  {:<16} pid {:<8} {}, {}, {}, {:.1} s of CPU",
            plain(&instance.id),
            instance.pid,
            plain(&instance.state),
            count(instance.connections, "connection"),
            size(instance.rss_bytes),
            instance.cpu
        );
    }
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
}
