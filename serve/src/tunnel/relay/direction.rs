//! One direction of a tunnel: from what one side sends to what the other gets.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use playhouse_protocol::websocket::{
    Counts, FrameError, Header, Opcode, Sender, Step, Tracker, control, mask,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// Reads from a source and writes to a sink, no more ahead than one read. What the sink takes at once is not copied; an
/// idle direction holds no buffer. Of a WebSocket it passes on whole headers only, and so knows when the sink stands
/// between two frames and may be sent a control frame of ours.
#[derive(Debug)]
pub(super) struct Direction {
    /// `None` where it is no WebSocket, or where its frames could not be told apart any more.
    tracker: Option<Tracker>,
    websocket: bool,
    /// The frame that is passing,
    frame: Option<Header>,
    /// and what becomes of it.
    disposal: Disposal,
    /// A control frame that is looked at as a whole.
    held: BytesMut,
    /// To be written before anything else is read.
    buffer: BytesMut,
    /// Written and not flushed.
    dirty: bool,
    /// The source has sent its end.
    pub(super) source_ended: bool,
    /// The source has sent a Close, or nothing more that can be understood.
    pub(super) close_seen: bool,
    /// The sink was sent a Close: nothing may follow.
    pub(super) close_sent: bool,
    /// A Close of ours, to be sent as soon as the sink stands between two frames.
    pub(super) close_wanted: Option<Close>,
    /// A Close of ours, to be sent in place of the source's.
    pub(super) close_instead: Option<Close>,
    /// A Close of ours, to be sent where the source ends without one.
    pub(super) close_at_end: Option<Close>,
    /// A Ping of ours, to be sent as soon as the sink stands between two frames.
    pub(super) ping_wanted: Option<[u8; 8]>,
    /// The payload of a Ping of ours: the Pong to it is for us.
    pub(super) pong_expected: Option<[u8; 8]>,
    /// The sink's writing half was shut down, or takes nothing any more.
    pub(super) sink_shut: bool,
    /// Since when the sink takes nothing, though there is something to write.
    pub(super) stalled: Option<Instant>,
    /// Bytes that the sink has taken.
    pub(super) written: u64,
    /// Something has come from the source since this was last reset.
    pub(super) heard: bool,
    /// Something was passed on since this was last reset.
    pub(super) moved: bool,
}

/// A Close of ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Close {
    pub(super) code: u16,
    /// What the frame is masked with, where the sink is a server.
    pub(super) key: Option<[u8; 4]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disposal {
    Pass,
    Hold,
    Drop,
}

/// Why a direction cannot go on.
#[derive(Debug)]
pub(super) enum Broken {
    Source,
    Sink,
    Frames(FrameError),
}

impl Direction {
    /// `extensions` is `None` where it is no WebSocket.
    pub(super) fn new(sender: Sender, extensions: Option<bool>) -> Self {
        Direction {
            tracker: extensions.map(|extensions| Tracker::new(sender, extensions)),
            websocket: extensions.is_some(),
            frame: None,
            disposal: Disposal::Pass,
            held: BytesMut::new(),
            buffer: BytesMut::new(),
            dirty: false,
            source_ended: false,
            close_seen: false,
            close_sent: false,
            close_wanted: None,
            close_instead: None,
            close_at_end: None,
            ping_wanted: None,
            pong_expected: None,
            sink_shut: false,
            stalled: None,
            written: 0,
            heard: false,
            moved: false,
        }
    }

    /// Takes what was read before the tunnel began.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        let (run, error) = self.take(bytes);
        self.buffer.extend_from_slice(run);
        error.map_or(Ok(()), |error| Err(Broken::Frames(error)))
    }

    /// Goes on as far as source and sink allow.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut (impl AsyncRead + Unpin),
        sink: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), Broken> {
        let mut reads = 0;
        loop {
            self.inject();
            if !self.poll_flush(cx, sink)? {
                self.stalled.get_or_insert_with(Instant::now);
                return Ok(());
            }
            self.stalled = None;
            if self.source_ended {
                return self.poll_shut(cx, sink);
            }
            if reads == READS {
                // The other direction, and the other streams of the connection, are to have their turns.
                cx.waker().wake_by_ref();
                return Ok(());
            }
            reads += 1;
            let mut space = [MaybeUninit::uninit(); READ];
            let mut space = ReadBuf::uninit(&mut space);
            match Pin::new(&mut *source).poll_read(cx, &mut space) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Err(_)) => return Err(Broken::Source),
                Poll::Ready(Ok(())) => {}
            }
            let chunk = space.filled();
            self.heard = true;
            if chunk.is_empty() {
                self.source_ended = true;
                // It will not close any more.
                let at_end = self.close_at_end.take();
                self.close_seen |= at_end.is_some();
                self.close_wanted = self.close_wanted.or(self.close_instead.take()).or(at_end);
                continue;
            }
            let (mut run, error) = self.take(chunk);
            if self.sink_shut {
                continue;
            }
            if self.buffer.is_empty()
                && !run.is_empty()
                && let Poll::Ready(written) = Pin::new(&mut *sink).poll_write(cx, run)
            {
                run = &run[self.wrote(written)?..];
            }
            self.buffer.extend_from_slice(run);
            if let Some(error) = error {
                return Err(Broken::Frames(error));
            }
        }
    }

    /// Whether all that was put is written and flushed.
    fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut (impl AsyncWrite + Unpin),
    ) -> Result<bool, Broken> {
        if self.sink_shut {
            self.buffer = BytesMut::new();
            return Ok(true);
        }
        while !self.buffer.is_empty() {
            match Pin::new(&mut *sink).poll_write(cx, &self.buffer) {
                Poll::Pending => return Ok(false),
                Poll::Ready(written) => {
                    let written = self.wrote(written)?;
                    self.buffer.advance(written);
                    self.stalled = None;
                }
            }
        }
        if self.buffer.capacity() > 0 {
            self.buffer = BytesMut::new();
        }
        if self.dirty {
            match Pin::new(&mut *sink).poll_flush(cx) {
                Poll::Pending => return Ok(false),
                Poll::Ready(flushed) => flushed.map_err(|_| Broken::Sink)?,
            }
            self.dirty = false;
        }
        Ok(true)
    }

    fn wrote(&mut self, written: io::Result<usize>) -> Result<usize, Broken> {
        match written {
            Ok(written @ 1..) => {
                self.dirty = true;
                self.written += written as u64;
                Ok(written)
            }
            Ok(0) | Err(_) => Err(Broken::Sink),
        }
    }

    /// Carries the source's end on.
    fn poll_shut(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), Broken> {
        if !self.sink_shut
            && let Poll::Ready(shut) = Pin::new(sink).poll_shutdown(cx)
        {
            self.sink_shut = true;
            shut.map_err(|_| Broken::Sink)?;
        }
        Ok(())
    }

    /// The sink takes nothing any more; what the source still sends is read and dropped.
    pub(super) fn give_up_sink(&mut self) {
        self.sink_shut = true;
        self.stalled = None;
        self.buffer = BytesMut::new();
    }

    /// Whether the source's end has been carried on.
    pub(super) fn is_over(&self) -> bool {
        self.source_ended && self.sink_shut
    }

    /// Whether all that was put is written.
    pub(super) fn is_written(&self) -> bool {
        self.buffer.is_empty() && !self.dirty
    }

    /// Whether a control frame may be put behind what the sink has.
    pub(super) fn is_between_frames(&self) -> bool {
        match &self.tracker {
            Some(tracker) => tracker.is_between_frames() || self.disposal != Disposal::Pass,
            None => true,
        }
    }

    /// What has gone by in whole.
    pub(super) fn counts(&self) -> Counts {
        self.tracker.as_ref().map(Tracker::counts).unwrap_or_default()
    }

    /// Looks at what was read: gives the last part of it that is to be passed on as it is, behind what is in the buffer
    /// then. With an error, nothing of the source is passed on any more.
    fn take<'c>(&mut self, chunk: &'c [u8]) -> (&'c [u8], Option<FrameError>) {
        let Some(mut tracker) = self.tracker.take() else {
            // A WebSocket that could not be understood any more: nothing of it goes on.
            self.moved |= !self.websocket;
            return (if self.websocket { &[] } else { chunk }, None);
        };
        let (mut start, mut at) = (0, 0);
        let error = loop {
            let held = tracker.held().len();
            match tracker.step(&chunk[at..]) {
                Ok(Step::More) => break None,
                Ok(Step::Header(taken, header)) => {
                    self.disposal = self.judge(&header);
                    match self.disposal {
                        // What came of it before was kept back until now; nothing stands between.
                        Disposal::Pass if held > 0 => {
                            self.buffer.extend_from_slice(&tracker.header()[..held]);
                        }
                        Disposal::Pass => {}
                        Disposal::Hold | Disposal::Drop => {
                            self.buffer.extend_from_slice(&chunk[start..at]);
                            start = at + taken;
                            if self.disposal == Disposal::Hold {
                                self.held.clear();
                                self.held.extend_from_slice(tracker.header());
                            }
                        }
                    }
                    at += taken;
                    self.moved |= self.disposal == Disposal::Pass;
                    self.frame = Some(header);
                }
                Ok(Step::Payload { taken, end }) => {
                    if self.disposal == Disposal::Hold {
                        self.held.extend_from_slice(&chunk[at..at + taken]);
                    }
                    at += taken;
                    if self.disposal != Disposal::Pass {
                        start = at;
                    }
                    self.moved |= self.disposal == Disposal::Pass && taken > 0;
                    if end {
                        self.end_of_frame();
                        if self.wants_to_speak() {
                            self.buffer.extend_from_slice(&chunk[start..at]);
                            start = at;
                            self.speak();
                        }
                    }
                }
                Err(error) => break Some(error),
            }
        };
        match error {
            // The header that is wrong stays here: the sink stands between two frames.
            Some(_) => self.close_seen = true,
            None => self.tracker = Some(tracker),
        }
        (&chunk[start..at], error)
    }

    /// What becomes of the frame with this header.
    fn judge(&mut self, header: &Header) -> Disposal {
        let close = header.opcode == Opcode::Close;
        self.close_seen |= close;
        if self.close_sent {
            return Disposal::Drop;
        }
        if close && let Some(instead) = self.close_instead.take() {
            self.close_wanted = Some(instead);
            return Disposal::Drop;
        }
        if header.opcode == Opcode::Pong && self.pong_expected.is_some() {
            return Disposal::Hold;
        }
        Disposal::Pass
    }

    fn end_of_frame(&mut self) {
        let Some(header) = self.frame.take() else { return };
        match std::mem::replace(&mut self.disposal, Disposal::Pass) {
            Disposal::Pass => self.close_sent |= header.opcode == Opcode::Close,
            Disposal::Drop => {}
            Disposal::Hold => {
                let held = std::mem::take(&mut self.held);
                // No longer than 125 bytes, or it would not have come here.
                let mut payload = held[held.len() - header.length as usize..].to_vec();
                if let Some(key) = header.mask {
                    mask::apply(&mut payload, key, 0);
                }
                if self.pong_expected.is_some_and(|expected| expected == payload[..]) {
                    self.pong_expected = None;
                } else {
                    self.buffer.extend_from_slice(&held);
                    self.moved = true;
                }
            }
        }
    }

    fn wants_to_speak(&self) -> bool {
        self.close_wanted.is_some() || self.ping_wanted.is_some()
    }

    /// Puts what we have to say, where the sink stands between two frames.
    fn inject(&mut self) {
        if self.wants_to_speak() && self.is_between_frames() {
            self.speak();
        }
    }

    fn speak(&mut self) {
        if self.close_sent || self.sink_shut {
            (self.close_wanted, self.ping_wanted) = (None, None);
            return;
        }
        if let Some(payload) = self.ping_wanted.take() {
            control::write_ping(&mut self.buffer, &payload, None);
        }
        if let Some(Close { code, key }) = self.close_wanted.take() {
            control::write_close(&mut self.buffer, code, "", key);
            self.close_sent = true;
        }
    }
}

/// Bytes of a read.
const READ: usize = 16 << 10;

/// Reads in one turn.
const READS: usize = 8;
