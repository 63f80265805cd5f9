//! Reading from a socket into memory that nobody has written to yet.

use std::os::fd::AsFd;

use bytes::BufMut;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::RecvFlags;

/// Reads once into the next piece of `buffer` that has room, and moves its end behind what was read. 0 is the end of the
/// stream, or a buffer without room.
///
/// # Errors
/// What the kernel says, `AGAIN` where there is nothing to read.
pub fn receive(socket: impl AsFd, buffer: &mut impl BufMut) -> Result<usize, Errno> {
    let socket = socket.as_fd();
    // SAFETY: nothing uninitialised is written to the slice: it goes to `recv` alone, which writes what it has read.
    let space = unsafe { buffer.chunk_mut().as_uninit_slice_mut() };
    let (read, _) = retry_on_intr(|| {
        rustix::net::recv(socket, &mut *space, RecvFlags::empty())
            .map(|((read, _), count)| (read.len(), count))
    })?;
    // SAFETY: the kernel has just written these bytes, the first of that piece.
    unsafe { buffer.advance_mut(read) };
    Ok(read)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_is_read_stands_behind_what_was_there() {
        let (mut near, far) = UnixStream::pair().unwrap();
        near.write_all(b"received").unwrap();
        let mut buffer = Vec::with_capacity(64);
        buffer.extend_from_slice(b"had, ");
        assert_eq!(receive(&far, &mut buffer), Ok(8));
        assert_eq!(buffer, b"had, received");
        far.set_nonblocking(true).unwrap();
        assert_eq!(receive(&far, &mut buffer), Err(Errno::AGAIN));
        drop(near);
        assert_eq!(receive(&far, &mut buffer), Ok(0));
        assert_eq!(buffer, b"had, received");
    }

    #[test]
    fn no_more_is_read_than_there_is_room_for() {
        let (mut near, far) = UnixStream::pair().unwrap();
        near.write_all(b"received").unwrap();
        let mut space = [0; 3];
        let mut room = &mut space[..];
        assert_eq!(receive(&far, &mut room), Ok(3));
        assert!(room.is_empty());
        assert_eq!(&space, b"rec");
    }
}
