//! How many clients wait to be accepted.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Clients in the accept queue of a listening TCP socket: connected, and accepted by nobody yet. `InvalidInput` for a socket
/// that does not listen; what the kernel says for one that is not of TCP.
pub fn accept_queue(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut info = [0_u32; UNACKED + 1];
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which is the size of `info`, and says how many it has written; any
    // bytes make a `u32`. The descriptor is borrowed, and so open.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let [state, ..] = info[0].to_ne_bytes();
    if (length as usize) < size_of_val(&info) || state != TCP_LISTEN {
        return Err(ErrorKind::InvalidInput.into());
    }
    Ok(info[UNACKED])
}

/// In `struct tcp_info` of `linux/tcp.h`, in words: eight bytes, then `tcpi_rto`, `ato`, `snd_mss`, `rcv_mss`, `unacked`. Of a
/// socket that listens, the last is the length of its accept queue.
const UNACKED: usize = 6;

/// From `net/tcp_states.h`: the first byte of `struct tcp_info`.
const TCP_LISTEN: u8 = 10;

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    // This crate knows nothing of the rest.
    #[allow(clippy::disallowed_methods)]
    fn clients_that_nobody_has_accepted_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let queued = || accept_queue(listener.as_fd()).unwrap();
        assert_eq!(queued(), 0);
        let address = listener.local_addr().unwrap();
        let clients: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
        assert_eq!(queued(), 3);
        let accepted = listener.accept().unwrap();
        assert_eq!(queued(), 2);
        assert!(accept_queue(clients[0].as_fd()).is_err());
        assert!(accept_queue(accepted.0.as_fd()).is_err());
    }

    #[test]
    fn other_sockets_have_no_such_count() {
        let dir = tempfile::tempdir().unwrap();
        let unix = UnixListener::bind(dir.path().join("x")).unwrap();
        assert!(accept_queue(unix.as_fd()).is_err());
    }
}
