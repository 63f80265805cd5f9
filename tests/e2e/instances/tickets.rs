//! TLS sessions that began on one instance and are resumed on another.

use std::time::Duration;

use rustix::process::{Pid, Signal};

use super::{gone, signal, with_instances};
use crate::harness::{
    Ahead, Algorithm, Authority, Process, Running, Site, eventually, eventually_some, resumes,
};

const VERSIONS: [&str; 2] = ["-tls1_2", "-tls1_3"];

/// One instance, which gives a session of each version into files of these names.
fn secure() -> Running {
    let authority = Authority::new();
    let site = with_instances(Site::new(), 1, 3)
        .listener("https", r#"(bind: "127.0.0.1:0", tls: [(cert: "site.pem", key: "site.key")])"#)
        .route(r#"(path: "/", to: Respond(status: 200, body: "hello\n"))"#);
    authority.write(&site.path("."), "site", &["site.test"], Algorithm::Ecdsa);
    let site = site.start();
    site.active(1);
    begin(&site, "first");
    site
}

/// Keeps a new session of each version.
#[track_caller]
fn begin(site: &Running, into: &str) {
    for version in VERSIONS {
        assert!(!resumes(site, "https", version, "site.test", None, &format!("{into}{version}")));
    }
}

/// Each version's session is resumed, whoever answers.
#[track_caller]
fn goes_on(site: &Running, with: &str) {
    for version in VERSIONS {
        let session = format!("{with}{version}");
        // More often than there are instances.
        for _ in 0..4 {
            assert!(resumes(site, "https", version, "site.test", Some(&session), "other"), "{session}");
        }
    }
}

/// Kills these, and returns when others are active in their place.
#[track_caller]
fn replaced(site: &Running, victims: &[Pid], count: usize) -> Vec<Pid> {
    victims.iter().for_each(|pid| signal(*pid, Signal::KILL));
    victims.iter().for_each(|pid| gone(*pid));
    eventually_some("others are active in their place", || {
        Some(site.active(count)).filter(|pids| pids.iter().all(|pid| !victims.contains(pid)))
    })
}

#[test]
fn a_session_of_one_instance_is_resumed_on_the_others() {
    let site = secure();
    let first = site.active(1);
    assert!(site.playhouse(&["scale", "3"]).status.success());
    site.active(3);
    goes_on(&site, "first");
    // Who has given it is no more.
    replaced(&site, &first, 3);
    goes_on(&site, "first");
    begin(&site, "second");
    assert!(site.playhouse(&["scale", "1"]).status.success());
    site.active(1);
    goes_on(&site, "first");
    goes_on(&site, "second");
}

#[test]
fn a_session_outlives_the_controller_and_all_instances_of_its_time() {
    let mut site = secure();
    let first = site.active(1);
    site.replace();
    assert_eq!(site.active(1), first);
    goes_on(&site, "first");
    // What the next controller starts has the same keys.
    assert!(site.playhouse(&["scale", "2"]).status.success());
    site.active(2);
    let second = replaced(&site, &first, 2);
    goes_on(&site, "first");
    // Twice in a row, and with other instances each time.
    site.replace();
    replaced(&site, &second, 2);
    goes_on(&site, "first");
}

#[test]
fn a_session_is_resumed_after_an_upgrade_to_another_binary() {
    let site = secure();
    let pids = site.active(1);
    let next = site.path("playhouse-next");
    std::fs::copy(env!("CARGO_BIN_EXE_playhouse"), &next).expect("a copy");
    let output = site.playhouse(&["upgrade", &next.display().to_string()]);
    assert!(output.status.success(), "{output:?}");
    eventually("an instance of the other binary is active, alone", || {
        let instances = site.instances();
        instances.len() == 1
            && instances.iter().all(|instance| {
                let program = std::fs::read_link(format!("/proc/{}/exe", instance.pid.as_raw_nonzero()));
                instance.state == "active"
                    && !pids.contains(&instance.pid)
                    && program.ok() == Some(next.clone())
            })
    });
    goes_on(&site, "first");
}

#[test]
fn a_session_is_resumed_after_its_keys_were_replaced() {
    let mut site = secure();
    let old = site.active(1);
    let keys = |site: &Running| site.admin.events().matches("new key for TLS session tickets").count();
    // A controller that starts seven hours later finds the key too old.
    let ahead = Ahead::by(Duration::from_secs(7 * 60 * 60), &site.path("."));
    let mut command = site.command();
    ahead.apply(&mut command);
    site.process.kill();
    site.process = Process::start("playhouse seven hours later", &mut command);
    eventually("there is a new key", || site.admin.ready() && keys(&site) == 1);
    assert_eq!(site.active(1), old);
    goes_on(&site, "first");
    // The old instance makes tickets with the new key, which the new instances read.
    begin(&site, "second");
    assert!(site.playhouse(&["scale", "3"]).status.success());
    let all = site.active(3);
    goes_on(&site, "first");
    goes_on(&site, "second");
    begin(&site, "third");
    replaced(&site, &old, 3);
    for session in ["first", "second", "third"] {
        goes_on(&site, session);
    }
    // Nobody needed another, and the next controller goes on with this one.
    let mut command = site.command();
    ahead.apply(&mut command);
    site.process.kill();
    site.process = Process::start("playhouse a little later", &mut command);
    eventually("it is ready", || site.admin.ready());
    let left: Vec<_> = site.active(3);
    assert!(left.iter().filter(|pid| all.contains(pid)).count() >= 2);
    assert_eq!(keys(&site), 0, "{}", site.admin.events());
    replaced(&site, &left, 3);
    for session in ["first", "second", "third"] {
        goes_on(&site, session);
    }
}
