//! Records of a request, to the application.

use bytes::{BufMut, BytesMut};

use super::{BEGIN_REQUEST, PARAMS, REQUEST, STDIN, VERSION};

/// Begins a request of the responder role. The application keeps the connection behind its answer where `keep` says so.
pub fn begin(out: &mut BytesMut, keep: bool) {
    record(out, BEGIN_REQUEST, 8);
    out.put_u16(RESPONDER);
    out.put_u8(if keep { KEEP_CONNECTION } else { 0 });
    out.put_bytes(0, 5);
}

/// Appends a name and its value to what [`params`] sends. Of both 2 GiB at most are meant, which no head has.
pub fn param(pairs: &mut BytesMut, name: &[u8], value: &[u8]) {
    for length in [name.len(), value.len()] {
        match u8::try_from(length) {
            Ok(short @ ..=0x7f) => pairs.put_u8(short),
            _ => pairs.put_u32(LONG | length as u32),
        }
    }
    pairs.put_slice(name);
    pairs.put_slice(value);
}

/// All params of a request, in as many records as they need, and their end.
pub fn params(out: &mut BytesMut, pairs: &[u8]) {
    for piece in pairs.chunks(LARGEST) {
        record(out, PARAMS, piece.len() as u16);
        out.put_slice(piece);
    }
    record(out, PARAMS, 0);
}

/// What stands before `length` bytes of the request's content, at most [`LARGEST`]. Must not be called with 0: that is
/// [`content_end`].
pub fn content(out: &mut BytesMut, length: u16) {
    debug_assert!(length > 0);
    record(out, STDIN, length);
}

/// The end of the request's content, which every request has.
pub fn content_end(out: &mut BytesMut) {
    record(out, STDIN, 0);
}

/// The largest content of a record that is written.
pub const LARGEST: usize = u16::MAX as usize;

/// No padding: it would make no copy cheaper here.
fn record(out: &mut BytesMut, kind: u8, length: u16) {
    out.put_u8(VERSION);
    out.put_u8(kind);
    out.put_u16(REQUEST);
    out.put_u16(length);
    out.put_u16(0);
}

const RESPONDER: u16 = 1;
const KEEP_CONNECTION: u8 = 1;
/// Marks a length of four bytes.
const LONG: u32 = 1 << 31;
