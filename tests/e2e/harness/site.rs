//! A site in a folder of its own, and the built binary that runs it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use super::admin::Admin;
use super::process::Process;
use super::scripted::Scripted;
use super::wait::eventually_some;
use super::wire::Wire;

/// A site file in the making. Values are RON, as a user writes them.
pub struct Site {
    folder: TempDir,
    top: Vec<String>,
    listeners: Vec<(String, String)>,
    upstreams: Vec<(String, String)>,
    routes: Vec<String>,
}

impl Default for Site {
    fn default() -> Self {
        Site::new()
    }
}

impl Site {
    /// An empty site with a short drain. Without a listener of its own it gets `http` on loopback.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let top = vec!["name: \"e2e\"".to_owned(), "state_dir: \"state\"".to_owned(), DRAIN.to_owned()];
        Site { folder, top, listeners: Vec::new(), upstreams: Vec::new(), routes: Vec::new() }
    }

    /// A field of the site: `drain_timeout: "2s"`. It replaces an earlier one of its name.
    pub fn field(mut self, field: impl Into<String>) -> Self {
        let field = field.into();
        let name = field.split(':').next().unwrap_or_default().to_owned();
        self.top.retain(|known| !known.starts_with(&format!("{name}:")));
        self.top.push(field);
        self
    }

    /// A listener; one of the same name is replaced.
    pub fn listener(mut self, name: &str, value: impl Into<String>) -> Self {
        self.listeners.retain(|(known, _)| known != name);
        self.listeners.push((name.to_owned(), value.into()));
        self
    }

    /// An upstream; one of the same name is replaced.
    pub fn upstream(mut self, name: &str, value: impl Into<String>) -> Self {
        self.upstreams.retain(|(known, _)| known != name);
        self.upstreams.push((name.to_owned(), value.into()));
        self
    }

    /// An upstream of one server with the defaults.
    pub fn server(self, name: &str, address: impl std::fmt::Display) -> Self {
        self.upstream(name, format!("(servers: [\"{address}\"])"))
    }

    pub fn route(mut self, value: impl Into<String>) -> Self {
        self.routes.push(value.into());
        self
    }

    /// Takes all routes away.
    pub fn without_routes(mut self) -> Self {
        self.routes.clear();
        self
    }

    /// Takes the route of this path away.
    pub fn without_route(mut self, path: &str) -> Self {
        self.routes.retain(|route| !route.starts_with(&format!("(path: \"{path}\",")));
        self
    }

    /// Takes a listener away.
    pub fn without_listener(mut self, name: &str) -> Self {
        self.listeners.retain(|(known, _)| known != name);
        self
    }

    /// Without the upstream of this name.
    pub fn without_upstream(mut self, name: &str) -> Self {
        self.upstreams.retain(|(known, _)| known != name);
        self
    }

    /// A file beside the site file.
    pub fn file(self, path: &str, content: impl AsRef<[u8]>) -> Self {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().expect("a file has a folder")).expect("a folder is made");
        std::fs::write(path, content).expect("a file is written");
        self
    }

    /// The path of something beside the site file.
    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// Writes the site file.
    pub fn write(&self) -> PathBuf {
        let map = |entries: &[(String, String)]| {
            entries.iter().map(|(name, value)| format!("        \"{name}\": {value},\n")).collect::<String>()
        };
        let mut listeners = map(&self.listeners);
        if listeners.is_empty() {
            listeners = "        \"http\": (bind: \"127.0.0.1:0\"),\n".to_owned();
        }
        let top: String = self.top.iter().map(|field| format!("    {field},\n")).collect();
        let routes: String = self.routes.iter().map(|route| format!("        {route},\n")).collect();
        let upstreams = map(&self.upstreams);
        let text = format!(
            "(\n{top}    listeners: {{\n{listeners}    }},\n    upstreams: {{\n{upstreams}    }},\n    routes: [\n{routes}    ],\n)\n"
        );
        let path = self.path("site.ron");
        std::fs::write(&path, text).expect("the site file is written");
        path
    }

    /// `playhouse run` on it, as a command that is not started yet.
    pub fn command(&self) -> Command {
        let mut command = Command::new(BINARY);
        command.arg("run").arg(self.write()).current_dir(self.folder.path());
        command
    }

    /// Runs it and returns when it is ready.
    #[track_caller]
    pub fn start(self) -> Running {
        let mut command = self.command();
        self.start_by(&mut command, Stdio::null())
    }

    /// Runs it by a command of the test's own, which ends in [`Site::command`]'s.
    #[track_caller]
    pub fn start_by(self, command: &mut Command, stdin: Stdio) -> Running {
        let mut process = Process::start_reading("playhouse", command, stdin);
        let admin = Admin::new(self.path("state/admin.sock"));
        eventually_some("the site is ready", || {
            if let Some(status) = process.ended() {
                panic!("playhouse has ended at once: {status}\n{}", process.output());
            }
            admin.ready().then_some(())
        });
        Running { process, admin, site: Some(self) }
    }
}

/// A site that runs. Dropping it stops it.
pub struct Running {
    pub process: Process,
    pub admin: Admin,
    // `None` only while it is being edited.
    site: Option<Site>,
}

impl Running {
    /// The address of a TCP listener.
    #[track_caller]
    pub fn address(&self, listener: &str) -> SocketAddr {
        let address = self.admin.listener(listener).unwrap_or_else(|| panic!("no listener {listener}"));
        address.parse().unwrap_or_else(|error| panic!("{listener} is at {address}: {error}"))
    }

    /// A URL on a cleartext listener.
    #[track_caller]
    pub fn url(&self, listener: &str, target: &str) -> String {
        format!("http://{}{target}", self.address(listener))
    }

    /// A connection to the listener `http`.
    #[track_caller]
    pub fn wire(&self) -> Wire {
        Wire::connect(self.address("http"))
    }

    /// The path of something beside the site file.
    pub fn path(&self, path: &str) -> PathBuf {
        self.site().path(path)
    }

    pub fn state_dir(&self) -> PathBuf {
        self.path("state")
    }

    /// Writes a file beside the site file.
    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(path), content).expect("a file is written");
    }

    /// The same, with a file written beside the site file.
    pub fn writing(self, path: &str, content: impl AsRef<[u8]>) -> Self {
        self.write(path, content);
        self
    }

    /// Changes the site and writes its file; [`Running::reload`] makes it take effect.
    pub fn edit(&mut self, change: impl FnOnce(Site) -> Site) -> &mut Self {
        let site = change(self.site.take().expect("the site is not being edited"));
        site.write();
        self.site = Some(site);
        self
    }

    /// `playhouse reload`, which must succeed.
    #[track_caller]
    pub fn reload(&self) {
        let output = self.playhouse(&["reload"]);
        assert!(output.status.success(), "reload: {output:?}");
    }

    /// Runs another `playhouse` on this site's state directory.
    #[track_caller]
    pub fn playhouse(&self, arguments: &[&str]) -> Output {
        let mut command = playhouse();
        command.args(arguments).arg("--state-dir").arg(self.state_dir()).current_dir(self.path("."));
        command.output().expect("playhouse runs")
    }

    /// Kills the controller, or the one process that there is (SIGKILL), and starts another as it was started first.
    /// Returns when the site is ready.
    #[track_caller]
    pub fn replace(&mut self) {
        self.process.kill();
        self.start_again();
    }

    /// Starts `playhouse run` as it was started first, after its end.
    #[track_caller]
    pub fn start_again(&mut self) {
        self.start_again_by(Path::new(BINARY));
    }

    /// The same by another build.
    #[track_caller]
    pub fn start_again_by(&mut self, program: &Path) {
        let mut command = Command::new(program);
        command.arg("run").arg(self.path("site.ron")).current_dir(self.path("."));
        self.process = Process::start("playhouse", &mut command);
        let (process, admin) = (&mut self.process, &self.admin);
        eventually_some("the site is ready again", || {
            if let Some(status) = process.ended() {
                panic!("playhouse has ended at once: {status}\n{}", process.output());
            }
            admin.ready().then_some(())
        });
    }

    /// The instances, as the status lists them.
    #[track_caller]
    pub fn instances(&self) -> Vec<InstanceView> {
        let status = self.admin.status();
        let instances = status["instances"].as_array().expect("instances").clone();
        let view = |instance: &serde_json::Value| InstanceView {
            name: instance["id"].as_str().expect("an id").to_owned(),
            pid: instance["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32)).expect("a pid"),
            state: instance["state"].as_str().expect("a state").to_owned(),
            build: instance["build"].as_str().expect("a build").to_owned(),
        };
        instances.iter().map(view).collect()
    }

    /// Waits until so many instances are active and there is no other; gives their pids, sorted.
    #[track_caller]
    pub fn active(&self, count: usize) -> Vec<Pid> {
        eventually_some(&format!("{count} instances are active, and no other is there"), || {
            let instances = self.instances();
            let active = instances.iter().all(|instance| instance.state == "active");
            let mut pids: Vec<_> = instances.iter().map(|instance| instance.pid).collect();
            pids.sort_by_key(|pid| pid.as_raw_nonzero());
            (active && pids.len() == count).then_some(pids)
        })
    }

    /// `playhouse run` on the site file, as it was written last.
    pub fn command(&self) -> Command {
        self.site().command()
    }

    /// Starts to drain (TERM).
    pub fn stop(&self) {
        self.process.signal(Signal::TERM);
    }

    fn site(&self) -> &Site {
        self.site.as_ref().expect("the site is not being edited")
    }
}

impl Drop for Running {
    /// Ends also those instances that a test has left without a controller.
    fn drop(&mut self) {
        self.process.end();
        let Some(site) = &self.site else { return };
        let state_dir = site.path("state");
        let leftovers = [state_dir.clone(), state_dir.join("apps")];
        for entry in leftovers.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten().flatten() {
            let record = std::fs::read(entry.path()).ok();
            let record = record.and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok());
            let pid = record.and_then(|record| Pid::from_raw(record["pid"].as_i64()? as i32));
            // Only what was started for this very folder.
            if let Some(pid) = pid
                && let Ok(line) = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero()))
                && String::from_utf8_lossy(&line).contains(&*state_dir.to_string_lossy())
            {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
            if let Some(pid) = pid
                && let Ok(environment) = std::fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero()))
                && String::from_utf8_lossy(&environment)
                    .contains(&format!("PLAYHOUSE_APPS={}\0", state_dir.join("apps").display()))
            {
                let _ = rustix::process::kill_process_group(pid, Signal::KILL);
            }
        }
    }
}

/// One instance, as the status shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceView {
    pub name: String,
    pub pid: Pid,
    pub state: String,
    pub build: String,
}

/// The built binary, for a command that runs to its end.
pub fn playhouse() -> Command {
    let mut command = Command::new(BINARY);
    command.stdin(Stdio::null());
    command
}

/// A site that forwards everything to one server.
pub fn through(upstream: &Scripted) -> Running {
    Site::new().server("up", upstream.address).route(r#"(path: "/", to: Proxy("up"))"#).start()
}

/// Whether a path exists; for conditions.
pub fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// The built binary.
pub const BINARY: &str = env!("CARGO_BIN_EXE_playhouse");
const DRAIN: &str = "drain_timeout: \"5s\"";
