//! A link between two processes of a site: typed messages both ways, descriptors beside them.
//!
//! Sending never waits. What the peer does not take at once is queued; when it has not taken [`MAX_QUEUED`] messages or
//! [`MAX_QUEUED_BYTES`], the link is reset, and both sides see its end. So a peer that hangs costs a bounded amount of
//! memory, and is noticed.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;

use parking_lot::Mutex;
use playhouse_protocol::control::{
    DecodeError, EncodeError, MAX_DESCRIPTORS, MAX_MESSAGE, decode, encode, envelope, enveloped,
};
use playhouse_serve::net::{PacketListener, PacketSocket, ReceiveError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

pub use playhouse_serve::net::PeerCred;

use super::payload;

/// Messages that wait for a peer at most.
pub const MAX_QUEUED: usize = 256;

/// Their bytes at most, those in memfds too; one message may always wait, however long it is.
pub const MAX_QUEUED_BYTES: usize = 4 << 20;

/// A connected link, before it is known what is said over it.
#[derive(Debug)]
pub struct Link {
    socket: PacketSocket,
    peer: PeerCred,
}

/// Why a message was not sent or received.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The link has ended.
    #[error("the link has ended")]
    Closed,
    /// The peer does not read; the link was reset.
    #[error("the peer does not take what it is sent")]
    Overflow,
    /// More than [`MAX_DESCRIPTORS`] beside one message.
    #[error("a message with {0} descriptors")]
    TooManyDescriptors(usize),
    /// A datagram or its descriptors did not fit.
    #[error("a truncated message")]
    Truncated,
    /// The memfd of a long message is not what it has to be.
    #[error("the memfd of a message is {0}")]
    Payload(&'static str),
    /// What came is no message.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// What is to be sent cannot be; the link goes on.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// What the kernel says.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<ReceiveError> for LinkError {
    fn from(error: ReceiveError) -> Self {
        match error {
            ReceiveError::Truncated => LinkError::Truncated,
            ReceiveError::Io(error) => LinkError::Io(error),
        }
    }
}

impl Link {
    /// A link and its other end, which goes to a child as its standard input. Of the processes' credentials, both ends
    /// see those of whoever made the pair. Must be called within a runtime, as all that makes a link.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn pair() -> io::Result<(Link, OwnedFd)> {
        let (socket, other) = PacketSocket::pair()?;
        Ok((Self::admit(socket)?, other))
    }

    /// The end of a pair that was inherited.
    ///
    /// # Errors
    /// `InvalidInput` where it is no such socket, `PermissionDenied` where another user is at the other end.
    pub fn from_fd(socket: OwnedFd) -> io::Result<Link> {
        Self::admit(PacketSocket::from_fd(socket)?)
    }

    /// Connects to a [`LinkListener`]; the caller has a deadline.
    ///
    /// # Errors
    /// What the kernel says; `PermissionDenied` where another user listens there.
    pub async fn connect(path: &Path) -> io::Result<Link> {
        Self::admit(PacketSocket::connect(path).await?)
    }

    /// Our own user, and root, who could do anything anyway.
    fn admit(socket: PacketSocket) -> io::Result<Link> {
        let peer = socket.peer()?;
        if peer.uid != 0 && peer.uid != rustix::process::geteuid().as_raw() {
            let message = format!("process {} of user {} is not spoken to", peer.pid, peer.uid);
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        Ok(Link { socket, peer })
    }

    /// The process at the other end when the link was made.
    pub fn peer(&self) -> PeerCred {
        self.peer
    }

    /// The two directions. The link ends when all of both are dropped, or with the first error.
    pub fn split<In, Out>(self) -> (Sender<Out>, Receiver<In>) {
        let shared = Arc::new(Shared {
            socket: self.socket,
            queue: Mutex::default(),
            queued: Notify::new(),
            drained: Notify::new(),
        });
        let writer = tokio::spawn(write(shared.clone())).abort_handle();
        let ends = Arc::new(Ends { shared, writer });
        (Sender { ends: ends.clone(), message: PhantomData }, Receiver { ends, message: PhantomData })
    }
}

/// A socket file to which links are connected. Dropped, it closes, and takes its file away.
#[derive(Debug)]
pub struct LinkListener {
    listener: PacketListener,
}

impl LinkListener {
    /// Binds, with mode 0600; a stale file is replaced. Must be called within a runtime.
    ///
    /// # Errors
    /// What the kernel says; `AddrInUse` where somebody listens there.
    pub fn bind(path: &Path) -> io::Result<LinkListener> {
        Ok(LinkListener { listener: PacketListener::bind(path)? })
    }

    /// Accepts a link from our own user or root; others are closed, and said so in the log. Cancel-safe.
    ///
    /// # Errors
    /// What the kernel says of this one call; the listener stays usable.
    pub async fn accept(&self) -> io::Result<(Link, PeerCred)> {
        loop {
            match Link::admit(self.listener.accept().await?) {
                Ok(link) => {
                    let peer = link.peer();
                    return Ok((link, peer));
                }
                Err(error) => tracing::warn!(%error, "a link was refused"),
            }
        }
    }
}

/// Sends messages; clones send over the same link.
pub struct Sender<Out> {
    ends: Arc<Ends>,
    message: PhantomData<fn(Out)>,
}

impl<Out: Serialize> Sender<Out> {
    /// Sends a message, or queues it. Never waits.
    ///
    /// # Errors
    /// [`LinkError::Encode`] and [`LinkError::TooManyDescriptors`] concern this message only, every other error ends
    /// the link.
    pub fn send(&self, message: &Out, descriptors: Vec<OwnedFd>) -> Result<(), LinkError> {
        if descriptors.len() > MAX_DESCRIPTORS {
            return Err(LinkError::TooManyDescriptors(descriptors.len()));
        }
        let bytes = encode(message)?;
        let weight = bytes.len();
        let datagram = match weight {
            0..=MAX_MESSAGE => Datagram { bytes, weight, descriptors },
            _ => {
                let memfd = payload::seal(&bytes)?;
                let descriptors = std::iter::once(memfd).chain(descriptors).collect();
                Datagram { bytes: envelope(weight), weight, descriptors }
            }
        };
        self.ends.shared.send(datagram)
    }
}

impl<Out> Sender<Out> {
    /// Completes when the kernel has everything that was sent. Cancel-safe.
    ///
    /// # Errors
    /// Where the link ends before.
    pub async fn flushed(&self) -> Result<(), LinkError> {
        let shared = &self.ends.shared;
        loop {
            let mut drained = pin!(shared.drained.notified());
            drained.as_mut().enable();
            {
                let queue = shared.queue.lock();
                queue.error()?;
                if queue.datagrams.is_empty() {
                    return Ok(());
                }
            }
            drained.await;
        }
    }

    /// Ends the link: the peer reads what the kernel has, then the end. What is still queued is dropped.
    pub fn close(&self) {
        self.ends.shared.end(State::Closed);
    }

    /// Whether the link has ended.
    pub fn is_closed(&self) -> bool {
        self.ends.shared.queue.lock().error().is_err()
    }
}

impl<Out> Clone for Sender<Out> {
    fn clone(&self) -> Self {
        Sender { ends: self.ends.clone(), message: PhantomData }
    }
}

impl<Out> fmt::Debug for Sender<Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("closed", &self.is_closed()).finish_non_exhaustive()
    }
}

/// Receives messages. It may be shared: each message goes to one of those that wait.
pub struct Receiver<In> {
    ends: Arc<Ends>,
    message: PhantomData<fn() -> In>,
}

impl<In: DeserializeOwned> Receiver<In> {
    /// The next message and its descriptors; `None` when the peer has ended the link, or we have. Cancel-safe: a future
    /// that is dropped has received nothing.
    ///
    /// # Errors
    /// The link has ended with it: what came was no message, or the peer did not read ([`LinkError::Overflow`]).
    pub async fn recv(&self) -> Result<Option<(In, Vec<OwnedFd>)>, LinkError> {
        let shared = &self.ends.shared;
        match shared.queue.lock().state {
            State::Open => {}
            State::Closed => return Ok(None),
            State::Overflowed => return Err(LinkError::Overflow),
        }
        let mut buffer = vec![0; MAX_MESSAGE];
        let received = match shared.socket.receive(&mut buffer).await {
            Ok(None) => Ok(None),
            Ok(Some(packet)) => {
                unpack(buffer.get(..packet.length).unwrap_or_default(), packet.descriptors).map(Some)
            }
            Err(error) => Err(error.into()),
        };
        if matches!(received, Ok(Some(_))) {
            return received;
        }
        // A reset that came while we waited looks like an end from here.
        match shared.end(State::Closed) {
            State::Overflowed => Err(LinkError::Overflow),
            State::Open | State::Closed => received,
        }
    }
}

impl<In> fmt::Debug for Receiver<In> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

fn unpack<In: DeserializeOwned>(
    datagram: &[u8],
    mut descriptors: Vec<OwnedFd>,
) -> Result<(In, Vec<OwnedFd>), LinkError> {
    let message = match enveloped(datagram)? {
        None => decode(datagram)?,
        Some(_) if descriptors.is_empty() => return Err(LinkError::Payload("missing")),
        Some(length) => decode(&payload::open(&descriptors.remove(0), length)?)?,
    };
    if descriptors.len() > MAX_DESCRIPTORS {
        return Err(LinkError::TooManyDescriptors(descriptors.len()));
    }
    Ok((message, descriptors))
}

/// What senders and receivers hold: with the last of them the link ends.
#[derive(Debug)]
struct Ends {
    shared: Arc<Shared>,
    writer: AbortHandle,
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.writer.abort();
        // The writer's task goes in its own time; the peer is to see the end now.
        self.shared.end(State::Closed);
    }
}

#[derive(Debug)]
struct Shared {
    socket: PacketSocket,
    queue: Mutex<Queue>,
    /// Wakes the writer.
    queued: Notify,
    /// Wakes those who wait for an empty queue or the end.
    drained: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    datagrams: VecDeque<Datagram>,
    weight: usize,
    state: State,
    /// The peer takes nothing any more, but may have sent something before.
    refused: bool,
}

#[derive(Debug)]
struct Datagram {
    bytes: Vec<u8>,
    weight: usize,
    descriptors: Vec<OwnedFd>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Open,
    Closed,
    Overflowed,
}

impl Queue {
    fn error(&self) -> Result<(), LinkError> {
        match self.state {
            State::Open if !self.refused => Ok(()),
            State::Open | State::Closed => Err(LinkError::Closed),
            State::Overflowed => Err(LinkError::Overflow),
        }
    }

    fn has_room_for(&self, weight: usize) -> bool {
        self.datagrams.is_empty()
            || self.datagrams.len() < MAX_QUEUED && self.weight + weight <= MAX_QUEUED_BYTES
    }
}

impl Shared {
    fn send(&self, datagram: Datagram) -> Result<(), LinkError> {
        let mut queue = self.queue.lock();
        queue.error()?;
        if queue.datagrams.is_empty() {
            match self.try_send(&datagram) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(()) => return Ok(()),
                Err(error) => {
                    // What the peer has sent before it went can still be received.
                    self.end_sending(&mut queue);
                    return Err(if is_end(&error) { LinkError::Closed } else { LinkError::Io(error) });
                }
            }
        }
        if !queue.has_room_for(datagram.weight) {
            drop(queue);
            self.end(State::Overflowed);
            return Err(LinkError::Overflow);
        }
        queue.weight += datagram.weight;
        queue.datagrams.push_back(datagram);
        drop(queue);
        self.queued.notify_one();
        Ok(())
    }

    fn try_send(&self, datagram: &Datagram) -> io::Result<()> {
        let descriptors: Vec<_> = datagram.descriptors.iter().map(AsFd::as_fd).collect();
        self.socket.try_send(&datagram.bytes, &descriptors)
    }

    /// Sends what is queued; `WouldBlock` where some of it is left.
    fn flush(&self) -> io::Result<()> {
        let mut queue = self.queue.lock();
        while let Some(datagram) = queue.datagrams.front() {
            match self.try_send(datagram) {
                Ok(()) => {
                    queue.weight -= datagram.weight;
                    queue.datagrams.pop_front();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                Err(_) => self.end_sending(&mut queue),
            }
        }
        drop(queue);
        self.drained.notify_waiters();
        Ok(())
    }

    fn end_sending(&self, queue: &mut Queue) {
        queue.datagrams.clear();
        queue.weight = 0;
        queue.refused = true;
    }

    /// Ends it in both directions, and gives the state in which it has ended.
    fn end(&self, state: State) -> State {
        let mut queue = self.queue.lock();
        if queue.state == State::Open {
            queue.state = state;
        }
        let state = queue.state;
        let dropped = std::mem::take(&mut queue.datagrams);
        queue.weight = 0;
        drop(queue);
        drop(dropped);
        self.socket.shutdown();
        self.drained.notify_waiters();
        state
    }
}

/// The writer: sends what is queued whenever the peer has made room.
async fn write(shared: Arc<Shared>) {
    loop {
        shared.queued.notified().await;
        // Errors of the socket are dealt with in there; what is left is that the runtime is shutting down.
        if shared.socket.writable(|| shared.flush()).await.is_err() {
            return;
        }
    }
}

fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected
    )
}

#[cfg(test)]
mod tests;
