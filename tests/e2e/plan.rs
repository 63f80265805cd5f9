//! `playhouse plan` says what a reload then does, and does none of it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::harness::{Running, Site, curl};

fn saying(text: &str) -> String {
    format!(r#"(path: "/", to: Respond(status: 200, body: "{text}"))"#)
}

fn site() -> Site {
    Site::new()
        .listener("http", r#"(bind: "127.0.0.1:0")"#)
        .listener("old", r#"(bind: "unix:old.sock")"#)
        .server("checked", "127.0.0.1:9")
        .server("gone", "127.0.0.1:9")
        .server("same", "127.0.0.1:9")
        .route(saying("before"))
}

/// What `playhouse plan` says, and its exit status.
fn plan(site: &Running) -> (Value, Option<i32>) {
    let output = site.playhouse(&["plan", "--json"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let plan = serde_json::from_str(&text)
        .unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)));
    (plan, output.status.code())
}

/// The parts that differ, with what is different about each.
fn parts(plan: &Value) -> BTreeMap<String, String> {
    let changes = plan["changes"].as_array().unwrap().iter();
    changes
        .map(|change| {
            let fields: Vec<_> =
                change["fields"].as_array().unwrap().iter().map(|field| field.as_str().unwrap()).collect();
            let how = format!("{} {}", change["change"].as_str().unwrap(), fields.join(" "));
            (change["part"].as_str().unwrap().to_owned(), how.trim_end().to_owned())
        })
        .collect()
}

/// The actors of one kind of fate, over all parts.
fn actors(plan: &Value, fate: &str) -> Vec<String> {
    let changes = plan["changes"].as_array().unwrap().iter();
    let mut actors: Vec<_> = changes
        .flat_map(|change| change[fate].as_array().unwrap())
        .map(|actor| actor.as_str().unwrap().to_owned())
        .collect();
    actors.sort();
    actors
}

/// The actors beneath listeners and upstreams, each with a number that differs between incarnations.
fn incarnations(site: &Running) -> BTreeMap<String, u64> {
    let now = site.admin.status()["uptime_ms"].as_u64().unwrap();
    let of = |path: String| {
        let name = path.strip_prefix("instance-1/")?.to_owned();
        let is_one = name.split('/').count() == 2
            && (name.starts_with("listeners/") || name.starts_with("upstreams/"));
        let node = is_one.then(|| site.admin.node(&path))??;
        Some((name, now.saturating_sub(node["age_ms"].as_u64()?)))
    };
    site.admin.paths().into_iter().filter_map(of).collect()
}

#[test]
fn it_names_each_part_and_actor_that_the_reload_then_touches() {
    let mut site = site().start();
    let before = incarnations(&site);
    site.edit(|site| {
        site.without_routes()
            .route(saying("after"))
            .route(r#"(path: "/more", to: Redirect(status: 308, location: "/"))"#)
            .without_listener("old")
            .listener("http", r#"(bind: "127.0.0.1:0", limits: (streams: 7))"#)
            .listener("renamed", r#"(bind: "unix:old.sock")"#)
            .listener("new", r#"(bind: "127.0.0.1:0")"#)
            .upstream("checked", r#"(servers: ["127.0.0.1:9"], health: (path: "/", interval: "1h"))"#)
            .without_upstream("gone")
            .server("same", "127.0.0.1:10")
            .field(r#"drain_timeout: "7s""#)
    });
    let (said, status) = plan(&site);
    assert_eq!((status, &said["refused"]), (Some(0), &Value::Null), "{said}");
    let expected = [
        ("drain_timeout", "changed"),
        ("listeners.http", "changed limits"),
        ("listeners.new", "added"),
        ("listeners.old", "removed"),
        ("listeners.renamed", "added"),
        ("routes[0] /", "changed to"),
        ("routes[1] /more", "added"),
        ("upstreams.checked", "changed health"),
        ("upstreams.gone", "removed"),
        ("upstreams.same", "changed servers"),
    ];
    let expected = expected.map(|(part, how)| (part.to_owned(), how.to_owned()));
    assert_eq!(parts(&said), BTreeMap::from(expected));
    // Nothing has been done.
    assert_eq!(curl([&site.url("http", "/")]).expect(200).text(), "before");
    assert_eq!(incarnations(&site).keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
    assert_eq!(site.admin.listener("new"), None);

    site.reload();
    let after = incarnations(&site);
    assert_eq!(actors(&said, "starts"), ["listeners/new", "listeners/renamed"]);
    assert_eq!(actors(&said, "ends"), ["listeners/old", "upstreams/gone"]);
    assert_eq!(actors(&said, "restarts"), ["upstreams/checked"]);
    let started: Vec<_> = after.keys().filter(|actor| !before.contains_key(*actor)).cloned().collect();
    let ended: Vec<_> = before.keys().filter(|actor| !after.contains_key(*actor)).cloned().collect();
    assert_eq!((started, ended), (actors(&said, "starts"), actors(&said, "ends")));
    let health = site.admin.node("instance-1/upstreams/checked/health");
    assert!(health.is_some(), "the upstream's supervisor was started anew, with a checker");
    // Then there is nothing left to do.
    assert_eq!(plan(&site).0["changes"], json!([]));
    let human = site.playhouse(&["plan"]);
    assert_eq!(human.status.code(), Some(0));
}

#[test]
fn it_says_no_where_the_reload_would_be_refused() {
    let mut site = site().start();
    site.edit(|site| site.field(r#"state_dir: "elsewhere""#).without_routes().route(saying("after")));
    let (said, status) = plan(&site);
    assert_eq!(status, Some(1), "{said}");
    assert!(said["refused"].as_str().unwrap().contains("state_dir"), "{said}");
    let reload = site.playhouse(&["reload"]);
    assert_eq!(reload.status.code(), Some(1), "{reload:?}");
    assert!(String::from_utf8_lossy(&reload.stderr).contains("state_dir"), "{reload:?}");
    assert_eq!(curl([&site.url("http", "/")]).expect(200).text(), "before");
}

#[test]
fn it_tells_the_errors_of_a_file_that_is_not_valid() {
    let mut site = site().start();
    site.edit(|site| site.route(r#"(path: "/api/", to: Proxy("chekced"))"#));
    let output = site.playhouse(&["plan"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("site.ron:") && said.contains("did you mean \"checked\"?"), "{said}");
    site.edit(|site| {
        site.without_routes()
            .route(saying("x"))
            .listener("tls", r#"(bind: "127.0.0.1:0", tls: [(cert: "none.pem", key: "none.key")])"#)
    });
    let output = site.playhouse(&["plan"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("none.pem"), "{output:?}");
}

#[test]
fn of_several_instances_it_says_when_they_would_be_replaced() {
    let mut site = site().field("instances: (min: 2, max: 3)").start();
    let pids = site.active(2);
    site.edit(|site| site.field("threads: 2"));
    let (said, status) = plan(&site);
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(parts(&said), BTreeMap::from([("threads".to_owned(), "changed".to_owned())]));
    assert_eq!(actors(&said, "restarts"), ["instance-*"]);
    assert_eq!(site.active(2), pids, "none was");
}
