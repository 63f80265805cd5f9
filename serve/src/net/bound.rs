//! Listening sockets as the kernel has them, without a runtime: what a process holds that only passes them on.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use playhouse_config::model::Bind;
use rustix::fs::Mode;
use rustix::io::FdFlags;
use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix, SocketType, sockopt};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::socket_file::{SocketFile, remove_stale};

/// A bound, listening stream socket, non-blocking and close-on-exec, from which nobody accepts yet. Dropped, it closes, and
/// takes the socket file away that it has made itself.
///
/// `O_NONBLOCK` and socket options belong to the socket, and so to all processes that hold it.
#[derive(Debug)]
pub struct BoundSocket {
    socket: OwnedFd,
    local: Option<SocketAddr>,
    address: String,
    /// `None` for TCP, and where another process has made it.
    file: Option<SocketFile>,
}

impl BoundSocket {
    /// Binds and listens.
    ///
    /// TCP: `SO_REUSEADDR`, dual-stack on IPv6 unless `only_v6`. Unix: a stale socket file (nobody answers behind it)
    /// is replaced; the file has its mode before anyone can connect.
    ///
    /// # Errors
    /// What the kernel says; `AddrInUse` where another process listens on the socket file, `AlreadyExists` where the
    /// path is something else than a socket.
    pub fn bind(bind: &Bind, backlog: u32) -> io::Result<Self> {
        match bind {
            Bind::Tcp { address, only_v6 } => Self::bind_tcp(*address, *only_v6, backlog),
            Bind::Unix { path, mode } => Self::bind_unix(path, *mode, backlog),
        }
    }

    fn bind_tcp(address: SocketAddr, only_v6: bool, backlog: u32) -> io::Result<Self> {
        let socket = Self::prepare_tcp(address, only_v6)?;
        socket.bind(&address.into())?;
        socket.listen(backlog_of(backlog))?;
        Self::tcp(socket.into())
    }

    /// Binds with `SO_REUSEPORT`; `bound` is called before it listens.
    pub(super) fn bind_to_share(
        address: SocketAddr,
        only_v6: bool,
        backlog: u32,
        bound: impl FnOnce(&BoundSocket) -> io::Result<()>,
    ) -> io::Result<Self> {
        let socket = Self::prepare_tcp(address, only_v6)?;
        socket.set_reuse_port(true)?;
        socket.bind(&address.into())?;
        let socket = Self::tcp(socket.into())?;
        bound(&socket)?;
        rustix::net::listen(&socket, backlog_of(backlog))?;
        Ok(socket)
    }

    fn prepare_tcp(address: SocketAddr, only_v6: bool) -> io::Result<Socket> {
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(only_v6)?;
        }
        // Accepted sockets inherit it: one system call less for each connection.
        socket.set_tcp_nodelay(true)?;
        Ok(socket)
    }

    fn tcp(socket: OwnedFd) -> io::Result<Self> {
        let local = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
        Ok(BoundSocket { socket, local: Some(local), address: local.to_string(), file: None })
    }

    fn bind_unix(path: &Path, mode: Option<u32>, backlog: u32) -> io::Result<Self> {
        remove_stale(path)?;
        let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
        if let Some(mode) = mode {
            // The file is created with the socket's own mode less the umask: never wider than asked for.
            rustix::fs::fchmod(socket.as_fd(), Mode::from_raw_mode(mode & 0o777))?;
        }
        socket.bind(&SockAddr::unix(path)?)?;
        let file = SocketFile::of(path)?;
        if let Some(mode) = mode {
            file.set_mode(mode)?;
        }
        // Only from here on can anyone connect.
        socket.listen(backlog_of(backlog))?;
        Ok(Self::unix(socket.into(), path, Some(file)))
    }

    fn unix(socket: OwnedFd, path: &Path, file: Option<SocketFile>) -> Self {
        BoundSocket { socket, local: None, address: format!("unix:{}", path.display()), file }
    }

    /// A socket that another process has opened for `bind`. It is made non-blocking and close-on-exec; a socket file is
    /// that process's to remove.
    ///
    /// # Errors
    /// `InvalidInput` where it is not a listening stream socket of the same family, address (any port where that of
    /// `bind` is 0) and `only_v6`.
    pub fn from_descriptor(descriptor: OwnedFd, bind: &Bind) -> io::Result<Self> {
        verify(&descriptor, bind)?;
        rustix::io::fcntl_setfd(&descriptor, FdFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        match bind {
            Bind::Tcp { .. } => {
                sockopt::set_tcp_nodelay(&descriptor, true)?;
                Self::tcp(descriptor)
            }
            Bind::Unix { path, .. } => Ok(Self::unix(descriptor, path, None)),
        }
    }

    /// Whether a socket is one for `bind`, as [`BoundSocket::from_descriptor`] wants it.
    pub fn fits(descriptor: &OwnedFd, bind: &Bind) -> bool {
        verify(descriptor, bind).is_ok()
    }

    /// The address as bound, a port 0 resolved; `unix:/path` for a Unix socket.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The TCP address as bound, a port 0 resolved; `None` for a Unix socket.
    pub fn local(&self) -> Option<SocketAddr> {
        self.local
    }

    /// The socket, to be looked at.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// A duplicate (close-on-exec) to be passed on: the same socket with the same queue.
    ///
    /// # Errors
    /// Where the process has no descriptor left.
    pub fn try_clone_descriptor(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// The same socket again, without its file.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        let socket = self.try_clone_descriptor()?;
        Ok(BoundSocket { socket, local: self.local, address: self.address.clone(), file: None })
    }

    /// Whether the descriptor is of this very socket, not only of one with the same address.
    pub fn is_same_socket(&self, descriptor: impl AsFd) -> bool {
        let identity = |descriptor: BorrowedFd<'_>| {
            rustix::fs::fstat(descriptor).map(|status| (status.st_dev, status.st_ino)).ok()
        };
        let ours = identity(self.descriptor());
        ours.is_some() && ours == identity(descriptor.as_fd())
    }

    /// Leaves the socket file where it is when this is dropped: others listen on the socket.
    pub fn keep_file(&self) {
        if let Some(file) = &self.file {
            file.keep(true);
        }
    }

    /// Takes the socket file, if it is the one that this process has made or [taken over](Self::own_file), away when this
    /// is dropped.
    pub fn remove_file(&self) {
        if let Some(file) = &self.file {
            file.keep(false);
        }
    }

    /// Makes the file of a given Unix socket ours, as if it had been made here. Nothing for TCP.
    ///
    /// # Errors
    /// What the file system says: the file is gone, say, and nobody can connect any more.
    pub fn own_file(&mut self, bind: &Bind) -> io::Result<()> {
        if let Bind::Unix { path, .. } = bind {
            self.file = Some(SocketFile::of(path)?);
        }
        Ok(())
    }

    /// Changes the permission bits of the socket file; nothing for TCP, and where the file is another process's.
    ///
    /// # Errors
    /// What the file system says.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| file.set_mode(mode))
    }
}

impl AsFd for BoundSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for BoundSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

fn backlog_of(backlog: u32) -> i32 {
    i32::try_from(backlog).unwrap_or(i32::MAX)
}

fn verify(descriptor: &OwnedFd, bind: &Bind) -> io::Result<()> {
    let unfit = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    let kind = match sockopt::socket_type(descriptor) {
        Ok(kind) => kind,
        Err(rustix::io::Errno::NOTSOCK) => return unfit("it is no socket".into()),
        Err(error) => return Err(error.into()),
    };
    if kind != SocketType::STREAM {
        return unfit("it is no stream socket".into());
    }
    if !sockopt::socket_acceptconn(descriptor)? {
        return unfit("it does not listen".into());
    }
    let local = rustix::net::getsockname(descriptor)?;
    match bind {
        Bind::Tcp { address, only_v6 } => {
            let Ok(local) = SocketAddr::try_from(local) else {
                return unfit("it is no TCP socket".into());
            };
            // MPTCP, say, is a stream over IP too, but not what the site file says.
            if sockopt::socket_protocol(descriptor)? != Some(rustix::net::ipproto::TCP) {
                return unfit("it is no TCP socket".into());
            }
            if local.ip() != address.ip() || (address.port() != 0 && local.port() != address.port()) {
                return unfit(format!("it listens at {local}"));
            }
            let wildcard_v6 = address.is_ipv6() && address.ip().is_unspecified();
            if wildcard_v6 && sockopt::ipv6_v6only(descriptor)? != *only_v6 {
                return unfit(format!("its IPV6_V6ONLY is {}", !only_v6));
            }
        }
        Bind::Unix { path, .. } => {
            if local.address_family() != AddressFamily::UNIX {
                return unfit("it is no Unix socket".into());
            }
            let listens_at = path_of(local);
            if listens_at.as_deref() != Some(path.as_os_str().as_encoded_bytes()) {
                let listens_at = String::from_utf8_lossy(&listens_at.unwrap_or_default()).into_owned();
                return unfit(format!("it listens at unix:{listens_at}"));
            }
        }
    }
    Ok(())
}

fn path_of(address: SocketAddrAny) -> Option<Vec<u8>> {
    let address = SocketAddrUnix::try_from(address).ok()?;
    Some(address.path()?.to_bytes().to_vec())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "clients need no runtime here")]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::{UnixListener, UnixStream};

    fn tcp(address: &str) -> Bind {
        Bind::Tcp { address: address.parse().unwrap(), only_v6: false }
    }

    fn refused(descriptor: impl Into<OwnedFd>, bind: &Bind) -> String {
        BoundSocket::from_descriptor(descriptor.into(), bind).unwrap_err().to_string()
    }

    #[test]
    fn a_given_socket_becomes_non_blocking_and_close_on_exec() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        rustix::io::fcntl_setfd(&socket, FdFlags::empty()).unwrap();
        let given = BoundSocket::from_descriptor(socket.into(), &tcp(&address.to_string())).unwrap();
        assert_eq!((given.local(), given.address()), (Some(address), &*address.to_string()));
        assert!(rustix::io::fcntl_getfd(&given).unwrap().contains(FdFlags::CLOEXEC));
        assert!(rustix::fs::fcntl_getfl(&given).unwrap().contains(rustix::fs::OFlags::NONBLOCK));
        let passed = given.try_clone_descriptor().unwrap();
        assert!(rustix::io::fcntl_getfd(&passed).unwrap().contains(FdFlags::CLOEXEC));
        assert!(given.is_same_socket(&passed));
        assert!(!given.is_same_socket(TcpListener::bind("127.0.0.1:0").unwrap()));
    }

    #[test]
    fn whatever_the_kernel_chose_fits_port_0_but_no_other_address_does() {
        let socket = || TcpListener::bind("127.0.0.1:0").unwrap();
        BoundSocket::from_descriptor(socket().into(), &tcp("127.0.0.1:0")).unwrap();
        for other in ["127.0.0.2:0", "0.0.0.0:0", "127.0.0.1:9", "[::1]:0"] {
            assert!(refused(socket(), &tcp(other)).contains("listens at 127.0.0.1:"), "{other}");
        }
    }

    #[test]
    fn what_is_no_listening_stream_socket_of_the_family_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("edge.sock");
        let unix = Bind::Unix { path: path.clone(), mode: None };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(refused(stream, &tcp("127.0.0.1:0")), "it does not listen");
        assert_eq!(
            refused(UdpSocket::bind("127.0.0.1:0").unwrap(), &tcp("127.0.0.1:0")),
            "it is no stream socket"
        );
        assert_eq!(
            refused(std::fs::File::open("/dev/null").unwrap(), &tcp("127.0.0.1:0")),
            "it is no socket"
        );
        assert_eq!(refused(listener, &unix), "it is no Unix socket");
        assert_eq!(refused(UnixStream::pair().unwrap().0, &unix), "it does not listen");
        let elsewhere = UnixListener::bind(dir.path().join("other.sock")).unwrap();
        assert!(refused(elsewhere, &unix).ends_with("other.sock"));
        assert_eq!(refused(UnixListener::bind(&path).unwrap(), &tcp("127.0.0.1:0")), "it is no TCP socket");
    }

    #[test]
    fn an_ipv6_wildcard_that_takes_ipv4_too_is_not_one_that_does_not() {
        let socket = BoundSocket::bind(&tcp("[::]:0"), 16).unwrap().try_clone_descriptor().unwrap();
        let only_v6 = Bind::Tcp { address: "[::]:0".parse().unwrap(), only_v6: true };
        assert!(refused(socket.try_clone().unwrap(), &only_v6).contains("V6ONLY"));
        BoundSocket::from_descriptor(socket, &tcp("[::]:0")).unwrap();
    }

    #[test]
    fn only_who_made_a_socket_file_removes_it_and_not_when_it_is_to_be_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("edge.sock");
        let bind = Bind::Unix { path: path.clone(), mode: None };
        let opener = BoundSocket::bind(&bind, 16).unwrap();
        let given = || BoundSocket::from_descriptor(opener.try_clone_descriptor().unwrap(), &bind).unwrap();
        drop(given());
        assert!(path.exists());
        opener.keep_file();
        let mut successor = given();
        drop(opener);
        UnixStream::connect(&path).unwrap();
        successor.own_file(&bind).unwrap();
        drop(successor);
        assert!(!path.exists());
    }
}
