//! php-fpm as an app of the site: started, restarted and killed as any other.

use playhouse_chaos::{Load, Protocol, Stream};
use rustix::process::{Pid, Signal, geteuid, kill_process};

use super::root;
use crate::harness::stage::{balances, moves, stop};
use crate::harness::{Running, Site, curl, eventually, fpm_program, full};
use crate::managed::{app, group, is_alive, processes, serving};

/// A pool of four processes for each php-fpm.
fn site(processes: u32) -> Site {
    let (user, as_root) = match geteuid().is_root() {
        true => ("user = root\ngroup = root\n", ", \"--allow-to-run-as-root\""),
        false => ("", ""),
    };
    let configuration = format!(
        "[global]\nerror_log = /proc/self/fd/2\ndaemonize = no\n[www]\n{user}listen = ${{PLAYHOUSE_SOCKET}}\n\
         pm = static\npm.max_children = 4\nping.path = /ping\n"
    );
    let program = fpm_program().display().to_string();
    Site::new()
        .file("fpm/php-fpm.conf", configuration)
        .field(format!(
            "apps: {{ \"blog\": (
                command: [\"{program}\", \"--nodaemonize\", \"--fpm-config\", \"php-fpm.conf\"{as_root}], dir: \"fpm\",
                listen: Socket, processes: {processes}, health: \"/ping\") }}"
        ))
        .route(format!("(path: \"/\", to: FastCgi(app: \"blog\", root: \"{}\"))", root()))
}

fn load(site: &Running) -> playhouse_chaos::Running {
    Load::new(site.address("http"))
        .stream(Stream::echo_id(Protocol::Http1KeepAlive, "/id.php/").name("kept").concurrency(2))
        .stream(Stream::echo_id(Protocol::Http1NewConnection, "/id.php/").name("new").concurrency(2))
        .stream(Stream::echo_id(Protocol::Http2 { streams: 2 }, "/id.php/").name("h2"))
        .start()
        .expect("the load starts")
}

/// Of [`load`].
const IN_FLIGHT: u64 = 2 + 2 + 2;

#[test]
fn scripts_are_run_and_a_restart_loses_none() {
    let mut site = site(2).start();
    let mut pids = serving(&site, 2);
    assert_eq!(curl([&*site.url("http", "/id.php/7")]).expect(200).text(), "7");
    assert_eq!(curl([&*site.url("http", "/id.php/")]).expect(200).text(), "");
    assert!(pids.iter().all(|leader| group(*leader) == 5), "a master and its four");
    let before = site.admin.settled_ledger();
    let load = load(&site);
    for _ in 0..2 {
        moves(&load, 100);
        let output = site.playhouse(&["restart", "blog"]);
        assert!(output.status.success(), "{output:?}\n{}", site.process.output());
        let now = serving(&site, 2);
        assert!(now.is_disjoint(&pids) && pids.iter().all(|pid| !is_alive(*pid)));
        pids = now;
    }
    moves(&load, 100);
    let report = stop(load);
    assert!(report.is_clean(), "{report}\n{}", site.process.output());
    balances(&site, before, &report, "restarts");
    site.stop();
    assert!(site.process.wait().success(), "{}", site.process.output());
    assert!(pids.iter().all(|leader| group(*leader) == 0));
}

#[test]
fn one_that_is_killed_costs_what_it_was_running() {
    let site = site(2).start();
    serving(&site, 2);
    let before = site.admin.settled_ledger();
    let load = load(&site);
    let kills = if full() { 20 } else { 4 };
    for _ in 0..kills {
        moves(&load, 100);
        let victim = serving(&site, 2).into_iter().next().unwrap();
        kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL).unwrap();
        eventually("it is known", || {
            !processes(&site, "serving").iter().any(|(_, pid)| pid.as_raw_nonzero().get() == victim)
        });
        eventually("its children end with it", || group(victim) == 0);
    }
    serving(&site, 2);
    moves(&load, 100);
    let report = stop(load);
    assert!(report.counts.failed() <= kills * IN_FLIGHT, "{report}");
    assert!(report.statuses.keys().all(|status| *status == 502), "{report}");
    balances(&site, before, &report, "kill -9");
    assert_eq!(app(&site, "blog")["failures"].as_u64(), Some(kills));
}

#[test]
fn who_comes_while_the_only_one_is_gone_waits_for_the_next() {
    let site = site(1).start();
    let only = *serving(&site, 1).first().unwrap();
    kill_process(Pid::from_raw(only).unwrap(), Signal::KILL).unwrap();
    eventually("its socket is nobody's", || group(only) == 0);
    assert_eq!(curl([&*site.url("http", "/id.php/9")]).expect(200).text(), "9");
}
