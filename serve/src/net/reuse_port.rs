//! A socket per instance at one address: `SO_REUSEPORT`, with a program in the kernel that says who gets a client.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use playhouse_config::model::Bind;
use playhouse_sys::{Instruction, attach_reuseport_cbpf};
use rustix::net::sockopt;

use super::BoundSocket;

/// A slot, and how many of the clients it gets in proportion to the others. A weight of 0 counts as 1.
pub type Weighted = (u32, u32);

/// The listening sockets of one address, numbered from 1: a slot each. All of them are opened at once and in order, and
/// every process holds all of them, so that their order in the kernel, which the program counts by, never changes while
/// the group lives.
///
/// A client goes to one of the slots that were active when its SYN came, and stays in that slot's queue until somebody
/// accepts it from there, whatever has become of the slot since.
#[derive(Debug)]
pub struct ReusePortGroup {
    sockets: Vec<BoundSocket>,
}

impl ReusePortGroup {
    /// Binds `slots` sockets, of which only the first gets clients until [`ReusePortGroup::steer`].
    ///
    /// # Errors
    /// `Unsupported` where the kernel does not take the program; `AddrInUse` also where another group of the same user
    /// listens; `InvalidInput` for a Unix socket, and for no slot at all.
    pub fn bind(bind: &Bind, slots: u32, backlog: u32) -> io::Result<Self> {
        let Bind::Tcp { address, only_v6 } = *bind else { return Err(io::ErrorKind::InvalidInput.into()) };
        if slots == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // The kernel would let any process of the same user into the group; without the option, nobody may listen.
        let free = BoundSocket::bind(bind, 1)?;
        let address = free.local().unwrap_or(address);
        drop(free);
        let mut group = ReusePortGroup { sockets: Vec::new() };
        for slot in 1..=slots {
            let attach_first =
                |socket: &BoundSocket| if slot == 1 { attach(socket, &[(1, 1)]) } else { Ok(()) };
            group.sockets.push(BoundSocket::bind_to_share(address, only_v6, backlog, attach_first)?);
        }
        Ok(group)
    }

    /// The same group with at least `slots` sockets: duplicates of these, and new ones behind them.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn extended(&self, slots: u32, backlog: u32) -> io::Result<Self> {
        let duplicate = |socket: &BoundSocket| socket.try_clone();
        let mut sockets = self.sockets.iter().map(duplicate).collect::<io::Result<Vec<_>>>()?;
        let first = self.sockets.first().ok_or(io::ErrorKind::InvalidInput)?;
        let address = first.local().ok_or(io::ErrorKind::InvalidInput)?;
        let only_v6 = address.is_ipv6() && sockopt::ipv6_v6only(first)?;
        while sockets.len() < slots as usize {
            sockets.push(BoundSocket::bind_to_share(address, only_v6, backlog, |_| Ok(()))?);
        }
        Ok(ReusePortGroup { sockets })
    }

    /// The sockets of a group that another process has opened for `bind`, from slot 1 on.
    ///
    /// # Errors
    /// `InvalidInput` where there is none, or one does not fit, see [`BoundSocket::from_descriptor`].
    pub fn from_descriptors(descriptors: Vec<OwnedFd>, bind: &Bind) -> io::Result<Self> {
        let unfit = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        let mut group = ReusePortGroup { sockets: Vec::with_capacity(descriptors.len()) };
        for descriptor in descriptors {
            if !sockopt::socket_reuseport(&descriptor)? {
                return Err(unfit("it has no SO_REUSEPORT"));
            }
            group.sockets.push(BoundSocket::from_descriptor(descriptor, bind)?);
        }
        let local = group.sockets.first().ok_or_else(|| unfit("it has no sockets"))?.local();
        match group.sockets.iter().all(|socket| socket.local() == local) {
            true => Ok(group),
            false => Err(unfit("its sockets have different addresses")),
        }
    }

    /// From now on new clients go to these slots, at random, to each by its weight. The others keep what is in their
    /// queues, and the clients whose handshake is under way (for a round trip, or a few where packets are lost) still come
    /// to them.
    ///
    /// # Errors
    /// `InvalidInput` for no slot, or one that the group does not have; then nothing has changed.
    pub fn steer(&self, active: &[Weighted]) -> io::Result<()> {
        if active.is_empty() || active.iter().any(|(slot, _)| self.socket(*slot).is_none()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        attach(&self.sockets[0], active)
    }

    /// The socket of a slot.
    pub fn socket(&self, slot: u32) -> Option<&BoundSocket> {
        self.sockets.get((slot as usize).checked_sub(1)?)
    }

    /// The slots with their sockets.
    pub fn sockets(&self) -> impl Iterator<Item = (u32, &BoundSocket)> {
        (1..).zip(&self.sockets)
    }

    /// Where all of them listen, a port 0 resolved.
    pub fn local(&self) -> Option<SocketAddr> {
        self.sockets.first()?.local()
    }
}

fn attach(socket: &BoundSocket, active: &[Weighted]) -> io::Result<()> {
    attach_program(socket.as_fd(), &program(active))
}

/// Attaches a program to the group of a socket; `Unsupported` where the kernel does not take it.
pub(super) fn attach_program(socket: BorrowedFd<'_>, program: &[Instruction]) -> io::Result<()> {
    attach_reuseport_cbpf(socket, program).map_err(|error| {
        let why = format!("the kernel takes no program for SO_REUSEPORT: {error}");
        io::Error::new(io::ErrorKind::Unsupported, why)
    })
}

/// A program that chooses one of these slots at random. Not by the packet's hash: the kernel has none for clients of
/// the same host, and one that clients can choose is one that they can aim with.
fn program(active: &[Weighted]) -> Vec<Instruction> {
    let instruction = |code, operand| Instruction { code, jump_true: 0, jump_false: 0, operand };
    // A slot's place in the kernel's table.
    let give = |slot: u32| instruction(RETURN, slot.saturating_sub(1));
    let Some(((last, last_weight), others)) = active.split_last() else { return Vec::new() };
    let mut program = Vec::with_capacity(2 * active.len() + 2);
    let mut below = 0_u32;
    let mut choices = Vec::with_capacity(2 * others.len());
    for (slot, weight) in others {
        below = below.saturating_add(*weight.max(&1));
        // Not this one: over its answer.
        choices.push(Instruction { jump_true: 1, ..instruction(JUMP_UNLESS_BELOW, below) });
        choices.push(give(*slot));
    }
    if !others.is_empty() {
        program.push(instruction(LOAD_WORD, RANDOM));
        program.push(instruction(MODULO, below.saturating_add(*last_weight.max(&1))));
    }
    program.extend(choices);
    program.push(give(*last));
    program
}

/// `BPF_LD | BPF_W | BPF_ABS`.
const LOAD_WORD: u16 = 0x20;
/// `BPF_ALU | BPF_MOD | BPF_K`.
const MODULO: u16 = 0x94;
/// `BPF_JMP | BPF_JGE | BPF_K`.
const JUMP_UNLESS_BELOW: u16 = 0x35;
/// `BPF_RET | BPF_K`.
const RETURN: u16 = 0x06;
/// `SKF_AD_OFF + SKF_AD_RANDOM`: where a word of randomness is loaded from.
const RANDOM: u32 = 0xffff_f000 + 56;

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "clients need no runtime here")]
mod tests {
    use std::net::TcpStream;

    use super::*;

    const SLOTS: u32 = 6;

    fn loopback(port: u16) -> Bind {
        Bind::Tcp { address: ([127, 0, 0, 1], port).into(), only_v6: false }
    }

    fn group() -> ReusePortGroup {
        ReusePortGroup::bind(&loopback(0), SLOTS, 1024).unwrap()
    }

    fn connect(group: &ReusePortGroup, clients: usize) -> Vec<TcpStream> {
        (0..clients).map(|_| TcpStream::connect(group.local().unwrap()).unwrap()).collect()
    }

    /// Takes what is in a slot's queue, and counts it.
    fn empty(group: &ReusePortGroup, slot: u32) -> usize {
        let accept = || rustix::net::accept(group.socket(slot).unwrap()).ok();
        std::iter::from_fn(accept).count()
    }

    fn queues(group: &ReusePortGroup) -> Vec<usize> {
        (1..=SLOTS).map(|slot| empty(group, slot)).collect()
    }

    /// What the kernel does with a program, for each value of the random word.
    fn run(program: &[Instruction], random: u32) -> u32 {
        let (mut accumulator, mut at) = (0, 0);
        loop {
            let Instruction { code, jump_true, jump_false, operand } = program[at];
            at += 1;
            match code {
                LOAD_WORD => {
                    assert_eq!(operand, RANDOM);
                    accumulator = random;
                }
                MODULO => accumulator %= operand,
                JUMP_UNLESS_BELOW => {
                    at += usize::from(if accumulator >= operand { jump_true } else { jump_false });
                }
                RETURN => return operand,
                other => panic!("an instruction that is not used: {other:#x}"),
            }
        }
    }

    fn evenly(slots: &[u32]) -> Vec<Weighted> {
        slots.iter().map(|slot| (*slot, 1)).collect()
    }

    #[test]
    fn a_program_gives_every_active_slot_its_share_and_no_other() {
        for active in [&[3][..], &[1, 2], &[2, 5, 6], &(1..=130).collect::<Vec<_>>()] {
            let program = program(&evenly(active));
            let given: Vec<u32> = (0..active.len() as u32).map(|random| run(&program, random) + 1).collect();
            assert_eq!(given, active);
            assert_eq!(run(&program, u32::MAX) + 1, active[u32::MAX as usize % active.len()]);
        }
        assert_eq!(program(&[(4, 9)]).len(), 1);
        assert_eq!(program(&[]), []);
    }

    #[test]
    fn a_program_gives_by_weight() {
        let program = program(&[(2, 1), (5, 3), (3, 0), (6, 2)]);
        let given: Vec<u32> = (0..7).map(|random| run(&program, random) + 1).collect();
        assert_eq!(given, [2, 5, 5, 5, 3, 6, 6]);
        // What makes no sense is no endless program, and no panic.
        let absurd = super::program(&[(1, u32::MAX), (2, u32::MAX), (3, 1)]);
        assert_eq!(run(&absurd, 7) + 1, 1);
    }

    #[test]
    fn clients_go_to_active_slots_only_and_to_each_of_them() {
        let group = group();
        let _first = connect(&group, 5);
        assert_eq!(queues(&group), [5, 0, 0, 0, 0, 0]);
        group.steer(&evenly(&[2, 3, 6])).unwrap();
        let _clients = connect(&group, 300);
        let [0, two, three, 0, 0, six] = queues(&group)[..] else { panic!("an inactive slot has clients") };
        assert_eq!(two + three + six, 300);
        // Five standard deviations.
        assert!([two, three, six].iter().all(|clients| (60..=140).contains(clients)), "{two} {three} {six}");
    }

    #[test]
    fn what_waits_for_a_slot_that_is_taken_out_stays_in_its_queue() {
        let group = group();
        group.steer(&[(4, 1)]).unwrap();
        let before = connect(&group, 20);
        group.steer(&evenly(&[1, 5])).unwrap();
        let after = connect(&group, 20);
        assert_eq!(empty(&group, 4), 20);
        assert_eq!(queues(&group).iter().sum::<usize>(), 20);
        drop((before, after));
    }

    #[test]
    fn the_order_stays_when_a_holder_closes_its_duplicates() {
        let opener = group();
        let bind = loopback(opener.local().unwrap().port());
        let duplicates =
            || opener.sockets().map(|(_, socket)| socket.try_clone_descriptor().unwrap()).collect();
        let holder = ReusePortGroup::from_descriptors(duplicates(), &bind).unwrap();
        drop(ReusePortGroup::from_descriptors(duplicates(), &bind).unwrap());
        drop(opener);
        for slot in [6, 1, 3] {
            holder.steer(&[(slot, 1)]).unwrap();
            let _clients = connect(&holder, 4);
            assert_eq!(empty(&holder, slot), 4);
        }
    }

    #[test]
    fn a_group_that_grows_keeps_its_order() {
        let small = group();
        let large = small.extended(SLOTS + 2, 1024).unwrap();
        drop(small);
        for slot in [SLOTS + 2, 1, SLOTS + 1, SLOTS] {
            large.steer(&[(slot, 1)]).unwrap();
            let _clients = connect(&large, 4);
            assert_eq!(empty(&large, slot), 4);
        }
    }

    #[test]
    fn nobody_else_may_listen_where_a_group_does_nor_a_group_where_somebody_else_does() {
        let group = group();
        let bind = loopback(group.local().unwrap().port());
        for error in [
            BoundSocket::bind(&bind, 1).unwrap_err(),
            ReusePortGroup::bind(&bind, 2, 1).unwrap_err(),
            ReusePortGroup::bind(&loopback(0), 0, 1).unwrap_err(),
            group.steer(&[]).unwrap_err(),
            group.steer(&[(SLOTS + 1, 1)]).unwrap_err(),
        ] {
            assert!(
                matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::InvalidInput),
                "{error}"
            );
        }
        let plain = BoundSocket::bind(&loopback(0), 1).unwrap().try_clone_descriptor().unwrap();
        let error = ReusePortGroup::from_descriptors(vec![plain], &loopback(0)).unwrap_err();
        assert_eq!(error.to_string(), "it has no SO_REUSEPORT");
    }
}
