//! Datagrams with descriptors beside them: `SOCK_SEQPACKET` Unix sockets, what a site's processes speak over.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::socket_file::{SocketFile, remove_stale};
use super::watch;

/// A connected socket that keeps the borders of what is sent through it.
#[derive(Debug)]
pub struct PacketSocket {
    socket: AsyncFd<OwnedFd>,
}

/// What has come in one datagram.
#[derive(Debug)]
pub struct Packet {
    /// Bytes of it in the buffer.
    pub length: usize,
    /// Close-on-exec.
    pub descriptors: Vec<OwnedFd>,
}

/// The process at the other end, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCred {
    /// Who connected, who listens, or who made the pair; 0 where it is in a namespace that we do not see into.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
}

/// Why nothing can be received any more.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// A datagram that was longer than the buffer, or had more descriptors than [`PacketSocket::MAX_DESCRIPTORS`], or
    /// more than this process may have open. What came of it is dropped.
    #[error("a truncated datagram")]
    Truncated,
    /// What the kernel says.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl PacketSocket {
    /// Descriptors beside a datagram at most.
    pub const MAX_DESCRIPTORS: usize = 65;

    /// Two connected sockets: one for us, one for a child, who sees us as [`PacketSocket::peer`]. Must be called within
    /// a runtime, as all that makes one.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn pair() -> io::Result<(PacketSocket, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self::from_fd(ours)?, theirs))
    }

    /// A socket that was inherited or received.
    ///
    /// # Errors
    /// `InvalidInput` where it is no `SOCK_SEQPACKET` Unix socket, else what the kernel says.
    pub fn from_fd(socket: OwnedFd) -> io::Result<PacketSocket> {
        let is_packet = sockopt::socket_domain(&socket)? == AddressFamily::UNIX
            && sockopt::socket_type(&socket)? == SocketType::SEQPACKET;
        if !is_packet {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a SOCK_SEQPACKET Unix socket"));
        }
        let flags = rustix::fs::fcntl_getfl(&socket)? | rustix::fs::OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(&socket, flags)?;
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
        // So that a few of the longest messages fit; where the host's limit is lower, the queue before it holds them.
        let _ = sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER);
        let interest = Interest::READABLE | Interest::WRITABLE;
        Ok(PacketSocket { socket: watch(socket, interest)? })
    }

    /// Connects to a [`PacketListener`]. Waits where its queue is full, so the caller has a deadline.
    ///
    /// # Errors
    /// What the kernel says.
    pub async fn connect(path: &Path) -> io::Result<PacketSocket> {
        let address = SocketAddrUnix::new(path)?;
        let socket = socket()?;
        loop {
            match rustix::net::connect(&socket, &address) {
                Ok(()) => return Self::from_fd(socket),
                Err(Errno::AGAIN) => tokio::time::sleep(QUEUE_FULL).await,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Who is at the other end.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn peer(&self) -> io::Result<PeerCred> {
        // tokio's, because rustix takes a process identifier of 0, another namespace's, for impossible.
        let stream = std::os::unix::net::UnixStream::from(self.socket.get_ref().try_clone()?);
        let peer = tokio::net::UnixStream::from_std(stream)?.peer_cred()?;
        Ok(PeerCred { pid: peer.pid().and_then(|pid| pid.try_into().ok()).unwrap_or(0), uid: peer.uid() })
    }

    /// Sends one datagram whole, or not at all, without waiting. The descriptors stay the caller's.
    ///
    /// # Errors
    /// `WouldBlock` where the peer has to read first, see [`PacketSocket::writable`]; `InvalidInput` for too many
    /// descriptors, or a datagram of no bytes, which would look like the end; else what the kernel says.
    pub fn try_send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if bytes.is_empty() || descriptors.len() > Self::MAX_DESCRIPTORS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            match rustix::net::sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags) {
                Err(Errno::INTR) => {}
                result => return result.map(|_| ()).map_err(Into::into),
            }
        }
    }

    /// Calls `send` when it is worth a try, until it gives something else than `WouldBlock`. Cancel-safe.
    ///
    /// # Errors
    /// Those of `send`.
    pub async fn writable<T>(&self, mut send: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        self.socket.async_io(Interest::WRITABLE, |_| send()).await
    }

    /// Receives one datagram; `None` at the end. Cancel-safe: a future that is dropped has received nothing.
    ///
    /// # Errors
    /// See [`ReceiveError`].
    pub async fn receive(&self, buffer: &mut [u8]) -> Result<Option<Packet>, ReceiveError> {
        let (packet, flags) =
            self.socket.async_io(Interest::READABLE, |socket| receive(socket.as_fd(), buffer)).await?;
        // What is aligned has room for one descriptor more.
        let too_many = packet.descriptors.len() > Self::MAX_DESCRIPTORS;
        if too_many || flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(ReceiveError::Truncated);
        }
        Ok((packet.length > 0).then_some(packet))
    }

    /// Ends it in both directions: the peer reads what was sent, then the end.
    pub fn shutdown(&self) {
        // Fails only where the peer is already gone.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(Packet, ReturnFlags)> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = loop {
        match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            // The peer has closed without having read everything. That is said once, and before what it has sent.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            result => break result?,
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Ok((Packet { length: received.bytes, descriptors }, received.flags))
}

/// A socket file to which [`PacketSocket`]s connect. Dropped, it closes, and takes its file away.
#[derive(Debug)]
pub struct PacketListener {
    socket: AsyncFd<OwnedFd>,
    _file: SocketFile,
}

impl PacketListener {
    /// Binds, with mode 0600 before anyone can connect; a stale file, behind which nobody listens, is replaced. Must be
    /// called within a runtime.
    ///
    /// # Errors
    /// What the kernel says; `AddrInUse` where somebody listens there, `AlreadyExists` where the path is no socket.
    pub fn bind(path: &Path) -> io::Result<PacketListener> {
        remove_stale(path)?;
        let address = SocketAddrUnix::new(path)?;
        let socket = socket()?;
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        rustix::net::bind(&socket, &address)?;
        let file = SocketFile::of(path)?;
        file.set_mode(0o600)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(PacketListener { socket: watch(socket, Interest::READABLE)?, _file: file })
    }

    /// Accepts one connection. Cancel-safe.
    ///
    /// # Errors
    /// What the kernel says of this one call; the listener stays usable. [`super::is_exhausted`] tells whether to wait.
    pub async fn accept(&self) -> io::Result<PacketSocket> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accept = |socket: &OwnedFd| Ok(rustix::net::accept_with(socket, flags)?);
        PacketSocket::from_fd(self.socket.async_io(Interest::READABLE, accept).await?)
    }
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

const SPACE: usize = rustix::cmsg_space!(ScmRights(PacketSocket::MAX_DESCRIPTORS));
const SEND_BUFFER: usize = 256 << 10;
const BACKLOG: i32 = 16;
/// Until a connection is tried again: the kernel tells nobody when there is room.
const QUEUE_FULL: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};

    async fn received(socket: &PacketSocket, buffer: &mut [u8]) -> Option<Packet> {
        socket.receive(buffer).await.unwrap()
    }

    #[tokio::test]
    async fn borders_and_descriptors_are_kept() {
        let (ours, theirs) = PacketSocket::pair().unwrap();
        let theirs = PacketSocket::from_fd(theirs).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        ours.try_send(b"one", &[]).unwrap();
        ours.try_send(b"two", &[file.as_fd(), file.as_fd()]).unwrap();
        drop(ours);
        let mut buffer = [0; 16];
        let one = received(&theirs, &mut buffer).await.unwrap();
        assert_eq!((&buffer[..one.length], one.descriptors.len()), (&b"one"[..], 0));
        let two = received(&theirs, &mut buffer).await.unwrap();
        assert_eq!((&buffer[..two.length], two.descriptors.len()), (&b"two"[..], 2));
        for descriptor in &two.descriptors {
            let flags = rustix::io::fcntl_getfd(descriptor).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
        assert!(received(&theirs, &mut buffer).await.is_none());
        assert!(received(&theirs, &mut buffer).await.is_none());
    }

    #[tokio::test]
    async fn what_a_peer_has_sent_is_read_even_when_it_closed_without_reading() {
        let (ours, theirs) = PacketSocket::pair().unwrap();
        let theirs = PacketSocket::from_fd(theirs).unwrap();
        ours.try_send(b"unread", &[]).unwrap();
        theirs.try_send(b"last words", &[]).unwrap();
        drop(theirs);
        let mut buffer = [0; 16];
        assert_eq!(received(&ours, &mut buffer).await.unwrap().length, 10);
        assert!(received(&ours, &mut buffer).await.is_none());
        assert_eq!(ours.try_send(b"x", &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn a_datagram_or_descriptors_beyond_what_fits_are_truncated_and_leak_nothing() {
        let (ours, theirs) = PacketSocket::pair().unwrap();
        let theirs = PacketSocket::from_fd(theirs).unwrap();
        ours.try_send(&[b'x'; 17], &[]).unwrap();
        let mut buffer = [0; 16];
        assert!(matches!(theirs.receive(&mut buffer).await, Err(ReceiveError::Truncated)));

        let (reader, writer) = std::io::pipe().unwrap();
        for more in [1, 2, 30] {
            let many = vec![writer.as_fd(); PacketSocket::MAX_DESCRIPTORS + more];
            assert_eq!(ours.try_send(b"x", &many).unwrap_err().kind(), io::ErrorKind::InvalidInput);
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
            let slices = [IoSlice::new(b"x")];
            rustix::net::sendmsg(&ours.socket, &slices, &mut control, SendFlags::empty()).unwrap();
            assert!(matches!(theirs.receive(&mut buffer).await, Err(ReceiveError::Truncated)));
        }
        drop(writer);
        // The end of a pipe that nobody holds any more.
        assert_eq!((&reader).read(&mut [0; 1]).unwrap(), 0);
    }

    #[tokio::test]
    async fn a_listener_replaces_a_stale_file_and_takes_its_own_away() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("instance-1.control");
        let stale = socket().unwrap();
        rustix::net::bind(&stale, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        drop(stale);
        let listener = PacketListener::bind(&path).unwrap();
        let metadata = std::fs::symlink_metadata(&path).unwrap();
        assert!(metadata.file_type().is_socket());
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        assert_eq!(PacketListener::bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);

        let client = PacketSocket::connect(&path).await.unwrap();
        let server = listener.accept().await.unwrap();
        let me = PeerCred { pid: std::process::id(), uid: rustix::process::geteuid().as_raw() };
        assert_eq!((client.peer().unwrap(), server.peer().unwrap()), (me, me));
        client.try_send(b"hello", &[]).unwrap();
        assert_eq!(received(&server, &mut [0; 16]).await.unwrap().length, 5);
        drop(listener);
        assert!(!path.exists());
        assert!(PacketSocket::connect(&path).await.is_err());
    }

    #[tokio::test]
    async fn another_kind_of_socket_is_refused() {
        let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(PacketSocket::from_fd(stream.into()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(PacketSocket::from_fd(file.into()).is_err());
    }
}
