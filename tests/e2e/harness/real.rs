//! Upstream servers that people run: nginx, a node server, uvicorn with an ASGI app, Django under gunicorn.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

use tempfile::TempDir;

use super::process::{Process, tool};
use super::wait::eventually_some;

/// A running upstream server.
pub struct Real {
    pub process: Process,
    /// As a site file names it.
    pub address: SocketAddr,
    /// Its files.
    pub folder: TempDir,
    restart: fn(&Path, SocketAddr) -> Command,
}

impl Real {
    /// nginx, which serves the files of its folder.
    #[track_caller]
    pub fn nginx() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let address = free_address();
        let process = Process::start("nginx", &mut nginx(folder.path(), address));
        Real { process, address, folder, restart: nginx }.listening()
    }

    /// The node server of `upstreams/server.js`.
    #[track_caller]
    pub fn node() -> Self {
        Real::printing("node", node)
    }

    /// uvicorn with `upstreams/asgi.py`.
    #[track_caller]
    pub fn uvicorn() -> Self {
        Real::printing("uvicorn", uvicorn)
    }

    /// gunicorn with the Django site of `upstreams/django_site.py`.
    #[track_caller]
    pub fn django() -> Self {
        Real::printing("gunicorn", gunicorn)
    }

    /// nginx behind a proxy: it takes connections with a PROXY header alone, and answers with the client's address.
    #[track_caller]
    pub fn nginx_behind_proxy() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let address = free_address();
        let process = Process::start("nginx", &mut nginx_behind_proxy(folder.path(), address));
        Real { process, address, folder, restart: nginx_behind_proxy }.listening()
    }

    /// The WebSocket server of `upstreams/websocket_server.py`.
    #[track_caller]
    pub fn websockets() -> Self {
        Real::printing("a WebSocket server", websockets)
    }

    /// Kills it without warning.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again where it was.
    #[track_caller]
    pub fn start_again(&mut self) {
        self.process.kill();
        self.process =
            Process::start("an upstream again", &mut (self.restart)(self.folder.path(), self.address));
        self.wait_until_listening();
    }

    /// Starts a server that chooses its port and prints its URL.
    #[track_caller]
    fn printing(name: &str, command: fn(&Path, SocketAddr) -> Command) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut process = Process::start(name, &mut command(folder.path(), any));
        let address = process.line("its address", |line| {
            let (_, rest) = line.split_once("http://")?;
            rest.split([' ', '/']).next()?.parse().ok()
        });
        Real { process, address, folder, restart: command }.listening()
    }

    #[track_caller]
    fn listening(mut self) -> Self {
        self.wait_until_listening();
        self
    }

    #[track_caller]
    fn wait_until_listening(&mut self) {
        eventually_some("the upstream server listens", || {
            if let Some(status) = self.process.ended() {
                panic!("it has ended at once: {status}");
            }
            TcpStream::connect(self.address).ok()
        });
    }
}

/// An address for a server that cannot bind port 0 and say which it became. No other process of the tests uses this
/// address of the loopback network, so a port that was free a moment ago is free still.
#[track_caller]
pub(super) fn free_address() -> SocketAddr {
    let address = SocketAddr::from(([127, 64, process_byte(), next_byte()], 0));
    TcpListener::bind(address).and_then(|listener| listener.local_addr()).expect("loopback")
}

fn nginx(folder: &Path, address: SocketAddr) -> Command {
    let here = folder.display();
    let server = format!(
        "server {{ listen {address}; listen unix:{here}/nginx.sock; location = /moved {{ return 302 /elsewhere; }}\n\
             location = /forbidden {{ return 403; }} location = /empty {{ return 204; }} }}"
    );
    nginx_with(folder, &server)
}

fn nginx_behind_proxy(folder: &Path, address: SocketAddr) -> Command {
    let server = format!(
        "server {{ listen {address} proxy_protocol; location / {{ return 200 \"$proxy_protocol_addr $proxy_protocol_port\\n\"; }} }}"
    );
    nginx_with(folder, &server)
}

fn nginx_with(folder: &Path, server: &str) -> Command {
    let here = folder.display();
    let configuration = format!(
        "daemon off; master_process off; pid {here}/nginx.pid; error_log stderr;\n\
         events {{ worker_connections 512; }}\n\
         http {{\n\
             access_log off; root {here}; keepalive_requests 1000000;\n\
             client_body_temp_path {here}/body; proxy_temp_path {here}/proxy; fastcgi_temp_path {here}/fastcgi;\n\
             uwsgi_temp_path {here}/uwsgi; scgi_temp_path {here}/scgi;\n\
             types {{ text/html html; text/plain txt; }} default_type application/octet-stream;\n\
             {server}\n\
         }}\n"
    );
    // One that was killed leaves its socket's file, and does not start over it.
    let _ = std::fs::remove_file(folder.join("nginx.sock"));
    std::fs::write(folder.join("nginx.conf"), configuration).expect("a configuration is written");
    let mut command = Command::new(tool("nginx", "nginx-light"));
    command.arg("-p").arg(folder).arg("-c").arg(folder.join("nginx.conf")).args(["-e", "stderr"]);
    command
}

fn node(_: &Path, address: SocketAddr) -> Command {
    let mut command = Command::new(tool("node", "nodejs"));
    command.arg(script("server.js")).arg(address.port().to_string());
    command
}

fn uvicorn(_: &Path, address: SocketAddr) -> Command {
    let mut command = Command::new(tool("uvicorn", "uvicorn (with pip)"));
    command
        .args(["--host", "127.0.0.1", "--port", &address.port().to_string(), "--no-access-log"])
        .arg("--app-dir")
        .arg(script(""))
        .arg("asgi:app");
    command
}

fn gunicorn(folder: &Path, address: SocketAddr) -> Command {
    let mut command = Command::new(tool("gunicorn", "gunicorn and django (with pip)"));
    command
        .args(["--bind", &format!("127.0.0.1:{}", address.port()), "--workers", "1", "--threads", "4"])
        .args(["--graceful-timeout", "2", "--no-control-socket", "--worker-tmp-dir"])
        .arg(folder)
        .arg("--chdir")
        .arg(script(""))
        .arg("django_site:application")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        // Its worker must not outlive a gunicorn that had to be killed by force.
        .process_group(0);
    command
}

fn websockets(_: &Path, address: SocketAddr) -> Command {
    let mut command = python("websocket_server.py");
    command.arg(address.port().to_string());
    command
}

/// A program of `upstreams/` that runs in the environment with what `requirements.txt` lists.
pub fn python(name: &str) -> Command {
    let mut command = Command::new(tool("python", "python3-venv"));
    command.arg(script(name)).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// A program of `upstreams/` that runs in node.
pub fn javascript(name: &str) -> Command {
    let mut command = Command::new(tool("node", "nodejs"));
    command.arg(script(name));
    command
}

fn script(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/upstreams").join(name)
}

/// Differs between test binaries that run at the same time, mostly.
fn process_byte() -> u8 {
    (std::process::id() % 250) as u8
}

fn next_byte() -> u8 {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
