//! A site in a folder of its own, and the built binary that runs it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
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

    /// Takes a listener away.
    pub fn without_listener(mut self, name: &str) -> Self {
        self.listeners.retain(|(known, _)| known != name);
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
        let mut process = Process::start("playhouse", &mut self.command());
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

    /// Starts to drain (TERM).
    pub fn stop(&self) {
        self.process.signal(Signal::TERM);
    }

    fn site(&self) -> &Site {
        self.site.as_ref().expect("the site is not being edited")
    }
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

const BINARY: &str = env!("CARGO_BIN_EXE_playhouse");
const DRAIN: &str = "drain_timeout: \"5s\"";
