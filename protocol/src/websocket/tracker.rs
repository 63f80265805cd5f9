//! Where the frames of one direction begin and end.

use super::control::MAX_PAYLOAD;
use super::header::{Header, MAX_HEADER, Opcode};

/// Follows the bytes that one endpoint sends. It looks at headers only; a header that has come in part is held here
/// until the rest of it has, so that whoever passes the bytes on can pass on nothing but whole headers and payload, and
/// never leaves the other side within a header.
#[derive(Debug)]
pub struct Tracker {
    sender: Sender,
    extensions: bool,
    header: [u8; MAX_HEADER],
    /// Bytes of `header` that are there.
    filled: usize,
    /// The frame whose payload is passing, and how much of it is still to come.
    frame: Option<(Header, u64)>,
    /// Between two frames of a message.
    fragmented: bool,
    counts: Counts,
}

/// Whose frames they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// Masks every frame.
    Client,
    /// Masks none.
    Server,
}

/// What has gone by in whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames, control frames among them.
    pub frames: u64,
    /// Messages: their last frames.
    pub messages: u64,
    /// Bytes of payload.
    pub payload: u64,
}

/// How far the tracker has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// All of the input is taken; what has come of a header is held.
    More,
    /// A header is complete with so many bytes of the input. [`Tracker::header`] is all of it.
    Header(usize, Header),
    /// So many bytes of the input are payload; `end` says that they are the frame's last. A frame without payload has
    /// one such step of 0 bytes.
    Payload {
        /// Bytes of the input.
        taken: usize,
        /// Whether the frame ends with them.
        end: bool,
    },
}

/// Why the bytes are no frames, or none that this sender may send now. What follows cannot be told apart any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A reserved bit, though no extension was agreed.
    #[error("a reserved bit is set")]
    ReservedBit,
    /// An opcode that nothing defines.
    #[error("an unknown opcode")]
    Opcode,
    /// A control frame in fragments, or with more than 125 bytes.
    #[error("a control frame that is fragmented or too long")]
    Control,
    /// A frame of a client without a mask, or of a server with one.
    #[error("masked by the wrong side")]
    Mask,
    /// A length that is not in its shortest form, or has its highest bit set.
    #[error("an invalid length")]
    Length,
    /// A continuation of nothing, or a message within a message.
    #[error("fragments out of order")]
    Fragment,
}

impl Tracker {
    /// For the frames of `sender`. With `extensions` agreed, reserved bits and opcodes may have a meaning, and are let
    /// through.
    pub fn new(sender: Sender, extensions: bool) -> Self {
        Tracker {
            sender,
            extensions,
            header: [0; MAX_HEADER],
            filled: 0,
            frame: None,
            fragmented: false,
            counts: Counts::default(),
        }
    }

    /// Takes as much of the input as makes one step. To be called again with the rest until it is [`Step::More`].
    /// After an error the tracker is of no further use; the bytes of the header that is wrong are [held](Self::held).
    pub fn step(&mut self, input: &[u8]) -> Result<Step, FrameError> {
        match &mut self.frame {
            None => self.step_header(input),
            Some((_, left)) => {
                let taken = usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
                *left -= taken as u64;
                self.counts.payload += taken as u64;
                if *left > 0 {
                    return Ok(if taken == 0 { Step::More } else { Step::Payload { taken, end: false } });
                }
                self.end_of_frame();
                Ok(Step::Payload { taken, end: true })
            }
        }
    }

    fn step_header(&mut self, input: &[u8]) -> Result<Step, FrameError> {
        let mut taken = 0;
        loop {
            let size = if self.filled < 2 { 2 } else { Header::size(self.header[1]) };
            if self.filled == size && size >= 2 {
                break;
            }
            let more = &input[taken..];
            let more = &more[..more.len().min(size - self.filled)];
            if more.is_empty() {
                return Ok(Step::More);
            }
            self.header[self.filled..self.filled + more.len()].copy_from_slice(more);
            let begun = self.filled < 2;
            self.filled += more.len();
            taken += more.len();
            if begun && self.filled == 2 {
                // As early as it can be told: the rest may never come.
                self.check()?;
            }
        }
        let header = Header::read(&self.header[..self.filled]).ok_or(FrameError::Length)?;
        if !header.opcode.is_control() {
            self.fragmented = !header.fin;
        }
        self.frame = Some((header, header.length));
        Ok(Step::Header(taken, header))
    }

    /// What the first two bytes of a header tell.
    fn check(&self) -> Result<(), FrameError> {
        let [first, second, ..] = self.header;
        let opcode = Opcode::from_bits(first);
        if first & 0x70 != 0 && !self.extensions {
            return Err(FrameError::ReservedBit);
        }
        if (second & 0x80 != 0) != (self.sender == Sender::Client) {
            return Err(FrameError::Mask);
        }
        if opcode.is_control() && (first & 0x80 == 0 || usize::from(second & 0x7f) > MAX_PAYLOAD) {
            return Err(FrameError::Control);
        }
        match opcode {
            Opcode::Reserved(_) if !self.extensions => Err(FrameError::Opcode),
            Opcode::Continuation if !self.fragmented => Err(FrameError::Fragment),
            Opcode::Text | Opcode::Binary if self.fragmented => Err(FrameError::Fragment),
            _ => Ok(()),
        }
    }

    fn end_of_frame(&mut self) {
        if let Some((header, _)) = self.frame.take() {
            self.counts.frames += 1;
            self.counts.messages += u64::from(header.fin && !header.opcode.is_control());
        }
        self.filled = 0;
    }

    /// The bytes of the header whose payload is passing.
    pub fn header(&self) -> &[u8] {
        if self.frame.is_some() { &self.header[..self.filled] } else { &[] }
    }

    /// The bytes of a header that has come in part.
    pub fn held(&self) -> &[u8] {
        if self.frame.is_some() { &[] } else { &self.header[..self.filled] }
    }

    /// Whether it stands between two frames, not counting what is [held](Self::held) of the next one.
    pub fn is_between_frames(&self) -> bool {
        self.frame.is_none()
    }

    /// What has gone by.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_error(sender: Sender, extensions: bool, bytes: &[u8]) -> Option<FrameError> {
        let mut tracker = Tracker::new(sender, extensions);
        let mut rest = bytes;
        loop {
            match tracker.step(rest) {
                Ok(Step::More) => return None,
                Ok(Step::Header(taken, _) | Step::Payload { taken, .. }) => rest = &rest[taken..],
                Err(error) => return Some(error),
            }
        }
    }

    #[test]
    fn frames_that_break_the_protocol_are_errors() {
        let server = |bytes| first_error(Sender::Server, false, bytes);
        assert_eq!(server(b"\x81\x01a\x89\x00\x88\x00"), None);
        assert_eq!(server(b"\xc1\x01a"), Some(FrameError::ReservedBit));
        assert_eq!(server(b"\x83\x01a"), Some(FrameError::Opcode));
        assert_eq!(server(b"\x8b\x00"), Some(FrameError::Opcode));
        assert_eq!(server(b"\x09\x00"), Some(FrameError::Control));
        assert_eq!(server(b"\x89\x7e\x00\x7e"), Some(FrameError::Control));
        assert_eq!(server(b"\x81\x81\x00\x00\x00\x00a"), Some(FrameError::Mask));
        assert_eq!(server(b"\x82\x7e\x00\x7d"), Some(FrameError::Length));
        assert_eq!(server(b"\x82\x7f\x00\x00\x00\x00\x00\x00\xff\xff"), Some(FrameError::Length));
        assert_eq!(server(b"\x82\x7f\x80\x00\x00\x00\x00\x00\x00\x00"), Some(FrameError::Length));
        assert_eq!(server(b"\x80\x00"), Some(FrameError::Fragment));
        assert_eq!(server(b"\x01\x00\x81\x00"), Some(FrameError::Fragment));
        assert_eq!(server(b"\x01\x00\x89\x00\x00\x00\x80\x00\x82\x00"), None);
        assert_eq!(first_error(Sender::Client, false, b"\x81\x01a"), Some(FrameError::Mask));
        assert_eq!(first_error(Sender::Server, true, b"\xc1\x01a\x83\x00"), None);
    }

    #[test]
    fn what_is_wrong_is_seen_at_the_second_byte() {
        assert_eq!(first_error(Sender::Client, false, b"\x82\xff"), None);
        assert_eq!(first_error(Sender::Client, false, b"\xff\xff"), Some(FrameError::ReservedBit));
        assert_eq!(first_error(Sender::Client, false, b"\x82\x7f"), Some(FrameError::Mask));
    }

    #[test]
    fn what_has_come_of_a_header_is_held() {
        let mut tracker = Tracker::new(Sender::Server, false);
        assert_eq!(tracker.step(b"\x82\x7e\x01"), Ok(Step::More));
        assert_eq!((tracker.held(), tracker.is_between_frames()), (&b"\x82\x7e\x01"[..], true));
        let Ok(Step::Header(1, header)) = tracker.step(b"\x00abc") else { panic!() };
        assert_eq!(
            (header.length, tracker.header(), tracker.held()),
            (256, &b"\x82\x7e\x01\x00"[..], &b""[..])
        );
        assert!(!tracker.is_between_frames());
        assert_eq!(tracker.step(&[0; 255]), Ok(Step::Payload { taken: 255, end: false }));
        assert_eq!(tracker.step(&[0; 9]), Ok(Step::Payload { taken: 1, end: true }));
        assert_eq!(tracker.counts(), Counts { frames: 1, messages: 1, payload: 256 });
        assert!(tracker.is_between_frames() && tracker.held().is_empty());
    }
}
