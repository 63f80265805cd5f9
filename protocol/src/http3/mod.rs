//! HTTP/3 frames and field sections (RFC 9114, RFC 9204), for a server that keeps no dynamic table.
//!
//! [`RequestDecoder`] reads what comes on a request stream, [`ControlDecoder`], [`EncoderStream`] and [`DecoderStream`]
//! what comes on a client's critical streams; [`encode`] writes what a server sends; [`qpack`] is field sections. Bytes go
//! in as they arrive, split anywhere; nothing is gathered beyond a bound that is given.

mod code;
mod control;
pub mod encode;
pub mod qpack;
mod request;
mod uni;
mod varint;

pub use code::Code;
pub use control::ControlDecoder;
pub use request::{Event, RequestDecoder, RequestError};
pub use uni::{DecoderStream, EncoderStream, StreamType, UniHeader};
pub use varint::{MAX as MAX_VARINT, Varint};

/// Frame types (RFC 9114 §7.2, §11.2.1).
mod frame {
    pub(super) const DATA: u64 = 0x00;
    pub(super) const HEADERS: u64 = 0x01;
    pub(super) const CANCEL_PUSH: u64 = 0x03;
    pub(super) const SETTINGS: u64 = 0x04;
    pub(super) const PUSH_PROMISE: u64 = 0x05;
    pub(super) const GOAWAY: u64 = 0x07;
    pub(super) const MAX_PUSH_ID: u64 = 0x0d;

    /// Those of HTTP/2 that have no meaning here and are not to be ignored (RFC 9114 §7.2.8).
    pub(super) fn is_of_http2(kind: u64) -> bool {
        matches!(kind, 0x02 | 0x06 | 0x08 | 0x09)
    }
}
