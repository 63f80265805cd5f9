//! A client's unidirectional streams: which there are, and those of QPACK (RFC 9114 §6.2, RFC 9204 §4).

use bytes::{Buf, Bytes};

use super::{Code, Varint};

/// What a unidirectional stream is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamType {
    /// Control frames.
    Control,
    /// Only servers push.
    Push,
    /// Instructions for our dynamic table, which has no room.
    QpackEncoder,
    /// What has become of our field sections, which refer to no dynamic table.
    QpackDecoder,
    /// To be ignored.
    Unknown,
}

impl StreamType {
    pub(super) const CONTROL: u64 = 0x00;
}

/// Reads the type with which a unidirectional stream begins.
#[derive(Debug, Default)]
pub struct UniHeader(Varint);

impl UniHeader {
    /// The type, once it is there.
    pub fn read(&mut self, input: &mut Bytes) -> Option<StreamType> {
        Some(match self.0.read(input)? {
            StreamType::CONTROL => StreamType::Control,
            0x01 => StreamType::Push,
            0x02 => StreamType::QpackEncoder,
            0x03 => StreamType::QpackDecoder,
            _ => StreamType::Unknown,
        })
    }
}

/// Reads a client's encoder stream: nothing can be inserted where the table has no room.
#[derive(Debug, Default)]
pub struct EncoderStream;

impl EncoderStream {
    /// Reads all of `input`.
    ///
    /// # Errors
    /// The code with which the connection ends.
    pub fn read(&mut self, input: &mut Bytes) -> Result<(), Code> {
        // Set Dynamic Table Capacity to 0, which it is (RFC 9204 §4.3.1).
        let is_idle = input.iter().all(|byte| *byte == 0x20);
        input.clear();
        if is_idle { Ok(()) } else { Err(Code::QpackEncoderStreamError) }
    }
}

/// Reads a client's decoder stream: there is nothing to acknowledge, but streams may be cancelled.
#[derive(Debug, Default)]
pub struct DecoderStream {
    /// In the middle of a number, with its bits so far.
    shift: Option<u32>,
}

impl DecoderStream {
    /// Reads all of `input`.
    ///
    /// # Errors
    /// The code with which the connection ends.
    pub fn read(&mut self, input: &mut Bytes) -> Result<(), Code> {
        while input.has_remaining() {
            let byte = input.get_u8();
            match self.shift {
                // Stream Cancellation (RFC 9204 §4.4.2); all else is about entries that we never refer to.
                None if byte & 0xc0 == 0x40 => self.shift = (byte & 0x3f == 0x3f).then_some(0),
                None => return Err(Code::QpackDecoderStreamError),
                Some(shift) if shift > 56 => return Err(Code::QpackDecoderStreamError),
                Some(shift) => self.shift = (byte & 0x80 != 0).then_some(shift + 7),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_inserted_into_a_table_without_room() {
        assert_eq!(EncoderStream.read(&mut Bytes::from_static(&[0x20, 0x20])), Ok(()));
        for instruction in [0x21, 0xc0, 0x40, 0x00] {
            let read = EncoderStream.read(&mut Bytes::copy_from_slice(&[instruction]));
            assert_eq!(read, Err(Code::QpackEncoderStreamError));
        }
    }

    #[test]
    fn only_cancellations_come_on_a_decoder_stream() {
        let mut stream = DecoderStream::default();
        assert_eq!(stream.read(&mut Bytes::from_static(&[0x44, 0x7f, 0x80])), Ok(()));
        assert_eq!(stream.read(&mut Bytes::from_static(&[0x01, 0x40])), Ok(()));
        assert!(stream.read(&mut Bytes::from_static(&[0x84])).is_err());
        assert!(DecoderStream::default().read(&mut Bytes::from_static(&[0x01])).is_err());
        let endless = [&[0x7f][..], &[0x80; 20]].concat();
        assert!(DecoderStream::default().read(&mut endless.into()).is_err());
    }
}
