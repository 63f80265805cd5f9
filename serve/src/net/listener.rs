//! Listening sockets.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use playhouse_config::model::Bind;
use rustix::fs::Mode;
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::Stream;
use crate::exchange::Peer;

/// A bound, listening socket. Dropped, it closes, and takes its own socket file away.
#[derive(Debug)]
#[allow(clippy::disallowed_types)]
pub struct Listener {
    kind: Kind,
    address: String,
}

#[derive(Debug)]
#[allow(clippy::disallowed_types)]
enum Kind {
    Tcp { listener: tokio::net::TcpListener, local: SocketAddr },
    Unix { listener: tokio::net::UnixListener, file: SocketFile },
}

impl Listener {
    /// Binds and listens. Must be called within a runtime, whose driver the socket joins.
    ///
    /// TCP: `SO_REUSEADDR`, dual-stack on IPv6 unless `only_v6`. Unix: a stale socket file (nobody answers behind it)
    /// is replaced; the file has its mode before anyone can connect.
    ///
    /// # Errors
    /// What the kernel says; `AddrInUse` where another process listens on the socket file, `AlreadyExists` where the
    /// path is something else than a socket.
    pub fn bind(bind: &Bind, backlog: u32) -> io::Result<Listener> {
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        match bind {
            Bind::Tcp { address, only_v6 } => Self::bind_tcp(*address, *only_v6, backlog),
            Bind::Unix { path, mode } => Self::bind_unix(path, *mode, backlog),
        }
    }

    #[allow(clippy::disallowed_types)]
    fn bind_tcp(address: SocketAddr, only_v6: bool, backlog: i32) -> io::Result<Listener> {
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(only_v6)?;
        }
        // Accepted sockets inherit it: one system call less for each connection.
        socket.set_tcp_nodelay(true)?;
        socket.bind(&address.into())?;
        socket.listen(backlog)?;
        let listener = tokio::net::TcpListener::from_std(socket.into())?;
        let local = listener.local_addr()?;
        Ok(Listener { address: local.to_string(), kind: Kind::Tcp { listener, local } })
    }

    #[allow(clippy::disallowed_types)]
    fn bind_unix(path: &Path, mode: Option<u32>, backlog: i32) -> io::Result<Listener> {
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
        socket.listen(backlog)?;
        let listener = tokio::net::UnixListener::from_std(socket.into())?;
        Ok(Listener { address: format!("unix:{}", path.display()), kind: Kind::Unix { listener, file } })
    }

    /// Accepts one connection. Cancel-safe: a future that is dropped has accepted nothing.
    ///
    /// # Errors
    /// What the kernel says of this one call; the listener stays usable. [`is_exhausted`] tells whether to wait.
    pub async fn accept(&self) -> io::Result<(Stream, Peer)> {
        match &self.kind {
            Kind::Tcp { listener, .. } => {
                let (stream, peer) = listener.accept().await?;
                Ok((Stream::Tcp(stream), Peer::Tcp(peer)))
            }
            Kind::Unix { listener, .. } => {
                let (stream, _) = listener.accept().await?;
                Ok((Stream::Unix(stream), Peer::Unix))
            }
        }
    }

    /// The address as bound, a port 0 resolved; `unix:/path` for a Unix socket.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The TCP address as bound, a port 0 resolved; `None` for a Unix socket.
    pub fn local(&self) -> Option<SocketAddr> {
        match &self.kind {
            Kind::Tcp { local, .. } => Some(*local),
            Kind::Unix { .. } => None,
        }
    }

    /// The local address of a stream that was accepted here; asks the kernel only behind a wildcard address.
    pub fn local_of(&self, stream: &Stream) -> Option<SocketAddr> {
        match &self.kind {
            Kind::Tcp { local, .. } if local.ip().is_unspecified() => stream.local_address(),
            Kind::Tcp { local, .. } => Some(*local),
            Kind::Unix { .. } => None,
        }
    }

    /// Changes the permission bits of the socket file; nothing for TCP.
    ///
    /// # Errors
    /// What the file system says.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        match &self.kind {
            Kind::Unix { file, .. } => file.set_mode(mode),
            Kind::Tcp { .. } => Ok(()),
        }
    }
}

/// Whether an error of `accept` says that the process or host has run out of descriptors or memory, so that trying
/// again at once would only spin. All other errors concern one connection, or nothing.
pub fn is_exhausted(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

/// A socket file that we have made. Dropped, it is removed, if it is still ours.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        let metadata = std::fs::symlink_metadata(path)?;
        Ok(SocketFile { path: path.to_owned(), inode: (metadata.dev(), metadata.ino()) })
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        std::fs::set_permissions(&self.path, std::fs::Permissions::from_mode(mode & 0o777))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.inode);
        if ours && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "socket file not removed");
        }
    }
}

/// Removes a socket file behind which nobody listens.
fn remove_stale(path: &Path) -> io::Result<()> {
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "exists and is not a socket"));
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
    match probe.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
        // Connected, or the queue of whoever listens is full.
        Ok(()) | Err(_) => {
            Err(io::Error::new(io::ErrorKind::AddrInUse, "in use: another process listens on this socket"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Connector;
    use playhouse_config::model::Address;

    fn tcp(address: &str, only_v6: bool) -> Bind {
        Bind::Tcp { address: address.parse().unwrap(), only_v6 }
    }

    fn mode_of(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[tokio::test]
    async fn an_accepted_stream_has_nodelay_and_knows_its_addresses() {
        let listener = Listener::bind(&tcp("0.0.0.0:0", false), 16).unwrap();
        let port = listener.local().unwrap().port();
        assert_ne!(port, 0);
        assert_eq!(listener.address(), format!("0.0.0.0:{port}"));
        let address: SocketAddr = ([127, 0, 0, 1], port).into();
        let client = Connector::connect(&Address::Tcp(address)).await.unwrap();
        let (stream, peer) = listener.accept().await.unwrap();
        assert_eq!(peer, Peer::Tcp(client.local_address().unwrap()));
        assert_eq!(listener.local_of(&stream), Some(address));
        assert!(matches!(stream, Stream::Tcp(ref stream) if stream.nodelay().unwrap()));
    }

    #[tokio::test]
    async fn an_ipv6_wildcard_takes_ipv4_unless_told_otherwise() {
        let dual = Listener::bind(&tcp("[::]:0", false), 16).unwrap();
        let port = dual.local().unwrap().port();
        Connector::connect(&Address::Tcp(([127, 0, 0, 1], port).into())).await.unwrap();
        let (_, peer) = dual.accept().await.unwrap();
        assert_eq!(peer.to_string(), "127.0.0.1");

        let only_v6 = Listener::bind(&tcp("[::]:0", true), 16).unwrap();
        let port = only_v6.local().unwrap().port();
        let refused = Connector::connect(&Address::Tcp(([127, 0, 0, 1], port).into())).await;
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn a_stale_socket_file_is_replaced_and_a_live_one_is_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("edge.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let bind = Bind::Unix { path: path.clone(), mode: Some(0o660) };
        let listener = Listener::bind(&bind, 16).unwrap();
        assert_eq!(mode_of(&path), 0o660);
        assert_eq!(Listener::bind(&bind, 16).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        Connector::connect(&Address::Unix(path.clone())).await.unwrap();
        assert_eq!(listener.accept().await.unwrap().1, Peer::Unix);
        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_never_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("precious");
        std::fs::write(&path, "data").unwrap();
        let error = Listener::bind(&Bind::Unix { path: path.clone(), mode: None }, 16).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
    }

    #[tokio::test]
    async fn a_socket_file_of_a_successor_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("edge.sock");
        let bind = Bind::Unix { path: path.clone(), mode: None };
        let ours = Listener::bind(&bind, 16).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _successor = Listener::bind(&bind, 16).unwrap();
        drop(ours);
        assert!(path.exists());
    }

    #[test]
    fn running_out_of_descriptors_is_told_from_one_broken_connection() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
            assert!(is_exhausted(&errno.into()));
        }
        for errno in [Errno::CONNABORTED, Errno::INTR, Errno::PROTO, Errno::PERM] {
            assert!(!is_exhausted(&errno.into()));
        }
    }
}
