//! Heads of answers (RFC 9112 §4, §6.3), as an upstream server sends them.

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version};

use super::framing::{self, FramingError};
use super::line::{LineError, Lines};
use super::syntax::list_items;
use super::{BodyLength, HeadLimits};

/// Takes the heads of an answer off a buffer: interim ones first, then the final one.
#[derive(Debug)]
pub struct ResponseParser {
    limits: HeadLimits,
    lines: Lines,
    status_line: Option<(Version, StatusCode)>,
    fields: usize,
    headers: HeaderMap,
}

/// A complete and unambiguous head of an answer.
#[derive(Debug)]
pub struct ResponseHead {
    /// HTTP/1.0 or HTTP/1.1.
    pub version: Version,
    /// 100 to 599.
    pub status: StatusCode,
    /// As received, but that repeated equal `Content-Length` are one. Values share the buffer's memory.
    pub headers: HeaderMap,
    /// What follows. [`BodyLength::None`] for 1xx, 204, 304, for HEAD, and for a 2xx to CONNECT.
    pub body: BodyLength,
    /// Whether the server keeps the connection behind this answer; never after 101, a 2xx to CONNECT, or content
    /// that ends with the connection.
    pub keep_alive: bool,
}

/// Why an answer is refused. The connection cannot go on after any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    /// Breaks the grammar, or could be understood in more than one way.
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// Over the limit of bytes or fields.
    #[error("the head is too large")]
    TooLarge,
    /// A transfer coding other than `chunked`.
    #[error("unknown transfer coding")]
    UnknownCoding,
    /// Neither HTTP/1.0 nor HTTP/1.1.
    #[error("unsupported HTTP version")]
    Version,
}

impl ResponseParser {
    /// For the answers of one connection.
    pub fn new(limits: HeadLimits) -> Self {
        ResponseParser {
            limits,
            lines: Lines::new(limits.bytes),
            status_line: None,
            fields: 0,
            headers: HeaderMap::new(),
        }
    }

    /// Takes the next head off the buffer, `None` until all of it is there. `method` is the request's.
    pub fn parse(
        &mut self,
        buf: &mut BytesMut,
        method: &Method,
    ) -> Result<Option<ResponseHead>, ResponseError> {
        let (version, status) = match self.status_line {
            Some(status_line) => status_line,
            None => {
                if !buf.iter().zip(b"HTTP/1.").all(|(byte, expected)| byte == expected) {
                    return Err(ResponseError::Malformed("the status line"));
                }
                let Some(line) = self.lines.next(buf)? else { return Ok(None) };
                *self.status_line.insert(status_line(&self.lines.piece()[line])?)
            }
        };
        while let Some(line) = self.lines.next(buf)? {
            if line.is_empty() {
                self.status_line = None;
                self.lines.reset(self.limits.bytes);
                self.fields = 0;
                return head(version, status, std::mem::take(&mut self.headers), method).map(Some);
            }
            if self.fields == self.limits.fields {
                return Err(ResponseError::TooLarge);
            }
            self.fields += 1;
            // RFC 9112 §5.1: a proxy removes whitespace before the colon of an answer's field.
            let (name, value) = self.lines.field(line, true).ok_or(ResponseError::Malformed("a field"))?;
            self.headers.try_append(name, value).map_err(|_| ResponseError::TooLarge)?;
        }
        Ok(None)
    }

    /// Whether a byte of a head was taken and the head is not complete.
    pub fn is_within_head(&self) -> bool {
        self.status_line.is_some()
    }
}

impl From<LineError> for ResponseError {
    fn from(error: LineError) -> Self {
        match error {
            LineError::BareLineFeed => ResponseError::Malformed("a bare line feed"),
            LineError::TooLong => ResponseError::TooLarge,
        }
    }
}

impl From<FramingError> for ResponseError {
    fn from(error: FramingError) -> Self {
        match error {
            FramingError::Malformed(what) => ResponseError::Malformed(what),
            FramingError::UnknownCoding => ResponseError::UnknownCoding,
        }
    }
}

/// `HTTP-version SP status-code [ SP [ reason-phrase ] ]`: the last space may be missing.
fn status_line(line: &[u8]) -> Result<(Version, StatusCode), ResponseError> {
    let malformed = ResponseError::Malformed("the status line");
    let (version, rest) = line.split_at_checked(8).ok_or(malformed)?;
    let version = match version {
        b"HTTP/1.1" => Version::HTTP_11,
        b"HTTP/1.0" => Version::HTTP_10,
        [.., minor] if minor.is_ascii_digit() => return Err(ResponseError::Version),
        _ => return Err(malformed),
    };
    let [b' ', code @ ..] = rest else { return Err(malformed) };
    let (code, reason) = code.split_at_checked(3).ok_or(malformed)?;
    let reason = match reason {
        [] => reason,
        [b' ', reason @ ..] => reason,
        _ => return Err(malformed),
    };
    let printable = reason.iter().all(|byte| (*byte >= 0x20 && *byte != 0x7f) || *byte == b'\t');
    let status = StatusCode::from_bytes(code).ok().filter(|status| status.as_u16() < 600);
    status.filter(|_| printable).map(|status| (version, status)).ok_or(malformed)
}

/// RFC 9112 §6.3, in its order.
fn head(
    version: Version,
    status: StatusCode,
    mut headers: HeaderMap,
    method: &Method,
) -> Result<ResponseHead, ResponseError> {
    let framing = if framing::is_chunked(version, &headers)? {
        BodyLength::Chunked
    } else {
        match content_length(&mut headers)? {
            Some(length) => BodyLength::Length(length),
            None => BodyLength::UntilClose,
        }
    };
    let tunnel =
        status == StatusCode::SWITCHING_PROTOCOLS || (*method == Method::CONNECT && status.is_success());
    let never_has_content = status.is_informational() || status == StatusCode::NO_CONTENT;
    let body = if never_has_content || tunnel || status == StatusCode::NOT_MODIFIED || *method == Method::HEAD
    {
        BodyLength::None
    } else {
        framing
    };
    // A server that announces content where none may be could as well send it: what comes then is no answer.
    let announces = never_has_content && !matches!(framing, BodyLength::UntilClose | BodyLength::Length(0));
    let keep_alive =
        framing::keeps_alive(version, &headers) && !tunnel && !announces && body != BodyLength::UntilClose;
    Ok(ResponseHead { version, status, headers, body, keep_alive })
}

/// Equal repeated lengths, as lines or as a list, become one (RFC 9110 §8.6); different ones are an error.
fn content_length(headers: &mut HeaderMap) -> Result<Option<u64>, ResponseError> {
    debug_assert!(!headers.contains_key(TRANSFER_ENCODING));
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = lengths.next() else { return Ok(None) };
    if lengths.next().is_none()
        && let Ok(length) = framing::parse_length(first)
    {
        return Ok(Some(length));
    }
    let differing = ResponseError::Malformed("Content-Length");
    let mut length = None;
    for item in headers.get_all(CONTENT_LENGTH).iter().flat_map(list_items) {
        let item = HeaderValue::from_maybe_shared(Bytes::copy_from_slice(item)).map_err(|_| differing)?;
        let item = framing::parse_length(&item)?;
        if length.is_some_and(|length| length != item) {
            return Err(differing);
        }
        length = Some(item);
    }
    let length = length.ok_or(differing)?;
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    Ok(Some(length))
}

#[cfg(test)]
#[path = "response_tests.rs"]
mod tests;
