//! A UDP socket per slot at one address: `SO_REUSEPORT`, with a program in the kernel that gives every QUIC packet to the
//! slot whose connection it is of.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use playhouse_config::model::Bind;
use rustix::io::FdFlags;
use rustix::net::{SocketAddrAny, SocketType, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

use super::quic_steering::{Buckets, program};
use super::reuse_port::attach_program;
use playhouse_protocol::connection_id::ConnectionIds;

/// The UDP sockets of one address, numbered from 1: a slot each. All of them are opened at once and in order, and every
/// process holds all of them, so that their order in the kernel, which the program counts by, never changes while the group
/// lives.
#[derive(Debug)]
pub struct QuicGroup {
    sockets: Vec<OwnedFd>,
    local: SocketAddr,
    only_v6: bool,
    /// Whether there is a program.
    steered: bool,
}

impl QuicGroup {
    /// Binds `slots` sockets, of which only the first gets packets until [`QuicGroup::steer`].
    ///
    /// Where the kernel does not take the program, the group [is not steered](QuicGroup::is_steered).
    ///
    /// # Errors
    /// `AddrInUse` also where another group of the same user is;
    /// `InvalidInput` for no slot at all.
    pub fn bind(address: SocketAddr, only_v6: bool, slots: u32, ids: &ConnectionIds) -> io::Result<Self> {
        if slots == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // The kernel would let any process of the same user into the group; without the option, nobody may be there.
        let free = bind_udp(address, only_v6, false)?;
        let address = local_of(&free)?;
        drop(free);
        let first = bind_udp(address, only_v6, true)?;
        let mut group = QuicGroup { sockets: vec![first], local: address, only_v6, steered: true };
        match group.steer(ids, &Buckets::all_to(1), &[1]) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                tracing::warn!(%error, "the processes of the site sort the packets of HTTP/3 themselves");
                group.steered = false;
            }
            steered => steered?,
        }
        group.grow(slots)?;
        Ok(group)
    }

    /// The same group with at least `slots` sockets: duplicates of these, and new ones behind them.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn extended(&self, slots: u32) -> io::Result<Self> {
        let sockets = self.sockets.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        let QuicGroup { local, only_v6, steered, .. } = *self;
        let mut group = QuicGroup { sockets, local, only_v6, steered };
        group.grow(slots)?;
        Ok(group)
    }

    fn grow(&mut self, slots: u32) -> io::Result<()> {
        while self.sockets.len() < slots as usize {
            self.sockets.push(bind_udp(self.local, self.only_v6, true)?);
        }
        Ok(())
    }

    /// The sockets of a group that another process has opened for the listener at `bind`, from slot 1 on, and that has a
    /// program where it is `steered`.
    ///
    /// # Errors
    /// `InvalidInput` where there is none, or one is no UDP socket of that address with `SO_REUSEPORT`.
    pub fn from_descriptors(descriptors: Vec<OwnedFd>, bind: &Bind, steered: bool) -> io::Result<Self> {
        let unfit = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        let Bind::Tcp { address, only_v6 } = *bind else { return Err(unfit("it is for a Unix socket")) };
        let mut local = None;
        for descriptor in &descriptors {
            if sockopt::socket_type(descriptor)? != SocketType::DGRAM {
                return Err(unfit("it is no UDP socket"));
            }
            if !sockopt::socket_reuseport(descriptor)? {
                return Err(unfit("it has no SO_REUSEPORT"));
            }
            let here = local_of(descriptor)?;
            let fits = here.ip() == address.ip() && (address.port() == 0 || here.port() == address.port());
            if !fits || local.is_some_and(|local| local != here) {
                return Err(unfit("it has another address"));
            }
            local = Some(here);
            rustix::io::fcntl_setfd(descriptor, FdFlags::CLOEXEC)?;
            rustix::io::ioctl_fionbio(descriptor, true)?;
        }
        let local = local.ok_or_else(|| unfit("it has no sockets"))?;
        Ok(QuicGroup { sockets: descriptors, local, only_v6, steered })
    }

    /// From now on packets with the ID of a connection of one of the `living` slots go there, and all others by the bucket
    /// of their ID. Nothing where the kernel takes no program.
    ///
    /// # Errors
    /// `InvalidInput` where the group does not have one of the slots; then nothing has changed. Else what the kernel says.
    pub fn steer(&self, ids: &ConnectionIds, buckets: &Buckets, living: &[u32]) -> io::Result<()> {
        let has = |slot: &u32| self.socket(*slot).is_some();
        if !living.iter().all(has) || !buckets.slots().iter().all(has) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if !self.steered {
            return Ok(());
        }
        attach_program(self.sockets[0].as_fd(), &program(ids, buckets, living))
    }

    /// Whether the kernel gives packets to their slots; else whoever gets them has to.
    pub fn is_steered(&self) -> bool {
        self.steered
    }

    /// A number that no other group has, the same in all processes.
    pub fn number(&self) -> io::Result<u64> {
        let first = self.sockets.first().ok_or(io::ErrorKind::InvalidInput)?;
        Ok(rustix::fs::fstat(first)?.st_ino)
    }

    /// The same sockets as if the kernel had refused the program: it chooses by its hash of the addresses.
    #[cfg(test)]
    pub(super) fn without_program(mut self) -> Self {
        // The number of a socket that is not there leaves it to the hash.
        let nobody =
            playhouse_sys::Instruction { code: 0x06, jump_true: 0, jump_false: 0, operand: u32::MAX };
        attach_program(self.sockets[0].as_fd(), &[nobody]).expect("the kernel takes programs");
        self.steered = false;
        self
    }

    /// The socket of a slot.
    pub fn socket(&self, slot: u32) -> Option<&OwnedFd> {
        self.sockets.get((slot as usize).checked_sub(1)?)
    }

    /// The slots with their sockets.
    pub fn sockets(&self) -> impl Iterator<Item = (u32, &OwnedFd)> {
        (1..).zip(&self.sockets)
    }

    /// Where all of them are, a port 0 resolved.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Whether they are bound to this address, in this way.
    pub fn is_at(&self, address: SocketAddr, only_v6: bool) -> bool {
        self.local == address && self.only_v6 == only_v6
    }

    /// Whether both are of the same sockets, even if one has more of them.
    pub fn is_same(&self, other: &QuicGroup) -> bool {
        let identity = |group: &QuicGroup| {
            rustix::fs::fstat(group.sockets.first()?).map(|status| (status.st_dev, status.st_ino)).ok()
        };
        identity(self).is_some_and(|ours| identity(other) == Some(ours))
    }
}

/// A UDP socket, non-blocking and close-on-exec.
pub(super) fn bind_udp(address: SocketAddr, only_v6: bool, shared: bool) -> io::Result<OwnedFd> {
    let kind = Type::DGRAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(only_v6)?;
    }
    if shared {
        socket.set_reuse_port(true)?;
    }
    // All connections share them. The kernel gives no more than its own limits.
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER);
    socket.bind(&address.into())?;
    Ok(socket.into())
}

fn local_of(socket: &OwnedFd) -> io::Result<SocketAddr> {
    let local: SocketAddrAny = rustix::net::getsockname(socket)?;
    Ok(SocketAddr::try_from(local)?)
}

const SOCKET_BUFFER: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    const SLOTS: u32 = 6;

    fn ids() -> ConnectionIds {
        ConnectionIds::new(*b"a key of a site.")
    }

    fn group() -> QuicGroup {
        QuicGroup::bind("127.0.0.1:0".parse().unwrap(), false, SLOTS, &ids()).unwrap()
    }

    /// Which slots have got how many packets.
    fn received(group: &QuicGroup) -> Vec<usize> {
        let mut buffer = [0; 64];
        let mut count =
            |socket: &OwnedFd| std::iter::from_fn(|| rustix::io::read(socket, &mut buffer).ok()).count();
        group.sockets().map(|(_, socket)| count(socket)).collect()
    }

    fn client() -> UdpSocket {
        UdpSocket::bind("127.0.0.1:0").unwrap()
    }

    fn short(id: &[u8]) -> Vec<u8> {
        [&[0x41], id, &[7; 20]].concat()
    }

    fn long(id: &[u8]) -> Vec<u8> {
        [&[0xc3, 0, 0, 0, 1, id.len() as u8], id, &[7; 20]].concat()
    }

    fn number(number: u64) -> [u8; 8] {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
    }

    fn only(slot: u32, count: usize) -> Vec<usize> {
        (1..=SLOTS).map(|other| if other == slot { count } else { 0 }).collect()
    }

    #[test]
    fn a_packet_goes_to_the_slot_of_its_connection_whoever_sends_it_and_from_wherever() {
        let (group, ids) = (group(), ids());
        let living: Vec<u32> = (1..=SLOTS).collect();
        group.steer(&ids, &Buckets::all_to(1), &living).unwrap();
        for slot in 1..=SLOTS {
            for random in 0..20 {
                let id = ids.write(slot as u8, number(random));
                // Each from a port of its own.
                client().send_to(&short(&id), group.local()).unwrap();
                client().send_to(&long(&id), group.local()).unwrap();
            }
            assert_eq!(received(&group), only(slot, 40));
        }
    }

    #[test]
    fn first_packets_go_by_what_the_client_has_chosen_and_stay_there() {
        let (group, ids) = (group(), ids());
        let mut buckets = Buckets::all_to(2);
        buckets.spread(&[(2, 1), (5, 1)]);
        group.steer(&ids, &buckets, &[2, 5, 6]).unwrap();
        let mut slots = Vec::new();
        for chosen in 0..60 {
            let id = number(chosen);
            (0..3).for_each(|_| assert!(client().send_to(&long(&id), group.local()).is_ok()));
            let got = received(&group);
            let slot = got.iter().position(|count| *count > 0).unwrap() as u32 + 1;
            assert_eq!(got, only(slot, 3));
            assert_eq!(slot, buckets.slot(&ids, &id).unwrap());
            slots.push(slot);
        }
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots, [2, 5]);
    }

    #[test]
    fn packets_of_a_slot_that_is_dead_go_to_those_that_live() {
        let (group, ids) = (group(), ids());
        group.steer(&ids, &Buckets::all_to(3), &[3]).unwrap();
        for slot in [1, 2, 4, 200] {
            client().send_to(&short(&ids.write(slot, number(slot.into()))), group.local()).unwrap();
        }
        assert_eq!(received(&group), only(3, 4));
    }

    #[test]
    fn what_is_no_packet_harms_nobody() {
        let (group, ids) = (group(), ids());
        group.steer(&ids, &Buckets::all_to(3), &[3, 4]).unwrap();
        for length in 0..30 {
            client().send_to(&vec![0xff; length], group.local()).unwrap();
            client().send_to(&vec![0x40; length], group.local()).unwrap();
        }
        assert_eq!(received(&group).iter().sum::<usize>(), 60);
    }

    #[test]
    fn the_order_stays_when_a_holder_closes_its_duplicates_and_when_the_group_grows() {
        let (opener, ids) = (group(), ids());
        let bind = Bind::Tcp { address: opener.local(), only_v6: false };
        let duplicates = || opener.sockets().map(|(_, socket)| socket.try_clone().unwrap()).collect();
        let holder = QuicGroup::from_descriptors(duplicates(), &bind, true).unwrap();
        assert!(holder.is_same(&opener) && !holder.is_same(&group()));
        drop(QuicGroup::from_descriptors(duplicates(), &bind, true).unwrap());
        drop(opener);
        let holder = holder.extended(SLOTS + 1).unwrap();
        for slot in [SLOTS + 1, 1, 3] {
            holder.steer(&ids, &Buckets::all_to(slot), &[slot]).unwrap();
            client().send_to(&long(b"chosenby"), holder.local()).unwrap();
            let got = received(&holder);
            assert_eq!((got[slot as usize - 1], got.iter().sum::<usize>()), (1, 1));
        }
    }

    #[test]
    fn nobody_else_may_be_where_a_group_is_and_others_sockets_are_refused() {
        let (group, ids) = (group(), ids());
        let bind = Bind::Tcp { address: group.local(), only_v6: false };
        let error = QuicGroup::bind(group.local(), false, 2, &ids).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert_eq!(
            group.steer(&ids, &Buckets::all_to(1), &[SLOTS + 1]).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        for (descriptor, why) in [
            (client().into(), "it has no SO_REUSEPORT"),
            (std::net::TcpListener::bind("127.0.0.1:0").unwrap().into(), "it is no UDP socket"),
            (bind_udp("127.0.0.1:0".parse().unwrap(), false, true).unwrap(), "it has another address"),
        ] {
            let error = QuicGroup::from_descriptors(vec![descriptor], &bind, true).unwrap_err();
            assert_eq!(error.to_string(), why);
        }
    }
}
