//! Programs that the site runs: node, uvicorn, gunicorn, and some that do not do what they should.

use std::collections::BTreeSet;
use std::path::Path;

use playhouse_chaos::{Load, Protocol, Stream};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::stage::{balances, moves, stop};
use crate::harness::websocket::TEXT;
use crate::harness::{Running, Site, WebSocket, curl, eventually, eventually_some, exists, tool};

fn script(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/upstreams").join(name).display().to_string()
}

/// The program of `upstreams/app.js`, with further settings.
pub fn node(settings: &str) -> String {
    let (node, script) = (tool("node", "nodejs").display().to_string(), script("app.js"));
    format!("(command: [\"{node}\", \"{script}\"], {settings})")
}

/// A site that forwards everything to the app `blog`.
pub fn blog(app: impl AsRef<str>) -> Site {
    Site::new()
        .field(format!("apps: {{ \"blog\": {} }}", app.as_ref()))
        .route("(path: \"/\", to: App(\"blog\"))")
}

pub fn app(site: &Running, name: &str) -> Value {
    let status = site.admin.status();
    let apps = status["apps"].as_array().cloned().unwrap_or_default();
    apps.into_iter().find(|app| app["name"] == name).unwrap_or_default()
}

pub fn processes(site: &Running, state: &str) -> Vec<(u64, Pid)> {
    let app = app(site, "blog");
    let processes = app["processes"].as_array().cloned().unwrap_or_default();
    let of_state = processes.into_iter().filter(|process| process["state"] == state);
    let pid = |process: &Value| Pid::from_raw(process["pid"].as_i64()? as i32);
    of_state.filter_map(|process| Some((process["place"].as_u64()?, pid(&process)?))).collect()
}

/// The processes once so many serve, and there is no other.
#[track_caller]
pub fn serving(site: &Running, count: usize) -> BTreeSet<i32> {
    eventually_some(&format!("{count} processes serve, and there is no other"), || {
        let app = app(site, "blog");
        let all = app["processes"].as_array()?.len();
        let serving = processes(site, "serving");
        let pids = serving.iter().map(|(_, pid)| pid.as_raw_nonzero().get()).collect();
        (serving.len() == count && all == count).then_some(pids)
    })
}

pub fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
    state.is_some_and(|state| state != "Z")
}

/// Processes of apps of the site with this state directory, written down or not, by their environment: those that lead a
/// group.
pub fn started_for(state_dir: &Path) -> Vec<i32> {
    let mark = format!("PLAYHOUSE_APPS={}", state_dir.join("apps").display());
    let mut pids = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes()) && group(pid) > 0
        {
            pids.push(pid);
        }
    }
    pids
}

/// Those that run in the group of this leader.
pub fn group(leader: i32) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    let is_member = |stat: &String| {
        let fields: Vec<_> =
            stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
        fields.get(2) == Some(&&*leader.to_string()) && fields[0] != "Z"
    };
    stats.filter(is_member).count()
}

pub fn load(site: &Running) -> playhouse_chaos::Running {
    Load::new(site.address("http"))
        .stream(Stream::echo_id(Protocol::Http1KeepAlive, "/id/").name("kept").concurrency(4))
        .stream(Stream::echo_id(Protocol::Http1NewConnection, "/id/").name("new").concurrency(2))
        .stream(Stream::echo_id(Protocol::Http2 { streams: 4 }, "/id/").name("h2"))
        .start()
        .expect("the load starts")
}

/// Requests of [`load`] in flight at most.
pub const IN_FLIGHT: u64 = 4 + 2 + 4;

/// Does something under load, and loses no request by it.
#[track_caller]
pub fn loses_nothing(
    site: &mut Running,
    what: &str,
    act: impl FnOnce(&mut Running, &playhouse_chaos::Running),
) {
    let before = site.admin.settled_ledger();
    let load = load(site);
    moves(&load, 100);
    act(site, &load);
    moves(&load, 100);
    let report = stop(load);
    assert!(report.is_clean(), "{what}: {report}\n{}", site.process.output());
    balances(site, before, &report, what);
}

#[test]
fn each_process_listens_where_it_is_told() {
    let folder =
        "dir: \"blog\", processes: 2, health: (path: \"/\"), env: {\"TOLD\": \"{name} {place} ${x}\"}";
    let site = blog(node(&format!("{folder}, listen: Socket"))).file("blog/empty", "").start();
    serving(&site, 2);
    let places: BTreeSet<String> = (0..20)
        .map(|_| {
            let answer = curl([&*site.url("http", "/env")]).expect(200);
            let env: Value = serde_json::from_slice(&answer.body).unwrap();
            let place = env["place"].as_str().unwrap().to_owned();
            assert_eq!((&env["app"], &env["port"]), (&"blog".into(), &Value::Null));
            assert_eq!(env["told"], format!("blog {place} ${{x}}"));
            assert!(env["socket"].as_str().unwrap().ends_with(&format!("state/apps/blog-{place}.sock")));
            assert!(env["cwd"].as_str().unwrap().ends_with("/blog"));
            place
        })
        .collect();
    assert_eq!(places.len(), 2);
    let text = site.admin.metrics();
    for line in [
        "playhouse_app_processes{app=\"blog\",state=\"serving\"} 2\n",
        "playhouse_app_starts_total{app=\"blog\"} 2\n",
        "playhouse_upstream_healthy{upstream=\"app:blog\",server=\"blog-1\"} 1\n",
    ] {
        assert!(text.contains(line), "no {line} in {text}");
    }
    assert!(site.admin.metric("playhouse_upstream_requests_total", &["upstream=\"app:blog\""]) >= 20.0);
}

#[test]
fn what_a_process_writes_is_in_the_log_and_cannot_color_it() {
    let mut site = blog(node("")).start();
    let answer = curl([&*site.url("http", "/env")]).expect(200);
    let env: Value = serde_json::from_slice(&answer.body).unwrap();
    assert!(env["port"].is_string() && env["socket"].is_null(), "{env}");
    let line = site
        .process
        .line("the app's line", |line| line.contains("app blog begins in place 1").then(|| line.to_owned()));
    assert!(line.contains("stdout") && line.contains("blog"), "{line}");
    let red = site.process.line("the other line", |line| line.contains("31mred").then(|| line.to_owned()));
    assert!(red.contains("stderr") && !red.contains("\u{1b}[31m"), "{red:?}");
}

#[test]
fn python_servers_are_run_on_their_sockets() {
    let uvicorn = tool("uvicorn", "uvicorn (with pip)").display().to_string();
    let gunicorn = tool("gunicorn", "gunicorn and django (with pip)").display().to_string();
    let here = script("");
    let site = Site::new()
        .field(format!(
            "apps: {{
                \"asgi\": (command: [\"{uvicorn}\", \"--uds\", \"{{socket}}\", \"--app-dir\", \"{here}\", \"asgi:app\"],
                           processes: 2, health: (path: \"/hello\")),
                \"django\": (command: [\"{gunicorn}\", \"--bind\", \"unix:{{socket}}\", \"--workers\", \"2\", \"--chdir\", \"{here}\",
                             \"--no-control-socket\", \"django_site:application\"],
                             env: {{\"PYTHONDONTWRITEBYTECODE\": \"1\"}}, health: (path: \"/hello/\")),
            }}"
        ))
        .route("(path: \"/asgi/\", to: App(app: \"asgi\", strip_prefix: true))")
        .route("(path: \"/\", to: App(\"django\"))")
        .start();
    assert_eq!(curl([&*site.url("http", "/asgi/hello")]).expect(200).text(), "hello from uvicorn\n");
    assert_eq!(curl([&*site.url("http", "/hello/")]).expect(200).text(), "hello from django\n");
    let leader = app(&site, "django")["processes"][0]["pid"].as_i64().unwrap() as i32;
    assert!(group(leader) >= 2, "a master and its workers");
    let output = site.playhouse(&["restart", "asgi"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(curl([&*site.url("http", "/asgi/hello")]).expect(200).text(), "hello from uvicorn\n");
    site.process.signal(Signal::TERM);
    eventually("master and workers have ended", || group(leader) == 0);
}

#[test]
fn a_websocket_stays_with_its_process_until_that_has_to_end() {
    let (uvicorn, here) = (tool("uvicorn", "uvicorn (with pip)").display().to_string(), script(""));
    let site = blog(format!(
        "(command: [\"{uvicorn}\", \"--uds\", \"{{socket}}\", \"--app-dir\", \"{here}\", \"asgi:app\"],
          health: (path: \"/hello\"), stop_timeout: \"2s\")"
    ))
    .start();
    let old = *serving(&site, 1).first().unwrap();
    let mut socket = WebSocket::open(site.address("http"), "/ws");
    let mut echoes = |text: &str| {
        assert_eq!(socket.send(TEXT, text).read(), (TEXT, text.as_bytes().to_vec()));
    };
    echoes("before");
    let restart = {
        let admin = site.admin.clone();
        std::thread::spawn(move || admin.post("/v1/restart", &serde_json::json!({"app": "blog"})))
    };
    eventually("its process gets no more requests", || !processes(&site, "leaving").is_empty());
    echoes("while it leaves");
    let code = socket.read_close();
    assert!([1001, 1012].contains(&code), "the program says goodbye when it is told to end: {code}");
    assert_eq!(restart.join().unwrap().status, 200);
    assert!(!is_alive(old) && serving(&site, 1).first() != Some(&old));
}

#[test]
fn a_program_that_fails_at_once_is_said_to_and_nobody_waits_for_it() {
    let site = blog("(command: [\"sh\", \"-c\", \"echo broken >&2; exit 3\"])").start();
    let failing = || app(&site, "blog")["state"] == "failing";
    eventually("it is started less and less often", || {
        failing() && app(&site, "blog")["failures"].as_u64() > Some(3)
    });
    let why = app(&site, "blog")["last_failure"].as_str().unwrap_or_default().to_owned();
    assert!(why.contains("exited with status 3"), "{why}");
    assert_eq!(curl([&*site.url("http", "/")]).expect(503).header("retry-after"), "1");
    let shown = site.playhouse(&["status", "--json"]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("exited with status 3"), "{shown:?}");
    let missing = blog("(command: [\"./not-there\"])").start();
    eventually("what cannot be started is said to", || {
        app(&missing, "blog")["last_failure"].as_str().is_some_and(|why| why.contains("did not start"))
    });
}

#[test]
fn a_program_that_never_becomes_ready_is_ended_and_started_again() {
    let site = blog("(command: [\"sleep\", \"600\"], ready_timeout: \"300ms\")").start();
    let first = eventually_some("it was started", || processes(&site, "starting").first().copied()).1;
    assert_eq!(curl([&*site.url("http", "/")]).status, 503);
    eventually("it is ended", || !is_alive(first.as_raw_nonzero().get()));
    eventually("another is started", || app(&site, "blog")["started"].as_u64() > Some(1));
    let why = app(&site, "blog")["last_failure"].as_str().unwrap_or_default().to_owned();
    assert!(why.contains("was not ready within 300ms"), "{why}");
}

#[test]
fn a_whole_process_group_ends_and_nothing_is_left() {
    let (node, script) = (tool("node", "nodejs").display().to_string(), script("app.js"));
    let command = format!("sleep 600 & sleep 600 & exec {node} {script}");
    let mut site =
        blog(format!("(command: [\"sh\", \"-c\", \"{command}\"], listen: Socket, stop_timeout: \"500ms\")"))
            .start();
    let leader = *serving(&site, 1).first().unwrap();
    assert_eq!(group(leader), 3);
    // What it has started goes with it, though it would go on by itself.
    curl([&*site.url("http", "/crash")]);
    eventually("its children have ended", || group(leader) == 0);
    let next = *serving(&site, 1).first().unwrap();
    assert!(next != leader && group(next) == 3);
    site.stop();
    assert!(site.process.wait().success(), "{}", site.process.output());
    assert_eq!(group(next), 0);
    assert!(!is_alive(next) && !exists(&site.path("state/apps")));
}

#[test]
fn a_site_that_was_killed_leaves_nothing_to_the_next() {
    let mut site = blog(node("processes: 2, listen: Socket")).start();
    let left = serving(&site, 2);
    site.replace();
    let now = serving(&site, 2);
    assert!(now.is_disjoint(&left));
    eventually("those before have ended", || left.iter().all(|pid| !is_alive(*pid)));
    curl([&*site.url("http", "/")]).expect(200);
}

#[test]
fn a_process_that_is_killed_costs_what_it_was_answering() {
    let mut site = blog(node("processes: 3, listen: Socket")).start();
    serving(&site, 3);
    let before = site.admin.settled_ledger();
    let load = load(&site);
    let kills = 6;
    for _ in 0..kills {
        moves(&load, 200);
        let victim = serving(&site, 3).into_iter().next().unwrap();
        kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL).unwrap();
        eventually("it is known", || {
            !processes(&site, "serving").iter().any(|(_, pid)| pid.as_raw_nonzero().get() == victim)
        });
    }
    serving(&site, 3);
    moves(&load, 200);
    let report = stop(load);
    let counts = report.counts;
    assert!(counts.failed() <= kills * IN_FLIGHT, "{report}");
    assert_eq!(counts.failed(), counts.status, "each was answered: {report}");
    assert!(report.statuses.keys().all(|status| *status == 502), "{report}");
    balances(&site, before, &report, "kill -9");
    assert_eq!(app(&site, "blog")["failures"].as_u64(), Some(kills));
    // With a single one, those that come while there is none wait for the next.
    site.edit(|site| site.field(format!("apps: {{ \"blog\": {} }}", node("listen: Socket")))).reload();
    let only = *serving(&site, 1).first().unwrap();
    kill_process(Pid::from_raw(only).unwrap(), Signal::KILL).unwrap();
    curl([&*site.url("http", "/pid")]).expect(200);
}

#[test]
fn a_process_that_an_operator_kills_is_counted_and_started_at_once() {
    let site = blog(node("listen: Socket, ready_timeout: \"20s\"")).start();
    for round in 1..=4 {
        let victim = *serving(&site, 1).first().unwrap();
        let output = site.playhouse(&["kill", "instance-1/apps/blog/place-1", "--how", "sigkill"]);
        assert!(output.status.success(), "{output:?}");
        eventually("another serves", || !serving(&site, 1).contains(&victim));
        let app = app(&site, "blog");
        assert_eq!((&app["failures"], &app["last_failure"]), (&round.into(), &Value::Null), "{app}");
    }
    let output = site.playhouse(&["kill", "instance-1/apps/blog/place-7", "--how", "sigkill"]);
    assert!(!output.status.success(), "{output:?}");
}

#[test]
fn a_rolling_restart_loses_no_request() {
    for listen in ["Socket", "Port"] {
        let mut site = blog(node(&format!("processes: 2, health: \"/\", listen: {listen}"))).start();
        let before = serving(&site, 2);
        loses_nothing(&mut site, listen, |site, load| {
            for _ in 0..2 {
                let output = site.playhouse(&["restart", "blog"]);
                assert!(output.status.success(), "{output:?}\n{}", site.process.output());
                moves(load, 100);
            }
        });
        assert!(serving(&site, 2).is_disjoint(&before));
    }
    let site = blog(node("")).start();
    let output = site.playhouse(&["restart", "blgo"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("blog"), "{output:?}");
}

#[test]
fn a_restart_that_fails_leaves_what_serves() {
    let site = Site::new();
    let program = site.path("program.js");
    std::fs::copy(script("app.js"), &program).unwrap();
    let node = tool("node", "nodejs").display().to_string();
    let site = site
        .field(format!("apps: {{ \"blog\": (command: [\"{node}\", \"program.js\"], processes: 2) }}"))
        .route("(path: \"/\", to: App(\"blog\"))")
        .start();
    let before = serving(&site, 2);
    site.write("program.js", "process.exit(9)");
    let output = site.playhouse(&["restart", "blog"]);
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("exited with status 9") && said.contains("go on"), "{said}");
    assert_eq!(serving(&site, 2), before);
    curl([&*site.url("http", "/")]).expect(200);
}

#[test]
fn a_slow_request_is_finished_by_the_process_that_is_replaced() {
    let site = blog(node("listen: Socket")).start();
    serving(&site, 1);
    let url = site.url("http", "/slow");
    let slow = std::thread::spawn(move || curl([&*url]));
    eventually("it is in flight", || app(&site, "blog")["processes"][0]["in_flight"] == 1);
    assert!(site.playhouse(&["restart", "blog"]).status.success());
    assert_eq!(slow.join().unwrap().expect(200).text(), "slow");
}

#[test]
fn what_has_had_enough_is_replaced_without_a_loss() {
    let mut site = blog(node("processes: 2, listen: Socket, max_requests: 100")).start();
    let before = serving(&site, 2);
    loses_nothing(&mut site, "max_requests", |site, load| {
        eventually("more processes than two have been started", || {
            app(site, "blog")["started"].as_u64() > Some(5)
        });
        moves(load, 100);
    });
    assert!(serving(&site, 2).is_disjoint(&before));
    assert_eq!(app(&site, "blog")["failures"], 0);

    let site = blog(node("max_memory: \"150MiB\"")).start();
    let greedy = *serving(&site, 1).first().unwrap();
    curl([&*site.url("http", "/grow")]).expect(200);
    eventually("it is replaced", || !serving(&site, 1).contains(&greedy));
    assert!(!is_alive(greedy));
    eventually("it is said", || site.admin.events().contains("MiB of memory"));
}

#[test]
fn an_idle_app_is_stopped_and_started_by_the_next_request() {
    let site = blog(node("processes: 2, listen: Socket, idle_stop: \"2s\"")).start();
    let pids = serving(&site, 2);
    eventually("it is stopped", || {
        let app = app(&site, "blog");
        app["state"] == "idle" && app["processes"].as_array().is_some_and(Vec::is_empty)
    });
    assert!(pids.iter().all(|pid| !is_alive(*pid)));
    let waiting: Vec<_> = (0..8)
        .map(|_| {
            let url = site.url("http", "/slow");
            std::thread::spawn(move || curl([&*url]))
        })
        .collect();
    waiting.into_iter().for_each(|request| drop(request.join().unwrap().expect(200)));
    assert!(site.admin.ledger().upstream_failed == 0);
}

#[test]
fn a_reload_replaces_what_it_changes_and_ends_what_it_takes_out() {
    let both = |told: &str, more: &str| {
        let blog = node(&format!("processes: 2, listen: Socket, env: {{\"TOLD\": \"{told}\"}}"));
        format!("apps: {{ \"blog\": {blog}, {more} }}")
    };
    let other = format!("\"other\": {}", node("listen: Socket"));
    let mut site = blog("()").field(both("a", &other)).start();
    let before = serving(&site, 2);
    let pid = |site: &Running| app(site, "other")["processes"][0]["pid"].as_i64();
    let kept = eventually_some("the other runs", || pid(&site).filter(|pid| *pid > 0));
    loses_nothing(&mut site, "reload", |site, load| {
        site.edit(|site| site.field(both("b", &other)));
        let planned = site.playhouse(&["plan"]);
        assert!(String::from_utf8_lossy(&planned.stdout).contains("apps.blog"), "{planned:?}");
        site.reload();
        eventually("each process is another", || serving(site, 2).is_disjoint(&before));
        moves(load, 50);
    });
    let env: Value = serde_json::from_slice(&curl([&*site.url("http", "/env")]).expect(200).body).unwrap();
    assert_eq!((&env["told"], pid(&site)), (&"b".into(), Some(kept)));
    assert!(exists(&site.path("state/apps/other-1.sock")));
    site.edit(|site| site.field(both("b", ""))).reload();
    eventually("the other has ended", || !is_alive(kept as i32) && app(&site, "other").is_null());
    eventually("its actors are gone", || site.admin.node("instance-1/apps/other").is_none());
    assert!(!exists(&site.path("state/apps/other-1.sock")));
    site.edit(|site| site.field(both("b", &other))).reload();
    eventually("it is back", || pid(&site).is_some_and(|pid| pid > 0 && pid != kept));
    assert!(site.admin.node("instance-1/apps/other/manager").is_some());
}

#[test]
fn killing_what_looks_after_an_app_costs_no_request_and_no_process() {
    let mut site =
        blog(node("processes: 2, health: (path: \"/\", interval: \"100ms\"), listen: Socket")).start();
    let pids = serving(&site, 2);
    loses_nothing(&mut site, "kills", |site, load| {
        for how in ["stop", "kill", "panic"] {
            for actor in ["blog/pool", "blog/health", "blog/manager", "blog/place-1", "blog", ""] {
                let path = format!("instance-1/apps/{actor}");
                site.admin.kill_and_see_it_back(path.trim_end_matches('/'), how);
                moves(load, 20);
            }
        }
        let output = site.playhouse(&["restart", "blog"]);
        assert!(output.status.success(), "{output:?}");
    });
    assert!(serving(&site, 2).is_disjoint(&pids));
    assert_eq!(app(&site, "blog")["failures"], 0);
    // In the middle of a start and of an end, too.
    loses_nothing(&mut site, "kills in a restart", |site, _| {
        let restart = {
            let admin = site.admin.clone();
            std::thread::spawn(move || admin.post("/v1/restart", &serde_json::json!({"app": "blog"})))
        };
        while !restart.is_finished() {
            for actor in ["blog/place-1", "blog/place-2", "blog/place-3", "blog/manager", "blog"] {
                site.admin.try_kill(&format!("instance-1/apps/{actor}"), "kill");
                site.admin.status();
            }
        }
        assert_eq!(restart.join().unwrap().status, 200);
    });
    serving(&site, 2);
    site.stop();
    assert!(site.process.wait().success(), "{}", site.process.output());
}

#[test]
fn only_root_starts_programs_as_others() {
    let site = blog("(command: [\"id\"], user: \"nobody-of-this-name\")");
    let mut process = crate::harness::Process::start("playhouse", &mut site.command());
    assert!(!process.wait().success());
    let said = process.output();
    assert!(said.contains("no user") || said.contains("only root"), "{said}");
}
