//! The servers: their configuration for each scenario, as close to each other as their means allow.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::process::Tree;
use crate::scenario::{Peer, Scenario};

/// How long a server may take to listen.
const START: Duration = Duration::from_secs(10);

/// Idle upstream connections that are kept: as many as there are requests at a time in any scenario.
const KEPT_UPSTREAM: usize = 256;

/// Who serves.
#[derive(Clone, Debug)]
pub enum Variant {
    /// A binary of Playhouse under a name.
    Playhouse(String, PathBuf),
    /// Somebody else.
    Peer(Peer),
}

impl Variant {
    /// Its name in results.
    pub fn name(&self) -> &str {
        match self {
            Variant::Playhouse(name, _) => name,
            Variant::Peer(peer) => peer.name(),
        }
    }
}

/// The CPUs of servers and of everything else.
#[derive(Clone, Copy, Debug)]
pub struct Cpus {
    /// Of the servers that are measured.
    pub server: usize,
    /// Of the load, the upstream and this program.
    pub load: usize,
}

/// A server that answers.
pub struct Server {
    /// Its processes.
    pub tree: Tree,
    /// Where it listens.
    pub address: SocketAddr,
    // Removed after the processes have ended: fields are dropped in order.
    dir: TempDir,
}

impl Server {
    /// Starts a variant for a scenario, and waits until it listens.
    ///
    /// # Errors
    /// It cannot be started, ends early, or does not listen in time.
    pub fn start(
        variant: &Variant,
        scenario: Scenario,
        upstream: Option<SocketAddr>,
        cpus: Cpus,
    ) -> Result<Server> {
        let dir = tempfile::Builder::new().prefix("playhouse-bench-").tempdir()?;
        let site = Site { scenario, upstream, address: free_address()?, dir: dir.path() };
        site.write_content()?;
        let command = match variant {
            Variant::Playhouse(_, binary) => site.playhouse(binary)?,
            Variant::Peer(Peer::Hyper) => site.hyper()?,
            Variant::Peer(Peer::Nginx) => site.nginx()?,
            Variant::Peer(Peer::Haproxy) => site.haproxy()?,
        };
        let address = site.address;
        let tree = Tree::start(variant.name(), command, cpus.server, cpus.load)?;
        let mut server = Server { tree, address, dir };
        server.listens()?;
        Ok(server)
    }

    /// Starts the upstream of a proxied scenario, on the CPU of the load.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn upstream(scenario: Scenario, cpus: Cpus) -> Result<Server> {
        let address = free_address()?;
        let mut command = Command::new(std::env::current_exe()?);
        match scenario {
            Scenario::Websocket => command.args(["serve-websocket", &address.to_string()]),
            _ => command.args(["serve-hyper", &address.to_string(), "--json"]),
        };
        let tree = Tree::start("upstream", command, cpus.load, cpus.load)?;
        let mut server = Server { tree, address, dir: tempfile::tempdir()? };
        server.listens()?;
        Ok(server)
    }

    /// Its certificate, in scenarios over TLS.
    pub fn cert(&self) -> PathBuf {
        self.dir.path().join("cert.pem")
    }

    fn listens(&mut self) -> Result<()> {
        let until = Instant::now() + START;
        while TcpStream::connect(self.address).is_err() {
            self.tree.check()?;
            ensure!(Instant::now() < until, "nobody listens on {} after {START:?}", self.address);
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

/// A port that was free a moment ago.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// What one server serves, and where its files are.
struct Site<'a> {
    scenario: Scenario,
    upstream: Option<SocketAddr>,
    address: SocketAddr,
    dir: &'a Path,
}

impl Site<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn show(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn write_content(&self) -> Result<()> {
        let public = self.path("public");
        fs::create_dir(&public)?;
        fs::write(public.join("file.txt"), vec![b'x'; self.scenario.length()])?;
        if self.scenario.is_tls() {
            let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
            let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
            fs::write(self.path("cert.pem"), &cert)?;
            fs::write(self.path("key.pem"), &key)?;
            fs::write(self.path("both.pem"), cert + &key)?;
        }
        Ok(())
    }

    fn upstream(&self) -> Result<SocketAddr> {
        self.upstream.context("a proxied scenario has an upstream")
    }

    fn playhouse(&self, binary: &Path) -> Result<Command> {
        let tls = match self.scenario {
            Scenario::H3Small => r#", tls: [(cert: "cert.pem", key: "key.pem")], http3: true"#,
            scenario if scenario.is_tls() => r#", tls: [(cert: "cert.pem", key: "key.pem")]"#,
            _ => "",
        };
        let (upstreams, route) = if self.scenario.is_proxied() {
            (
                format!(
                    r#""api": (servers: ["{}"], keep_alive: (max_idle: {KEPT_UPSTREAM}))"#,
                    self.upstream()?
                ),
                r#"(path: "/", to: Proxy("api"))"#,
            )
        } else {
            (String::new(), r#"(path: "/", to: Static(root: "public"))"#)
        };
        let site = format!(
            r#"(
    name: "bench",
    threads: 1,
    state_dir: "state",
    listeners: {{ "main": (bind: "{}"{tls}) }},
    upstreams: {{ {upstreams} }},
    routes: [{route}],
)
"#,
            self.address
        );
        fs::write(self.path("site.ron"), site)?;
        let mut command = Command::new(binary);
        command.arg("run").arg(self.path("site.ron"));
        Ok(command)
    }

    fn hyper(&self) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([
            "serve-hyper",
            &self.address.to_string(),
            "--length",
            &self.scenario.length().to_string(),
        ]);
        if self.scenario.is_proxied() {
            command.arg("--json");
        }
        if self.scenario.is_tls() {
            command.arg("--cert").arg(self.path("cert.pem")).arg("--key").arg(self.path("key.pem"));
        }
        Ok(command)
    }

    fn nginx(&self) -> Result<Command> {
        let listen = if self.scenario.is_tls() {
            format!(
                "listen {} ssl http2 backlog=4096;\n    ssl_certificate {};\n    ssl_certificate_key {};\n    \
                 ssl_protocols TLSv1.2 TLSv1.3;",
                self.address,
                self.show("cert.pem"),
                self.show("key.pem")
            )
        } else {
            format!("listen {} backlog=4096;", self.address)
        };
        let connection = match self.scenario {
            Scenario::Websocket => {
                "proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;"
            }
            _ => "proxy_set_header Connection \"\";",
        };
        let (upstream, location) = if self.scenario.is_proxied() {
            (
                format!(
                    "upstream api {{ server {}; keepalive {KEPT_UPSTREAM}; keepalive_requests 100000000; }}",
                    self.upstream()?
                ),
                format!(
                    "proxy_pass http://api; proxy_http_version 1.1; {connection} \
                     proxy_set_header Host $host; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;"
                ),
            )
        } else {
            (String::new(), format!("root {};", self.show("public")))
        };
        let dir = self.dir.display();
        let config = format!(
            "daemon off;
user root;
worker_processes 1;
worker_rlimit_nofile 20000;
pid {dir}/nginx.pid;
error_log {dir}/error.log error;
events {{ worker_connections 15000; }}
http {{
  access_log off;
  sendfile on;
  tcp_nopush on;
  types {{ text/plain txt; }}
  keepalive_requests 100000000;
  keepalive_timeout 75s;
  http2_max_concurrent_streams 128;
  open_file_cache max=1000 inactive=60s;
  open_file_cache_valid 60s;
  client_body_temp_path {dir}/t1; proxy_temp_path {dir}/t2; fastcgi_temp_path {dir}/t3; uwsgi_temp_path {dir}/t4; scgi_temp_path {dir}/t5;
  {upstream}
  server {{
    {listen}
    location / {{ {location} }}
  }}
}}
"
        );
        fs::write(self.path("nginx.conf"), config)?;
        let mut command = Command::new("nginx");
        // Its own copy of standard error says that the log is not open yet; errors of the configuration come there too.
        command
            .arg("-e")
            .arg(self.path("error.log"))
            .arg("-p")
            .arg(self.dir)
            .arg("-c")
            .arg(self.path("nginx.conf"));
        Ok(command)
    }

    fn haproxy(&self) -> Result<Command> {
        let tls = if self.scenario.is_tls() {
            format!(" ssl crt {} alpn h2,http/1.1", self.show("both.pem"))
        } else {
            String::new()
        };
        let config = format!(
            "global
  nbthread 1
  maxconn 9000
  tune.h2.max-concurrent-streams 128
defaults
  mode http
  timeout connect 3s
  timeout client 60s
  timeout server 60s
  timeout tunnel 1h
  option forwardfor
  http-reuse always
frontend main
  bind {}{tls} backlog 4096
  default_backend api
backend api
  server one {}
",
            self.address,
            self.upstream()?
        );
        fs::write(self.path("haproxy.cfg"), config)?;
        let mut command = Command::new("haproxy");
        command.arg("-db").arg("-f").arg(self.path("haproxy.cfg")).stderr(Stdio::null());
        Ok(command)
    }
}
