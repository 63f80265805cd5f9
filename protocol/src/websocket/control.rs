//! Control frames (RFC 6455 §5.5): Close, Ping and Pong.

use bytes::{BufMut, BytesMut};

use super::header::{Header, Opcode};
use super::mask;

/// Bytes that the payload of a control frame may have.
pub const MAX_PAYLOAD: usize = 125;

/// Status codes of a Close (RFC 6455 §7.4.1).
pub mod code {
    /// Whatever the connection was for is done.
    pub const NORMAL: u16 = 1000;
    /// The server goes down.
    pub const GOING_AWAY: u16 = 1001;
    /// The peer has broken the protocol.
    pub const PROTOCOL_ERROR: u16 = 1002;
    /// A text message is no UTF-8.
    pub const INVALID_PAYLOAD: u16 = 1007;
    /// A message is too long.
    pub const TOO_BIG: u16 = 1009;
    /// The server cannot go on.
    pub const INTERNAL_ERROR: u16 = 1011;
}

/// Writes a Close with this code and reason. A reason that does not fit is cut between two characters.
pub fn write_close(out: &mut BytesMut, code: u16, reason: &str, key: Option<[u8; 4]>) {
    let mut end = reason.len().min(MAX_PAYLOAD - 2);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let mut payload = [0; MAX_PAYLOAD];
    payload[..2].copy_from_slice(&code.to_be_bytes());
    payload[2..2 + end].copy_from_slice(&reason.as_bytes()[..end]);
    write(out, Opcode::Close, &mut payload[..2 + end], key);
}

/// Writes a Ping. A payload over [`MAX_PAYLOAD`] is cut.
pub fn write_ping(out: &mut BytesMut, payload: &[u8], key: Option<[u8; 4]>) {
    write_copied(out, Opcode::Ping, payload, key);
}

/// Writes a Pong. A payload over [`MAX_PAYLOAD`] is cut.
pub fn write_pong(out: &mut BytesMut, payload: &[u8], key: Option<[u8; 4]>) {
    write_copied(out, Opcode::Pong, payload, key);
}

/// What a Close says: its code and reason, `None` where it has no payload.
///
/// # Errors
/// A code cut in two, or one that may not be sent, or a reason that is no UTF-8.
pub fn read_close(payload: &[u8]) -> Result<Option<(u16, &str)>, InvalidClose> {
    let Some((code, reason)) = payload.split_first_chunk() else {
        return if payload.is_empty() { Ok(None) } else { Err(InvalidClose) };
    };
    let code = u16::from_be_bytes(*code);
    let reason = std::str::from_utf8(reason).map_err(|_| InvalidClose)?;
    if is_sendable(code) { Ok(Some((code, reason))) } else { Err(InvalidClose) }
}

/// The payload of a Close breaks RFC 6455 §7.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an invalid Close")]
pub struct InvalidClose;

/// Whether a Close may have this code: those of RFC 6455 §7.4.1 and IANA's registry that are not for local use, and those
/// for libraries and applications.
pub fn is_sendable(code: u16) -> bool {
    matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999)
}

fn write_copied(out: &mut BytesMut, opcode: Opcode, payload: &[u8], key: Option<[u8; 4]>) {
    let payload = &payload[..payload.len().min(MAX_PAYLOAD)];
    let mut copy = [0; MAX_PAYLOAD];
    copy[..payload.len()].copy_from_slice(payload);
    write(out, opcode, &mut copy[..payload.len()], key);
}

fn write(out: &mut BytesMut, opcode: Opcode, payload: &mut [u8], key: Option<[u8; 4]>) {
    Header::new(opcode, key, payload.len() as u64).write(out);
    if let Some(key) = key {
        mask::apply(payload, key, 0);
    }
    out.put_slice(payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_says_why() {
        let mut out = BytesMut::new();
        write_close(&mut out, code::GOING_AWAY, "bye", None);
        assert_eq!(&out[..], b"\x88\x05\x03\xe9bye");
        assert_eq!(read_close(&out[2..]), Ok(Some((1001, "bye"))));
        assert_eq!(read_close(b""), Ok(None));
        for invalid in [&b"\x03"[..], b"\x03\xed", b"\x03\xe9\xff", b"\x00\x00", b"\x13\x88"] {
            assert_eq!(read_close(invalid), Err(InvalidClose), "{invalid:?}");
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_two_characters() {
        let mut out = BytesMut::new();
        write_close(&mut out, 4999, &"ä".repeat(100), None);
        assert_eq!(read_close(&out[2..]), Ok(Some((4999, &*"ä".repeat(61)))));
    }

    #[test]
    fn a_client_masks() {
        let mut out = BytesMut::new();
        write_ping(&mut out, b"abcd", Some([1, 2, 3, 4]));
        assert_eq!(&out[..], b"\x89\x84\x01\x02\x03\x04\x60\x60\x60\x60");
        out.clear();
        write_pong(&mut out, &[7; 200], None);
        assert_eq!((&out[..2], out.len()), (&b"\x8a\x7d"[..], 127));
    }
}
