//! What is said over a WebSocket.

use std::time::Duration;

use bytes::Bytes;
use tungstenite::protocol::frame::coding::{Data, OpCode};

use super::frames::frame;
use crate::pattern;

/// What is sent over each WebSocket of a stream, to a server that sends every message back.
///
/// Messages are numbered, and each has the bytes of a [`pattern`] of its own. Of four that follow each other one is sent whole,
/// one in three fragments, one in several writes that end in the middle of its header and of its payload, and one in both
/// ways.
#[derive(Clone, Debug)]
pub struct Messages {
    /// Their lengths in bytes, taken in turn. Default: around each length at which the form of a frame changes.
    pub sizes: Vec<usize>,
    /// How many may be on their way at a time, at least one. Default 4.
    pub ahead: usize,
    /// From the begin of one to the begin of the next, at least. Default none.
    pub pause: Duration,
    /// After so many the WebSocket is closed, in order, and another is opened. Default: never.
    pub each: u64,
}

impl Default for Messages {
    fn default() -> Self {
        let sizes = vec![1, 40, 125, 126, 1000, 0, 4096, 16 << 10, 65_535, 65_536];
        Messages { sizes, ahead: 4, pause: Duration::ZERO, each: u64::MAX }
    }
}

impl Messages {
    /// So long from the begin of one to the begin of the next.
    pub fn pause(mut self, pause: Duration) -> Messages {
        self.pause = pause;
        self
    }

    /// So many over each WebSocket.
    pub fn each(mut self, messages: u64) -> Messages {
        self.each = messages;
        self
    }

    /// The message `number` of the WebSocket `tunnel`.
    pub(super) fn message(&self, tunnel: u64, number: u64) -> Message {
        let at = tunnel.wrapping_add(number) as usize;
        let length = self.sizes.get(at % self.sizes.len().max(1)).copied().unwrap_or(0);
        Message { seed: tunnel << 32 ^ number, length, number }
    }
}

/// One message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    seed: u64,
    pub(super) length: usize,
    number: u64,
}

impl Message {
    /// The frames that it is sent in.
    pub(super) fn frames(&self) -> Vec<Vec<u8>> {
        let whole = pattern::bytes(self.seed, self.length);
        let fragments = if self.number & 1 == 0 { 1 } else { 3 };
        let mut frames = Vec::with_capacity(fragments);
        for i in 0..fragments {
            // Of unequal lengths, the middle one being the shortest.
            let cut = |i: usize| [0, self.length / 2, self.length / 2 + self.length / 8, self.length][i];
            let (from, to) = if fragments == 1 { (0, self.length) } else { (cut(i), cut(i + 1)) };
            let data = if i == 0 { Data::Binary } else { Data::Continue };
            // Any key will do, where nobody is in between who could be fooled.
            let mask = (self.seed as u32 ^ (i as u32)).wrapping_mul(0x9e37_79b9).to_be_bytes();
            frames.push(frame(OpCode::Data(data), i + 1 == fragments, whole.slice(from..to), mask));
        }
        frames
    }

    /// Where the writes of a frame of this length end: the whole of it, or in the middle of its length, of its key and of its
    /// payload as well.
    pub(super) fn writes(&self, frame: usize) -> impl Iterator<Item = usize> {
        let split = self.number & 2 != 0;
        let ends = if split { [1, 3, 7.max(frame / 2), frame] } else { [frame; 4] };
        let mut last = 0;
        ends.into_iter()
            .map(move |end| end.min(frame))
            .filter(move |end| std::mem::replace(&mut last, *end) < *end)
    }

    /// Compares a piece of what came back, at this offset.
    ///
    /// # Errors
    /// Says where it differs.
    pub(super) fn check(&self, offset: usize, data: &Bytes) -> Result<(), String> {
        let rest = (self.length - offset).min(data.len());
        let differs = pattern::mismatch(self.seed, offset as u64, &data[..rest])
            .or((rest < data.len()).then_some(rest));
        match differs {
            Some(at) => {
                Err(format!("message {} differs at byte {} of {}", self.number, offset + at, self.length))
            }
            None => Ok(()),
        }
    }

    /// The piece that came last was said to be the last.
    ///
    /// # Errors
    /// It is not.
    pub(super) fn check_end(&self, offset: usize) -> Result<(), String> {
        if offset == self.length {
            return Ok(());
        }
        Err(format!("message {} has ended after {offset} bytes of {}", self.number, self.length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_writes_of_a_frame_are_the_frame() {
        let messages = Messages::default();
        for number in 0..40 {
            let message = messages.message(3, number);
            let frames = message.frames();
            assert_eq!(frames.len(), if number % 2 == 0 { 1 } else { 3 });
            for frame in frames {
                let ends: Vec<_> = message.writes(frame.len()).collect();
                assert!(ends.is_sorted_by(|a, b| a < b) && ends.last() == Some(&frame.len()), "{ends:?}");
                assert_eq!(ends.len() > 1, number & 2 != 0);
            }
        }
    }

    #[test]
    fn a_message_is_no_other_message() {
        let messages = Messages { sizes: vec![100], ..Messages::default() };
        let bytes = |tunnel: u64, number: u64| pattern::bytes(tunnel << 32 ^ number, 100);
        let message = messages.message(1, 2);
        assert_eq!(message.check(0, &bytes(1, 2)), Ok(()));
        assert_eq!(message.check(40, &bytes(1, 2).slice(40..)), Ok(()));
        assert!(message.check(0, &bytes(1, 3)).is_err() && message.check(0, &bytes(2, 2)).is_err());
        assert!(message.check(1, &bytes(1, 2).slice(1..)).is_ok());
        assert!(message.check(100, &Bytes::from_static(b"x")).is_err());
        assert!(message.check_end(99).is_err() && message.check_end(100).is_ok());
    }
}
