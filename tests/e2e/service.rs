//! What a service manager is told, and what it keeps; the service manager is the test.

use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};
use rustix::process::Pid;

use crate::harness::{PATIENCE, Running, Site, eventually};

#[test]
fn readiness_reloads_and_the_end_are_told() {
    let manager = Manager::new();
    let site = site();
    let mut command = manager.command(&site);
    let mut site = site.start_by(&mut command, Stdio::null());
    manager.expect("READY=1");
    assert!(manager.expect("STATUS=").contains("serving http at 127.0.0.1:"));
    site.reload();
    assert!(manager.expect("RELOADING=1").contains("\nMONOTONIC_USEC="));
    manager.expect("READY=1");
    site.edit(|site| site.route("(nonsense)"));
    assert!(!site.playhouse(&["reload"]).status.success());
    manager.expect("RELOADING=1");
    manager.expect("READY=1");
    site.stop();
    manager.expect("STOPPING=1");
    assert!(site.process.wait().success());
}

#[test]
fn the_watchdog_is_fed_only_while_the_root_gets_on() {
    let manager = Manager::new();
    let site = site();
    let mut command = manager.command(&site);
    command.env("WATCHDOG_USEC", "1000000");
    let site = site.start_by(&mut command, Stdio::null());
    manager.expect("WATCHDOG=1");
    manager.expect("WATCHDOG=1");
    assert!(site.playhouse(&["kill", "instance-1", "--how", "stall=60s"]).status.success());
    let quiet = std::time::Duration::from_secs(3);
    eventually("nobody answers for a root that stands still", || manager.quiet_for(quiet));
    // Other actors may end without the service being in danger.
    let other = Manager::new();
    let site = self::site();
    let mut command = other.command(&site);
    command.env("WATCHDOG_USEC", "1000000");
    let site = site.start_by(&mut command, Stdio::null());
    assert!(site.playhouse(&["kill", "instance-1/notify"]).status.success());
    other.expect("WATCHDOG=1");
    other.expect("WATCHDOG=1");
}

#[test]
fn what_is_said_to_the_main_process_is_not_passed_on_to_instances() {
    let manager = Manager::new();
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = socket.local_addr().expect("its address");
    let site =
        self::site().field("instances: (min: 2, max: 2)").listener("http", format!("(bind: \"{address}\")"));
    let mut command = activated(manager.command(&site), "http");
    command.env("NOTIFY_SOCKET", manager.path()).env("WATCHDOG_USEC", "60000000");
    let site = site.start_by(&mut command, Stdio::from(OwnedFd::from(socket)));
    manager.expect("READY=1");
    let variables = ["LISTEN_", "WATCHDOG_", "NOTIFY_SOCKET", "PLAYHOUSE_INIT"];
    let passed_on = |pid: Pid| {
        let path = format!("/proc/{}/environ", pid.as_raw_nonzero());
        let environment = std::fs::read(path).expect("our own processes");
        let texts =
            environment.split(|byte| *byte == 0).map(|text| String::from_utf8_lossy(text).into_owned());
        texts.filter(|text| variables.iter().any(|name| text.starts_with(name))).collect::<Vec<_>>()
    };
    for _ in 0..2 {
        let pids = site.active(2);
        for pid in &pids {
            assert_eq!(passed_on(*pid), Vec::<String>::new());
        }
        // What has become of it is the service manager's main process still, and feeds its watchdog.
        assert!(site.playhouse(&["upgrade"]).status.success());
        manager.expect("READY=1");
        eventually("both are others", || site.active(2).iter().all(|pid| !pids.contains(pid)));
    }
    assert_eq!(site.address("http"), address);
}

#[test]
fn kept_sockets_come_back_after_a_crash_and_nobody_was_refused() {
    let manager = Manager::new();
    let site = site();
    let mut command = manager.command(&site);
    let mut site = site.start_by(&mut command, Stdio::null());
    let (message, socket) = manager.descriptor("FDSTORE=1");
    assert_eq!(message, "FDSTORE=1\nFDNAME=listener-http");
    let address = site.address("http");
    site.process.kill();
    // Who comes now waits in the kernel's queue.
    let mut client = TcpStream::connect(address).expect("the socket is kept");
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("a request");

    site = again(site, "listener-http", socket, address);
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(site.address("http"), address);
    drop(site);
}

fn site() -> Site {
    Site::new().route(r#"(path: "/", to: Respond(status: 200, body: "ok\n"))"#)
}

/// Starts a site again whose process has ended, with a socket passed on.
fn again(mut site: Running, name: &str, socket: OwnedFd, address: std::net::SocketAddr) -> Running {
    // Where it was told to listen at any port, it is to be this one now.
    site.edit(|site| site.listener("http", format!("(bind: \"{address}\")")));
    let mut command = activated(site.command(), name);
    site.process = crate::harness::Process::start_reading("playhouse", &mut command, Stdio::from(socket));
    eventually("it is ready again", || site.admin.ready());
    site
}

/// A command with its standard input passed on as a service manager does.
fn activated(command: Command, name: &str) -> Command {
    let script = "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(command.get_program()).args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        shell.current_dir(folder);
    }
    shell.env("LISTEN_FDNAMES", name);
    shell
}

/// The service manager.
struct Manager {
    folder: tempfile::TempDir,
    socket: UnixDatagram,
}

impl Manager {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = UnixDatagram::bind(folder.path().join("notify")).expect("a socket");
        Manager { folder, socket }
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("notify")
    }

    fn command(&self, site: &Site) -> Command {
        let mut command = site.command();
        command.env("NOTIFY_SOCKET", self.path());
        command
    }

    /// The next message that begins so.
    #[track_caller]
    fn expect(&self, beginning: &str) -> String {
        self.descriptors(beginning).0
    }

    #[track_caller]
    fn descriptor(&self, beginning: &str) -> (String, OwnedFd) {
        let (message, descriptor) = self.descriptors(beginning);
        (message, descriptor.expect("a descriptor"))
    }

    #[track_caller]
    fn descriptors(&self, beginning: &str) -> (String, Option<OwnedFd>) {
        self.socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut others = Vec::new();
        loop {
            let Some((message, descriptor)) = self.receive() else {
                panic!("no message begins with {beginning}, but there were {others:?}")
            };
            if message.starts_with(beginning) {
                return (message, descriptor);
            }
            others.push(message);
        }
    }

    fn quiet_for(&self, time: std::time::Duration) -> bool {
        self.socket.set_read_timeout(Some(time)).expect("a timeout");
        self.receive().is_none()
    }

    fn receive(&self) -> Option<(String, Option<OwnedFd>)> {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(&mut bytes)];
        let received =
            rustix::net::recvmsg(&self.socket, into, &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
        assert!(!received.flags.contains(ReturnFlags::CTRUNC));
        let descriptor = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
            _ => None,
        });
        Some((String::from_utf8_lossy(&bytes[..received.bytes]).into_owned(), descriptor))
    }
}
