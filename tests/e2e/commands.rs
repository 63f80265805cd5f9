//! The commands, as a user or a script runs them.

use std::process::Output;

use serde_json::Value;

use crate::harness::{Admin, Process, Running, Site, Wire, curl, eventually, exists, playhouse};

fn site() -> Site {
    Site::new().route(r#"(path: "/", to: Respond(status: 200, body: "hello\n"))"#)
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn in_tree(site: &Running, path: &str) -> bool {
    site.admin.node(path).is_some()
}

#[test]
fn check_accepts_a_valid_file_and_names_every_error_of_an_invalid_one() {
    let site = site();
    let file = site.write();
    let output = playhouse().arg("check").arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(!exists(&site.path("state")), "check leaves nothing behind");

    std::fs::write(
        &file,
        r#"(
    name: "shop",
    listeners: { "http": (bind: "127.0.0.1:x") },
    upstreams: { "api": (servers: []) },
    routes: [
        (path: "/a/", to: Proxy("apii")),
        (path: "b", to: Respond(status: 99, body: "")),
    ],
    nonsense: 1,
)
"#,
    )
    .unwrap();
    let output = playhouse().arg("check").arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let complaint = text(&output);
    for (place, hint) in [
        ("site.ron:3:", "127.0.0.1:x"),
        ("site.ron:4:", "api"),
        ("site.ron:6:", "did you mean \"api\"?"),
        ("site.ron:7:", "99"),
        ("site.ron:9:", "nonsense"),
    ] {
        assert!(complaint.contains(place) && complaint.contains(hint), "{place} {hint} in {complaint}");
    }

    std::fs::write(&file, "(name: \"shop\",\n  listeners: {\n").unwrap();
    let output = playhouse().arg("check").arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("site.ron:3:"), "{}", text(&output));
    let output = playhouse().args(["check", "/no/such/site.ron"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("/no/such/site.ron"), "{}", text(&output));
}

#[test]
fn wrong_use_exits_with_2() {
    for arguments in
        [&["nonsense"][..], &["run"], &["kill"], &["check", "a", "b", "c"], &["tree", "--nonsense"]]
    {
        let output = playhouse().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
    }
    let output = playhouse().arg("--help").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    for command in ["run", "check", "status", "tree", "kill", "reload", "stop", "serve", "proxy"] {
        assert!(text(&output).contains(command), "{command} in {}", text(&output));
    }
    assert_eq!(playhouse().arg("--version").output().unwrap().status.code(), Some(0));
}

#[test]
fn a_command_to_a_site_that_does_not_run_says_so() {
    let folder = tempfile::tempdir().unwrap();
    for command in [&["status"][..], &["tree"], &["reload"], &["stop"], &["kill", "instance-1"]] {
        let output = playhouse().args(command).arg("--state-dir").arg(folder.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{command:?}: {output:?}");
        assert!(!text(&output).is_empty());
    }
}

#[test]
fn status_is_for_people_or_for_programs() {
    let site = site().start();
    curl([&site.url("http", "/")]).expect(200);
    let status = json(&site.playhouse(&["status", "--json"]));
    assert_eq!(status["site"], "e2e");
    assert_eq!(status["pid"], site.process.pid().as_raw_nonzero().get());
    assert!(status["build"].as_str().is_some_and(|build| !build.is_empty()), "{status}");
    assert_eq!(status["listeners"][0]["name"], "http");
    assert_eq!(status["listeners"][0]["address"], site.address("http").to_string());
    let instance = &status["instances"][0];
    for field in ["id", "pid", "state", "generation", "connections", "rss_bytes", "cpu", "ledger"] {
        assert!(!instance[field].is_null(), "{field} in {instance}");
    }
    assert!(instance["rss_bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20), "{instance}");
    let ledger = &status["ledger"];
    for field in
        ["accepted", "in_flight", "answered", "rejected", "shed", "client_gone", "upstream_failed", "killed"]
    {
        assert!(ledger[field].is_u64(), "{field} in {ledger}");
    }
    assert!(status["events"].is_array());
    // Not a terminal, so for programs even without the option; nothing of it is coloured.
    let plain = site.playhouse(&["status"]);
    assert_eq!(plain.status.code(), Some(0));
    assert!(!text(&plain).contains('\u{1b}') && text(&plain).contains("e2e"), "{plain:?}");
}

#[test]
fn tree_shows_every_actor() {
    let site = site().server("api", "127.0.0.1:9").start();
    for path in [
        "instance-1",
        "instance-1/listeners",
        "instance-1/listeners/http",
        "instance-1/connections",
        "instance-1/connections/shard-0",
        "instance-1/upstreams",
        "instance-1/upstreams/api/pool",
        "instance-1/certificates",
        "instance-1/metrics",
        "instance-1/admin",
    ] {
        let node = site.admin.node(path).unwrap_or_else(|| panic!("no {path} in {:#?}", site.admin.paths()));
        for field in ["kind", "state", "restarts", "mailbox", "age_ms", "children"] {
            assert!(!node[field].is_null(), "{field} in {node}");
        }
        assert_eq!(node["state"], "running", "{node}");
        assert!(node.as_object().unwrap().contains_key("last_cause"), "{node}");
    }
    let tree = site.playhouse(&["tree", "--json"]);
    assert!(json(&tree).to_string().contains("instance-1/listeners/http"), "{tree:?}");
    let plain = site.playhouse(&["tree"]);
    assert!(text(&plain).contains("http"), "{plain:?}");
}

#[test]
fn a_connection_is_listed_on_request_and_counted_otherwise() {
    let site = site().start();
    let mut wire = site.wire();
    wire.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    wire.response();
    let listed: Vec<String> = site
        .admin
        .paths()
        .into_iter()
        .filter(|path| path.starts_with("instance-1/connections/shard-") && path.matches('/').count() == 3)
        .collect();
    assert_eq!(listed.len(), 1, "{listed:?}");
    let counted = site.admin.tree().to_string();
    assert!(!counted.contains(&listed[0]), "{counted}");
    assert_eq!(site.admin.connections(), 1);
    let output = site.playhouse(&["kill", &listed[0]]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    wire.expect_closed();
    eventually("it is gone from the tree", || !in_tree(&site, &listed[0]));
}

#[test]
fn kill_restarts_an_actor_and_knows_what_does_not_exist() {
    let site = site().start();
    for how in
        [&[][..], &["--how", "stop"], &["--how", "kill"], &["--how", "panic"], &["--how", "stall=200ms"]]
    {
        let path = "instance-1/listeners/http";
        let before = site.admin.restarts(path);
        let mut arguments = vec!["kill", path];
        arguments.extend(how);
        let output = site.playhouse(&arguments);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        if how != ["--how", "stall=200ms"] {
            eventually("it has been restarted", || site.admin.restarts(path) > before);
        }
        curl([&site.url("http", "/")]).expect(200);
    }
    let unknown = site.playhouse(&["kill", "instance-1/listeners/htp"]);
    assert_eq!(unknown.status.code(), Some(1), "{unknown:?}");
    assert!(text(&unknown).contains("instance-1/listeners/htp"), "{unknown:?}");
    assert_eq!(site.playhouse(&["kill", "instance-1/listeners/http", "--how", "hug"]).status.code(), Some(2));
}

#[test]
fn stop_drains_and_returns_when_the_site_is_gone() {
    let mut site = site().start();
    let address = site.address("http");
    let output = site.playhouse(&["stop"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(site.process.wait().code(), Some(0));
    assert!(Wire::try_connect(address).is_err());
    assert!(!exists(&site.path("state/admin.sock")), "a stopped site leaves no socket file");
}

#[test]
fn a_second_run_on_the_same_state_directory_says_who_has_it() {
    let first = site().start();
    let output =
        playhouse().arg("run").arg(first.path("site.ron")).current_dir(first.path(".")).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let pid = first.process.pid().as_raw_nonzero().to_string();
    assert!(text(&output).contains(&pid), "pid {pid} in {}", text(&output));
    curl([&first.url("http", "/")]).expect(200);
}

#[test]
fn a_site_starts_again_after_it_was_killed_without_warning() {
    let site =
        site().listener("http", r#"(bind: "127.0.0.1:0")"#).listener("edge", r#"(bind: "unix:edge.sock")"#);
    let mut first = Process::start("playhouse", &mut site.command());
    let admin = Admin::new(site.path("state/admin.sock"));
    eventually("it is ready", || admin.ready());
    first.kill();
    assert!(exists(&site.path("state/admin.sock")));
    let again = site.start();
    curl([&again.url("http", "/")]).expect(200);
}

#[test]
fn serve_and_proxy_work_with_nothing_configured() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("public")).unwrap();
    std::fs::write(folder.path().join("public/hello.txt"), "hello\n").unwrap();
    let quick = |name: &str, what: &str| {
        let state = folder.path().join(name);
        let mut command = playhouse();
        command
            .args([name, what, "--bind", "127.0.0.1:0"])
            .arg("--state-dir")
            .arg(&state)
            .current_dir(folder.path());
        let mut process = Process::start(name, &mut command);
        let admin = Admin::new(state.join("admin.sock"));
        eventually("it is ready", || {
            if let Some(status) = process.ended() {
                panic!("{name}: {status}\n{}", process.output());
            }
            admin.ready()
        });
        let url = process.line("its URL", |line| {
            let (_, rest) = line.split_once("http://")?;
            Some(format!("http://{}", rest.split([' ', '/', '"']).next()?))
        });
        (process, url)
    };
    let (_files, url) = quick("serve", "public");
    assert_eq!(curl([&format!("{url}/hello.txt")]).expect(200).text(), "hello\n");
    let (_proxy, front) = quick("proxy", &url);
    assert_eq!(curl([&format!("{front}/hello.txt")]).expect(200).text(), "hello\n");
}

#[test]
fn echo_is_an_upstream_that_is_always_at_hand() {
    let mut command = playhouse();
    command.args(["echo", "--bind", "127.0.0.1:0"]);
    let mut echo = Process::start("echo", &mut command);
    let address = echo.line("its address", |line| {
        let (_, rest) = line.split_once("127.0.0.1:")?;
        let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
        Some(format!("127.0.0.1:{port}"))
    });
    let site = Site::new().server("up", &address).route(r#"(path: "/", to: Proxy("up"))"#).start();
    let answer =
        curl(["-H", "X-Mark: found", "--data", "what is sent", &site.url("http", "/some/path")]).expect(200);
    let said = answer.text();
    assert!(said.contains("/some/path") && said.contains("found") && said.contains("POST"), "{said}");
}

#[test]
fn the_quickstart_site_is_valid() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/quickstart/site.ron");
    let output = playhouse().args(["check", file]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn a_panic_is_a_line_of_the_log_with_its_backtrace_where_asked_for() {
    let site = site();
    let process = Process::start("playhouse", site.command().env("RUST_BACKTRACE", "1"));
    let admin = Admin::new(site.path("state/admin.sock"));
    eventually("it is ready", || admin.ready());
    admin.kill_and_see_it_back("instance-1/listeners/http", "panic");
    eventually("the backtrace is in the log", || {
        process.stderr().iter().any(|line| line.contains("the panic's backtrace"))
    });
    let log = process.stderr();
    for line in &log {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "not JSON: {line}");
    }
    assert!(log.iter().any(|line| line.contains("a part has panicked")), "{log:#?}");
}
