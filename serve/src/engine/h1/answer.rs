//! The head of an answer: which fields, and how its content is delimited (RFC 9112 §6).

use std::cell::RefCell;
use std::time::SystemTime;

use bytes::BytesMut;
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, HeaderName, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Version};
use http_body::SizeHint;
use playhouse_protocol::http1::date::DateCache;
use playhouse_protocol::http1::{connection_has, encode};

use super::output::COPIED;
use crate::Body;

/// How the content of an answer is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// There is none.
    None,
    /// So many bytes are still to come.
    Length(u64),
    /// Chunks.
    Chunked,
    /// The end of the connection.
    UntilClose,
}

/// What of a request decides about the form of its answer.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) version: Version,
    pub(super) head: bool,
    pub(super) connect: bool,
}

impl Asked {
    pub(super) fn new(method: &Method, version: Version) -> Self {
        Asked { version, head: *method == Method::HEAD, connect: *method == Method::CONNECT }
    }

    /// Whether the handler may answer so: final, and not the beginning of a tunnel.
    pub(super) fn admits(&self, status: StatusCode) -> bool {
        !(status.is_informational() || self.connect && status.is_success())
    }

    /// Whether an answer with this status has content.
    pub(super) fn has_content(&self, status: StatusCode) -> bool {
        !self.head
            && !matches!(
                status,
                StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED
            )
    }

    /// How content of this size is delimited.
    pub(super) fn framing(&self, response: &Response<Body>, size: &SizeHint) -> Framing {
        if !self.has_content(response.status()) {
            return Framing::None;
        }
        match size.exact().or_else(|| announced(response.headers())) {
            Some(length) => Framing::Length(length),
            None if self.version == Version::HTTP_11 => Framing::Chunked,
            None => Framing::UntilClose,
        }
    }

    /// The length to announce: of content that comes, or that would come to a GET.
    fn length(&self, response: &Response<Body>, size: &SizeHint, framing: Framing) -> Option<u64> {
        match framing {
            Framing::Length(length) => Some(length),
            Framing::Chunked | Framing::UntilClose => None,
            Framing::None if response.status() == StatusCode::NO_CONTENT => None,
            Framing::None if response.status() == StatusCode::RESET_CONTENT => Some(0),
            // A handler that knows of HEAD gives no body: its size says nothing then.
            Framing::None => announced(response.headers()).or_else(|| {
                size.exact().filter(|size| *size > 0 && response.status() != StatusCode::NOT_MODIFIED)
            }),
        }
    }
}

/// Writes the head; `cached` are field lines beside those of the response. Fields that belong to the connection are ours, not the handler's.
pub(super) fn head(
    out: &mut BytesMut,
    asked: &Asked,
    response: &Response<Body>,
    cached: &[u8],
    size: &SizeHint,
    framing: Framing,
    keep_alive: bool,
) {
    // With room for content that is copied behind it.
    let content = match framing {
        Framing::Length(length) if length <= COPIED as u64 => length as usize,
        _ => 0,
    };
    out.reserve(HEAD + cached.len() + content);
    encode::status_line(out, response.status());
    out.extend_from_slice(cached);
    let mut dated = false;
    for (name, value) in response.headers() {
        if is_of_the_connection(name) {
            continue;
        }
        dated |= *name == DATE;
        encode::field(out, name, value);
    }
    if !dated {
        date(out, super::super::wall_clock());
    }
    // Cached lines say it themselves.
    if cached.is_empty()
        && let Some(length) = asked.length(response, size, framing)
    {
        encode::content_length(out, length);
    }
    if framing == Framing::Chunked {
        out.extend_from_slice(encode::CHUNKED);
    }
    if !keep_alive {
        out.extend_from_slice(encode::CLOSE);
    } else if asked.version == Version::HTTP_10 {
        out.extend_from_slice(encode::KEEP_ALIVE);
    }
    out.extend_from_slice(encode::END_OF_HEAD);
}

/// Writes an interim answer.
pub(super) fn interim(out: &mut BytesMut, status: StatusCode, headers: &HeaderMap) {
    encode::status_line(out, status);
    for (name, value) in headers.iter().filter(|(name, _)| !is_of_the_connection(name)) {
        encode::field(out, name, value);
    }
    out.extend_from_slice(encode::END_OF_HEAD);
}

/// Writes the head that ends HTTP on the connection.
pub(super) fn switching(out: &mut BytesMut, token: &HeaderValue, headers: &HeaderMap) {
    encode::status_line(out, StatusCode::SWITCHING_PROTOCOLS);
    out.extend_from_slice(b"connection: upgrade\r\n");
    encode::field(out, &UPGRADE, token);
    for (name, value) in headers.iter().filter(|(name, _)| !is_of_the_connection(name)) {
        encode::field(out, name, value);
    }
    out.extend_from_slice(encode::END_OF_HEAD);
}

/// Writes `Date`.
pub(super) fn date(out: &mut BytesMut, now: SystemTime) {
    thread_local! {
        static CACHE: RefCell<DateCache> = RefCell::default();
    }
    CACHE.with_borrow_mut(|cache| cache.field(out, now));
}

/// Whether the handler ends the connection with this answer.
pub(super) fn asks_to_close(headers: &HeaderMap) -> bool {
    headers.contains_key(CONNECTION) && connection_has(headers, "close")
}

/// An answer of the engine's own, in place of the handler's.
pub(super) fn bare(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = status;
    response
}

/// `Content-Length` as the handler has set it, if it is one.
fn announced(headers: &HeaderMap) -> Option<u64> {
    let value = headers.get(CONTENT_LENGTH)?.as_bytes();
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(value).ok().filter(|_| digits)?.parse().ok()
}

fn is_of_the_connection(name: &HeaderName) -> bool {
    *name == CONNECTION
        || *name == TRANSFER_ENCODING
        || *name == CONTENT_LENGTH
        || *name == UPGRADE
        || *name == "keep-alive"
        || *name == "proxy-connection"
}

/// Bytes that the head of an answer seldom exceeds.
const HEAD: usize = 512;
