//! HAProxy, in front of a site or behind it.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use tempfile::TempDir;

use super::process::{Process, tool};
use super::real::free_address;
use super::wait::eventually_some;

/// A running HAProxy.
pub struct Haproxy {
    _process: Process,
    /// Of its frontends.
    pub addresses: Vec<SocketAddr>,
    /// Its files.
    _folder: TempDir,
}

impl Haproxy {
    /// Starts one with so many frontends: `configure` is given their addresses and writes what follows the defaults, which
    /// are those of `mode tcp`.
    #[track_caller]
    pub fn start(frontends: usize, configure: impl FnOnce(&[SocketAddr]) -> String) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let addresses: Vec<_> = (0..frontends).map(|_| free_address()).collect();
        let configuration = format!(
            "global\n  stats timeout 10s\n\
             defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 30s\n  timeout server 30s\n{}",
            configure(&addresses)
        );
        let path = folder.path().join("haproxy.cfg");
        std::fs::write(&path, configuration).expect("a configuration is written");
        let mut command = Command::new(tool("haproxy", "haproxy"));
        let mut process = Process::start("haproxy", command.args(["-db", "-f"]).arg(&path));
        for address in &addresses {
            eventually_some("HAProxy listens", || {
                if let Some(status) = process.ended() {
                    panic!("it has ended at once: {status}");
                }
                TcpStream::connect(address).ok()
            });
        }
        Haproxy { _process: process, addresses, _folder: folder }
    }
}
