//! What a program of an app finds when it begins: limits, user, groups and directory; and limits that are too small for it.

use std::process::{Command, Stdio};

use rustix::process::geteuid;

use crate::harness::{Site, curl, eventually};
use crate::managed::{app, blog, node};

/// A program that says what it finds, first of all.
fn told(fields: &str) -> Site {
    let finds = "echo files=$(ulimit -Sn) uid=$(id -u) gid=$(id -g) groups=$(id -G) in=$(pwd).";
    blog(format!("(command: [\"sh\", \"-c\", \"{finds}; exec sleep 600\"], dir: \"/usr\", {fields})"))
}

/// Runs the site where a shell has set the soft limit of descriptors, and waits until its program says this.
#[track_caller]
fn finds(site: Site, soft_limit: u32, expected: &str) {
    let run = site.command();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -Sn {soft_limit}; exec \"$@\""), "sh"]);
    command.arg(run.get_program()).args(run.get_args());
    if let Some(directory) = run.get_current_dir() {
        command.current_dir(directory);
    }
    let mut site = site.start_by(&mut command, Stdio::null());
    let said =
        site.process.line("what the program finds", |line| line.contains("files=").then(|| line.to_owned()));
    assert!(said.contains(expected), "{said}");
}

#[test]
fn a_program_begins_with_its_limits_and_not_with_those_that_the_site_has_raised() {
    finds(told("limits: (open_files: 333)"), 500, "files=333 ");
    finds(told(""), 500, "files=500 ");
    let two = told("").field("instances: (min: 1, max: 1)");
    finds(two, 500, "files=500 ");
}

#[test]
fn root_starts_programs_as_others() {
    if !geteuid().is_root() {
        // CI is root.
        return;
    }
    // Debian's own group of nobody; elsewhere it is called as the user.
    finds(told("user: \"nobody\", group: \"65534\""), 500, "uid=65534 gid=65534 groups=65534 in=/usr.");
    let more = told("user: \"nobody\", group: \"7\", limits: (open_files: 333)");
    finds(more, 500, "files=333 uid=65534 gid=7 groups=7 in=/usr.");
}

#[test]
fn a_program_that_needs_more_memory_than_it_may_have_serves_and_it_is_said() {
    let site = blog(node("listen: Socket, max_memory: \"1MiB\"")).start();
    eventually("it is said, more than once", || {
        let events = site.admin.events();
        events.contains("max_memory is less than it needs; it is replaced at once")
            && events.contains("max_memory is less than it needs; it is replaced in ")
    });
    curl([&*site.url("http", "/")]).expect(200);
    assert_eq!(app(&site, "blog")["failures"], 0);
}
