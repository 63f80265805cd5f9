//! HTTP/1.1 messages (RFC 9112), in the strict reading: what two implementations could understand differently is an
//! error here.
//!
//! [`RequestParser`] and [`ResponseParser`] take a head off a buffer as its bytes arrive, [`BodyDecoder`] the content
//! behind it; [`encode`] writes heads, chunks and trailers; [`date`] is the `Date` field. Lines end in CRLF and in
//! nothing else, obs-fold is refused, and every head, line and trailer section has a bound.

mod body;
pub mod date;
pub mod encode;
mod framing;
mod host;
mod line;
mod request;
mod response;
mod syntax;

pub use body::{BodyDecoder, BodyError, Decoded, is_allowed_trailer};
pub use framing::{BodyLength, connection_has};
pub use host::is_valid_host;
pub use request::{HeadError, RequestHead, RequestParser};
pub use response::{ResponseError, ResponseHead, ResponseParser};
pub(crate) use syntax::field;
pub use syntax::list_items;

/// What a head may measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Bytes from the first of the start line to the last of the empty line.
    pub bytes: usize,
    /// Field lines.
    pub fields: usize,
}

impl Default for HeadLimits {
    /// 32 KiB and 100 fields.
    fn default() -> Self {
        HeadLimits { bytes: 32 << 10, fields: 100 }
    }
}
