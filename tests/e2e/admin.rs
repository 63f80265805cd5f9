//! The admin interface over its socket and over TCP.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use serde_json::json;

use crate::harness::{Running, Site, curl, eventually};

const ROUTE: &str = r#"(path: "/", to: Respond(status: 200, body: "hello\n"))"#;

/// The address that the admin interface has over TCP.
fn tcp(site: &Running) -> String {
    let status = site.admin.status();
    let addresses = status["admin"].as_array().expect("admin");
    let tcp =
        addresses.iter().filter_map(|address| address.as_str()).find(|address| !address.starts_with("unix:"));
    tcp.unwrap_or_else(|| panic!("no admin address over TCP in {status}")).to_owned()
}

fn site(admin: &str) -> Running {
    Site::new().field(format!("admin: {admin}")).file("token", "s3cret-t0ken\n").route(ROUTE).start()
}

#[test]
fn the_socket_is_only_for_its_owner() {
    let site = Site::new().route(ROUTE).start();
    let mode = site.path("state/admin.sock").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(site.admin.get("/healthz").status, 200);
    assert_eq!(site.admin.get("/readyz").status, 200);
    assert_eq!(site.admin.get("/v1/nothing").status, 404);
    assert_eq!(site.admin.get("/v1/kill").status, 405);
}

#[test]
fn over_tcp_only_known_hosts_are_answered() {
    let site = site(r#"(bind: "127.0.0.1:0", hosts: ["admin.test"])"#);
    let address = tcp(&site);
    let url = format!("http://{address}/v1/status");
    let as_host = |host: &str| curl(["-H", &format!("Host: {host}"), &url]).status;
    for good in [address.as_str(), "127.0.0.1", "localhost", "localhost:80", "admin.test", "ADMIN.test:1"] {
        assert_eq!(as_host(good), 200, "{good}");
    }
    // A page of another origin that has rebound its name to this address.
    for evil in ["evil.test", "127.0.0.2", "localhost.evil.test", "admin.test.evil.test"] {
        assert!(matches!(as_host(evil), 400 | 403 | 421), "{evil}");
    }
}

#[test]
fn over_tcp_changes_need_the_token() {
    let site = site(r#"(bind: "127.0.0.1:0", token_file: "token")"#);
    let address = tcp(&site);
    let kill = |header: &str| {
        let content = r#"{"path": "instance-1/listeners/http", "how": "kill"}"#;
        let url = format!("http://{address}/v1/kill");
        curl(["-H", header, "-H", "Content-Type: application/json", "--data", content, &url]).status
    };
    let before = site.admin.restarts("instance-1/listeners/http");
    assert!(matches!(kill("X: y"), 401 | 403));
    assert!(matches!(kill("Authorization: Bearer wrong"), 401 | 403));
    assert!(matches!(kill("Authorization: Bearer s3cret-t0ke"), 401 | 403));
    assert!(matches!(kill("Authorization: Basic s3cret-t0ken"), 401 | 403));
    assert_eq!(site.admin.restarts("instance-1/listeners/http"), before);
    assert!((200..300).contains(&kill("Authorization: Bearer s3cret-t0ken")));
    eventually("it was killed", || site.admin.restarts("instance-1/listeners/http") > before);
    for read in ["/healthz", "/readyz", "/metrics", "/v1/status", "/v1/tree"] {
        curl([&format!("http://{address}{read}")]).expect(200);
    }
}

#[test]
fn over_tcp_without_a_token_file_nothing_can_be_changed() {
    let site = site(r#"(bind: "127.0.0.1:0")"#);
    let url = format!("http://{}/v1/kill", tcp(&site));
    let content = r#"{"path": "instance-1/listeners/http", "how": "kill"}"#;
    for header in ["X: y", "Authorization: Bearer ", "Authorization: Bearer s3cret-t0ken"] {
        let answer = curl(["-H", header, "--data", content, &url]);
        assert!(matches!(answer.status, 401 | 403), "{answer:?}");
    }
}

#[test]
fn reads_need_the_token_once_the_bind_is_not_loopback() {
    let site = site(r#"(bind: "0.0.0.0:0", token_file: "token")"#);
    let port = tcp(&site).rsplit(':').next().unwrap().to_owned();
    let get = |target: &str, header: &str| {
        curl(["-H", header, "-H", "Host: localhost", &format!("http://127.0.0.1:{port}{target}")]).status
    };
    for open in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(get(open, "X: y"), 200, "{open}");
    }
    for closed in ["/v1/status", "/v1/tree", "/v1/events"] {
        assert!(matches!(get(closed, "X: y"), 401 | 403), "{closed}");
    }
    assert_eq!(get("/v1/status", "Authorization: Bearer s3cret-t0ken"), 200);
}

#[test]
fn hostile_input_is_refused_and_harms_nothing() {
    let site = Site::new().route(ROUTE).start();
    for content in
        ["", "{", "[]", "null", "{\"path\": 1}", "{\"path\": \"x\", \"how\": \"hug\"}", "\0\0\0\0\0\0\0\0"]
    {
        let length = content.len();
        let request = format!(
            "POST /v1/kill HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{content}"
        );
        let response = site.admin.wire(&request).response();
        assert!((400..500).contains(&response.status), "{content:?}: {response:?}");
    }
    let mut huge =
        site.admin.wire("POST /v1/kill HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n");
    assert_eq!(huge.response().status, 413);
    let mut garbage = site.admin.wire("\u{1}\u{2}\u{3}\u{4}\u{5}\u{6}\u{7}\u{8}\r\n\r\n");
    garbage.rest();
    assert_eq!(site.admin.get("/healthz").status, 200);
    curl([&site.url("http", "/")]).expect(200);
}

#[test]
fn a_site_in_one_process_has_no_instances_to_change() {
    let site = Site::new().route(ROUTE).start();
    for (target, content) in [
        ("/v1/scale", json!({"instances": 2})),
        ("/v1/scale", json!({"instances": "auto"})),
        ("/v1/drain", json!({"instance": "instance-1"})),
        ("/v1/upgrade", json!({})),
        ("/v1/upgrade", json!({"binary": "/bin/true"})),
    ] {
        let response = site.admin.post(target, &content);
        assert_eq!(response.status, 409, "{target}: {}", response.text());
        assert!(response.text().contains("set `instances`"), "{}", response.text());
    }
    for (target, content) in [
        ("/v1/scale", json!({})),
        ("/v1/scale", json!({"instances": 0})),
        ("/v1/scale", json!({"instances": "many"})),
        ("/v1/drain", json!({})),
        ("/v1/upgrade", json!({"binary": 1})),
    ] {
        assert_eq!(site.admin.post(target, &content).status, 400, "{target} {content}");
    }
}

#[test]
fn events_are_streamed_as_they_happen() {
    let site = Site::new().route(ROUTE).start();
    let mut stream = site.admin.wire("GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let head = stream.response_head().unwrap();
    assert_eq!(head.status, 200);
    assert!(
        head.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")),
        "{head:?}"
    );
    site.admin.kill_and_see_it_back("instance-1/metrics", "panic");
    eventually("the stream tells of it", || {
        stream.patience(Duration::from_secs(1));
        let _ = stream.fill();
        let text = String::from_utf8_lossy(stream.pending()).into_owned();
        text.contains("data:") && text.contains("instance-1/metrics")
    });
    assert!(site.admin.events().contains("instance-1/metrics"));
}

#[test]
fn a_reader_of_events_that_does_not_read_holds_nothing_up() {
    let site = Site::new().route(ROUTE).start();
    let streams: Vec<_> =
        (0..4).map(|_| site.admin.wire("GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")).collect();
    let before = site.process.resident();
    for _ in 0..50 {
        site.admin.kill_and_see_it_back("instance-1/metrics", "kill");
    }
    assert!(site.process.resident() < before + (32 << 20));
    drop(streams);
    assert_eq!(site.admin.get("/healthz").status, 200);
}

#[test]
fn the_metrics_are_prometheus_text() {
    let site = Site::new()
        .server("up", "127.0.0.1:9")
        .route(ROUTE)
        .route(r#"(path: "/up/", to: Proxy("up"))"#)
        .start();
    curl([&site.url("http", "/")]).expect(200);
    curl([&site.url("http", "/up/")]).expect(502);
    eventually("both are counted", || site.admin.metric("playhouse_requests_total", &[]) >= 2.0);
    let typed = assert_prometheus(&site.admin.metrics());
    for needed in ["requests", "connections", "ledger", "restarts", "actor"] {
        assert!(typed.iter().any(|name| name.contains(needed)), "nothing of {needed} in {typed:#?}");
    }
}

/// Every line is of the text format, each family has its type once and its samples beneath it, and no series is there
/// twice. Gives the families.
#[track_caller]
pub fn assert_prometheus(text: &str) -> BTreeSet<String> {
    let mut typed = BTreeSet::new();
    let mut current = "";
    let mut series = BTreeSet::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.split(' ');
            match (words.next(), words.next(), words.next()) {
                (Some("TYPE"), Some(name), Some("counter" | "gauge" | "histogram" | "summary")) => {
                    assert!(typed.insert(name.to_owned()), "{name} has two types");
                    current = name;
                }
                (Some("HELP"), Some(_), _) => {}
                _ => panic!("{line}"),
            }
            continue;
        }
        let (name_and_labels, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        value.parse::<f64>().unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(series.insert(name_and_labels.to_owned()), "twice: {line}");
        let name = name_and_labels.split('{').next().unwrap();
        assert!(name.starts_with("playhouse_") || name.starts_with("process_"), "{line}");
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':'), "{line}");
        let family =
            ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        assert!(typed.contains(family) || typed.contains(name), "no TYPE before {line}");
        assert!(current == family || current == name, "not beneath its TYPE: {line}");
        if let Some(labels) = name_and_labels.strip_prefix(name).filter(|labels| !labels.is_empty()) {
            let inner = labels.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
            let inner = inner.unwrap_or_else(|| panic!("{line}"));
            for label in inner.split("\",").filter(|label| !label.is_empty()) {
                let (label, value) = label.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
                assert!(label.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{line}");
                assert!(!value.contains('\n'), "{line}");
            }
        }
    }
    typed
}

#[test]
fn no_label_comes_from_a_client() {
    let site = Site::new().route(ROUTE).start();
    let count = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
    curl([&site.url("http", "/")]).expect(200);
    eventually("it is counted", || site.admin.metric("playhouse_requests_total", &[]) >= 1.0);
    let before = count(&site.admin.metrics());
    for number in 0..50 {
        let (host, agent) = (format!("Host: h{number}.test"), format!("User-Agent: a{number}"));
        curl([
            "-X",
            &format!("M{number}"),
            "-H",
            &host,
            "-H",
            &agent,
            &site.url("http", &format!("/p{number}")),
        ]);
    }
    let after = site.admin.metrics();
    assert!(count(&after) <= before + 20, "{before} series became {}", count(&after));
    assert!(!after.contains("h7.test") && !after.contains("p7") && !after.contains("M7\""));
}
