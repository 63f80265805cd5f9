//! The admin interface of a running site, over its Unix socket.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::wait::{eventually, eventually_some};
use super::wire::{Response, Wire};

/// Asks the admin socket; each request has a connection of its own.
#[derive(Clone)]
pub struct Admin {
    socket: PathBuf,
}

/// The ledger's totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    pub accepted: u64,
    pub in_flight: u64,
    pub answered: u64,
    pub rejected: u64,
    pub shed: u64,
    pub client_gone: u64,
    pub upstream_failed: u64,
    pub killed: u64,
}

impl Ledger {
    /// The sum of all outcomes.
    pub fn ended(&self) -> u64 {
        self.answered + self.rejected + self.shed + self.client_gone + self.upstream_failed + self.killed
    }
}

impl Admin {
    pub fn new(socket: PathBuf) -> Self {
        Admin { socket }
    }

    /// Whether the socket exists and answers `/readyz` with 200.
    pub fn ready(&self) -> bool {
        self.try_get("/readyz").is_some_and(|response| response.status == 200)
    }

    /// Asks again where the connection breaks: a test may have killed what carries the answer.
    #[track_caller]
    pub fn get(&self, target: &str) -> Response {
        eventually_some(&format!("an answer to {target}"), || self.try_get(target))
    }

    #[track_caller]
    pub fn post(&self, target: &str, content: &Value) -> Response {
        let content = content.to_string();
        let length = content.len();
        let head = format!(
            "POST {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        self.wire(&(head + &content)).response()
    }

    #[track_caller]
    pub fn json(&self, target: &str) -> Value {
        let response = self.get(target);
        assert_eq!(response.status, 200, "{target}: {}", response.text());
        serde_json::from_slice(&response.body)
            .unwrap_or_else(|error| panic!("{target}: {error}: {}", response.text()))
    }

    #[track_caller]
    pub fn status(&self) -> Value {
        self.json("/v1/status")
    }

    #[track_caller]
    pub fn ledger(&self) -> Ledger {
        let status = self.status();
        let count = |name: &str| {
            status["ledger"][name].as_u64().unwrap_or_else(|| panic!("no ledger.{name} in {status}"))
        };
        Ledger {
            accepted: count("accepted"),
            in_flight: count("in_flight"),
            answered: count("answered"),
            rejected: count("rejected"),
            shed: count("shed"),
            client_gone: count("client_gone"),
            upstream_failed: count("upstream_failed"),
            killed: count("killed"),
        }
    }

    /// The ledger once nothing is in flight; panics if its outcomes do not add up then.
    #[track_caller]
    pub fn settled_ledger(&self) -> Ledger {
        let ledger = eventually_some("nothing is in flight", || {
            Some(self.ledger()).filter(|ledger| ledger.in_flight == 0)
        });
        assert_eq!(ledger.accepted, ledger.ended(), "{ledger:?}");
        ledger
    }

    /// Open connections, as the status counts them.
    #[track_caller]
    pub fn connections(&self) -> u64 {
        let status = self.status();
        let count = |instance: &Value| instance["connections"].as_u64().expect("instances[].connections");
        status["instances"].as_array().expect("instances").iter().map(count).sum()
    }

    /// The address a listener is bound to, as the status writes it.
    #[track_caller]
    pub fn listener(&self, name: &str) -> Option<String> {
        let status = self.status();
        let listeners = status["listeners"].as_array().expect("listeners");
        let listener = listeners.iter().find(|listener| listener["name"] == name)?;
        Some(listener["address"].as_str().expect("an address is a string").to_owned())
    }

    #[track_caller]
    pub fn tree(&self) -> Value {
        self.json("/v1/tree")
    }

    /// The node of an actor, connections included.
    #[track_caller]
    pub fn node(&self, path: &str) -> Option<Value> {
        find(&self.json("/v1/tree?connections=1"), path).cloned()
    }

    /// All paths of the tree, connections included.
    #[track_caller]
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        collect(&self.json("/v1/tree?connections=1"), &mut paths);
        paths
    }

    /// How often the actor at `path` was restarted.
    #[track_caller]
    pub fn restarts(&self, path: &str) -> u64 {
        let node = self.node(path).unwrap_or_else(|| panic!("no {path} in {:#?}", self.paths()));
        node["restarts"].as_u64().expect("restarts is a number")
    }

    /// Kills the actor at `path` (`how`: `stop`, `kill`, `panic`, `stall=500ms`).
    #[track_caller]
    pub fn kill(&self, path: &str, how: &str) -> Response {
        let response = self.try_kill(path, how);
        assert!(
            (200..300).contains(&response.status),
            "kill {path} {how}: {} {}",
            response.status,
            response.text()
        );
        response
    }

    #[track_caller]
    pub fn try_kill(&self, path: &str, how: &str) -> Response {
        self.post("/v1/kill", &json!({"path": path, "how": how}))
    }

    /// Kills the actor and returns when the tree shows its next incarnation running.
    #[track_caller]
    pub fn kill_and_see_it_back(&self, path: &str, how: &str) {
        let before = self.restarts(path);
        self.kill(path, how);
        eventually(&format!("{path} is back after {how}"), || {
            self.node(path).is_some_and(|node| {
                node["restarts"].as_u64().is_some_and(|restarts| restarts > before)
                    && node["state"] == "running"
            })
        });
    }

    /// The metrics in Prometheus' text format.
    #[track_caller]
    pub fn metrics(&self) -> String {
        let response = self.get("/metrics");
        assert_eq!(response.status, 200);
        response.text()
    }

    /// The sum of all series of `name` whose labels contain each of `labels` (written `name="value"`).
    #[track_caller]
    pub fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let text = self.metrics();
        let series = text.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let of_name = series.strip_prefix(name)?;
            let ours = (of_name.is_empty() || of_name.starts_with('{'))
                && labels.iter().all(|l| of_name.contains(l));
            ours.then(|| value.parse::<f64>().expect("a value is a number"))
        });
        series.sum()
    }

    /// The latest events of the status, as one text.
    #[track_caller]
    pub fn events(&self) -> String {
        self.status()["events"].to_string()
    }

    /// A connection on which `request` was sent.
    #[track_caller]
    pub fn wire(&self, request: &str) -> Wire {
        let mut wire = Wire::connect_unix(&self.socket);
        wire.send(request);
        wire
    }

    fn try_get(&self, target: &str) -> Option<Response> {
        let stream = std::os::unix::net::UnixStream::connect(&self.socket).ok()?;
        let mut wire = Wire::over(stream);
        wire.try_send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
            .ok()?;
        wire.try_response(false).ok()
    }
}

fn find<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    match value {
        Value::Object(node) if node.get("path").is_some_and(|known| known == path) => Some(value),
        Value::Object(node) => node.values().find_map(|child| find(child, path)),
        Value::Array(children) => children.iter().find_map(|child| find(child, path)),
        _ => None,
    }
}

fn collect(value: &Value, paths: &mut Vec<String>) {
    match value {
        Value::Object(node) => {
            if let Some(path) = node.get("path").and_then(Value::as_str) {
                paths.push(path.to_owned());
            }
            node.values().for_each(|child| collect(child, paths));
        }
        Value::Array(children) => children.iter().for_each(|child| collect(child, paths)),
        _ => {}
    }
}
