//! The content of messages (RFC 9112 §6, §7).

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, header};
use memchr::memchr;

use super::line::{LineError, Lines};
use super::{BodyLength, HeadLimits, syntax};

/// Takes the content of one message off a buffer, as it arrives.
#[derive(Debug)]
pub struct BodyDecoder {
    state: State,
    limits: HeadLimits,
    /// Bytes of chunk extensions that may still come.
    extensions_left: usize,
    /// Blanks may stand behind a chunk's size.
    padding: bool,
}

/// What the buffer held.
#[derive(Debug, PartialEq)]
pub enum Decoded {
    /// A piece of content, never empty. Shares the buffer's memory.
    Data(Bytes),
    /// The trailer section, never empty, without the fields that may not stand there. [`Decoded::End`] is next.
    Trailers(HeaderMap),
    /// The content is complete; what is left in the buffer is not part of it. Given again if asked again.
    End,
    /// More bytes are needed.
    NeedMore,
}

/// Why the content is refused. The connection cannot go on after any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// Breaks the grammar of chunks.
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// The trailers, or the chunk extensions, are over their limit.
    #[error("the framing of the content is too large")]
    TooLarge,
    /// The connection was closed before the content was complete.
    #[error("the content is incomplete")]
    Incomplete,
}

#[derive(Debug)]
enum State {
    Length(u64),
    UntilClose,
    /// Before the line with a chunk's size.
    ChunkHead,
    /// Within a chunk.
    ChunkData(u64),
    /// Before the CRLF behind a chunk.
    ChunkEnd,
    /// Boxed: few have any, and all are moved about.
    Trailers(Box<Trailers>),
    End,
}

#[derive(Debug)]
struct Trailers {
    lines: Lines,
    count: usize,
    fields: HeaderMap,
}

impl BodyDecoder {
    /// For a request, as strict as can be. `trailers` limits the trailer section.
    pub fn new(length: BodyLength, trailers: HeadLimits) -> Self {
        let state = match length {
            BodyLength::None => State::End,
            BodyLength::Length(length) => State::Length(length),
            BodyLength::Chunked => State::ChunkHead,
            BodyLength::UntilClose => State::UntilClose,
        };
        BodyDecoder { state, limits: trailers, extensions_left: MAX_EXTENSIONS, padding: false }
    }

    /// For an answer: blanks behind a chunk's size are passed over, since there are servers that fill it up to a width.
    /// Nobody else's framing depends on it, as what is sent on is framed anew.
    pub fn for_answer(length: BodyLength, trailers: HeadLimits) -> Self {
        BodyDecoder { padding: true, ..BodyDecoder::new(length, trailers) }
    }

    /// Takes the next piece off the buffer.
    pub fn decode(&mut self, buf: &mut BytesMut) -> Result<Decoded, BodyError> {
        loop {
            match &mut self.state {
                State::Length(0) | State::End => {
                    self.state = State::End;
                    return Ok(Decoded::End);
                }
                State::Length(left) => return Ok(take(buf, left)),
                State::UntilClose => {
                    let mut endless = u64::MAX;
                    return Ok(take(buf, &mut endless));
                }
                State::ChunkHead => match chunk_head(buf, &mut self.extensions_left, self.padding)? {
                    None => return Ok(Decoded::NeedMore),
                    Some(0) => {
                        let lines = Lines::new(self.limits.bytes);
                        let trailers = Trailers { lines, count: 0, fields: HeaderMap::new() };
                        self.state = State::Trailers(Box::new(trailers));
                    }
                    Some(size) => self.state = State::ChunkData(size),
                },
                State::ChunkData(0) => self.state = State::ChunkEnd,
                State::ChunkData(left) => return Ok(take(buf, left)),
                State::ChunkEnd => match &buf[..] {
                    [b'\r', b'\n', ..] => {
                        buf.advance(2);
                        self.state = State::ChunkHead;
                    }
                    [] | [b'\r'] => return Ok(Decoded::NeedMore),
                    _ => return Err(BodyError::Malformed("no CRLF behind a chunk")),
                },
                State::Trailers(trailers) => {
                    let Trailers { lines, count, fields } = &mut **trailers;
                    let Some(line) = lines.next(buf)? else { return Ok(Decoded::NeedMore) };
                    if line.is_empty() {
                        let trailers = std::mem::take(fields);
                        self.state = State::End;
                        if !trailers.is_empty() {
                            return Ok(Decoded::Trailers(trailers));
                        }
                        continue;
                    }
                    if *count == self.limits.fields {
                        return Err(BodyError::TooLarge);
                    }
                    *count += 1;
                    let (name, value) =
                        lines.field(line, false).ok_or(BodyError::Malformed("a trailer field"))?;
                    if is_allowed_trailer(&name) {
                        fields.try_append(name, value).map_err(|_| BodyError::TooLarge)?;
                    }
                }
            }
        }
    }

    /// The connection was closed: an error unless the content is complete, or ends just so.
    pub fn eof(&mut self) -> Result<(), BodyError> {
        match self.state {
            State::End | State::Length(0) | State::UntilClose => {
                self.state = State::End;
                Ok(())
            }
            _ => Err(BodyError::Incomplete),
        }
    }

    /// Whether nothing more belongs to the content.
    pub fn is_end(&self) -> bool {
        matches!(self.state, State::End | State::Length(0))
    }

    /// Bytes of content still to come, where that is known.
    pub fn remaining(&self) -> Option<u64> {
        match self.state {
            State::Length(left) => Some(left),
            State::End => Some(0),
            _ => None,
        }
    }
}

impl From<LineError> for BodyError {
    fn from(error: LineError) -> Self {
        match error {
            LineError::BareLineFeed => BodyError::Malformed("a bare line feed"),
            LineError::TooLong => BodyError::TooLarge,
        }
    }
}

/// Whether a field may stand in a trailer section (RFC 9110 §6.5.1): nothing that frames, routes, authenticates,
/// modifies the request, or says what the content is.
pub fn is_allowed_trailer(name: &HeaderName) -> bool {
    let forbidden = matches!(
        *name,
        header::TRANSFER_ENCODING
            | header::CONTENT_LENGTH
            | header::CONTENT_ENCODING
            | header::CONTENT_TYPE
            | header::CONTENT_RANGE
            | header::HOST
            | header::TRAILER
            | header::TE
            | header::CONNECTION
            | header::UPGRADE
            | header::EXPECT
            | header::MAX_FORWARDS
            | header::RANGE
            | header::CACHE_CONTROL
            | header::PRAGMA
            | header::AGE
            | header::EXPIRES
            | header::DATE
            | header::VARY
            | header::LOCATION
            | header::RETRY_AFTER
            | header::WARNING
            | header::AUTHORIZATION
            | header::PROXY_AUTHORIZATION
            | header::PROXY_AUTHENTICATE
            | header::WWW_AUTHENTICATE
            | header::COOKIE
            | header::SET_COOKIE
            | header::FORWARDED
    );
    let name = name.as_str();
    !forbidden
        && !["if-", "x-forwarded-", "proxy-", "access-control-"].iter().any(|prefix| name.starts_with(prefix))
        && !matches!(
            name,
            "keep-alive" | "x-real-ip" | "http2-settings" | "early-data" | "authentication-info"
        )
}

fn take(buf: &mut BytesMut, left: &mut u64) -> Decoded {
    if buf.is_empty() {
        return Decoded::NeedMore;
    }
    let size = usize::try_from(*left).unwrap_or(usize::MAX).min(buf.len());
    *left -= size as u64;
    Decoded::Data(buf.split_to(size).freeze())
}

/// The line with a chunk's size (RFC 9112 §7.1), `None` until all of it is there.
fn chunk_head(
    buf: &mut BytesMut,
    extensions_left: &mut usize,
    padding: bool,
) -> Result<Option<u64>, BodyError> {
    // Not after a whole line only: what cannot begin a chunk is known at once.
    if buf.first().is_some_and(|byte| !byte.is_ascii_hexdigit()) {
        return Err(BodyError::Malformed("a chunk size"));
    }
    let seen = &buf[..buf.len().min(MAX_CHUNK_LINE)];
    let Some(feed) = memchr(b'\n', seen) else {
        return if seen.len() == MAX_CHUNK_LINE { Err(BodyError::TooLarge) } else { Ok(None) };
    };
    let Some(line) = seen[..feed].strip_suffix(b"\r") else {
        return Err(BodyError::Malformed("a bare line feed"));
    };
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    // Leading zeros count too: sixteen digits hold every size there is.
    if digits == 0 || digits > 16 {
        return Err(BodyError::Malformed("a chunk size"));
    }
    let size = line[..digits].iter().fold(0u64, |size, digit| size << 4 | u64::from(hex_value(*digit)));
    let mut extensions = &line[digits..];
    if padding && skip_blanks(extensions).is_empty() {
        extensions = &[];
    }
    if !are_extensions(extensions) {
        return Err(BodyError::Malformed("a chunk extension"));
    }
    *extensions_left = extensions_left.checked_sub(extensions.len()).ok_or(BodyError::TooLarge)?;
    buf.advance(feed + 1);
    Ok(Some(size))
}

fn hex_value(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

/// `*( BWS ";" BWS chunk-ext-name [ BWS "=" BWS chunk-ext-val ] )` (RFC 9112 §7.1.1).
fn are_extensions(mut rest: &[u8]) -> bool {
    while !rest.is_empty() {
        let [b';', tail @ ..] = skip_blanks(rest) else { return false };
        let Some(tail) = skip_token(skip_blanks(tail)) else { return false };
        rest = tail;
        if let [b'=', tail @ ..] = skip_blanks(tail) {
            let tail = skip_blanks(tail);
            let value = if tail.first() == Some(&b'"') { skip_quoted(tail) } else { skip_token(tail) };
            let Some(tail) = value else { return false };
            rest = tail;
        }
    }
    true
}

fn skip_blanks(bytes: &[u8]) -> &[u8] {
    let blanks = bytes.iter().take_while(|byte| syntax::is_blank(**byte)).count();
    &bytes[blanks..]
}

fn skip_token(bytes: &[u8]) -> Option<&[u8]> {
    let token = bytes.iter().take_while(|byte| syntax::is_token(**byte)).count();
    (token > 0).then(|| &bytes[token..])
}

fn skip_quoted(bytes: &[u8]) -> Option<&[u8]> {
    let mut rest = bytes.strip_prefix(b"\"")?;
    loop {
        rest = match rest {
            [b'"', tail @ ..] => return Some(tail),
            [b'\\', escaped, tail @ ..] if is_text(*escaped) => tail,
            [byte, tail @ ..] if *byte != b'\\' && is_text(*byte) => tail,
            _ => return None,
        };
    }
}

fn is_text(byte: u8) -> bool {
    (byte >= 0x20 && byte != 0x7f) || byte == b'\t'
}

/// Bytes of a line with a chunk's size.
const MAX_CHUNK_LINE: usize = 1024;
/// Bytes of chunk extensions in one message, so that they cannot be used to send much and say nothing.
const MAX_EXTENSIONS: usize = 16 << 10;

#[cfg(test)]
#[path = "body_tests.rs"]
mod tests;
