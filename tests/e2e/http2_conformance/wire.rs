//! Frames and their numbers, as bytes.

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Fields as literals that are not indexed.
pub(super) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.extend([0, name.len() as u8]);
        block.extend_from_slice(name.as_bytes());
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
    }
    block
}

/// A whole request for `/`.
pub(super) fn get(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, GET)
}

pub(super) fn path(stream: u32, path: &str) -> Vec<u8> {
    let fields = [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", HOST)];
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &block(&fields))
}

/// A whole request that is never answered, so that its stream stays half-closed.
pub(super) fn wait(stream: u32) -> Vec<u8> {
    path(stream, "/echo/wait")
}

/// The head of a request whose body is to follow; it is answered when that is whole.
pub(super) fn post(stream: u32) -> Vec<u8> {
    post_with(stream, &[])
}

pub(super) fn post_with(stream: u32, fields: &[(&str, &str)]) -> Vec<u8> {
    let head = [(":method", "POST"), (":scheme", "http"), (":path", "/echo/"), (":authority", HOST)];
    frame(HEADERS, END_HEADERS, stream, &block(&[&head, fields].concat()))
}

/// `h2` does not tell a damaged header block from other errors.
pub(super) const DAMAGED: &[u32] = &[COMPRESSION_ERROR, PROTOCOL_ERROR];
/// Nor a stream whose half is closed from one that never was.
pub(super) const ENDED: &[u32] = &[STREAM_CLOSED, PROTOCOL_ERROR];

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(super) const HOST: &str = "a.test";
/// `:method: GET`, `:scheme: http`, `:path: /`, and `:authority` as a literal that is not indexed.
pub(super) const GET: &[u8] = b"\x82\x86\x84\x01\x06a.test";

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const PRIORITY: u8 = 2;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PUSH_PROMISE: u8 = 5;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const ACK: u8 = 0x1;
pub(super) const END_STREAM: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;
pub(super) const PADDED: u8 = 0x8;
pub(super) const PRIORITY_FLAG: u8 = 0x20;

pub(super) const NO_ERROR: u32 = 0;
pub(super) const PROTOCOL_ERROR: u32 = 1;
pub(super) const FLOW_CONTROL_ERROR: u32 = 3;
pub(super) const STREAM_CLOSED: u32 = 5;
pub(super) const FRAME_SIZE_ERROR: u32 = 6;
pub(super) const REFUSED_STREAM: u32 = 7;
pub(super) const CANCEL: u32 = 8;
pub(super) const COMPRESSION_ERROR: u32 = 9;
