//! What is to be written.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::AsyncWrite;

/// Heads, framing and content on their way to the client. Small content is copied behind its head, so that both are one
/// write; a large piece is written from where it is, in the same vectored write.
#[derive(Debug, Default)]
pub(super) struct Output {
    buf: BytesMut,
    /// Bytes of `buf` that are written.
    sent: usize,
    /// Stands behind `buf`.
    large: Bytes,
    /// Stands behind `large`.
    tail: &'static [u8],
    /// Bytes written in the life of the connection.
    written: u64,
}

impl Output {
    /// Where heads and framing are written to. Only while there [is room](Self::has_room).
    pub(super) fn buf(&mut self) -> &mut BytesMut {
        debug_assert!(self.large.is_empty() && self.tail.is_empty());
        &mut self.buf
    }

    /// Puts content, and `tail` behind it. Only while there is room, apart from what was framed since.
    pub(super) fn put(&mut self, data: &Bytes, tail: &'static [u8]) {
        debug_assert!(self.large.is_empty() && self.tail.is_empty());
        if data.len() <= COPIED {
            self.buf.extend_from_slice(data);
            self.buf.extend_from_slice(tail);
        } else {
            self.large = data.clone();
            self.tail = tail;
        }
    }

    /// Whether more may be put before what is here has been written.
    pub(super) fn has_room(&self) -> bool {
        self.large.is_empty() && self.tail.is_empty() && self.buf.len() < BUFFERED
    }

    /// Writes all, and is ready once all is written. [`Output::written`] says whether there was progress.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        mut io: Pin<&mut impl AsyncWrite>,
    ) -> Poll<io::Result<()>> {
        while !self.is_empty() {
            let buf = &self.buf[self.sent..];
            let count = if self.large.is_empty() && self.tail.is_empty() {
                ready!(io.as_mut().poll_write(cx, buf))?
            } else {
                let slices = [IoSlice::new(buf), IoSlice::new(&self.large), IoSlice::new(self.tail)];
                let empty = slices.iter().take_while(|slice| slice.is_empty()).count();
                ready!(io.as_mut().poll_write_vectored(cx, &slices[empty..]))?
            };
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(count);
        }
        Poll::Ready(Ok(()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unsent() == 0
    }

    /// Bytes that are put and not written.
    pub(super) fn unsent(&self) -> usize {
        self.buf.len() - self.sent + self.large.len() + self.tail.len()
    }

    /// Bytes written in the life of the connection.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// A place to [roll back](Self::roll_back) to.
    pub(super) fn mark(&self) -> u64 {
        self.written + self.unsent() as u64
    }

    /// Takes back all that was put since the mark, if none of it was written.
    pub(super) fn roll_back(&mut self, mark: u64) -> bool {
        let Some(kept) = mark.checked_sub(self.written) else { return false };
        self.large = Bytes::new();
        self.tail = &[];
        // What was unsent at the mark stood in the buffer, for there was room.
        self.buf.truncate(self.sent + kept as usize);
        true
    }

    /// Lets go of the memory, when there is nothing in it.
    pub(super) fn shrink(&mut self) {
        if self.is_empty() {
            self.buf = BytesMut::new();
        }
    }

    fn advance(&mut self, count: usize) {
        self.written += count as u64;
        let mut left = count;
        let step = left.min(self.buf.len() - self.sent);
        self.sent += step;
        left -= step;
        if self.sent == self.buf.len() {
            self.buf.clear();
            self.sent = 0;
        }
        let step = left.min(self.large.len());
        self.large.advance(step);
        left -= step;
        self.tail = &self.tail[left..];
    }
}

/// Bytes up to which a piece of content is copied: that is cheaper than a second slice in the write.
pub(super) const COPIED: usize = 4 << 10;
/// Bytes that are gathered before they are written.
const BUFFERED: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use super::*;

    #[test]
    fn what_is_put_is_written_in_order_whatever_the_writer_takes() {
        let large = Bytes::from(vec![b'x'; 40_000]);
        for step in [1, 7, 4096, 1 << 20] {
            let mut output = Output::default();
            output.buf().extend_from_slice(b"head\r\n");
            output.put(&Bytes::from_static(b"small"), b"\r\n");
            output.put(&large, b"\r\n");
            assert!(!output.has_room());
            let mut taken = Vec::new();
            while !output.is_empty() {
                let all = [&output.buf[output.sent..], &output.large, output.tail].concat();
                let count = step.min(all.len());
                taken.extend_from_slice(&all[..count]);
                output.advance(count);
            }
            assert_eq!(taken, [b"head\r\nsmall\r\n", &large[..], b"\r\n"].concat());
            assert_eq!(output.written(), taken.len() as u64);
            assert!(output.has_room());
        }
    }

    #[test]
    fn a_chunk_follows_its_size_even_where_that_has_filled_the_buffer() {
        let mut output = Output::default();
        output.buf().extend_from_slice(&[b'x'; COPIED - 1]);
        assert!(output.has_room());
        output.buf().extend_from_slice(b"4\r\n");
        output.put(&Bytes::from_static(b"data"), b"\r\n");
        assert_eq!(output.unsent(), COPIED + 8);
    }

    #[test]
    fn what_is_not_written_can_be_taken_back() {
        let mut output = Output::default();
        output.buf().extend_from_slice(b"interim");
        output.advance(3);
        let mark = output.mark();
        output.buf().extend_from_slice(b"head");
        output.put(&Bytes::from(vec![0; 40_000]), b"\r\n");
        assert!(output.roll_back(mark));
        assert_eq!(&output.buf[output.sent..], b"erim");
        output.buf().extend_from_slice(b"head");
        output.advance(5);
        assert!(!output.roll_back(mark));
    }

    #[test]
    fn a_writer_that_takes_nothing_is_an_error() {
        let mut cx = Context::from_waker(Waker::noop());
        let mut output = Output::default();
        output.buf().extend_from_slice(b"x");
        let full: &mut [u8] = &mut [];
        let full = pin!(std::io::Cursor::new(&mut full[..]));
        assert!(matches!(output.poll_write(&mut cx, full), Poll::Ready(Err(_))));
    }
}
