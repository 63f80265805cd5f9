//! What one instance has seen of an upstream server, the others know.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;

use super::{gone, signal, with_instances};
use crate::harness::{Admin, Running, Scripted, Site, Wire, eventually, eventually_some, ok};

/// A site with a server that answers, and one that does while it is told to and breaks off until then.
struct Ejecting {
    site: Running,
    broken: Scripted,
    mended: Arc<AtomicBool>,
    _good: Scripted,
}

impl Ejecting {
    /// Two instances, which leave a server out for so long.
    #[track_caller]
    fn start(duration: &str) -> Self {
        let mended = Arc::new(AtomicBool::new(false));
        let broken = {
            let mended = mended.clone();
            Scripted::start(move |mut connection| {
                while connection.request().is_some() {
                    if !mended.load(Ordering::SeqCst) || !connection.send(ok("mended")) {
                        return;
                    }
                }
            })
        };
        let good = Scripted::saying("good");
        let upstream = format!(
            r#"(servers: ["{}", "{}"], ejection: (failures: 3, duration: "{duration}"))"#,
            broken.address, good.address
        );
        let site = with_instances(Site::new(), 2, 4)
            .upstream("up", upstream)
            .route(r#"(path: "/", to: Proxy("up"))"#)
            .start();
        site.active(2);
        Ejecting { site, broken, mended, _good: good }
    }

    /// Lets one instance, whichever it is, see the server fail, over one connection.
    #[track_caller]
    fn fail_on_one(&self) {
        let mut wire = self.site.wire();
        eventually("it is left out", || {
            wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            wire.response();
            self.left_out().into_iter().any(|(_, left_out)| left_out)
        });
    }

    /// Every instance, and whether it leaves the broken server out, as it says itself.
    fn left_out(&self) -> Vec<(String, bool)> {
        let broken = self.broken.address.to_string();
        let ask = |name: String| {
            let status = Admin::new(self.site.state_dir().join(format!("{name}.sock"))).status();
            let servers = status["upstreams"][0]["servers"].as_array().expect("servers").clone();
            let server = servers.into_iter().find(|server| server["address"] == *broken).expect("the server");
            (name, server["ejected"].as_bool().expect("whether it is ejected"))
        };
        self.site.instances().into_iter().map(|instance| ask(instance.name)).collect()
    }

    /// Instances that have decided it themselves, by the events of all.
    fn said(&self) -> (usize, usize) {
        let events = self.site.admin.events();
        (
            events.matches("failures in a row").count(),
            events.matches("another instance has seen it fail").count(),
        )
    }

    #[track_caller]
    fn all_leave_it_out(&self, count: usize) {
        eventually("all leave it out", || {
            let all = self.left_out();
            all.len() == count && all.iter().all(|(_, left_out)| *left_out)
        });
    }

    /// Many requests over many connections, none of which reaches the broken server.
    #[track_caller]
    fn nobody_asks_it(&self) {
        let before = self.broken.accepted();
        for _ in 0..30 {
            let mut wire = self.site.wire();
            wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(wire.response().text(), "good");
        }
        assert_eq!(self.broken.accepted(), before);
    }
}

#[test]
fn a_server_that_fails_on_one_instance_is_left_out_by_all_and_by_those_to_come() {
    let mut stage = Ejecting::start("10m");
    stage.fail_on_one();
    stage.all_leave_it_out(2);
    stage.nobody_asks_it();
    // One that starts now has seen nothing fail, and knows all the same.
    assert!(stage.site.playhouse(&["scale", "3"]).status.success());
    stage.site.active(3);
    assert!(stage.left_out().iter().all(|(_, left_out)| *left_out), "{:?}", stage.left_out());
    stage.nobody_asks_it();
    // So does the next controller, from those that it adopts, even where the one that has seen it is no more.
    let decided = eventually_some("the one that has decided is named", || {
        let status = stage.site.admin.status();
        let events = status["events"].as_array().expect("events").clone();
        events.iter().find(|event| event.to_string().contains("failures in a row")).map(|e| e.to_string())
    });
    let instances = stage.site.instances();
    let own = instances.iter().find(|instance| decided.contains(&instance.name)).expect("its name").clone();
    stage.site.process.kill();
    signal(own.pid, Signal::KILL);
    gone(own.pid);
    stage.site.start_again();
    let pids = stage.site.active(3);
    assert!(!pids.contains(&own.pid));
    stage.all_leave_it_out(3);
    for pid in pids {
        signal(pid, Signal::KILL);
        gone(pid);
        stage.site.active(3);
        assert!(stage.left_out().iter().all(|(_, left_out)| *left_out), "{:?}", stage.left_out());
    }
    stage.nobody_asks_it();
}

#[test]
fn a_server_that_is_taken_back_is_taken_back_by_all() {
    let mut stage = Ejecting::start("4s");
    stage.fail_on_one();
    stage.all_leave_it_out(2);
    eventually("it is said who has seen it fail, and who has heard of it", || {
        let (decided, heard) = stage.said();
        decided >= 1 && decided + heard == 2
    });
    assert!(stage.site.playhouse(&["scale", "3"]).status.success());
    stage.site.active(3);
    // Nobody is there to pass it on when the time is over.
    stage.site.process.kill();
    stage.mended.store(true, Ordering::SeqCst);
    stage.site.start_again();
    stage.site.active(3);
    eventually("all have taken it back", || {
        let all = stage.left_out();
        all.len() == 3 && all.iter().all(|(_, left_out)| !left_out)
    });
    let mut wires: Vec<_> = (0..12).map(|_| Wire::connect(stage.site.address("http"))).collect();
    for wire in &mut wires {
        let mut texts = [(), ()].map(|()| {
            wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            wire.response().text()
        });
        texts.sort();
        // They take turns, whichever instance this is.
        assert!(texts.iter().all(|text| text == "good" || text == "mended"), "{texts:?}");
    }
    assert!(!stage.broken.requests().is_empty());
    assert!(stage.left_out().iter().all(|(_, left_out)| !left_out));
}
