//! Listening sockets from a service manager.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::process::Command;

use crate::harness::{Process, Site, Wire, eventually};

/// Starts the site as systemd would: its sockets from descriptor 3 on, each with a name, and the variables for that very
/// process.
const LAUNCHER: &str = r#"
import os, sys
sockets, names, argv = sys.argv[1].split(","), sys.argv[2], sys.argv[3:]
for number, socket in enumerate(map(int, sockets), 3):
    os.dup2(socket, number)
    os.close(socket)
pid = os.environ.get("WRONG_PID", str(os.getpid()))
os.environ.update(LISTEN_FDS=str(len(sockets)), LISTEN_FDNAMES=names, LISTEN_PID=pid)
os.execv(argv[0], argv)
"#;

/// The command of `site` behind the launcher, with these descriptors passed on as 3, 4, ….
fn activated(site: &Site, names: &str, sockets: &[OwnedFd]) -> Command {
    let run = site.command();
    let numbers: Vec<_> = sockets.iter().map(|socket| socket.as_raw_fd().to_string()).collect();
    let mut command = Command::new("python3");
    command.args(["-c", LAUNCHER, &numbers.join(","), names]).arg(run.get_program()).args(run.get_args());
    if let Some(directory) = run.get_current_dir() {
        command.current_dir(directory);
    }
    command
}

/// A duplicate that children inherit, under a number that is out of the way.
fn inherited(descriptor: impl AsFd) -> OwnedFd {
    let high = rustix::io::fcntl_dupfd_cloexec(descriptor, 100).unwrap();
    rustix::io::fcntl_setfd(&high, rustix::io::FdFlags::empty()).unwrap();
    high
}

fn ask(address: &str) -> String {
    let mut wire = Wire::connect(address.parse().unwrap());
    wire.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    wire.response().text()
}

#[test]
fn sockets_of_a_service_manager_are_served_by_name_and_by_address() {
    let site = Site::new();
    let path = site.path("edge.sock");
    let (named, addressed) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let edge = UnixListener::bind(&path).unwrap();
    let address = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
    let site = site
        .listener("named", "(bind: \"127.0.0.1:0\")")
        .listener("addressed", format!("(bind: \"{}\")", address(&addressed)))
        .listener("edge", "(bind: \"unix:edge.sock\")")
        .route(r#"(path: "/", to: Respond(status: 200, body: "activated"))"#);
    // Clients that came before the site did.
    let early = TcpStream::connect(address(&named)).unwrap();
    let passed = [inherited(&edge), inherited(&named), inherited(&addressed)];
    let mut process = Process::start("activated", &mut activated(&site, "x:named:y", &passed));
    for listener in [&named, &addressed] {
        assert_eq!(ask(&address(listener)), "activated");
    }
    drop(early);
    process.end();
    assert!(path.exists(), "the file is the service manager's");
    // The sockets are, too: clients wait for the next start.
    let _waiting = TcpStream::connect(address(&named)).unwrap();
}

#[test]
fn sockets_that_are_for_another_process_are_left_alone() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    let site = Site::new().listener("http", format!("(bind: \"{address}\")"));
    let passed = [inherited(&socket)];
    let mut command = activated(&site, "http", &passed);
    command.env("WRONG_PID", "1");
    let mut process = Process::start("activated", &mut command);
    eventually("it finds the address in use", || process.ended().is_some());
    assert!(process.output().contains("in use"), "{}", process.output());
}
