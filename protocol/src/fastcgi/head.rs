//! The head of an answer (RFC 3875 §6).

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::http1::{HeadLimits, field};

/// Takes the head of an answer off a buffer.
#[derive(Debug)]
pub struct HeadParser {
    limits: HeadLimits,
    /// Bytes that are known to hold no end of a line.
    scanned: usize,
    /// Bytes that were taken.
    taken: usize,
    fields: usize,
    status: Option<StatusCode>,
    headers: HeaderMap,
}

/// The head of an answer.
#[derive(Debug)]
pub struct AnswerHead {
    /// 200 to 599: that of `Status`, 302 with a `Location` and without one, else 200.
    pub status: StatusCode,
    /// What the program has set, without `Status`, and without what belongs to a connection or to the framing of a message
    /// but for `Content-Length`.
    pub headers: HeaderMap,
    /// Bytes of content, where the program has said so.
    pub length: Option<u64>,
}

/// Why a head is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// Breaks the grammar.
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// Over the limit of bytes or fields.
    #[error("the head is too large")]
    TooLarge,
    /// There is not a single field.
    #[error("the head is empty")]
    Empty,
}

impl HeadParser {
    /// For one answer.
    pub fn new(limits: HeadLimits) -> Self {
        HeadParser { limits, scanned: 0, taken: 0, fields: 0, status: None, headers: HeaderMap::new() }
    }

    /// Takes the head off the buffer, `None` until all of it is there. Lines end with a line feed, with a carriage return
    /// before it or not, as programs write them.
    pub fn parse(&mut self, input: &mut BytesMut) -> Result<Option<AnswerHead>, HeadError> {
        loop {
            let left = self.limits.bytes - self.taken;
            let seen = &input[..input.len().min(left)];
            let Some(feed) = memchr::memchr(b'\n', &seen[self.scanned.min(seen.len())..]) else {
                self.scanned = seen.len();
                return if seen.len() < left { Ok(None) } else { Err(HeadError::TooLarge) };
            };
            let mut line = input.split_to(self.scanned + feed + 1).freeze();
            self.scanned = 0;
            self.taken += line.len();
            line.truncate(line.len() - 1);
            if line.last() == Some(&b'\r') {
                line.truncate(line.len() - 1);
            }
            if line.is_empty() {
                return self.end().map(Some);
            }
            self.line(&line)?;
        }
    }

    fn line(&mut self, line: &Bytes) -> Result<(), HeadError> {
        if self.fields == self.limits.fields {
            return Err(HeadError::TooLarge);
        }
        self.fields += 1;
        let malformed = HeadError::Malformed("a field");
        let (name, value) = field(line, true).ok_or(malformed)?;
        let value = HeaderValue::from_maybe_shared(line.slice(value)).map_err(|_| malformed)?;
        if name == STATUS {
            let status = status(value.as_bytes()).ok_or(HeadError::Malformed("Status"))?;
            return match self.status.replace(status) {
                None => Ok(()),
                Some(_) => Err(HeadError::Malformed("Status stands twice")),
            };
        }
        self.headers.try_append(name, value).map_err(|_| HeadError::TooLarge)?;
        Ok(())
    }

    fn end(&mut self) -> Result<AnswerHead, HeadError> {
        if self.fields == 0 {
            return Err(HeadError::Empty);
        }
        let mut headers = std::mem::take(&mut self.headers);
        for name in CONNECTION {
            headers.remove(name);
        }
        if headers.get_all(header::LOCATION).iter().nth(1).is_some() {
            return Err(HeadError::Malformed("Location stands twice"));
        }
        let redirects = headers.contains_key(header::LOCATION);
        let default = if redirects { StatusCode::FOUND } else { StatusCode::OK };
        let length = length(&headers)?;
        Ok(AnswerHead { status: self.status.unwrap_or(default), headers, length })
    }
}

/// `404 Not Found`, of which only the number counts.
fn status(value: &[u8]) -> Option<StatusCode> {
    let (code, reason) = value.split_at_checked(3)?;
    let apart = matches!(reason.first(), None | Some(b' ' | b'\t'));
    let status = StatusCode::from_bytes(code).ok().filter(|_| apart)?;
    (200..600).contains(&status.as_u16()).then_some(status)
}

/// The one length; what is none, or more than one, is an error rather than a guess.
fn length(headers: &HeaderMap) -> Result<Option<u64>, HeadError> {
    let malformed = HeadError::Malformed("Content-Length");
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let Some(first) = lengths.next() else { return Ok(None) };
    let text = first.to_str().ok().filter(|_| lengths.next().is_none()).ok_or(malformed)?;
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits).map(Some).ok_or(malformed)
}

static STATUS: HeaderName = HeaderName::from_static("status");

/// What is the server's to say.
const CONNECTION: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::PROXY_AUTHENTICATE,
];
