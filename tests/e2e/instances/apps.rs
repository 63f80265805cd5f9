//! Apps that the controller runs for its instances: they outlive both.

use std::collections::BTreeSet;

use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use super::{drained_without_loss, gone, rounds, signal, with_instances};
use crate::harness::stage::{balances, moves, stop};
use crate::harness::{Process, Running, curl, eventually, exists, playhouse};
use crate::managed::{IN_FLIGHT, app, blog, group, is_alive, load, loses_nothing, node, processes, serving};

/// Two instances and a third to come, and the app `blog` behind them.
fn site(settings: &str) -> Running {
    let site = with_instances(blog(node(settings)), 2, 3).start();
    site.active(2);
    site
}

fn pid(raw: i32) -> Pid {
    Pid::from_raw(raw).expect("a process number")
}

#[test]
fn the_controller_runs_them_and_every_instance_sends_requests_there() {
    let mut site = site("processes: 2, health: (path: \"/\", interval: \"100ms\"), listen: Socket");
    let before = serving(&site, 2);
    let places: BTreeSet<String> = (0..40)
        .map(|_| {
            let env: Value =
                serde_json::from_slice(&curl([&*site.url("http", "/env")]).expect(200).body).unwrap();
            env["place"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(places.len(), 2);
    for actor in ["manager", "health", "place-1", "place-2"] {
        let path = format!("controller/apps/blog/{actor}");
        assert!(site.admin.node(&path).is_some(), "no {path}");
    }
    assert!(site.admin.node("controller/apps/blog/pool").is_none());
    let instance = site.instances()[0].name.clone();
    assert!(site.admin.node(&format!("{instance}/upstreams/app:blog/pool")).is_some());
    let text = site.admin.metrics();
    for line in [
        "playhouse_app_processes{app=\"blog\",state=\"serving\"} 2\n",
        "playhouse_app_starts_total{app=\"blog\"} 2\n",
    ] {
        assert!(text.contains(line), "no {line} in {text}");
    }
    loses_nothing(&mut site, "restart", |site, load| {
        for _ in 0..2 {
            let output = site.playhouse(&["restart", "blog"]);
            assert!(output.status.success(), "{output:?}\n{}", site.process.output());
            moves(load, 100);
        }
    });
    assert!(serving(&site, 2).is_disjoint(&before));
    let requests = || {
        let processes = app(&site, "blog")["processes"].as_array().cloned().unwrap_or_default();
        processes.iter().filter_map(|process| process["requests"].as_u64()).sum::<u64>()
    };
    eventually("what instances count comes to the controller", || requests() > 50);
    assert_eq!(app(&site, "blog")["failures"], 0);
    site.stop();
    assert!(site.process.wait().success(), "{}", site.process.output());
    assert!(!exists(&site.path("state/apps")));
}

#[test]
fn a_killed_controller_costs_nothing_and_the_next_goes_on_with_the_same_processes() {
    let mut site = site("processes: 2, listen: Socket, env: {\"CHATTY\": \"1\"}");
    let (instances, pids) = (site.active(2), serving(&site, 2));
    loses_nothing(&mut site, "SIGKILL of the controller", |site, load| {
        for _ in 0..rounds() {
            site.process.kill();
            // Far more than a pipe holds that nobody reads.
            moves(load, 3000);
            site.start_again();
            assert_eq!(serving(site, 2), pids, "{}", site.process.output());
        }
        assert_eq!(site.active(2), instances);
        let output = site.playhouse(&["restart", "blog"]);
        assert!(output.status.success(), "{output:?}\n{}", site.process.output());
    });
    let fresh = serving(&site, 2);
    assert!(fresh.is_disjoint(&pids) && pids.iter().all(|old| !is_alive(*old)));
    // Processes that end while nobody looks are found to have ended, and what they write comes to the log of the next.
    site.process.kill();
    let victim = *fresh.first().unwrap();
    signal(pid(victim), Signal::KILL);
    site.start_again();
    let now = serving(&site, 2);
    assert!(!now.contains(&victim) && now.intersection(&fresh).count() == 1, "{now:?} after {fresh:?}");
    curl([&*site.url("http", "/id/heard")]).expect(200);
    site.process.line("what the app writes", |line| line.contains("asked for /id/heard").then_some(()));
    site.stop();
    assert!(site.process.wait().success(), "{}", site.process.output());
    assert!(now.iter().all(|pid| !is_alive(*pid)) && !exists(&site.path("state/apps")));
}

#[test]
fn what_they_write_while_there_is_no_controller_is_in_the_log_of_an_instance() {
    let mut site = site("listen: Socket, env: {\"CHATTY\": \"1\"}");
    serving(&site, 1);
    let url = site.url("http", "/id/alone");
    site.process.kill();
    eventually("an instance has written it to the same log", || {
        curl([&*url]).expect(200);
        site.process.stderr().iter().any(|line| line.contains("asked for /id/alone"))
    });
}

#[test]
fn a_process_that_is_killed_costs_what_it_was_answering() {
    let site = site("processes: 3, listen: Socket");
    serving(&site, 3);
    let before = site.admin.settled_ledger();
    let load = load(&site);
    let kills = 6;
    for number in 0..kills {
        moves(&load, 200);
        let victim = serving(&site, 3).into_iter().next().unwrap();
        if number % 2 == 0 {
            signal(pid(victim), Signal::KILL);
        } else {
            let all = processes(&site, "serving");
            let place = all.iter().find(|(_, pid)| pid.as_raw_nonzero().get() == victim).unwrap().0;
            let path = format!("controller/apps/blog/place-{place}");
            let output = site.playhouse(&["kill", &path, "--how", "sigkill"]);
            assert!(output.status.success(), "{output:?}");
        }
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
}

#[test]
fn a_process_outlives_every_instance() {
    let mut site = site("processes: 2, listen: Port");
    let pids = serving(&site, 2);
    let before = site.admin.settled_ledger();
    let load = load(&site);
    let mut killed = 0;
    for _ in 0..2 {
        moves(&load, 100);
        let instances = site.active(2);
        for victim in instances {
            signal(victim, Signal::KILL);
            gone(victim);
            killed += 1;
            site.active(2);
            moves(&load, 50);
        }
    }
    assert_eq!(serving(&site, 2), pids);
    // What the dead had in flight is not waited for.
    let output = site.playhouse(&["restart", "blog"]);
    assert!(output.status.success(), "{output:?}");
    let report = stop(load);
    assert!(report.counts.failed() <= killed * IN_FLIGHT, "{report}");
    balances(&site, before, &report, "instances die");
    // Nor is anything of a roll of them.
    let now = serving(&site, 2);
    loses(&mut site, |site, load| {
        let old = site.active(2);
        let output = site.playhouse(&["upgrade"]);
        assert!(output.status.success(), "{output:?}");
        eventually("other instances serve", || {
            let instances = site.instances();
            instances.len() == 2
                && instances.iter().all(|new| new.state == "active" && !old.contains(&new.pid))
        });
        moves(load, 100);
        assert_eq!(serving(site, 2), now, "an upgrade keeps the processes of apps");
    });
}

/// Does something under load that drains connections, and loses no request by it.
#[track_caller]
fn loses(site: &mut Running, act: impl FnOnce(&mut Running, &playhouse_chaos::Running)) {
    let before = site.admin.settled_ledger();
    let load = load(site);
    moves(&load, 100);
    act(site, &load);
    moves(&load, 100);
    let report = stop(load);
    drained_without_loss(&report);
    balances(site, before, &report, "drains");
}

#[test]
fn there_are_as_many_as_all_instances_together_have_work_for() {
    let site = site("processes: (1, 3), busy_at: 2, listen: Socket");
    serving(&site, 1);
    let url = site.url("http", "/slow");
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let (url, stop) = (url.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    curl([&*url]).expect(200);
                }
            })
        })
        .collect();
    serving(&site, 3);
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
}

#[test]
fn an_idle_app_is_started_by_a_request_to_any_instance() {
    let site = site("processes: 2, listen: Socket, idle_stop: \"2s\"");
    let pids = serving(&site, 2);
    let idle = || {
        let app = app(&site, "blog");
        app["state"] == "idle" && app["processes"].as_array().is_some_and(Vec::is_empty)
    };
    for _ in 0..2 {
        eventually("it is stopped", idle);
        assert!(pids.iter().all(|pid| !is_alive(*pid)));
        let waiting: Vec<_> = (0..8)
            .map(|_| {
                let url = site.url("http", "/slow");
                std::thread::spawn(move || curl([&*url]))
            })
            .collect();
        waiting.into_iter().for_each(|request| drop(request.join().unwrap().expect(200)));
    }
    assert!(site.admin.ledger().upstream_failed == 0);
}

#[test]
fn a_reload_brings_apps_changes_them_and_takes_them_away() {
    let both = |told: &str, more: &str| {
        let blog = node(&format!("processes: 2, listen: Socket, env: {{\"TOLD\": \"{told}\"}}"));
        format!("apps: {{ \"blog\": {blog}, {more} }}")
    };
    let other = format!("\"other\": {}", node("listen: Socket"));
    let route = "(path: \"/other/\", to: App(app: \"other\", strip_prefix: true))";
    let mut site = with_instances(blog("()").field(both("a", "")), 2, 3).start();
    site.active(2);
    let before = serving(&site, 2);
    loses_nothing(&mut site, "a reload that brings another", |site, _| {
        site.edit(|site| site.field(both("a", &other)).route(route)).reload();
    });
    curl([&*site.url("http", "/other/pid")]).expect(200);
    let kept = app(&site, "other")["processes"][0]["pid"].as_i64().unwrap() as i32;
    loses_nothing(&mut site, "reloads", |site, load| {
        assert_eq!(serving(site, 2), before);
        site.edit(|site| site.field(both("b", &other))).reload();
        eventually("each process is another", || serving(site, 2).is_disjoint(&before));
        moves(load, 50);
        site.edit(|site| {
            site.field(both("b", "")).without_routes().route("(path: \"/\", to: App(\"blog\"))")
        })
        .reload();
        eventually("the other has ended", || !is_alive(kept) && app(site, "other").is_null());
        eventually("its actors are gone", || site.admin.node("controller/apps/other").is_none());
        moves(load, 50);
    });
    let env: Value = serde_json::from_slice(&curl([&*site.url("http", "/env")]).expect(200).body).unwrap();
    assert_eq!(env["told"], "b");
    assert!(!exists(&site.path("state/apps/other-1.sock")));
}

#[test]
fn killing_what_looks_after_an_app_costs_no_request_and_no_process() {
    let mut site = site("processes: 2, health: (path: \"/\", interval: \"100ms\"), listen: Socket");
    let pids = serving(&site, 2);
    loses_nothing(&mut site, "kills", |site, load| {
        for how in ["stop", "kill", "panic"] {
            for actor in ["blog/health", "blog/manager", "blog/place-1", "blog", ""] {
                let path = format!("controller/apps/{actor}");
                site.admin.kill_and_see_it_back(path.trim_end_matches('/'), how);
                moves(load, 20);
            }
        }
        for instance in site.instances() {
            for actor in ["control", "upstreams/app:blog/pool", "app-output"] {
                site.admin.kill_and_see_it_back(&format!("{}/{actor}", instance.name), "kill");
                moves(load, 20);
            }
        }
        assert_eq!(serving(site, 2), pids);
        let output = site.playhouse(&["restart", "blog"]);
        assert!(output.status.success(), "{output:?}");
    });
    assert!(serving(&site, 2).is_disjoint(&pids));
    assert_eq!(app(&site, "blog")["failures"], 0);
}

#[test]
fn a_controller_that_ends_while_it_starts_or_ends_a_process_leaves_no_other_behind() {
    let mut site = site("processes: 2, listen: Socket");
    let mut all = serving(&site, 2);
    let url = site.url("http", "/pid");
    for place in ["app-start", "app-noted", "app-leave"] {
        site.process.kill();
        let mut command = playhouse();
        command.arg("run").arg(site.path("site.ron")).env("PLAYHOUSE_CRASH_AT", place);
        site.process = Process::start("a controller that crashes", command.current_dir(site.path(".")));
        eventually("it comes there", || {
            if site.process.ended().is_none() && site.admin.ready() {
                drop(site.playhouse(&["restart", "blog"]));
            }
            site.process.ended().is_some()
        });
        curl([&*url]).expect(200);
        site.start_again();
        let now = serving(&site, 2);
        all.extend(&now);
        eventually("there is no process that is nobody's", || {
            all.iter().filter(|pid| is_alive(**pid)).count() == 2
        });
        let marked = crate::managed::started_for(&site.state_dir());
        assert_eq!(marked.len(), 2, "{place}: {marked:?} but {now:?}");
    }
}

#[test]
fn a_site_that_is_stopped_without_its_controller_takes_its_apps_along() {
    let mut site = site("processes: 2, listen: Socket");
    let pids = serving(&site, 2);
    site.process.kill();
    let output = site.playhouse(&["stop"]);
    assert!(output.status.success(), "{output:?}");
    assert!(pids.iter().all(|pid| !is_alive(*pid) && group(*pid) == 0));
    assert!(!exists(&site.path("state/apps")));
}

#[test]
fn after_a_crash_of_everything_nothing_of_before_is_left() {
    let mut site = site("processes: 2, listen: Socket");
    let (instances, pids) = (site.active(2), serving(&site, 2));
    site.process.kill();
    instances.iter().for_each(|instance| signal(*instance, Signal::KILL));
    instances.iter().for_each(|instance| gone(*instance));
    site.start_again();
    eventually("they are replaced: nobody has held what they write to", || {
        pids.iter().all(|pid| !is_alive(*pid))
    });
    assert!(serving(&site, 2).is_disjoint(&pids));
    curl([&*site.url("http", "/pid")]).expect(200);
    let answer = site.admin.post("/v1/restart", &json!({"app": "blgo"}));
    assert_eq!(answer.status, 404);
}
