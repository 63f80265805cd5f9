//! Where the kernel does not sort QUIC packets: whoever receives one passes it on to the process whose connection it is of.
//!
//! Each process reads the socket of its own slot, and those of slots that nobody has; what is not its own goes over a Unix
//! datagram socket to the one whose it is, with what the kernel has said of it. Slower than a program in the kernel, and a
//! burst that a process does not take is lost, as it may be on any network; else the same.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use playhouse_protocol::connection_id::{self, ConnectionIds};
use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::io::ReadBuf;
use tokio::net::UnixDatagram;
use tokio::time::Interval;

use crate::shared::Place;

/// The socket of a slot, for an endpoint that is to get its own packets alone.
pub(super) struct Forwarding {
    own: Arc<dyn AsyncUdpSocket>,
    others: Vec<(u32, Arc<dyn AsyncUdpSocket>)>,
    ids: ConnectionIds,
    place: Place,
    relay: Relay,
    inbox: Mutex<Inbox>,
}

#[derive(Debug)]
struct Inbox {
    buffer: Vec<u8>,
    /// When to look for slots that have become nobody's.
    look: Interval,
}

impl Forwarding {
    /// Of a group whose sockets are `sockets`, the process at `place` has its own slot. Packets of others go over sockets in
    /// `directory`, whose names have `group` in them. Must be called within a runtime.
    ///
    /// # Errors
    /// `InvalidInput` where the group does not have the slot; else what the kernel says.
    pub(super) fn new(
        sockets: Vec<Arc<dyn AsyncUdpSocket>>,
        ids: ConnectionIds,
        place: Place,
        directory: &Path,
        group: u64,
    ) -> io::Result<Self> {
        let mut others: Vec<_> = (1..).zip(sockets).collect();
        let own = others.iter().position(|(slot, _)| *slot == place.slot());
        let (_, own) = others.swap_remove(own.ok_or(io::ErrorKind::InvalidInput)?);
        let relay = Relay::bind(directory, group, place.slot())?;
        let inbox = Inbox { buffer: vec![0; LARGEST], look: tokio::time::interval(LOOK) };
        Ok(Forwarding { own, others, ids, place, relay, inbox: Mutex::new(inbox) })
    }

    /// Whose a packet is.
    fn owner(&self, packet: &[u8]) -> u32 {
        let (own, board) = (self.place.slot(), self.place.board());
        let Some((id, _)) = connection_id::destination(packet) else { return own };
        match self.ids.slot(id).map(u32::from) {
            Some(slot) if slot == own || board.is_present(slot) => slot,
            // Nobody's: all packets of one client to the same, whoever looks at it, as long as that one accepts.
            _ => {
                let bucket = self.ids.bucket(id).unwrap_or(0) as u32;
                let rank =
                    |slot: &u32| (bucket ^ slot.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b) >> 8;
                let slots = self.others.iter().map(|(slot, _)| *slot).chain([own]);
                slots.filter(|slot| board.is_active(*slot)).max_by_key(rank).unwrap_or(own)
            }
        }
    }

    /// Passes on what is not ours of a buffer, and leaves the rest in it.
    fn sort(&self, buffer: &mut [u8], meta: &mut RecvMeta) {
        let stride = meta.stride.max(1);
        let owner = |packet: &[u8]| self.owner(packet);
        let first = owner(&buffer[..meta.len.min(stride)]);
        if buffer[..meta.len].chunks(stride).all(|packet| owner(packet) == first) {
            // Nearly always: they are of one client.
            if first != self.place.slot() {
                self.relay.send(first, meta, &buffer[..meta.len]);
                meta.len = 0;
            }
            return;
        }
        let (mut kept, mut at) = (0, 0);
        while at < meta.len {
            let end = (at + stride).min(meta.len);
            let slot = owner(&buffer[at..end]);
            if slot == self.place.slot() {
                buffer.copy_within(at..end, kept);
                kept += end - at;
            } else {
                self.relay.send(slot, &RecvMeta { stride: end - at, ..*meta }, &buffer[at..end]);
            }
            at = end;
        }
        meta.len = kept;
    }
}

impl AsyncUdpSocket for Forwarding {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.own.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.own.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        // It wakes us again; what it is for is looked at below in any case.
        while self.inbox.lock().look.poll_tick(cx).is_ready() {}
        if let Poll::Ready(received) = self.relay.poll_receive(cx, &self.inbox, buffers, metas) {
            return Poll::Ready(received);
        }
        let board = self.place.board();
        let nobodys =
            self.others.iter().filter(|(slot, _)| !board.is_present(*slot)).map(|(_, socket)| socket);
        for socket in std::iter::once(&self.own).chain(nobodys) {
            if let Poll::Ready(received) = socket.poll_recv(cx, buffers, metas) {
                let received = received?;
                for (buffer, meta) in buffers.iter_mut().zip(metas.iter_mut()).take(received) {
                    self.sort(buffer, meta);
                }
                return Poll::Ready(Ok(received));
            }
        }
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.own.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.own.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.own.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.own.may_fragment()
    }
}

impl fmt::Debug for Forwarding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forwarding").field("slot", &self.place.slot()).finish_non_exhaustive()
    }
}

/// The way from process to process.
struct Relay {
    socket: UnixDatagram,
    directory: PathBuf,
    group: u64,
    own: PathBuf,
}

impl Relay {
    fn bind(directory: &Path, group: u64, slot: u32) -> io::Result<Self> {
        let own = relay_path(directory, group, slot);
        match std::fs::remove_file(&own) {
            // Of a process that has had the slot before.
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(Relay { socket: UnixDatagram::bind(&own)?, directory: directory.to_owned(), group, own })
    }

    /// What cannot be sent now is lost.
    fn send(&self, slot: u32, meta: &RecvMeta, packets: &[u8]) {
        let mut message = Vec::with_capacity(HEAD + packets.len());
        put_head(&mut message, meta);
        message.extend_from_slice(packets);
        if let Err(error) = self.socket.try_send_to(&message, relay_path(&self.directory, self.group, slot)) {
            tracing::debug!(slot, %error, "a packet was not passed on");
        }
    }

    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        inbox: &Mutex<Inbox>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let inbox = &mut *inbox.lock();
        loop {
            let mut message = ReadBuf::new(&mut inbox.buffer);
            ready!(self.socket.poll_recv(cx, &mut message))?;
            let (Some(buffer), Some(meta)) = (buffers.first_mut(), metas.first_mut()) else { continue };
            let Some((head, packets)) = take_head(message.filled()) else { continue };
            if let Some(place) = buffer.get_mut(..packets.len()) {
                place.copy_from_slice(packets);
                *meta = head;
                return Poll::Ready(Ok(1));
            }
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // Whoever has it after us has made another.
        let _ = std::fs::remove_file(&self.own);
    }
}

fn relay_path(directory: &Path, group: u64, slot: u32) -> PathBuf {
    directory.join(format!("quic-{slot}.{group}"))
}

/// What stands before the packets: source, where it has come, how long each is.
fn put_head(message: &mut Vec<u8>, meta: &RecvMeta) {
    let ip = |message: &mut Vec<u8>, ip: Option<IpAddr>| match ip {
        Some(IpAddr::V4(ip)) => {
            message.push(4);
            message.extend_from_slice(&[[0; 12].as_slice(), &ip.octets()].concat());
        }
        Some(IpAddr::V6(ip)) => {
            message.push(6);
            message.extend_from_slice(&ip.octets());
        }
        None => message.extend_from_slice(&[0; 17]),
    };
    ip(message, Some(meta.addr.ip()));
    message.extend_from_slice(&meta.addr.port().to_be_bytes());
    ip(message, meta.dst_ip);
    message.push(meta.ecn.map_or(0, |ecn| ecn as u8));
    message.extend_from_slice(&u32::try_from(meta.stride).unwrap_or(u32::MAX).to_be_bytes());
    let scope = if let SocketAddr::V6(address) = meta.addr { address.scope_id() } else { 0 };
    message.extend_from_slice(&scope.to_be_bytes());
}

fn take_head(message: &[u8]) -> Option<(RecvMeta, &[u8])> {
    fn ip(bytes: &[u8]) -> Option<Option<IpAddr>> {
        let address: [u8; 16] = bytes.get(1..17)?.try_into().ok()?;
        Some(match bytes[0] {
            0 => None,
            4 => Some(Ipv4Addr::new(address[12], address[13], address[14], address[15]).into()),
            6 => Some(Ipv6Addr::from(address).into()),
            _ => return None,
        })
    }
    let (head, packets) = message.split_at_checked(HEAD)?;
    let port = u16::from_be_bytes([head[17], head[18]]);
    let mut addr = SocketAddr::new(ip(&head[..17])??, port);
    if let SocketAddr::V6(address) = &mut addr {
        address.set_scope_id(u32::from_be_bytes([head[41], head[42], head[43], head[44]]));
    }
    let meta = RecvMeta {
        addr,
        dst_ip: ip(&head[19..36])?,
        ecn: EcnCodepoint::from_bits(head[36]),
        stride: u32::from_be_bytes([head[37], head[38], head[39], head[40]]) as usize,
        len: packets.len(),
    };
    (meta.stride > 0 && !packets.is_empty()).then_some((meta, packets))
}

const HEAD: usize = 45;
/// A head, and as much as the kernel puts together.
const LARGEST: usize = HEAD + (64 << 10);
/// For a slot whose process has died to be found.
const LOOK: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_passed_on_arrives_as_it_was(
            mut addr in any::<SocketAddr>(), dst_ip in any::<Option<IpAddr>>(), ecn in 0..4u8,
            packets in prop::collection::vec(any::<u8>(), 1..100), stride in 1..100usize,
        ) {
            if let SocketAddr::V6(address) = &mut addr {
                // Nobody asks for it.
                address.set_flowinfo(0);
            }
            let meta =
                RecvMeta { addr, dst_ip, ecn: EcnCodepoint::from_bits(ecn), stride, ..RecvMeta::default() };
            let mut message = Vec::new();
            put_head(&mut message, &meta);
            assert_eq!(message.len(), HEAD);
            prop_assert!(take_head(&message).is_none());
            message.extend_from_slice(&packets);
            let (taken, rest) = take_head(&message).unwrap();
            prop_assert_eq!(
                (taken.addr, taken.dst_ip, taken.ecn, taken.stride, taken.len, rest),
                (meta.addr, meta.dst_ip, meta.ecn, stride, packets.len(), &packets[..])
            );
        }

        #[test]
        fn no_message_makes_it_panic(message in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = take_head(&message);
        }
    }
}
