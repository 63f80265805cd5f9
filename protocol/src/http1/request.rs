//! Heads of requests (RFC 9112 §3, §5, §6).

use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING};
use http::uri::Scheme;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, Version};

use super::framing::{self, FramingError};
use super::line::{LineError, Lines};
use super::syntax::{self, list_items};
use super::{BodyLength, HeadLimits, host};

/// Takes request heads off a buffer, one after the other. It keeps what it has understood of a head in part, so that
/// each byte is looked at once.
#[derive(Debug)]
pub struct RequestParser {
    limits: HeadLimits,
    lines: Lines,
    empty_lines: usize,
    /// Its request line was taken, its last line was not.
    begun: bool,
    fields: usize,
    /// One of the fields says how long the content is, or what becomes of the connection.
    framed: bool,
    /// Whether there is one `Host` that is valid; `None` while there is none.
    host: Option<bool>,
    head: RequestHead,
}

/// A complete and unambiguous request head. By default, a `GET` of `/` without fields.
#[derive(Debug)]
pub struct RequestHead {
    /// Any token.
    pub method: Method,
    /// As received: origin-form, absolute-form (`http` or `https`, without user information), authority-form for
    /// CONNECT, `*` for OPTIONS.
    pub uri: Uri,
    /// HTTP/1.0 or HTTP/1.1.
    pub version: Version,
    /// As received, but that `Host` is the authority of an absolute-form target (RFC 9112 §3.2.2). Values share the
    /// buffer's memory.
    pub headers: HeaderMap,
    /// Never [`BodyLength::UntilClose`].
    pub body: BodyLength,
    /// Whether the client keeps the connection for a further request.
    pub keep_alive: bool,
    /// The client waits for 100 before it sends the content.
    pub expect_continue: bool,
}

/// Why a request is refused. The connection cannot go on after any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// Breaks the grammar, or could be understood in more than one way.
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// The request line is over the limit of bytes.
    #[error("the request target is too long")]
    TargetTooLong,
    /// The fields are over the limit of bytes or of their number.
    #[error("the fields are too large")]
    FieldsTooLarge,
    /// A transfer coding other than `chunked`.
    #[error("unknown transfer coding")]
    UnknownCoding,
    /// Neither HTTP/1.0 nor HTTP/1.1.
    #[error("unsupported HTTP version")]
    Version,
    /// An expectation other than `100-continue`.
    #[error("unknown expectation")]
    Expectation,
}

impl RequestParser {
    /// For one connection.
    pub fn new(limits: HeadLimits) -> Self {
        RequestParser {
            limits,
            lines: Lines::new(limits.bytes),
            empty_lines: 0,
            begun: false,
            fields: 0,
            framed: false,
            host: None,
            head: RequestHead::default(),
        }
    }

    /// Takes empty lines before a request off the buffer (RFC 9112 §2.2). Whether a byte of a request stands in it
    /// then.
    #[inline]
    pub fn begin(&mut self, buf: &mut BytesMut) -> bool {
        if matches!(buf.first(), Some(first) if *first != b'\r') {
            return true;
        }
        self.skip_empty_lines(buf)
    }

    fn skip_empty_lines(&mut self, buf: &mut BytesMut) -> bool {
        while !self.begun && self.empty_lines <= MAX_EMPTY_LINES && buf.starts_with(b"\r\n") {
            buf.advance(2);
            self.empty_lines += 1;
        }
        self.begun || self.empty_lines > MAX_EMPTY_LINES || !matches!(&buf[..], [] | [b'\r'])
    }

    /// Takes the next head off the buffer, `None` until all of it is there. What stands behind it is left. The head is the
    /// caller's to take apart. After an error the parser and the connection are of no further use.
    pub fn parse(&mut self, buf: &mut BytesMut) -> Result<Option<&mut RequestHead>, HeadError> {
        if !self.begun {
            if !self.begin(buf) {
                return Ok(None);
            }
            if self.empty_lines > MAX_EMPTY_LINES {
                return Err(HeadError::Malformed("empty lines before the request"));
            }
            refuse_other_protocols(&buf[..buf.len().min(self.limits.bytes)])?;
            let line = match self.lines.next(buf) {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(None),
                Err(LineError::TooLong) => return Err(HeadError::TargetTooLong),
                Err(LineError::BareLineFeed) => return Err(HeadError::Malformed("a bare line feed")),
            };
            self.head.request_line(self.lines.piece(), line)?;
            if !self.head.headers.is_empty() {
                self.head.headers.clear();
            }
            self.begun = true;
        }
        loop {
            let line = match self.lines.next(buf) {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(None),
                Err(LineError::TooLong) => return Err(HeadError::FieldsTooLarge),
                Err(LineError::BareLineFeed) => return Err(HeadError::Malformed("a bare line feed")),
            };
            if line.is_empty() {
                break;
            }
            if self.fields == self.limits.fields {
                return Err(HeadError::FieldsTooLarge);
            }
            self.fields += 1;
            let (name, value) = self.lines.field(line, false).ok_or(HeadError::Malformed("a field"))?;
            self.framed |= matches!(name, TRANSFER_ENCODING | CONTENT_LENGTH | CONNECTION | EXPECT);
            if name == HOST {
                self.host = Some(self.host.is_none() && host::is_valid_host(value.as_bytes()));
            }
            self.head.headers.try_append(name, value).map_err(|_| HeadError::FieldsTooLarge)?;
        }
        self.lines.reset(self.limits.bytes);
        self.empty_lines = 0;
        self.begun = false;
        self.fields = 0;
        self.head.end_of_fields(std::mem::take(&mut self.framed), self.host.take())?;
        Ok(Some(&mut self.head))
    }

    /// The head that was complete last, or what the caller has left of it.
    pub fn head(&mut self) -> &mut RequestHead {
        &mut self.head
    }

    /// Empties a map, and takes it back so that its memory serves for the next head.
    pub fn recycle(&mut self, headers: &mut HeaderMap) {
        if !self.begun && headers.capacity() <= MAX_RECYCLED {
            headers.clear();
            std::mem::swap(&mut self.head.headers, headers);
        }
    }

    /// Lets go of all memory that is only kept for the next head.
    pub fn shrink(&mut self) {
        if !self.begun {
            self.head = RequestHead::default();
        }
    }
}

impl HeadError {
    /// What to answer.
    pub fn status(self) -> StatusCode {
        match self {
            HeadError::Malformed(_) => StatusCode::BAD_REQUEST,
            HeadError::TargetTooLong => StatusCode::URI_TOO_LONG,
            HeadError::FieldsTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            HeadError::UnknownCoding => StatusCode::NOT_IMPLEMENTED,
            HeadError::Version => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            HeadError::Expectation => StatusCode::EXPECTATION_FAILED,
        }
    }
}

impl From<FramingError> for HeadError {
    fn from(error: FramingError) -> Self {
        match error {
            FramingError::Malformed(what) => HeadError::Malformed(what),
            FramingError::UnknownCoding => HeadError::UnknownCoding,
        }
    }
}

impl RequestHead {
    /// `method SP request-target SP HTTP-version`, with exactly these two spaces.
    fn request_line(&mut self, piece: &Bytes, line: Range<usize>) -> Result<(), HeadError> {
        let start = line.start;
        let line = &piece[line];
        let malformed = HeadError::Malformed("the request line");
        // Methods are short, and versions of one length.
        let first = line.iter().position(|byte| *byte == b' ').ok_or(malformed)?;
        let last = line.len().checked_sub(VERSION).filter(|last| *last > first).ok_or(malformed)?;
        self.method = Method::from_bytes(&line[..first]).map_err(|_| HeadError::Malformed("the method"))?;
        self.version = match &line[last..] {
            b" HTTP/1.1" => Version::HTTP_11,
            b" HTTP/1.0" => Version::HTTP_10,
            [b' ', b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
                if major.is_ascii_digit() && minor.is_ascii_digit() =>
            {
                return Err(HeadError::Version);
            }
            _ => return Err(malformed),
        };
        self.uri = target(&self.method, piece.slice(start + first + 1..start + last))?;
        Ok(())
    }

    /// All fields are there; `framed` says whether there are some of framing among them, which most requests have not.
    fn end_of_fields(&mut self, framed: bool, host: Option<bool>) -> Result<(), HeadError> {
        self.body = match framed {
            false => BodyLength::None,
            true if framing::is_chunked(self.version, &self.headers)? => BodyLength::Chunked,
            true => content_length(&self.headers)?,
        };
        check_host(host, self.version, &self.uri, &mut self.headers)?;
        (self.keep_alive, self.expect_continue) = match framed {
            false => (self.version == Version::HTTP_11, false),
            true => (
                framing::keeps_alive(self.version, &self.headers),
                expects_continue(self.version, &self.headers)?,
            ),
        };
        Ok(())
    }
}

impl Default for RequestHead {
    fn default() -> Self {
        RequestHead {
            method: Method::GET,
            uri: Uri::default(),
            version: Version::HTTP_11,
            headers: HeaderMap::new(),
            body: BodyLength::None,
            keep_alive: true,
            expect_continue: false,
        }
    }
}

/// Sees at the first bytes that this is no HTTP/1 (a TLS record, say), rather than wait for a line that never ends.
fn refuse_other_protocols(head: &[u8]) -> Result<(), HeadError> {
    let method = &head[..head.len().min(METHOD_PREFIX)];
    for (at, byte) in method.iter().enumerate() {
        if *byte == b' ' && at > 0 {
            break;
        }
        if !syntax::is_token(*byte) {
            return Err(HeadError::Malformed("the method"));
        }
    }
    Ok(())
}

/// The target in the form that its method allows (RFC 9112 §3.2).
fn target(method: &Method, target: Bytes) -> Result<Uri, HeadError> {
    let malformed = HeadError::Malformed("the request target");
    // The http crate cuts a fragment off and takes bytes that are no ASCII.
    if !target.iter().all(|byte| TARGET[usize::from(*byte)]) {
        return Err(malformed);
    }
    if target.len() > MAX_TARGET {
        return Err(HeadError::TargetTooLong);
    }
    let asterisk = &target[..] == b"*";
    let origin = target.starts_with(b"/");
    let uri = Uri::from_maybe_shared(target).map_err(|_| malformed)?;
    if *method == Method::CONNECT {
        let authority = uri.authority().filter(|_| uri.scheme().is_none() && uri.path_and_query().is_none());
        let port = authority.and_then(|authority| authority.as_str().rsplit_once(':')).map(|(_, port)| port);
        let valid = authority.is_some_and(|authority| host::is_valid_host(authority.as_str().as_bytes()));
        // Behind the last colon of `[::1]` stands no number.
        return if valid && port.is_some_and(|port| port.parse::<u16>().is_ok()) {
            Ok(uri)
        } else {
            Err(malformed)
        };
    }
    if asterisk {
        return if *method == Method::OPTIONS { Ok(uri) } else { Err(malformed) };
    }
    if origin {
        return Ok(uri);
    }
    let known = uri.scheme().is_some_and(|scheme| *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS);
    let host = uri.authority().is_some_and(|authority| host::is_valid_host(authority.as_str().as_bytes()));
    if known && host { Ok(uri) } else { Err(malformed) }
}

/// One line of digits, or none: a repeated length is refused even where it repeats itself.
fn content_length(headers: &HeaderMap) -> Result<BodyLength, HeadError> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let Some(length) = lengths.next() else { return Ok(BodyLength::None) };
    if lengths.next().is_some() {
        return Err(HeadError::Malformed("more than one Content-Length"));
    }
    Ok(BodyLength::Length(framing::parse_length(length)?))
}

/// Exactly one valid `Host` on HTTP/1.1, at most one on HTTP/1.0; the authority of the target takes its place.
fn check_host(
    host: Option<bool>,
    version: Version,
    uri: &Uri,
    headers: &mut HeaderMap,
) -> Result<(), HeadError> {
    match host {
        Some(true) => {}
        None if version == Version::HTTP_10 => {}
        None => return Err(HeadError::Malformed("no Host")),
        Some(false) => return Err(HeadError::Malformed("Host")),
    }
    if let Some(authority) = uri.authority()
        && headers.get(HOST).is_none_or(|host| host.as_bytes() != authority.as_str().as_bytes())
    {
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| HeadError::Malformed("Host"))?;
        headers.try_insert(HOST, host).map_err(|_| HeadError::FieldsTooLarge)?;
    }
    Ok(())
}

/// RFC 9110 §10.1.1: an HTTP/1.0 expectation is ignored.
fn expects_continue(version: Version, headers: &HeaderMap) -> Result<bool, HeadError> {
    let mut expects = false;
    if version == Version::HTTP_11 {
        for expectation in headers.get_all(EXPECT).iter().flat_map(list_items) {
            if !expectation.eq_ignore_ascii_case(b"100-continue") {
                return Err(HeadError::Expectation);
            }
            expects = true;
        }
    }
    Ok(expects)
}

/// What a target may be made of: visible characters without those that only seem to be a part of it.
const TARGET: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0x21;
    while byte <= 0x7e {
        table[byte] = !matches!(byte as u8, b'#' | b'<' | b'>');
        byte += 1;
    }
    table
};
/// Bytes of ` HTTP/1.1`.
const VERSION: usize = 9;
/// Empty lines that are skipped before a request.
const MAX_EMPTY_LINES: usize = 8;
/// Bytes in which the first space is not needed, but nothing else than a method may stand.
const METHOD_PREFIX: usize = 16;
/// What the http crate can hold.
const MAX_TARGET: usize = u16::MAX as usize - 1;
/// Fields of a map that is worth keeping.
const MAX_RECYCLED: usize = 64;

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
