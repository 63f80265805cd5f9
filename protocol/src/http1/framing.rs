//! Where a message ends (RFC 9112 §6), and whether the connection goes on behind it (§9.3).

use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Version};

use super::syntax::list_items;

/// How the content of a message is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// There is none.
    None,
    /// This many bytes; 0 is an announced empty body.
    Length(u64),
    /// Chunks, then trailers.
    Chunked,
    /// All that comes until the connection is closed (answers only).
    UntilClose,
}

/// What is wrong with the framing fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FramingError {
    /// Ambiguous or malformed.
    Malformed(&'static str),
    /// A transfer coding other than `chunked`.
    UnknownCoding,
}

/// Whether `Connection` lists this option, in any case.
pub fn connection_has(headers: &HeaderMap, option: &str) -> bool {
    headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(list_items)
        .any(|item| item.eq_ignore_ascii_case(option.as_bytes()))
}

/// Whether the sender of these fields keeps its connection (RFC 9112 §9.3).
pub(super) fn keeps_alive(version: Version, headers: &HeaderMap) -> bool {
    if !headers.contains_key(CONNECTION) {
        return version == Version::HTTP_11;
    }
    !connection_has(headers, "close")
        && (version == Version::HTTP_11 || connection_has(headers, "keep-alive"))
}

/// Whether there is a `Transfer-Encoding`; it is an error unless it is a single `chunked` on HTTP/1.1 without a
/// `Content-Length` beside it.
pub(super) fn is_chunked(version: Version, headers: &HeaderMap) -> Result<bool, FramingError> {
    if !headers.contains_key(TRANSFER_ENCODING) {
        return Ok(false);
    }
    if version != Version::HTTP_11 {
        return Err(FramingError::Malformed("Transfer-Encoding in an HTTP/1.0 message"));
    }
    if headers.contains_key(CONTENT_LENGTH) {
        return Err(FramingError::Malformed("Content-Length beside Transfer-Encoding"));
    }
    let mut chunked = false;
    let mut unknown = false;
    for coding in headers.get_all(TRANSFER_ENCODING).iter().flat_map(list_items) {
        if chunked {
            return Err(FramingError::Malformed("a transfer coding after chunked"));
        }
        if coding.eq_ignore_ascii_case(b"chunked") {
            chunked = true;
        } else {
            unknown = true;
        }
    }
    match (unknown, chunked) {
        (true, _) => Err(FramingError::UnknownCoding),
        (false, true) => Ok(true),
        (false, false) => Err(FramingError::Malformed("an empty Transfer-Encoding")),
    }
}

/// One `Content-Length`: digits only, at most `u64::MAX`.
pub(super) fn parse_length(value: &HeaderValue) -> Result<u64, FramingError> {
    let digits = value.as_bytes();
    if digits.is_empty() || digits.len() > 20 {
        return Err(FramingError::Malformed("Content-Length"));
    }
    let mut length = 0u64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return Err(FramingError::Malformed("Content-Length"));
        }
        length = length
            .checked_mul(10)
            .and_then(|length| length.checked_add(u64::from(digit - b'0')))
            .ok_or(FramingError::Malformed("Content-Length"))?;
    }
    Ok(length)
}
