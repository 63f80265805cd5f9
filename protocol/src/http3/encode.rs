//! What a server sends.

use bytes::BytesMut;
use http::{HeaderMap, StatusCode};

use super::{frame, qpack, varint};

/// The begin of our control stream: its type, and the settings (RFC 9114 §6.2.1, §7.2.4). No dynamic table and no
/// blocked streams are the defaults, and so not said. Extended CONNECT is understood (RFC 9220). `header_list` is the size in RFC 9114 §4.2.2's count.
pub fn control_stream(out: &mut BytesMut, header_list: u64) {
    let mut settings = BytesMut::new();
    varint::put(&mut settings, MAX_FIELD_SECTION_SIZE);
    varint::put(&mut settings, header_list);
    varint::put(&mut settings, ENABLE_CONNECT_PROTOCOL);
    varint::put(&mut settings, 1);
    varint::put(out, super::StreamType::CONTROL);
    varint::put(out, frame::SETTINGS);
    varint::put(out, settings.len() as u64);
    out.extend_from_slice(&settings);
}

/// GOAWAY with the first request stream that will not be served (RFC 9114 §7.2.6).
pub fn goaway(out: &mut BytesMut, stream: u64) {
    let mut id = BytesMut::new();
    varint::put(&mut id, stream);
    varint::put(out, frame::GOAWAY);
    varint::put(out, id.len() as u64);
    out.extend_from_slice(&id);
}

/// The head of an answer, interim ones included.
pub fn head(out: &mut BytesMut, status: StatusCode, headers: &HeaderMap) {
    let mut section = BytesMut::with_capacity(256);
    qpack::encode(&mut section, Some(status), headers);
    varint::put(out, frame::HEADERS);
    varint::put(out, section.len() as u64);
    out.extend_from_slice(&section);
}

/// The trailers of an answer.
pub fn trailers(out: &mut BytesMut, trailers: &HeaderMap) {
    let mut section = BytesMut::new();
    qpack::encode(&mut section, None, trailers);
    varint::put(out, frame::HEADERS);
    varint::put(out, section.len() as u64);
    out.extend_from_slice(&section);
}

/// What stands before so many bytes of content.
pub fn data(out: &mut BytesMut, length: u64) {
    varint::put(out, frame::DATA);
    varint::put(out, length);
}

const MAX_FIELD_SECTION_SIZE: u64 = 0x06;
/// RFC 9220 §5
const ENABLE_CONNECT_PROTOCOL: u64 = 0x08;
