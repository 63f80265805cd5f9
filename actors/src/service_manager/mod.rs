//! What a service manager (systemd, or another that speaks `sd_notify(3)`) is told of a site, and what it keeps for it.
//!
//! [`ServiceManager`] speaks; [`Notifier`] is the actor that decides when. Nothing here runs without `NOTIFY_SOCKET` in the
//! environment, and nobody but the `playhouse` command looks there.

mod notifier;
mod store;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};
use rustix::time::{ClockId, clock_gettime};

pub use notifier::{Notifier, Serviced};
pub use store::Listening;
use store::Store;

/// A connection to the service manager. Everything it remembers outlives the actor that uses it.
pub struct ServiceManager {
    socket: OwnedFd,
    address: SocketAddrUnix,
    watchdog: Option<Duration>,
    ready: AtomicBool,
    stopping: AtomicBool,
    status: Mutex<String>,
    store: Store,
}

impl ServiceManager {
    /// The one that `NOTIFY_SOCKET` names; `None` where there is none, or none that can be spoken to.
    pub fn from_environment() -> Option<Arc<Self>> {
        let address = std::env::var_os("NOTIFY_SOCKET").filter(|address| !address.is_empty())?;
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        // Without `WATCHDOG_PID` it is meant for whoever reads it: a controller beneath an init, or one that takes over.
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|usec| is_ours && *usec > 0).map(Duration::from_micros);
        let kept = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        match Self::connect(&address, watchdog) {
            Ok(manager) => Some(Arc::new(ServiceManager { store: Store::of(&kept), ..manager })),
            Err(error) => {
                tracing::warn!(address = %address.display(), %error, "the service manager cannot be spoken to");
                None
            }
        }
    }

    /// The one at this address: a path, or a name in the abstract namespace after `@`. With `watchdog` it wants to hear
    /// at least so often that the site lives.
    ///
    /// # Errors
    /// The address is of another kind or too long, no descriptor is left.
    pub fn connect(address: &OsStr, watchdog: Option<Duration>) -> io::Result<Self> {
        let address = match address.as_bytes() {
            [b'/', ..] => SocketAddrUnix::new(address.as_bytes())?,
            [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
            _ => return Err(io::Error::new(io::ErrorKind::Unsupported, "not the address of a Unix socket")),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        let (ready, stopping) = (AtomicBool::new(false), AtomicBool::new(false));
        let (status, store) = (Mutex::default(), Store::default());
        Ok(ServiceManager { socket, address, watchdog, ready, stopping, status, store })
    }

    /// How often it wants to hear that the site lives.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Whether it was told that the site is ready.
    pub fn is_told_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Whether it was told that the site ends.
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Start-up, or a reload, is over.
    ///
    /// # Errors
    /// It does not take messages just now; to be tried again.
    pub fn ready(&self) -> io::Result<()> {
        self.send("READY=1", &[])?;
        self.ready.store(true, Ordering::Release);
        Ok(())
    }

    /// A line for people; sent where it is another than the last.
    ///
    /// # Errors
    /// It does not take messages just now; to be tried again.
    pub fn status(&self, line: &str) -> io::Result<()> {
        let mut last = self.status.lock();
        if *last != line {
            self.send(&format!("STATUS={}", one_line(line)), &[])?;
            line.clone_into(&mut last);
        }
        Ok(())
    }

    /// A reload begins; with the value that is given, it is over. Before the site is ready nothing is said.
    pub fn reloading(self: &Arc<Self>) -> Reloading {
        let manager = self.is_told_ready().then(|| self.clone());
        if let Some(manager) = &manager {
            let now = clock_gettime(ClockId::Monotonic);
            let usec = now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000;
            manager.say(&format!("RELOADING=1\nMONOTONIC_USEC={usec}"));
        }
        Reloading { manager }
    }

    /// The site drains and ends. What is kept stays so: it is for whoever comes next.
    pub fn stopping(&self) {
        self.stopping.store(true, Ordering::Release);
        self.say("STOPPING=1");
    }

    /// The site lives.
    pub fn alive(&self) {
        // The next comes in time.
        let _ = self.send("WATCHDOG=1", &[]);
    }

    /// What concerns nobody but the service manager: a failure is worth a line of the log, no more.
    fn say(&self, message: &str) {
        if let Err(error) = self.send(message, &[]) {
            tracing::warn!(message, %error, "not told to the service manager");
        }
    }

    /// Sends one message without waiting, with descriptors beside it.
    fn send(&self, message: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "more than one descriptor"));
        }
        let bytes = [IoSlice::new(message.as_bytes())];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            match rustix::net::sendmsg_addr(&self.socket, &self.address, &bytes, &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl fmt::Debug for ServiceManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceManager")
            .field("address", &self.address)
            .field("watchdog", &self.watchdog)
            .finish_non_exhaustive()
    }
}

/// A reload that goes on. Dropped, it is over, however it has ended.
#[derive(Debug)]
#[must_use]
pub struct Reloading {
    manager: Option<Arc<ServiceManager>>,
}

impl Drop for Reloading {
    fn drop(&mut self) {
        if let Some(manager) = &self.manager {
            manager.say("READY=1");
        }
    }
}

/// What of the environment is about this very process, and not about those that it starts.
pub fn own_variables() -> impl Iterator<Item = OsString> {
    ["WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"].into_iter().map(OsString::from)
}

/// What of the environment is for whoever speaks with the service manager, which instances do not.
pub fn variables() -> impl Iterator<Item = OsString> {
    own_variables().chain(["NOTIFY_SOCKET", "WATCHDOG_USEC"].into_iter().map(OsString::from))
}

/// A line end would begin another assignment.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::path::Path;

    use super::*;

    /// A service manager as the test sees it: the messages that have come.
    pub(crate) struct Heard(UnixDatagram);

    impl Heard {
        pub(crate) fn at(path: &Path) -> Self {
            let socket = UnixDatagram::bind(path).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            Heard(socket)
        }

        pub(crate) fn next(&self) -> String {
            let mut bytes = [0; 4096];
            let length = self.0.recv(&mut bytes).unwrap();
            String::from_utf8(bytes[..length].to_vec()).unwrap()
        }

        pub(crate) fn nothing(&self) -> bool {
            self.try_next().is_none()
        }

        pub(crate) fn try_next(&self) -> Option<String> {
            self.0.set_nonblocking(true).unwrap();
            let mut bytes = [0; 4096];
            let received = self.0.recv(&mut bytes);
            self.0.set_nonblocking(false).unwrap();
            received.ok().map(|length| String::from_utf8(bytes[..length].to_vec()).unwrap())
        }

        /// A message and the descriptor beside it.
        pub(crate) fn next_with(&self) -> (String, Option<OwnedFd>) {
            use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
            let mut bytes = [0; 4096];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let into = &mut [io::IoSliceMut::new(&mut bytes)];
            let received =
                rustix::net::recvmsg(&self.0, into, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
            let rights = control.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
                _ => None,
            });
            (String::from_utf8(bytes[..received.bytes].to_vec()).unwrap(), rights)
        }
    }

    pub(crate) fn pair(dir: &Path, watchdog: Option<Duration>) -> (Arc<ServiceManager>, Heard) {
        let path = dir.join("notify");
        let heard = Heard::at(&path);
        (Arc::new(ServiceManager::connect(path.as_os_str(), watchdog).unwrap()), heard)
    }

    #[test]
    fn a_reload_is_between_two_messages_and_only_of_a_site_that_is_ready() {
        let dir = tempfile::tempdir().unwrap();
        let (manager, heard) = pair(dir.path(), None);
        drop(manager.reloading());
        assert!(heard.nothing());
        manager.ready().unwrap();
        assert_eq!(heard.next(), "READY=1");
        let reloading = manager.reloading();
        let message = heard.next();
        let usec = message.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(usec.parse::<u64>().unwrap() > 0);
        assert!(heard.nothing());
        drop(reloading);
        assert_eq!(heard.next(), "READY=1");
    }

    #[test]
    fn a_status_is_one_line_and_sent_only_when_it_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let (manager, heard) = pair(dir.path(), None);
        manager.status("2 of 2\nMAINPID=1").unwrap();
        assert_eq!(heard.next(), "STATUS=2 of 2 MAINPID=1");
        manager.status("2 of 2\nMAINPID=1").unwrap();
        assert!(heard.nothing());
        manager.stopping();
        assert_eq!(heard.next(), "STOPPING=1");
    }

    #[test]
    fn a_service_manager_that_does_not_read_holds_up_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let (manager, _heard) = pair(dir.path(), None);
        let full = (0..100_000).map(|n| manager.status(&n.to_string())).find_map(Result::err).unwrap();
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        manager.alive();
        manager.stopping();
    }

    #[test]
    fn an_abstract_name_is_an_address_and_a_virtual_machines_port_is_none() {
        use std::os::linux::net::SocketAddrExt;
        let name = format!("playhouse-test-{}", std::process::id());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        let manager = ServiceManager::connect(OsStr::new(&format!("@{name}")), None).unwrap();
        manager.ready().unwrap();
        assert_eq!(socket.recv(&mut [0; 64]).unwrap(), 7);
        ServiceManager::connect(OsStr::new("vsock:2:1234"), None).unwrap_err();
    }
}
