//! Listening sockets that are accepted from.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use playhouse_config::model::Bind;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::{BoundSocket, ReusePortGroup, Stream};
use crate::exchange::Peer;

/// A listening socket in the runtime's driver. Dropped, it closes, and takes its own socket file away.
///
/// Several processes may hold one socket. Each is woken by every client; whoever accepts first has it.
#[derive(Debug)]
pub struct Listener {
    socket: AsyncFd<BoundSocket>,
    /// With the slot that this is the socket of.
    group: Option<(Arc<ReusePortGroup>, u32)>,
}

impl Listener {
    /// Binds and listens, see [`BoundSocket::bind`]. Must be called within a runtime, whose driver the socket joins.
    ///
    /// # Errors
    /// Those of [`BoundSocket::bind`].
    pub fn bind(bind: &Bind, backlog: u32) -> io::Result<Listener> {
        Self::new(BoundSocket::bind(bind, backlog)?)
    }

    /// A socket that another process has opened for `bind`, see [`BoundSocket::from_descriptor`]. Must be called within
    /// a runtime, whose driver the socket joins.
    ///
    /// # Errors
    /// Those of [`BoundSocket::from_descriptor`].
    pub fn from_descriptor(descriptor: OwnedFd, bind: &Bind) -> io::Result<Listener> {
        Self::new(BoundSocket::from_descriptor(descriptor, bind)?)
    }

    /// Puts a socket into the runtime's driver. Must be called within a runtime.
    ///
    /// # Errors
    /// What the kernel says, of too many watched descriptors for instance.
    #[expect(
        deprecated,
        reason = "what its successor wants to be promised, a `BoundSocket` keeps: it has one descriptor, open as long as it lives"
    )]
    pub fn new(socket: BoundSocket) -> io::Result<Listener> {
        Ok(Listener { socket: AsyncFd::with_interest(socket, Interest::READABLE)?, group: None })
    }

    /// Puts a slot's socket of a group into the runtime's driver, and holds the group. Must be called within a runtime.
    ///
    /// # Errors
    /// `InvalidInput` where the group does not have the slot, else what the kernel says.
    pub fn in_group(group: Arc<ReusePortGroup>, slot: u32) -> io::Result<Listener> {
        let no_slot =
            || io::Error::new(io::ErrorKind::InvalidInput, format!("it has no socket for slot {slot}"));
        let socket = group.socket(slot).ok_or_else(no_slot)?.try_clone()?;
        Ok(Listener { group: Some((group, slot)), ..Self::new(socket)? })
    }

    /// The group that the socket is of, and its slot in it.
    pub fn group(&self) -> Option<(&ReusePortGroup, u32)> {
        self.group.as_ref().map(|(group, slot)| (&**group, *slot))
    }

    /// Accepts one connection from the queue of another slot of the group, if there is one.
    ///
    /// # Errors
    /// Those of [`Listener::accept`].
    pub fn accept_of_slot(&self, slot: u32) -> io::Result<Option<(Stream, Peer)>> {
        match self.group.as_ref().and_then(|(group, _)| group.socket(slot)) {
            Some(socket) => none_where_nobody_waits(accept(socket)),
            None => Ok(None),
        }
    }

    /// Accepts one connection. Cancel-safe: a future that is dropped has accepted nothing.
    ///
    /// # Errors
    /// What the kernel says of this one call; the listener stays usable. [`is_exhausted`] tells whether to wait.
    pub async fn accept(&self) -> io::Result<(Stream, Peer)> {
        loop {
            self.readable().await?;
            if let Some(accepted) = self.try_accept()? {
                return Ok(accepted);
            }
        }
    }

    /// Completes when somebody seems to wait. Accepts nothing; another process may be faster.
    ///
    /// # Errors
    /// Only where the runtime is shutting down.
    pub async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await.map(|mut ready| ready.retain_ready())
    }

    /// Accepts one connection if [`Listener::readable`] has seen somebody wait who still does.
    ///
    /// # Errors
    /// Those of [`Listener::accept`].
    pub fn try_accept(&self) -> io::Result<Option<(Stream, Peer)>> {
        none_where_nobody_waits(self.socket.try_io(Interest::READABLE, accept))
    }

    /// Accepts one connection if the kernel has one, whether the runtime has heard of it or not.
    ///
    /// # Errors
    /// Those of [`Listener::accept`].
    pub fn accept_now(&self) -> io::Result<Option<(Stream, Peer)>> {
        none_where_nobody_waits(accept(self.socket()))
    }

    /// The socket itself.
    pub fn socket(&self) -> &BoundSocket {
        self.socket.get_ref()
    }

    /// The socket, to be looked at.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket().descriptor()
    }

    /// A duplicate to be passed on: the same socket with the same queue.
    ///
    /// # Errors
    /// Where the process has no descriptor left.
    pub fn try_clone_descriptor(&self) -> io::Result<OwnedFd> {
        self.socket().try_clone_descriptor()
    }

    /// Leaves the socket file where it is when this is dropped: others listen on the socket.
    pub fn keep_file(&self) {
        self.socket().keep_file();
    }

    /// The address as bound, a port 0 resolved; `unix:/path` for a Unix socket.
    pub fn address(&self) -> &str {
        self.socket().address()
    }

    /// The TCP address as bound, a port 0 resolved; `None` for a Unix socket.
    pub fn local(&self) -> Option<SocketAddr> {
        self.socket().local()
    }

    /// The local address of a stream that was accepted here; asks the kernel only behind a wildcard address.
    pub fn local_of(&self, stream: &Stream) -> Option<SocketAddr> {
        match self.local()? {
            local if local.ip().is_unspecified() => stream.local_address(),
            local => Some(local),
        }
    }

    /// Changes the permission bits of the socket file; nothing for TCP, and where the file is another process's.
    ///
    /// # Errors
    /// What the file system says.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.socket().set_mode(mode)
    }
}

#[allow(clippy::disallowed_types)]
fn accept(socket: &BoundSocket) -> io::Result<(Stream, Peer)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (stream, peer) = rustix::net::acceptfrom_with(socket, flags)?;
    if socket.local().is_none() {
        let stream = tokio::net::UnixStream::from_std(UnixStream::from(stream))?;
        return Ok((Stream::Unix(stream), Peer::Unix));
    }
    // The kernel always names a TCP client.
    let peer = peer.ok_or(Errno::NOTCONN)?.try_into()?;
    let stream = tokio::net::TcpStream::from_std(std::net::TcpStream::from(stream))?;
    Ok((Stream::Tcp(stream), Peer::Tcp(peer)))
}

fn none_where_nobody_waits<T>(accepted: io::Result<T>) -> io::Result<Option<T>> {
    match accepted {
        Ok(accepted) => Ok(Some(accepted)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether an error of `accept` says that the process or host has run out of descriptors or memory, so that trying
/// again at once would only spin. All other errors concern one connection, or nothing.
pub fn is_exhausted(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

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

    #[tokio::test]
    async fn a_queue_is_shared_by_all_who_hold_the_socket() {
        let opener = Listener::bind(&tcp("127.0.0.1:0", false), 16).unwrap();
        let bind = tcp(opener.address(), false);
        let other = Listener::from_descriptor(opener.try_clone_descriptor().unwrap(), &bind).unwrap();
        let address = Address::Tcp(opener.local().unwrap());
        let _client = Connector::connect(&address).await.unwrap();
        other.readable().await.unwrap();
        opener.readable().await.unwrap();
        assert!(opener.try_accept().unwrap().is_some());
        assert!(other.try_accept().unwrap().is_none());
        drop(opener);
        let _client = Connector::connect(&address).await.unwrap();
        other.accept().await.unwrap();
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
