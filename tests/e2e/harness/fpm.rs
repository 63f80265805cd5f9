//! php-fpm with a pool of its own, in a folder of its own.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use super::process::Process;
use super::real::free_address;
use super::wait::eventually;

/// A running php-fpm, and all of its processes.
pub struct Fpm {
    process: Process,
    folder: TempDir,
    tcp: SocketAddr,
}

impl Fpm {
    /// Starts one with two pools, over a Unix socket and over TCP, of so many processes each; `more` is for both.
    #[track_caller]
    pub fn start(processes: usize, more: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(folder.path().join("sessions")).expect("a folder is made");
        let tcp = free_address();
        let here = folder.path().display();
        // Who is root must say so twice.
        let user = if rustix::process::geteuid().is_root() { "user = root\ngroup = root\n" } else { "" };
        let pool = |name: &str, listen: &str| {
            format!(
                "[{name}]\n{user}listen = {listen}\npm = static\npm.max_children = {processes}\n\
                 ping.path = /ping\nphp_admin_value[session.save_path] = {here}/sessions\n\
                 php_admin_value[upload_max_filesize] = 64M\nphp_admin_value[post_max_size] = 64M\n\
                 php_admin_value[memory_limit] = 128M\nphp_admin_value[output_buffering] = 0\nphp_admin_flag[log_errors] = on\n{more}\n"
            )
        };
        let configuration = format!(
            "[global]\nerror_log = {here}/fpm.log\ndaemonize = no\nprocess_control_timeout = 5s\n{}{}",
            pool("unix", &format!("{here}/fpm.sock")),
            pool("tcp", &tcp.to_string())
        );
        std::fs::write(folder.path().join("fpm.conf"), configuration).expect("a configuration is written");
        let process = Process::start("php-fpm", &mut command(folder.path()));
        let mut fpm = Fpm { process, folder, tcp };
        fpm.wait_until_listening();
        fpm
    }

    /// The pool's Unix socket, as a site file names it.
    pub fn unix(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    /// The other pool's address.
    pub fn tcp(&self) -> String {
        self.tcp.to_string()
    }

    /// Kills all of its processes without warning (SIGKILL), the master too.
    pub fn kill(&mut self) {
        // The group is the master's, which was made for it and is not reaped yet.
        let _ = rustix::process::kill_process_group(self.process.pid(), Signal::KILL);
        self.process.kill();
    }

    /// Kills one of the processes that run scripts, if there is one; the master starts another.
    pub fn kill_one(&self) {
        let children = format!("/proc/{0}/task/{0}/children", self.process.pid().as_raw_nonzero());
        let children = std::fs::read_to_string(children).unwrap_or_default();
        let child = children.split_whitespace().next().and_then(|pid| pid.parse().ok());
        if let Some(pid) = child.and_then(Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }

    /// Has it start again by itself, its scripts ending first (SIGUSR2); returns when it has.
    #[track_caller]
    pub fn reload(&self) {
        let log = self.folder.path().join("fpm.log");
        let ready = || std::fs::read_to_string(&log).unwrap_or_default().matches("ready to handle").count();
        let before = ready();
        self.process.signal(Signal::USR2);
        eventually("php-fpm has started again", || ready() > before);
    }

    /// Starts it again where it was.
    #[track_caller]
    pub fn start_again(&mut self) {
        self.kill();
        let _ = std::fs::remove_file(self.socket());
        self.process = Process::start("php-fpm again", &mut command(self.folder.path()));
        self.wait_until_listening();
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("fpm.sock")
    }

    #[track_caller]
    fn wait_until_listening(&mut self) {
        let socket = self.socket();
        let tcp = self.tcp;
        let process = &mut self.process;
        let log = self.folder.path().join("fpm.log");
        eventually("php-fpm listens", || {
            if let Some(status) = process.ended() {
                let log = std::fs::read_to_string(&log).unwrap_or_default();
                panic!("php-fpm has ended at once: {status}\n{log}");
            }
            UnixStream::connect(&socket).is_ok() && TcpStream::connect(tcp).is_ok()
        });
    }
}

impl Drop for Fpm {
    fn drop(&mut self) {
        self.kill();
    }
}

fn command(folder: &Path) -> Command {
    let mut command = Command::new(program());
    command.arg("--nodaemonize").arg("--fpm-config").arg(folder.join("fpm.conf")).process_group(0);
    if rustix::process::geteuid().is_root() {
        command.arg("--allow-to-run-as-root");
    }
    command
}

/// php-fpm. Debian's has its version in the name.
#[track_caller]
pub fn program() -> PathBuf {
    let found = ["/usr/sbin", "/usr/local/sbin"].iter().find_map(|folder| {
        let mut programs: Vec<_> = std::fs::read_dir(folder)
            .ok()?
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("php-fpm"))
            .map(|entry| entry.path())
            .collect();
        programs.sort();
        programs.pop()
    });
    found.unwrap_or_else(|| panic!("php-fpm is missing: install php-fpm (scripts/test does)"))
}
