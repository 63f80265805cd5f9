//! A machine whose process 1 is systemd: in namespaces beside this one, with the unit files of the documentation.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::{Signal, geteuid};
use tempfile::TempDir;

use crate::harness::{BINARY, Process, eventually, eventually_some};

pub struct Machine {
    folder: TempDir,
    cgroup: PathBuf,
    /// Its process 1 as it is seen from here.
    init: i32,
    // Ended before the folder is removed.
    process: Option<Process>,
}

impl Machine {
    /// Boots one; `test` is the name of the test that asks. `None` where there can be none, which is said where it is
    /// seen, or where the test has been run by root meanwhile, and well.
    #[track_caller]
    pub fn boot(test: &str) -> Option<Machine> {
        if !geteuid().is_root() {
            as_root(test);
            return None;
        }
        let systemd = ["/usr/lib/systemd/systemd", "/lib/systemd/systemd"];
        assert!(
            systemd.iter().any(|path| Path::new(path).exists()),
            "systemd is missing: install systemd (scripts/test does)"
        );
        let Some(cgroups) = cgroups() else {
            say(test, "no cgroup can be made");
            return None;
        };
        if let Err(why) = namespaces() {
            say(test, &why);
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let units = folder.path().join("units");
        std::fs::create_dir(&units).expect("a folder");
        std::fs::create_dir(folder.path().join("mount")).expect("a folder");
        let documented = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations");
        for name in ["playhouse@.service", "playhouse@.socket"] {
            std::fs::copy(documented.join(name), units.join(name)).expect("a unit of the documentation");
        }
        // What a unit refers to by default, without what a whole system has beneath it.
        for name in TARGETS {
            let text = format!("[Unit]\nDescription={name}\nDefaultDependencies=no\n");
            std::fs::write(units.join(format!("{name}.target")), text).expect("a unit");
        }
        let script = folder.path().join("machine.sh");
        std::fs::write(&script, include_str!("machine.sh")).expect("a script");
        let name = folder.path().file_name().expect("a name").to_string_lossy().replace('.', "playhouse-");
        let cgroup = cgroups.join(name);
        let mut command = Command::new("sh");
        command.arg(&script).arg(folder.path()).arg(&cgroup);
        let mut process = Process::start("machine", &mut command);
        let pid = process.pid().as_raw_nonzero();
        let init = eventually_some("it has its process 1", || {
            assert!(process.ended().is_none(), "it does not boot\n{}", process.output());
            let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
            let mut children = children.split_whitespace();
            // Before it there are those of the script.
            let is_systemd = |child: &&str| {
                std::fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|name| name == "systemd\n")
            };
            children.find(is_systemd)?.parse().ok()
        });
        let mut machine = Machine { folder, cgroup, init, process: Some(process) };
        eventually("systemd runs", || {
            let process = machine.process.as_mut().expect("only a drop takes it");
            assert!(process.ended().is_none(), "it does not boot\n{}", process.output());
            let output = machine.run("systemctl", &["is-system-running"]);
            output.stdout.starts_with(b"running") || output.stdout.starts_with(b"degraded")
        });
        machine.install(Path::new(BINARY));
        Some(machine)
    }

    /// Puts a binary where the unit looks for it, as an administrator does.
    #[track_caller]
    pub fn install(&self, binary: &Path) {
        let output = self.run("install", &[&binary.display().to_string(), "/usr/local/bin/playhouse"]);
        assert!(output.status.success(), "{output:?}");
    }

    /// Writes a site file.
    #[track_caller]
    pub fn site(&self, name: &str, text: &str) {
        self.write(&format!("/etc/playhouse/{name}.ron"), text);
    }

    /// Adds to the unit, or replaces another.
    #[track_caller]
    pub fn unit(&self, path: &str, text: &str) {
        let path = self.folder.path().join("units").join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, text).expect("a unit");
        self.succeeds("systemctl", &["daemon-reload"]);
    }

    #[track_caller]
    pub fn write(&self, path: &str, text: &str) {
        let mut command = self.command("sh");
        command.args(["-c", "cat > \"$1\"", "sh", path]).stdin(Stdio::piped());
        let mut child = command.spawn().expect("nsenter");
        child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("it reads");
        assert!(child.wait().expect("our own child").success());
    }

    /// Runs a program within, to its end.
    #[track_caller]
    pub fn run(&self, program: &str, arguments: &[&str]) -> Output {
        self.command(program).args(arguments).stdin(Stdio::null()).output().expect("nsenter")
    }

    #[track_caller]
    pub fn succeeds(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.run(program, arguments);
        if !output.status.success() {
            let status = self.run("systemctl", &["status", "--no-pager", "playhouse@*"]);
            let process = self.process.as_ref().expect("only a drop takes it");
            let status = String::from_utf8_lossy(&status.stdout).into_owned();
            panic!("{program} {arguments:?}: {output:?}\n{status}\n{}", process.output());
        }
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// A property of the unit.
    #[track_caller]
    pub fn show(&self, unit: &str, property: &str) -> String {
        self.succeeds("systemctl", &["show", "-P", property, unit])
    }

    /// What `playhouse status` says.
    pub fn status(&self, site: &str) -> Option<serde_json::Value> {
        let directory = format!("/run/playhouse/{site}");
        let output = self.run("playhouse", &["status", "--json", "--state-dir", &directory]);
        serde_json::from_slice(&output.stdout).ok()
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.init.to_string(), "-m", "-p", "-C", "-i", "-u", "--", program]);
        command
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // With its process 1 go all others.
            if let Some(init) = rustix::process::Pid::from_raw(self.init) {
                let _ = rustix::process::kill_process(init, Signal::KILL);
            }
            process.end();
        }
        self.process = None;
        remove_cgroups(&self.cgroup);
    }
}

/// Where this process may make cgroups of the second version.
fn cgroups() -> Option<PathBuf> {
    let candidates = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(PathBuf::from);
    candidates.into_iter().filter(|path| path.join("cgroup.procs").exists()).find(|path| {
        let probe = path.join(format!("playhouse-probe-{}", std::process::id()));
        std::fs::create_dir(&probe).and_then(|()| std::fs::remove_dir(&probe)).is_ok()
    })
}

/// Whether there are namespaces in which one may mount.
fn namespaces() -> Result<(), String> {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount", "--cgroup", "--ipc", "--uts", "sh", "-c"]);
    let output = command.arg("mount --make-rprivate / && mount -t proc proc /proc").output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(format!("unshare: {error}")),
    }
}

/// Processes of a namespace that is gone may take a moment.
fn remove_cgroups(cgroup: &Path) {
    let children = std::fs::read_dir(cgroup).into_iter().flatten().flatten().map(|entry| entry.path());
    children.filter(|path| path.is_dir()).for_each(|child| remove_cgroups(&child));
    eventually("a cgroup is empty", || {
        !cgroup.exists() || std::fs::remove_dir(cgroup).is_ok() || std::thread::panicking()
    });
}

/// Runs the test again by root, where that is possible without a password.
#[track_caller]
fn as_root(test: &str) {
    let exe = std::env::current_exe().expect("this program");
    let may = Command::new("sudo").args(["-n", "true"]).output();
    if !may.is_ok_and(|output| output.status.success()) {
        say(test, "it takes root, or sudo without a password");
        return;
    }
    let mut command = Command::new("sudo");
    command.arg("-n").arg("-E").arg(exe).args(["--exact", &format!("systemd::{test}"), "--nocapture"]);
    let output = command.output().expect("sudo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Says it where it is seen, also of a test that passes.
fn say(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "\nNOT TRIED: systemd::{test}: no machine with systemd here: {why}");
}

const TARGETS: [&str; 9] =
    ["sysinit", "basic", "multi-user", "network-online", "shutdown", "sockets", "paths", "timers", "umount"];
