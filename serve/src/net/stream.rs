//! A connected byte stream.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BufMut;
use rustix::io::retry_on_intr;
use rustix::net::SendFlags;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

/// A connected byte stream. TCP streams have `TCP_NODELAY` set.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Tcp(tokio::net::TcpStream),
    /// A Unix stream socket.
    Unix(tokio::net::UnixStream),
}

impl Stream {
    /// Reads what is there without waiting; costs no system call while the runtime has seen no readiness.
    ///
    /// # Errors
    /// `WouldBlock` where there is nothing to read, else what the socket says.
    pub fn try_read(&self, mut buffer: &mut [u8]) -> io::Result<usize> {
        self.try_read_buf(&mut buffer)
    }

    /// As [`Stream::try_read`], to the end of a buffer.
    ///
    /// # Errors
    /// Those of [`Stream::try_read`].
    pub fn try_read_buf(&self, buffer: &mut impl BufMut) -> io::Result<usize> {
        self.try_io(Interest::READABLE, || Ok(playhouse_sys::receive(self.descriptor(), buffer)?))
    }

    /// Whether an idle stream can no longer be used: the peer has closed or reset it, or has sent what nobody asked
    /// for (that byte is consumed). Costs no system call while the runtime has seen no readiness.
    pub fn peer_closed(&self) -> bool {
        let mut unexpected = [0];
        match self.try_read(&mut unexpected) {
            Ok(_) => true,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    /// Completes when there is something to read, or the peer has closed. Consumes nothing. For one task at a time.
    ///
    /// # Errors
    /// Only where the runtime is shutting down.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Tcp(stream) => stream.poll_read_ready(cx),
            Stream::Unix(stream) => stream.poll_read_ready(cx),
        }
    }

    /// Has the kernel reset a TCP connection when it is dropped, and forget what was not sent: so a client does not take
    /// what it has for the whole.
    pub fn reset_on_drop(&self) {
        if let Stream::Tcp(stream) = self {
            // Fails only where the connection is already gone.
            let _ = stream.set_zero_linger();
        }
    }

    /// The local address; `None` on a Unix socket, or where the socket is already gone. One system call.
    pub fn local_address(&self) -> Option<SocketAddr> {
        match self {
            Stream::Tcp(stream) => stream.local_addr().ok(),
            Stream::Unix(_) => None,
        }
    }
}

/// What is read and written here goes to the kernel directly: libc's functions are cancellation points, which each call
/// pays for in a process of several threads.
impl Stream {
    fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }

    fn try_io<T>(&self, interest: Interest, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self {
            Stream::Tcp(stream) => stream.try_io(interest, call),
            Stream::Unix(stream) => stream.try_io(interest, call),
        }
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Tcp(stream) => stream.poll_write_ready(cx),
            Stream::Unix(stream) => stream.poll_write_ready(cx),
        }
    }

    /// One call that moves up to `wanted` bytes. `None` where the kernel was not ready for it. Where it moves some, but
    /// fewer, it is not ready for more, and will say when it is.
    fn transfer(
        &self,
        interest: Interest,
        wanted: usize,
        call: impl FnOnce(BorrowedFd<'_>) -> rustix::io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        let mut moved = None;
        let tried = self.try_io(interest, || {
            let count = call(self.descriptor())?;
            moved = Some(count);
            if 0 < count && count < wanted { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        match (moved, tried) {
            (Some(count), _) => Some(Ok(count)),
            (None, Err(error)) if error.kind() != io::ErrorKind::WouldBlock => Some(Err(error)),
            (None, _) => None,
        }
    }

    fn poll_transfer(
        &self,
        cx: &mut Context<'_>,
        wanted: usize,
        call: impl Fn(BorrowedFd<'_>) -> rustix::io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_writable(cx))?;
            let written = self.transfer(Interest::WRITABLE, wanted, |socket| retry_on_intr(|| call(socket)));
            if let Some(written) = written {
                return Poll::Ready(written);
            }
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let wanted = buffer.remaining();
        loop {
            ready!(self.poll_readable(cx))?;
            let read =
                self.transfer(Interest::READABLE, wanted, |socket| playhouse_sys::receive(socket, buffer));
            if let Some(read) = read {
                return Poll::Ready(read.map(drop));
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_transfer(cx, bytes.len(), |socket| rustix::net::send(socket, bytes, SendFlags::NOSIGNAL))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wanted = slices.iter().map(|slice| slice.len()).sum();
        self.poll_transfer(cx, wanted, |socket| rustix::io::writev(socket, slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Nothing is held back here.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    use super::*;

    fn pair() -> (Stream, Stream) {
        let (one, other) = UnixStream::pair().unwrap();
        (Stream::Unix(one), Stream::Unix(other))
    }

    #[tokio::test]
    async fn what_does_not_fit_waits_for_the_reader_and_comes_whole() {
        let (mut near, mut far) = pair();
        let sent: Vec<u8> = (0..4_000_000u32).map(|i| (i % 251) as u8).collect();
        let expected = sent.clone();
        let writer = tokio::spawn(async move {
            let (first, second) = sent.split_at(1_000_000);
            near.write_all(first).await.unwrap();
            let mut slices = [io::IoSlice::new(&second[..70_000]), io::IoSlice::new(&second[70_000..])];
            let mut slices = &mut slices[..];
            while !slices.is_empty() {
                let count = near.write_vectored(slices).await.unwrap();
                io::IoSlice::advance_slices(&mut slices, count);
            }
            near.shutdown().await.unwrap();
            near
        });
        let mut received = Vec::new();
        far.read_to_end(&mut received).await.unwrap();
        assert!(received == expected);
        drop(writer.await.unwrap());
        assert_eq!(far.write(b"x").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn a_reader_that_has_taken_all_waits_for_more() {
        let (mut near, mut far) = pair();
        let mut buffer = [0; 8];
        for text in ["one", "eight by", "two"] {
            near.write_all(text.as_bytes()).await.unwrap();
            let count = far.read(&mut buffer).await.unwrap();
            assert_eq!(&buffer[..count], text.as_bytes());
            assert_eq!(far.try_read(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        }
        drop(near);
        assert_eq!(far.read(&mut buffer).await.unwrap(), 0);
        assert_eq!(far.read(&mut buffer).await.unwrap(), 0);
    }
}
