//! Listening sockets from systemd (`sd_listen_fds(3)`).

use std::env;
use std::os::fd::OwnedFd;
use std::process;

use listenfd::ListenFd;
use playhouse_serve::sockets::Given;

/// Takes the sockets that a service manager has passed to this very process. To be called before any thread is started,
/// and before any other descriptor is opened: the variables are removed from the environment, and what they say is
/// believed.
pub(super) fn given() -> Given {
    let mut given = Given::default();
    // `listenfd` would also take sockets that are for no process in particular.
    let pid = env::var("LISTEN_PID").ok().and_then(|pid| pid.parse().ok());
    if pid != Some(process::id()) || env::var_os("LISTEN_FDS_FIRST_FD").is_some() {
        return given;
    }
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut sockets = ListenFd::from_env();
    for number in 0..sockets.len() {
        let name = names.next().unwrap_or_default();
        match take(&mut sockets, number) {
            Some(socket) => given.add_activated(name, socket),
            None => tracing::warn!(name, number, "a descriptor from the service manager is no stream socket"),
        }
    }
    given
}

fn take(sockets: &mut ListenFd, number: usize) -> Option<OwnedFd> {
    let tcp = |sockets: &mut ListenFd| Some(sockets.take_tcp_listener(number).ok()??.into());
    let unix = |sockets: &mut ListenFd| Some(sockets.take_unix_listener(number).ok()??.into());
    tcp(sockets).or_else(|| unix(sockets))
}

/// Says which sockets no listener of the site is for. They are closed here.
pub(super) fn warn_of_unused(given: &Given) {
    for name in given.unused() {
        tracing::warn!(
            name,
            "no listener of the site has the name or the address of this socket of the service manager"
        );
    }
}
