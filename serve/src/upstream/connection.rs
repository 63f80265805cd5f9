//! One connection to a server.

use std::io;
use std::pin::pin;
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::AsyncReadExt;

use super::timer::Timer;
use crate::net::Stream;

/// One connection to a server: the stream with its buffers. Dropping it closes it.
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    /// Read from the server, not yet used. Empty while the connection is idle.
    pub(crate) input: BytesMut,
    /// To be written to the server. Empty while the connection is idle.
    pub(crate) output: BytesMut,
    /// The deadline of whatever is being waited for.
    pub(crate) timer: Timer,
    /// Answers that came by it.
    pub(crate) answers: u64,
    /// Whose requests it may carry.
    pub(crate) owner: Owner,
}

/// Whose requests a connection may carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Everybody's.
    #[default]
    Anyone,
    /// Those of this connection of a client, which it was begun for by a PROXY header.
    Client(u64),
    /// Those of scripts: it speaks FastCGI.
    FastCgi,
}

impl Connection {
    pub(crate) fn new(stream: Stream) -> Self {
        Connection {
            stream,
            input: BytesMut::new(),
            output: BytesMut::new(),
            timer: Timer::default(),
            answers: 0,
            owner: Owner::Anyone,
        }
    }

    /// Whether an idle connection can still be used, as far as the runtime has been told: nothing has come, neither bytes
    /// nor an end. Costs no system call as long as nothing has.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.stream.peer_closed()
    }

    /// The same, but asks the kernel.
    pub(crate) fn is_quiet_now(&self) -> bool {
        let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        let mut byte = [0u8; 1];
        let peeked = match &self.stream {
            Stream::Tcp(stream) => rustix::net::recv(stream, &mut byte, flags),
            Stream::Unix(stream) => rustix::net::recv(stream, &mut byte, flags),
        };
        matches!(peeked, Err(rustix::io::Errno::AGAIN))
    }

    /// Reads what is there into `input`, which is made to hold about `wanted` bytes more. 0 is the end. Costs no system
    /// call while the runtime has seen no readiness.
    pub(crate) fn poll_read(&mut self, wanted: usize, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.input.capacity() - self.input.len() < wanted / 2 {
            self.input.reserve(wanted);
        }
        pin!(self.stream.read_buf(&mut self.input)).poll(cx)
    }

    /// Gives large buffers back, before the connection becomes idle.
    pub(crate) fn shrink(&mut self) {
        for buffer in [&mut self.input, &mut self.output] {
            buffer.clear();
            if buffer.capacity() > LARGEST_IDLE_BUFFER {
                *buffer = BytesMut::new();
            }
        }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("stream", &self.stream).field("answers", &self.answers).finish()
    }
}

/// An idle connection keeps buffers up to this.
const LARGEST_IDLE_BUFFER: usize = 16 << 10;
