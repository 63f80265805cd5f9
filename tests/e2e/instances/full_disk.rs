//! The state directory is full.

use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;

use super::{gone, repeated, signal, with_instances};
use crate::harness::eventually;
use crate::harness::stage::{Stage, lost_what_was_in_flight, moves, stop};

/// A small file system on a folder. Mounting it needs root, as CI has it.
struct Small(PathBuf);

impl Small {
    fn mount(folder: PathBuf) -> Self {
        std::fs::create_dir_all(&folder).expect("a folder");
        let status =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=8m", "none"]).arg(&folder).status();
        assert!(
            status.expect("mount runs").success(),
            "this test mounts a file system, and needs root for that"
        );
        Small(folder)
    }

    /// Takes all the room there is.
    fn fill(&self) {
        use std::io::Write;
        let mut file = std::fs::File::create(self.0.join("filler")).expect("a file");
        for size in [1 << 20, 4096, 512, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
    }

    fn free(&self) {
        std::fs::remove_file(self.0.join("filler")).expect("our own file");
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // Lazily: a process of the site may still be on its way out.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn what_serves_goes_on_and_what_cannot_be_written_is_said_and_tried_again() {
    repeated(|| {
        let mut small = None;
        let mut stage = Stage::with(|site| {
            small = Some(Small::mount(site.path("state")));
            with_instances(site, 2, 3)
        });
        let small = small.expect("it was mounted");
        let pids = stage.site.active(2);
        let load = stage.load();
        moves(&load, 50);
        small.fill();

        // A reload cannot be written down for the next controller: it is refused, and nothing has changed.
        stage.site.edit(|site| site.route(r#"(path: "/new", to: Respond(status: 200, body: "new\n"))"#));
        let refused = stage.site.playhouse(&["reload"]);
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert_eq!(stage.site.active(2), pids);
        moves(&load, 50);

        // The place of one that dies stays empty until there is room.
        signal(pids[0], Signal::KILL);
        gone(pids[0]);
        eventually("the failing starts are told of", || stage.site.admin.events().contains("did not start"));
        moves(&load, 50);
        small.free();
        let now = stage.site.active(2);
        assert!(now.contains(&pids[1]));
        moves(&load, 50);
        let report = stop(load);
        assert_eq!(report.counts.lost, 0, "{report}");
        // Of the one that was killed.
        lost_what_was_in_flight(&report, 1, "a full disk");
        stage.site.admin.settled_ledger();
        stage.site.process.end();
        drop(small);
    });
}
