//! Which socket of a `SO_REUSEPORT` group gets a datagram or a connection, decided by a program in the kernel.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd};

/// One instruction of classic BPF, as `linux/filter.h` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Operation, addressing and size.
    pub code: u16,
    /// How many instructions to skip when a condition holds.
    pub jump_true: u8,
    /// How many to skip when it does not.
    pub jump_false: u8,
    /// The operand.
    pub operand: u32,
}

/// Attaches `program` to the group that the socket `fd` belongs to, in place of any before it. The program's data begins
/// at the payload, and what it returns is the number of a socket in the group, in the order in which they were bound; a number
/// that none has leaves the choice to the kernel's hash. Needs no privilege. `InvalidInput` for a program that is empty, longer
/// than the kernel's 4,096 instructions, or refused by its checks.
pub fn attach_reuseport_cbpf(fd: BorrowedFd<'_>, program: &[Instruction]) -> io::Result<()> {
    if program.is_empty() || program.len() > MAX_INSTRUCTIONS {
        return Err(ErrorKind::InvalidInput.into());
    }
    let mut filter: Vec<libc::sock_filter> = program.iter().map(sock_filter).collect();
    let program = libc::sock_fprog { len: filter.len() as libc::c_ushort, filter: filter.as_mut_ptr() };
    // SAFETY: `program` is what the option takes, of the length given; its pointer is to `len` instructions that live until
    // the call returns, and the kernel copies them. The descriptor is borrowed, and so open.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn sock_filter(instruction: &Instruction) -> libc::sock_filter {
    libc::sock_filter {
        code: instruction.code,
        jt: instruction.jump_true,
        jf: instruction.jump_false,
        k: instruction.operand,
    }
}

/// `BPF_MAXINSNS`.
const MAX_INSTRUCTIONS: usize = 4096;

/// From `asm-generic/socket.h`, which x86-64, AArch64 and RISC-V use; libc's crate has it for Android alone.
const SO_ATTACH_REUSEPORT_CBPF: libc::c_int = 51;

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, UdpSocket};
    use std::os::fd::{AsFd, OwnedFd};
    use std::time::Duration;

    use rustix::net::sockopt::set_socket_reuseport;
    use rustix::net::{AddressFamily, SocketType, bind, socket};

    use super::*;

    const LOAD_BYTE: u16 = 0x30;
    const MODULO: u16 = 0x94;
    const RETURN_A: u16 = 0x16;

    fn instruction(code: u16, operand: u32) -> Instruction {
        Instruction { code, jump_true: 0, jump_false: 0, operand }
    }

    fn group(count: usize) -> Vec<UdpSocket> {
        let mut address: SocketAddr = "127.0.0.1:0".parse().unwrap();
        (0..count)
            .map(|_| {
                let fd: OwnedFd = socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
                set_socket_reuseport(&fd, true).unwrap();
                bind(&fd, &address).unwrap();
                let socket = UdpSocket::from(fd);
                address = socket.local_addr().unwrap();
                socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                socket
            })
            .collect()
    }

    #[test]
    fn a_datagram_goes_to_the_socket_that_its_bytes_name() {
        let sockets = group(4);
        let by_second_byte = [instruction(LOAD_BYTE, 1), instruction(MODULO, 4), instruction(RETURN_A, 0)];
        attach_reuseport_cbpf(sockets[0].as_fd(), &by_second_byte).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        for number in 0..=255 {
            client.send_to(&[0x40, number], sockets[0].local_addr().unwrap()).unwrap();
            let mut received = [0; 2];
            sockets[usize::from(number) % 4].recv(&mut received).unwrap();
            assert_eq!(received, [0x40, number]);
        }
    }

    #[test]
    fn a_program_can_be_replaced() {
        let sockets = group(2);
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        for chosen in [1, 0, 1] {
            // Loads its operand, returns it.
            let program = [instruction(0x00, chosen), instruction(RETURN_A, 0)];
            attach_reuseport_cbpf(sockets[0].as_fd(), &program).unwrap();
            client.send_to(b"x", sockets[0].local_addr().unwrap()).unwrap();
            assert_eq!(sockets[chosen as usize].recv(&mut [0; 8]).unwrap(), 1);
        }
    }

    #[test]
    fn what_the_kernel_would_not_run_is_refused() {
        let sockets = group(1);
        let refused =
            |program: &[Instruction]| attach_reuseport_cbpf(sockets[0].as_fd(), program).unwrap_err().kind();
        assert_eq!(refused(&[]), ErrorKind::InvalidInput);
        // Does not end in a return.
        assert_eq!(refused(&[instruction(LOAD_BYTE, 0)]), ErrorKind::InvalidInput);
        let long = vec![instruction(RETURN_A, 0); 4097];
        assert_eq!(refused(&long), ErrorKind::InvalidInput);
    }
}
