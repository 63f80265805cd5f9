//! The header of a frame (RFC 6455 §5.2).

use bytes::{BufMut, BytesMut};

/// Bytes of the longest header.
pub const MAX_HEADER: usize = 14;

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The last frame of its message.
    pub fin: bool,
    /// The reserved bits, RSV1 the highest of the three; 0 without an extension.
    pub reserved: u8,
    /// What the frame is.
    pub opcode: Opcode,
    /// The masking key, in frames of a client.
    pub mask: Option<[u8; 4]>,
    /// Bytes of the payload, extension data included; less than 2^63.
    pub length: u64,
}

/// What a frame is (RFC 6455 §11.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// Goes on with a fragmented message.
    Continuation,
    /// Begins a message of UTF-8 text.
    Text,
    /// Begins a message of bytes.
    Binary,
    /// The sender sends nothing after it.
    Close,
    /// Asks for a Pong.
    Ping,
    /// Answers a Ping, or nothing.
    Pong,
    /// A number that RFC 6455 keeps for extensions.
    Reserved(u8),
}

impl Opcode {
    /// Of the four bits on the wire.
    pub fn from_bits(bits: u8) -> Self {
        match bits & 0xf {
            0x0 => Opcode::Continuation,
            0x1 => Opcode::Text,
            0x2 => Opcode::Binary,
            0x8 => Opcode::Close,
            0x9 => Opcode::Ping,
            0xa => Opcode::Pong,
            bits => Opcode::Reserved(bits),
        }
    }

    /// The four bits on the wire.
    pub fn bits(self) -> u8 {
        match self {
            Opcode::Continuation => 0x0,
            Opcode::Text => 0x1,
            Opcode::Binary => 0x2,
            Opcode::Close => 0x8,
            Opcode::Ping => 0x9,
            Opcode::Pong => 0xa,
            Opcode::Reserved(bits) => bits & 0xf,
        }
    }

    /// Whether it is a control frame: one that may stand between the fragments of a message.
    pub fn is_control(self) -> bool {
        self.bits() & 0x8 != 0
    }
}

impl Header {
    /// A whole message in one frame, or a control frame.
    pub fn new(opcode: Opcode, mask: Option<[u8; 4]>, length: u64) -> Self {
        Header { fin: true, reserved: 0, opcode, mask, length }
    }

    /// Writes it, the length in its shortest form.
    pub fn write(&self, out: &mut BytesMut) {
        out.reserve(MAX_HEADER);
        out.put_u8(u8::from(self.fin) << 7 | (self.reserved & 0x7) << 4 | self.opcode.bits());
        let masked = u8::from(self.mask.is_some()) << 7;
        match self.length {
            // Both casts keep what the pattern has bounded.
            length @ 0..=125 => out.put_u8(masked | length as u8),
            length @ 126..=0xffff => {
                out.put_u8(masked | SHORT);
                out.put_u16(length as u16);
            }
            length => {
                out.put_u8(masked | LONG);
                out.put_u64(length);
            }
        }
        if let Some(key) = self.mask {
            out.put_slice(&key);
        }
    }

    /// Bytes of a header that begins with these two.
    pub(super) fn size(second: u8) -> usize {
        let length = match second & 0x7f {
            SHORT => 2,
            LONG => 8,
            _ => 0,
        };
        2 + length + if second & 0x80 != 0 { 4 } else { 0 }
    }

    /// Reads one of just this size; `None` where its length is not in the shortest form, or 2^63 and more.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let [first, second, rest @ ..] = bytes else { return None };
        let (length, rest) = match second & 0x7f {
            SHORT => {
                let (length, rest) = rest.split_first_chunk()?;
                (Some(u64::from(u16::from_be_bytes(*length))).filter(|length| *length > 125)?, rest)
            }
            LONG => {
                let (length, rest) = rest.split_first_chunk()?;
                let length = u64::from_be_bytes(*length);
                (Some(length).filter(|length| *length > 0xffff && *length < 1 << 63)?, rest)
            }
            length => (u64::from(length), rest),
        };
        let mask = if second & 0x80 != 0 { Some(*rest.first_chunk()?) } else { None };
        Some(Header {
            fin: first & 0x80 != 0,
            reserved: first >> 4 & 0x7,
            opcode: Opcode::from_bits(*first),
            mask,
            length,
        })
    }
}

/// The length stands in the next two bytes.
const SHORT: u8 = 126;
/// The length stands in the next eight bytes.
const LONG: u8 = 127;
