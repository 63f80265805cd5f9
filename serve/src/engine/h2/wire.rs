//! What stands between the `h2` crate and the transport.
//!
//! `h2` flushes after every frame that it does not copy, which over TLS is a record and a system call each. Here a flush
//! of `h2`'s does nothing: what is written gathers until the driver, after all streams have had their turn, flushes it
//! as a whole. The driver also learns in this way what has really reached the kernel.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::flood::{Breach, FrameCounter, PING_FRAME};

/// Shared by `h2`, as its transport, and the driver. Both are polled by one task, so that the lock is never waited for.
#[derive(Debug)]
pub(super) struct Wire<IO>(Arc<Mutex<Inner<IO>>>);

#[derive(Debug)]
struct Inner<IO> {
    io: IO,
    /// What was read before, to be read first.
    prefix: Bytes,
    out: BytesMut,
    /// `h2` has been refused a write since the last complete flush: it holds more.
    blocked: bool,
    /// Bytes that the transport has taken.
    written: u64,
    frames: FrameCounter,
    breach: Option<Breach>,
    /// Bytes that may still be read in this turn.
    turn: usize,
    /// A read was put off to the next turn.
    paused: bool,
    /// Bytes that were dropped while we waited for the peer to close.
    lingered: usize,
    ack: Ack,
}

/// The acknowledgement of the PING between the two GOAWAYs of a drain. With it the client has seen the first, and what it has
/// sent before has arrived; but what it had queued before may be queued behind the acknowledgement, which goes first. `h2`
/// names the last stream at once when it sees it: so it sees it a little later, when those have come too.
#[derive(Debug)]
enum Ack {
    /// There is no drain, or it has gone through.
    Through,
    Awaited,
    Held([u8; PING_FRAME]),
    /// It is to go through as soon as no other frame is in the middle.
    Due([u8; PING_FRAME]),
}

impl<IO> Clone for Wire<IO> {
    fn clone(&self) -> Self {
        Wire(self.0.clone())
    }
}

impl<IO> Wire<IO> {
    /// So many requests have begun to arrive.
    pub(super) fn heads(&self) -> u64 {
        self.0.lock().frames.heads()
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Wire<IO> {
    pub(super) fn new(io: IO, prefix: Bytes) -> Self {
        Wire(Arc::new(Mutex::new(Inner {
            io,
            prefix,
            out: BytesMut::new(),
            blocked: false,
            written: 0,
            frames: FrameCounter::new(Instant::now()),
            breach: None,
            turn: READ_IN_A_TURN,
            paused: false,
            lingered: 0,
            ack: Ack::Through,
        })))
    }

    /// A drain begins: the acknowledgement that is to come is held.
    pub(super) fn hold_ack(&self) {
        self.0.lock().ack = Ack::Awaited;
    }

    /// Whether the acknowledgement has come, and is held.
    pub(super) fn holds_ack(&self) -> bool {
        matches!(self.0.lock().ack, Ack::Held(_))
    }

    /// Lets it through.
    pub(super) fn release_ack(&self) {
        let inner = &mut *self.0.lock();
        if let Ack::Held(frame) = inner.ack {
            inner.ack = Ack::Due(frame);
        }
    }

    /// Hands to the kernel what was written so far. `true` when `h2` may hold more and has to be polled again.
    pub(super) fn poll_flush_all(&self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let inner = &mut *self.0.lock();
        ready!(inner.poll_flush_out(cx))?;
        Poll::Ready(Ok(std::mem::take(&mut inner.blocked)))
    }

    /// Bytes that the transport has taken in all.
    pub(super) fn written(&self) -> u64 {
        self.0.lock().written
    }

    /// Why the connection has to end; from then on nothing more is read.
    pub(super) fn breach(&self) -> Option<Breach> {
        self.0.lock().breach
    }

    /// Begins the next turn of reading; whether there is something to read in it.
    pub(super) fn next_turn(&self) -> bool {
        let inner = &mut *self.0.lock();
        inner.turn = READ_IN_A_TURN;
        std::mem::take(&mut inner.paused)
    }

    /// Whether the peer's first frame has begun to arrive, whether a head is arriving, and how many have begun to.
    pub(super) fn reading(&self) -> (bool, bool, u64) {
        let frames = &self.0.lock().frames;
        (frames.greeted(), frames.in_head(), frames.heads())
    }

    /// So many requests were answered in full.
    pub(super) fn answered(&self, requests: usize) {
        self.0.lock().frames.answered(requests);
    }

    /// Gives the buffer's memory back, where it is empty.
    pub(super) fn release(&self) {
        let inner = &mut *self.0.lock();
        if inner.out.is_empty() {
            inner.out = BytesMut::new();
        }
    }

    /// Waits for the peer to close, reading and dropping what it still sends, so that the kernel does not answer unread
    /// bytes with a reset that would take our last frames with it. Not for as long as it likes to send.
    pub(super) fn poll_linger(&self, cx: &mut Context<'_>) -> Poll<()> {
        let inner = &mut *self.0.lock();
        let mut scrap = [0; 4096];
        loop {
            let mut scrap = ReadBuf::new(&mut scrap);
            match Pin::new(&mut inner.io).poll_read(cx, &mut scrap) {
                Poll::Ready(Ok(())) if !scrap.filled().is_empty() && inner.lingered < LINGERED => {
                    inner.lingered += scrap.filled().len();
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Flushes and closes the writing half.
    pub(super) fn poll_close(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let inner = &mut *self.0.lock();
        ready!(inner.poll_flush_out(cx))?;
        Pin::new(&mut inner.io).poll_shutdown(cx)
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Inner<IO> {
    fn poll_flush_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.out.is_empty() {
            let taken = ready!(Pin::new(&mut self.io).poll_write(cx, &self.out))?;
            if taken == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.out.advance(taken);
            self.written += taken as u64;
            self.frames.written(taken);
        }
        // Empty: the whole of the memory is free to be written again.
        self.out.clear();
        Pin::new(&mut self.io).poll_flush(cx)
    }

    /// Takes the acknowledgement that is awaited out of what was read last.
    fn take_ack(&mut self, buffer: &mut ReadBuf<'_>, before: usize) {
        if !matches!(self.ack, Ack::Awaited) {
            return;
        }
        let read = &mut buffer.filled_mut()[before..];
        let length = read.len();
        let Some(frame) = self.frames.ping_ack(length) else { return };
        let mut held = [0; PING_FRAME];
        held.copy_from_slice(&read[frame.clone()]);
        read.copy_within(frame.end.., frame.start);
        buffer.set_filled(before + length - PING_FRAME);
        self.ack = Ack::Held(held);
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.out.len() >= GATHERED {
            let flushed = self.poll_flush_out(cx)?;
            if flushed.is_pending() && self.out.len() >= GATHERED {
                self.blocked = true;
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// `h2` reads for as long as there is something to read. The streams are to have their turns too, or frames pile up that
/// they would take at once.
const READ_IN_A_TURN: usize = 64 << 10;

/// What an honest client may still have on its way: what our windows allow, and some frames more.
const LINGERED: usize = 2 << 20;

/// Beyond this, `h2` waits until the transport has taken some. Four TLS records.
const GATHERED: usize = 64 << 10;

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for Wire<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let inner = &mut *self.0.lock();
        if inner.breach.is_some() {
            // The driver, which has polled us, looks for this and ends the connection.
            return Poll::Pending;
        }
        if inner.turn == 0 {
            inner.paused = true;
            return Poll::Pending;
        }
        if let Ack::Due(frame) = inner.ack
            && inner.frames.between_frames()
            && buffer.remaining() >= PING_FRAME
        {
            inner.ack = Ack::Through;
            buffer.put_slice(&frame);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        loop {
            if inner.prefix.is_empty() {
                ready!(Pin::new(&mut inner.io).poll_read(cx, buffer))?;
            } else {
                let taken = inner.prefix.len().min(buffer.remaining());
                buffer.put_slice(&inner.prefix.split_to(taken));
                if inner.prefix.is_empty() {
                    inner.prefix = Bytes::new();
                }
            }
            let read = buffer.filled().len() - before;
            inner.turn = inner.turn.saturating_sub(read);
            if let Err((good, breach)) = inner.frames.feed(&buffer.filled()[before..], Instant::now) {
                // `h2` is not to see the frame.
                inner.breach = Some(breach);
                buffer.set_filled(before + good);
                return if good == 0 { Poll::Pending } else { Poll::Ready(Ok(())) };
            }
            inner.take_ack(buffer, before);
            // Nothing at all would be the end.
            if read == 0 || buffer.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Wire<IO> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let inner = &mut *self.0.lock();
        ready!(inner.poll_room(cx))?;
        inner.out.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let inner = &mut *self.0.lock();
        ready!(inner.poll_room(cx))?;
        let before = inner.out.len();
        for slice in slices {
            inner.out.extend_from_slice(slice);
        }
        Poll::Ready(Ok(inner.out.len() - before))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_close(cx)
    }
}
