//! The programs of `examples/apps`, run and killed: Express, FastAPI under uvicorn, Django under gunicorn.

use std::path::{Path, PathBuf};
use std::time::Duration;

use playhouse_chaos::{Body, Exchange, Expect, Load, Protocol, Stream};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::stage::{balances, moves, stop};
use crate::harness::{Running, Site, curl, eventually, eventually_some, exists, full, playhouse, tool};
use crate::managed::{app, group, is_alive};

const APPS: [&str; 3] = ["express", "fastapi", "django"];

fn example(folder: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/apps").join(folder).display().to_string()
}

/// Where scripts/test installs what `examples/apps/express/package.json` wants.
fn node_modules() -> String {
    let beside_python =
        || Some(PathBuf::from(std::env::var_os("PLAYHOUSE_TEST_VENV")?).with_file_name("test-node"));
    let folder = std::env::var_os("PLAYHOUSE_TEST_NODE")
        .map(PathBuf::from)
        .or_else(beside_python)
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target/test-node"));
    let modules = folder.join("node_modules");
    assert!(modules.join("express").is_dir(), "express is missing: scripts/test installs it");
    modules.display().to_string()
}

/// The three as in the example's site, with what the tests have installed.
fn site(processes: &str, more: &str) -> Site {
    let program = |name: &str, package: &str| tool(name, package).display().to_string();
    let (node, uvicorn, gunicorn) = (
        program("node", "nodejs"),
        program("uvicorn", "uvicorn (with pip)"),
        program("gunicorn", "gunicorn (with pip)"),
    );
    let common = format!("processes: {processes}, health: (path: \"/healthz\"), {more}");
    let apps = format!(
        "apps: {{
            \"express\": (command: [\"{node}\", \"server.js\"], dir: \"{}\", listen: Socket,
                          env: {{\"NODE_ENV\": \"production\", \"NODE_PATH\": \"{}\"}}, {common}),
            \"fastapi\": (command: [\"{uvicorn}\", \"--uds\", \"{{socket}}\", \"--no-access-log\", \"main:app\"], dir: \"{}\",
                          env: {{\"PYTHONUNBUFFERED\": \"1\", \"PYTHONDONTWRITEBYTECODE\": \"1\"}}, {common}),
            \"django\": (command: [\"{gunicorn}\", \"--bind\", \"unix:{{socket}}\", \"--workers\", \"2\", \"--no-control-socket\",
                                   \"site_in_a_file:application\"], dir: \"{}\",
                         env: {{\"PYTHONDONTWRITEBYTECODE\": \"1\"}}, {common}),
        }}",
        example("express"),
        node_modules(),
        example("fastapi"),
        example("django"),
    );
    APPS.iter().fold(Site::new().field(apps), |site, app| {
        site.route(format!("(path: \"/{app}/\", to: App(app: \"{app}\", strip_prefix: true))"))
    })
}

/// The processes of an app that serve.
fn serving(site: &Running, name: &str) -> Vec<Pid> {
    let app = app(site, name);
    let processes = app["processes"].as_array().cloned().unwrap_or_default();
    let serving = processes.iter().filter(|process| process["state"] == "serving");
    serving.filter_map(|process| Pid::from_raw(process["pid"].as_i64()? as i32)).collect()
}

#[track_caller]
fn all_serve(site: &Running, count: usize) {
    eventually("all processes of all apps serve", || {
        APPS.iter().all(|name| {
            let all = app(site, name)["processes"].as_array().map_or(0, Vec::len);
            all == count && serving(site, name).len() == count
        })
    });
}

/// Reads and writes to each of the three, so many at once.
fn load(site: &Running) -> playhouse_chaos::Running {
    let streams = APPS.iter().flat_map(|app| {
        let body = Body::Pattern { seed: 3, length: 20_000 };
        let post = Exchange::post(format!("/{app}/echo"), body, Expect::pattern(3, 20_000));
        let ids = format!("/{app}/id/");
        [
            Stream::echo_id(Protocol::Http1KeepAlive, &ids).name(format!("{app} kept")).concurrency(2),
            Stream::echo_id(Protocol::Http2 { streams: 2 }, &ids).name(format!("{app} h2")),
            Stream::repeat(Protocol::Http1KeepAlive, post).name(format!("{app} posts")),
        ]
    });
    let load = Load::new(site.address("http"));
    streams.fold(load, Load::stream).start().expect("the load starts")
}

/// Of [`load`], with one app.
const IN_FLIGHT: u64 = 2 + 2 + 1;

/// Of these, what one of two processes has at most: a request goes to the one that has fewer, so it is given its last when it has
/// no more than the other.
const OF_ONE: u64 = IN_FLIGHT.div_ceil(2);

/// One process every second, under load.
#[track_caller]
fn one_is_killed_every_second(site: &Running) {
    all_serve(site, 2);
    let before = site.admin.settled_ledger();
    let load = load(site);
    moves(&load, 300);
    let kills = if full() { 60 } else { 9 };
    for number in 0..kills {
        let name = APPS[number % APPS.len()];
        eventually("two of them share its requests", || serving(site, name).len() == 2);
        // The second is the test's subject.
        std::thread::sleep(Duration::from_secs(1));
        let victim = eventually_some("a process serves", || serving(site, name).first().copied());
        kill_process(victim, Signal::KILL).expect("a process of the site can be killed");
    }
    all_serve(site, 2);
    moves(&load, 300);
    let report = stop(load);
    let counts = report.counts;
    println!("{kills} kills: {report}");
    assert!(counts.failed() <= kills as u64 * OF_ONE, "{report}");
    assert!(report.statuses.keys().all(|status| *status == 502), "{report}");
    balances(site, before, &report, "one a second");
    let failures: u64 = APPS.iter().filter_map(|name| app(site, name)["failures"].as_u64()).sum();
    assert_eq!(failures, kills as u64);
}

#[test]
fn the_example_is_a_valid_site() {
    let output = playhouse().arg("check").arg(example("site.ron")).output().expect("playhouse runs");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn each_answers_and_is_restarted_without_a_loss() {
    let mut site = site("2", "ready_timeout: \"60s\"").start();
    all_serve(&site, 2);
    for name in APPS {
        let hello = curl([&*site.url("http", &format!("/{name}/"))]).expect(200);
        assert_eq!(hello.text(), format!("hello from {name}\n"));
    }
    let before = site.admin.settled_ledger();
    let load = load(&site);
    moves(&load, 300);
    for name in APPS {
        let old = serving(&site, name);
        let output = site.playhouse(&["restart", name]);
        assert!(output.status.success(), "{output:?}\n{}", site.process.output());
        assert!(serving(&site, name).iter().all(|pid| !old.contains(pid)));
        moves(&load, 100);
    }
    let report = stop(load);
    assert!(report.is_clean(), "{report}");
    balances(&site, before, &report, "restarts");
    let leaders: Vec<i32> =
        APPS.iter().flat_map(|name| serving(&site, name)).map(|pid| pid.as_raw_nonzero().get()).collect();
    site.stop();
    assert!(site.process.wait().success(), "{}", site.process.output());
    assert!(leaders.iter().all(|leader| !is_alive(*leader) && group(*leader) == 0));
    assert!(!exists(&site.path("state/apps")));
}

#[test]
fn in_one_process_one_killed_every_second_costs_what_it_was_answering() {
    one_is_killed_every_second(&site("2", "ready_timeout: \"60s\"").start());
}

#[test]
fn behind_two_instances_one_killed_every_second_costs_what_it_was_answering() {
    let site = site("2", "ready_timeout: \"60s\"").field("instances: (min: 2, max: 3)").start();
    site.active(2);
    one_is_killed_every_second(&site);
}
