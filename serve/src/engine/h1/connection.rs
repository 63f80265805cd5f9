//! One connection: its stream, its buffers, and how it is closed.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::BytesMut;
use http::StatusCode;
use playhouse_protocol::http1::{HeadLimits, RequestParser, encode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::answer;
use super::output::Output;
use super::shared::Shared;
use super::timer::Timer;
use crate::engine::Settings;
use crate::{Application, ConnectionInfo, Exchange};

/// One connection.
pub(super) struct Connection<'a, IO, A> {
    pub(super) io: IO,
    pub(super) info: Arc<ConnectionInfo>,
    pub(super) settings: &'a Settings,
    pub(super) app: &'a Arc<A>,
    pub(super) parser: RequestParser,
    /// Read and not yet taken.
    pub(super) input: BytesMut,
    /// The client has shut down its writing side.
    pub(super) eof: bool,
    /// Bytes that the next read has room for.
    read_size: usize,
    pub(super) output: Output,
    /// By when the next byte has to be written, while one waits.
    pub(super) write_deadline: Option<Instant>,
    pub(super) timer: Timer,
    pub(super) shared: Option<Arc<Shared>>,
    /// That of the last request, for the next one.
    pub(super) exchange: Option<Box<Exchange>>,
    /// The handler has been given a body that reads from the connection.
    pub(super) lends_body: bool,
    /// The request that the connection is at, from 1.
    pub(super) request: u64,
}

impl<'a, IO: AsyncRead + AsyncWrite + Unpin + Send, A: Application> Connection<'a, IO, A> {
    pub(super) fn new(
        io: IO,
        prefix: BytesMut,
        info: Arc<ConnectionInfo>,
        settings: &'a Settings,
        app: &'a Arc<A>,
    ) -> Self {
        let limits = HeadLimits { bytes: settings.limits.header_bytes, fields: settings.limits.header_count };
        Connection {
            io,
            info,
            settings,
            app,
            parser: RequestParser::new(limits),
            input: prefix,
            eof: false,
            read_size: READ,
            output: Output::default(),
            write_deadline: None,
            timer: Timer::new(),
            shared: None,
            exchange: None,
            lends_body: false,
            request: 0,
        }
    }

    /// One read into the input; 0 is the end of the stream.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.eof {
            return Poll::Ready(Ok(0));
        }
        let room = self.input.capacity() - self.input.len();
        let lacks_room = room < self.read_size / 2 && !self.input.try_reclaim(self.read_size);
        let (count, space) = if lacks_room && self.input.is_empty() && self.read_size == READ {
            // A connection that waits gets a buffer only when there is something to put into it.
            let mut space = [std::mem::MaybeUninit::uninit(); READ];
            let mut space = ReadBuf::uninit(&mut space);
            match Pin::new(&mut self.io).poll_read(cx, &mut space) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
            if !space.filled().is_empty() {
                self.input = BytesMut::with_capacity(READ);
                self.input.extend_from_slice(space.filled());
            }
            (space.filled().len(), READ)
        } else {
            if lacks_room {
                self.input.reserve(self.read_size);
            }
            let space = self.input.capacity() - self.input.len();
            let count = match pin!(self.io.read_buf(&mut self.input)).poll(cx) {
                Poll::Ready(Ok(count)) => count,
                other => return other,
            };
            (count, space)
        };
        if count == space {
            self.read_size = (self.read_size * 2).min(MAX_READ);
        }
        self.eof = count == 0;
        Poll::Ready(Ok(count))
    }

    /// Writes all that is put, and flushes it to the kernel; an error is also that the deadline has passed.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let before = self.output.written();
        let mut io = Pin::new(&mut self.io);
        let poll = match self.output.poll_write(cx, io.as_mut()) {
            Poll::Ready(Ok(())) => io.poll_flush(cx),
            other => other,
        };
        if poll.is_ready() || self.output.written() != before {
            self.write_deadline = None;
        }
        if poll.is_pending() {
            let timeout = self.settings.timeouts.write;
            let deadline = *self.write_deadline.get_or_insert_with(|| Instant::now() + timeout);
            if self.timer.poll(cx, deadline).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        poll
    }

    /// Lets go of all that an idle connection has no use for.
    pub(super) fn shrink(&mut self) {
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
        self.read_size = READ;
        self.output.shrink();
        self.parser.shrink();
        self.exchange = None;
        self.shared = None;
    }

    /// Answers for the application. Whether it could be sent.
    pub(super) async fn refuse(&mut self, status: StatusCode) -> bool {
        let out = self.output.buf();
        encode::status_line(out, status);
        answer::date(out, SystemTime::now());
        encode::content_length(out, 0);
        out.extend_from_slice(encode::CLOSE);
        out.extend_from_slice(encode::END_OF_HEAD);
        poll_fn(|cx| self.poll_flush(cx)).await.is_ok()
    }

    /// Closes where nothing more can come from the client.
    pub(super) async fn shut_down(&mut self) {
        let mut deadline = None;
        poll_fn(|cx| match Pin::new(&mut self.io).poll_shutdown(cx) {
            // What cannot be closed in order is dropped.
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => self.timer.poll(cx, *deadline.get_or_insert_with(|| Instant::now() + LINGER)),
        })
        .await;
    }

    /// Closes where more may come: a socket that is closed while there is something to read is reset, and the client
    /// may lose the answer that it has not read yet (RFC 9112 §9.6). So only our side is closed, and what still comes
    /// is read, within bounds.
    pub(super) async fn linger(&mut self, at_most: Duration) {
        self.shut_down().await;
        let deadline = Instant::now() + at_most;
        let mut left = LINGER_BYTES;
        self.input = BytesMut::new();
        poll_fn(|cx| {
            loop {
                self.input.clear();
                match self.poll_fill(cx) {
                    Poll::Ready(Ok(0)) | Poll::Ready(Err(_)) => return Poll::Ready(()),
                    Poll::Ready(Ok(count)) => match left.checked_sub(count) {
                        Some(rest) => left = rest,
                        None => return Poll::Ready(()),
                    },
                    Poll::Pending => return self.timer.poll(cx, deadline),
                }
            }
        })
        .await;
    }
}

impl<IO, A> Drop for Connection<'_, IO, A> {
    fn drop(&mut self) {
        // A body that was moved to another task must not wait for a connection that is no more.
        if let Some(shared) = &self.shared {
            shared.close_interim(self.request);
            shared.end();
        }
    }
}

/// How long a connection is read that is closed already.
pub(in crate::engine) const LINGER: Duration = Duration::from_secs(5);
/// How much of it: a client that uploads as fast as it can must come to look for the answer.
const LINGER_BYTES: usize = 64 << 20;
/// Bytes of a read: most requests fit.
const READ: usize = 8 << 10;
/// Bytes of a read that brings content.
const MAX_READ: usize = 64 << 10;
