//! Nothing is left over, however often processes come and go, and the sums are right to the request.

use std::collections::BTreeMap;

use rustix::process::{Pid, Signal};

use super::{gone, nothing_is_left, resident, signal, stage};
use crate::harness::stage::{Stage, stop};
use crate::harness::{Running, Site, curl, eventually, full};

#[test]
fn the_sums_have_every_request_of_every_process_that_was() {
    let mut stage = stage(2, 3);
    let url = stage.site.url("http", "/hello.txt");
    let mut sent = 0;
    for round in 0..6 {
        for _ in 0..10 {
            assert_eq!(curl([&*url]).status, 200);
            sent += 1;
        }
        match round % 3 {
            0 => stage.site.replace(),
            1 => {
                let victim = stage.site.active(2)[0];
                signal(victim, Signal::KILL);
                gone(victim);
                stage.site.active(2);
            }
            _ => {
                let name = stage.site.instances()[0].name.clone();
                let pids = stage.site.active(2);
                assert!(stage.site.playhouse(&["drain", &name]).status.success());
                eventually("another has taken its place", || {
                    let now = stage.site.instances();
                    now.len() == 2
                        && now.iter().all(|instance| instance.state == "active")
                        && now.iter().any(|instance| !pids.contains(&instance.pid))
                });
            }
        }
        let ledger = stage.site.admin.settled_ledger();
        assert_eq!((ledger.accepted, ledger.answered), (sent, sent), "{ledger:?}");
    }
}

#[test]
fn controllers_that_follow_each_other_leave_nothing_behind() {
    let mut stage = stage(2, 3);
    stage.site.active(2);
    let mut flat = None;
    for cycle in 0..cycles() {
        let victim = stage.site.active(2)[cycle % 2];
        match cycle % 4 {
            0 => signal(victim, Signal::KILL),
            1 => signal(victim, Signal::TERM),
            2 => stage.site.replace(),
            _ => stage.site.reload(),
        }
        if cycle % 4 < 2 {
            gone(victim);
        }
        stage.site.active(2);
        // The first rounds fill what is kept.
        if cycle == 3 {
            flat = Some(Measured::of(&stage.site));
        }
    }
    flat.expect("more than three cycles").is_all_there_is_after(&stage.site, 8);
}

#[test]
fn a_controller_that_lives_on_grows_by_nothing() {
    let stage = stage(2, 3);
    let mut victims = stage.site.active(2);
    let load = stage.load();
    let warm = 16.min(cycles() / 2);
    let mut flat = None;
    for cycle in 0..cycles() {
        let victim = victims[cycle % 2];
        match cycle % 5 {
            0 => signal(victim, Signal::KILL),
            1 => signal(victim, Signal::TERM),
            2 => {
                let instances = stage.site.instances();
                let instance = instances.iter().find(|instance| instance.pid == victim).expect("it is there");
                assert!(stage.site.playhouse(&["drain", &instance.name]).status.success());
            }
            3 => {
                for count in ["3", "2"] {
                    assert!(stage.site.playhouse(&["scale", count]).status.success());
                    stage.site.active(count.parse().expect("a number"));
                }
            }
            _ => stage.site.reload(),
        }
        if cycle % 5 < 3 {
            gone(victim);
        }
        victims = stage.site.active(2);
        if cycle == warm {
            flat = Some(Measured::of(&stage.site));
        }
    }
    drop(stop(load));
    let flat = flat.expect("more cycles than it takes to be warm");
    flat.is_all_there_is_after(&stage.site, 6);
}

#[test]
fn a_process_that_is_another_build_again_and_again_grows_by_nothing() {
    let stage = stage(2, 3);
    stage.site.active(2);
    let load = stage.load();
    let mut flat = None;
    for cycle in 0..cycles() / 4 {
        let pids = stage.site.active(2);
        assert!(stage.site.playhouse(&["upgrade"]).status.success());
        eventually("both are others", || stage.site.active(2).iter().all(|pid| !pids.contains(pid)));
        if cycle == 0 {
            flat = Some(Measured::of(&stage.site));
        }
    }
    drop(stop(load));
    flat.expect("at least one").is_all_there_is_after(&stage.site, 6);
}

#[test]
fn an_instance_that_lives_on_grows_by_nothing() {
    let mut stage = stage(2, 3);
    let lives = stage.site.active(2)[0];
    let mut cycle = 0;
    let mut all = |stage: &mut Stage, cycles: usize| {
        let load = stage.load();
        for _ in 0..cycles {
            around(stage, cycle, lives);
            cycle += 1;
        }
        let report = stop(load);
        assert_eq!(report.counts.lost, 0, "{report}");
        stage.site.admin.settled_ledger();
    };
    // The first cycles fill what is kept. Five of them, and the site is what it was.
    all(&mut stage, 5.max(cycles() / 4));
    let flat = Measured::of_process(&stage.site, lives);
    all(&mut stage, cycles());
    flat.is_all_there_is_after(&stage.site, 8);
}

/// What happens around an instance that nothing happens to.
#[track_caller]
fn around(stage: &mut Stage, cycle: usize, lives: Pid) {
    let mut reload = |change: fn(Site) -> Site| stage.site.edit(change).reload();
    match cycle % 5 {
        0 => reload(|site| site.route(r#"(path: "/new", to: Respond(status: 200, body: "new"))"#)),
        1 => reload(|site| site.listener("more", r#"(bind: "127.0.0.1:0")"#).server("other", "127.0.0.1:1")),
        2 => reload(|site| site.without_route("/new").without_listener("more").without_upstream("other")),
        3 => stage.site.replace(),
        _ => {
            let other = stage.site.active(2).into_iter().find(|pid| *pid != lives).expect("two instances");
            signal(other, Signal::KILL);
            gone(other);
        }
    }
    assert!(stage.site.active(2).contains(&lives));
}

fn cycles() -> usize {
    if full() { 200 } else { 10 }
}

/// What a process and its site take.
struct Measured {
    process: Option<Pid>,
    descriptors: usize,
    resident: u64,
    /// The kinds of files in the state directory, and how many of each.
    files: BTreeMap<String, usize>,
}

impl Measured {
    /// The controller, whichever it is by then.
    fn of(site: &Running) -> Self {
        Measured { process: None, ..Measured::of_process(site, site.process.pid()) }
    }

    fn of_process(site: &Running, process: Pid) -> Self {
        let pid = process.as_raw_nonzero();
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives").count();
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(site.state_dir()).expect("the state directory").flatten() {
            let name = entry.file_name().to_string_lossy().replace(|c: char| c.is_ascii_digit(), "");
            *files.entry(name).or_default() += 1;
        }
        Measured { process: Some(process), descriptors, resident: resident(process), files }
    }

    fn again(&self, site: &Running) -> Self {
        self.process.map_or_else(|| Measured::of(site), |process| Measured::of_process(site, process))
    }

    /// Nothing more is there by now, but so many mebibytes, in which an allocator keeps what has been given back.
    #[track_caller]
    fn is_all_there_is_after(&self, site: &Running, mebibytes: u64) {
        let mut last = String::new();
        eventually("as many descriptors and files as before", || {
            let now = self.again(site);
            last = format!("{} descriptors, {} KiB, {:?}", now.descriptors, now.resident >> 10, now.files);
            now.descriptors <= self.descriptors + 4 && now.files == self.files
        });
        let now = self.again(site);
        let before = format!("{} descriptors, {} KiB", self.descriptors, self.resident >> 10);
        assert!(now.resident <= self.resident + (mebibytes << 20), "{last}, after {before}");
        if full() {
            eprintln!("{last}, after {before}");
        }
        nothing_is_left(site);
    }
}
