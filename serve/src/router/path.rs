//! The path of a request, decoded once and normalised before anything looks at it.

use std::borrow::Cow;

use http::Uri;
use http::uri::PathAndQuery;

/// A request's path in two forms: *decoded* (bytes, for matching and files) and *encoded* (for proxying, redirects and
/// logs), both without dot segments (RFC 3986 §5.2.4, never above the root) and without empty segments: `//` counts as
/// `/`, as a file system has it.
///
/// In the encoded form, escapes of unreserved characters are resolved, all others are kept in upper case, and what may
/// not stand in a path literally (`\`, `"`, bytes of UTF-8) is escaped (RFC 3986 §6.2.2). In the decoded form an
/// encoded slash stays `%2F`: it never becomes a separator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NormalisedPath {
    /// `None`: both forms are the path as sent. Most requests allocate nothing.
    changed: Option<Box<Changed>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Changed {
    decoded: Vec<u8>,
    encoded: String,
    encoded_slash: bool,
}

/// A path that nobody means well with, or that is broken. Answered with 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPath {
    /// Does not begin with `/`.
    #[error("the path does not begin with a slash")]
    Relative,
    /// `%` without two hexadecimal digits.
    #[error("the path has an incomplete escape")]
    Escape,
    /// A control character, NUL among them, whether escaped or not.
    #[error("the path has a control character")]
    Control,
    /// A dot segment made with an encoded slash or a backslash, as in `..%2f`: some upstream would resolve it.
    #[error("the path has a disguised dot segment")]
    DisguisedDots,
    /// Over 65,534 bytes once escaped. Answered with 414.
    #[error("the path is too long")]
    TooLong,
}

impl NormalisedPath {
    /// Normalises a path as sent, without its query.
    pub fn parse(raw: &str) -> Result<Self, InvalidPath> {
        let raw = raw.as_bytes();
        if raw.first() != Some(&b'/') {
            return Err(InvalidPath::Relative);
        }
        if is_normal(raw) {
            return Ok(NormalisedPath { changed: None });
        }
        let mut writer = Writer::default();
        let mut segments = raw[1..].split(|byte| *byte == b'/').peekable();
        while let Some(segment) = segments.next() {
            writer.segment(segment, segments.peek().is_none())?;
        }
        Ok(NormalisedPath { changed: Some(Box::new(writer.out)) })
    }

    /// The decoded form; `uri` is the one whose path was parsed, before or after [`NormalisedPath::rewrite`].
    pub fn decoded<'a>(&'a self, uri: &'a Uri) -> &'a [u8] {
        match &self.changed {
            None => uri.path().as_bytes(),
            Some(changed) => &changed.decoded,
        }
    }

    /// Whether a segment holds an encoded slash, so that no file can have its name.
    pub fn has_encoded_slash(&self) -> bool {
        self.changed.as_ref().is_some_and(|changed| changed.encoded_slash)
    }

    /// Puts the encoded form in the place of `uri`'s path. Does nothing where they are the same.
    pub fn rewrite(&self, uri: &mut Uri) -> Result<(), InvalidPath> {
        let Some(changed) = &self.changed else { return Ok(()) };
        if changed.encoded == uri.path() {
            return Ok(());
        }
        let target = match uri.query() {
            Some(query) => format!("{}?{query}", changed.encoded),
            None => changed.encoded.clone(),
        };
        // Made of what may stand in a path, and of what was a query before: only its length can be wrong now.
        let target = PathAndQuery::try_from(target).map_err(|_| InvalidPath::TooLong)?;
        let mut parts = uri.clone().into_parts();
        parts.path_and_query = Some(target);
        *uri = Uri::from_parts(parts).map_err(|_| InvalidPath::TooLong)?;
        Ok(())
    }
}

/// Escapes what may not stand in a path literally; slashes stay.
pub fn encode(decoded: &[u8]) -> Cow<'_, str> {
    percent_encoding::percent_encode(decoded, ESCAPED).into()
}

/// Whether both forms of `raw` are `raw` itself.
fn is_normal(raw: &[u8]) -> bool {
    let mut before = 0;
    for &byte in raw {
        let kind = KIND[usize::from(byte)];
        if kind == 0 || before & SLASH != 0 && kind & (SLASH | DOT) != 0 {
            return false;
        }
        before = kind;
    }
    true
}

/// Builds both forms, segment by segment.
struct Writer {
    out: Changed,
    /// Where the segments of both forms begin, at their slash.
    starts: Vec<(usize, usize)>,
}

impl Default for Writer {
    fn default() -> Self {
        let out = Changed { decoded: Vec::new(), encoded: String::new(), encoded_slash: false };
        Writer { out, starts: Vec::new() }
    }
}

impl Writer {
    fn segment(&mut self, raw: &[u8], last: bool) -> Result<(), InvalidPath> {
        let start = (self.out.decoded.len(), self.out.encoded.len());
        self.out.decoded.push(b'/');
        self.out.encoded.push('/');
        let slash = self.decode(raw)?;
        let segment = &self.out.decoded[start.0 + 1..];
        if !matches!(segment, b"" | b"." | b"..") {
            self.out.encoded_slash |= slash;
            self.starts.push(start);
            return Ok(());
        }
        let (decoded, encoded) = if segment == b".." { self.starts.pop().unwrap_or_default() } else { start };
        self.out.decoded.truncate(decoded);
        self.out.encoded.truncate(encoded);
        if last {
            self.out.decoded.push(b'/');
            self.out.encoded.push('/');
        }
        Ok(())
    }

    /// Appends a segment to both forms. True where it holds an encoded slash.
    fn decode(&mut self, raw: &[u8]) -> Result<bool, InvalidPath> {
        let mut slash = false;
        // What stands between slashes of any kind: its length, and whether it is dots alone.
        let (mut piece, mut dots, mut pieces) = (0, true, 1);
        let mut bytes = raw.iter();
        while let Some(&byte) = bytes.next() {
            let (value, escaped) = match byte {
                b'%' => (hex(bytes.next())? << 4 | hex(bytes.next())?, true),
                _ => (byte, false),
            };
            if value < 0x20 || value == 0x7f {
                return Err(InvalidPath::Control);
            }
            if matches!(value, b'/' | b'\\') {
                if dots && matches!(piece, 1 | 2) {
                    return Err(InvalidPath::DisguisedDots);
                }
                (piece, dots, pieces) = (0, true, pieces + 1);
            } else {
                piece += 1;
                dots &= value == b'.';
            }
            if value == b'/' {
                slash = true;
                self.out.decoded.extend_from_slice(b"%2F");
            } else {
                self.out.decoded.push(value);
            }
            let literal = if escaped { is_unreserved(value) } else { is_literal(value) };
            if literal {
                self.out.encoded.push(value as char);
            } else {
                self.out.encoded.push_str(percent_encoding::percent_encode_byte(value));
            }
        }
        if pieces > 1 && dots && matches!(piece, 1 | 2) {
            return Err(InvalidPath::DisguisedDots);
        }
        Ok(slash)
    }
}

fn hex(digit: Option<&u8>) -> Result<u8, InvalidPath> {
    match digit {
        Some(digit @ b'0'..=b'9') => Ok(digit - b'0'),
        Some(digit @ b'a'..=b'f') => Ok(digit - b'a' + 10),
        Some(digit @ b'A'..=b'F') => Ok(digit - b'A' + 10),
        _ => Err(InvalidPath::Escape),
    }
}

/// RFC 3986 §2.3.
const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// RFC 3986 §3.3, `pchar` without `pct-encoded`.
const fn is_literal(byte: u8) -> bool {
    PCHAR[byte as usize]
}

/// What stands in a path without an escape; 0 is all else.
const KIND: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match byte as u8 {
            b'/' => SLASH,
            b'.' => DOT,
            literal if is_literal(literal) => OTHER,
            _ => 0,
        };
        byte += 1;
    }
    table
};
const SLASH: u8 = 1;
const DOT: u8 = 2;
const OTHER: u8 = 4;

const PCHAR: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let b = byte as u8;
        table[byte] = is_unreserved(b)
            || matches!(
                b,
                b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=' | b':' | b'@'
            );
        byte += 1;
    }
    table
};

/// All that is neither `pchar` nor a slash.
const ESCAPED: &percent_encoding::AsciiSet = &percent_encoding::NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@')
    .remove(b'/');

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn forms(raw: &str) -> Result<(String, String), InvalidPath> {
        let path = NormalisedPath::parse(raw)?;
        Ok(match path.changed {
            None => (raw.to_owned(), raw.to_owned()),
            Some(changed) => (String::from_utf8_lossy(&changed.decoded).into_owned(), changed.encoded),
        })
    }

    #[test]
    fn paths_are_decoded_once_and_normalised() {
        let cases = [
            ("/", "/", "/"),
            ("/a/b", "/a/b", "/a/b"),
            ("/a/", "/a/", "/a/"),
            ("/a/./b", "/a/b", "/a/b"),
            ("/a/../b", "/b", "/b"),
            ("/a/b/..", "/a/", "/a/"),
            ("/a/b/.", "/a/b/", "/a/b/"),
            ("/..", "/", "/"),
            ("/../../etc/passwd", "/etc/passwd", "/etc/passwd"),
            ("/%2e%2E/x", "/x", "/x"),
            ("/a/%2e/x", "/a/x", "/a/x"),
            ("//evil.example/..", "/", "/"),
            ("//a///b//", "/a/b/", "/a/b/"),
            ("/a//../b", "/b", "/b"),
            ("/%41%7e", "/A~", "/A~"),
            ("/a%20b", "/a b", "/a%20b"),
            ("/a%3bb;c", "/a;b;c", "/a%3Bb;c"),
            ("/a%2fb", "/a%2Fb", "/a%2Fb"),
            ("/a%252fb", "/a%2fb", "/a%252fb"),
            ("/%252e%252e/x", "/%2e%2e/x", "/%252e%252e/x"),
            ("/a\\b", "/a\\b", "/a%5Cb"),
            ("/\"{}", "/\"{}", "/%22%7B%7D"),
            ("/\u{e9}", "/\u{e9}", "/%C3%A9"),
            ("/.well-known/x", "/.well-known/x", "/.well-known/x"),
            ("/...", "/...", "/..."),
            ("/a.b/..c", "/a.b/..c", "/a.b/..c"),
            ("/a%2f...", "/a%2F...", "/a%2F..."),
        ];
        for (raw, decoded, encoded) in cases {
            assert_eq!(forms(raw), Ok((decoded.to_owned(), encoded.to_owned())), "{raw}");
        }
    }

    #[test]
    fn broken_and_disguised_paths_are_refused() {
        let cases = [
            ("", InvalidPath::Relative),
            ("*", InvalidPath::Relative),
            ("a/b", InvalidPath::Relative),
            ("/%", InvalidPath::Escape),
            ("/%2", InvalidPath::Escape),
            ("/%zz", InvalidPath::Escape),
            ("/%2/x", InvalidPath::Escape),
            ("/%+1", InvalidPath::Escape),
            ("/a%00", InvalidPath::Control),
            ("/%0d%0aX:%20y", InvalidPath::Control),
            ("/%7f", InvalidPath::Control),
            ("/..%2f", InvalidPath::DisguisedDots),
            ("/..%2Fetc/passwd", InvalidPath::DisguisedDots),
            ("/a%2f..", InvalidPath::DisguisedDots),
            ("/a%2f%2e%2e%2fb", InvalidPath::DisguisedDots),
            ("/..%5c..", InvalidPath::DisguisedDots),
            ("/..\\x", InvalidPath::DisguisedDots),
            ("/.%2f", InvalidPath::DisguisedDots),
        ];
        for (raw, error) in cases {
            assert_eq!(forms(raw), Err(error), "{raw}");
        }
    }

    #[test]
    fn a_uri_is_rewritten_with_its_query_kept() {
        let mut uri: Uri = "http://h.example/a/../%7eb?x=/../y".parse().unwrap();
        NormalisedPath::parse(uri.path()).unwrap().rewrite(&mut uri).unwrap();
        assert_eq!(uri, "http://h.example/~b?x=/../y");
        let mut uri: Uri = "/a/%2e%2e/".parse().unwrap();
        NormalisedPath::parse(uri.path()).unwrap().rewrite(&mut uri).unwrap();
        assert_eq!(uri, "/");
    }

    #[test]
    fn a_path_that_is_too_long_once_escaped_is_refused_and_not_left_as_it_was() {
        let mut uri: Uri = format!("/{}", "\"".repeat(30_000)).parse().unwrap();
        let path = NormalisedPath::parse(uri.path()).unwrap();
        assert_eq!(path.rewrite(&mut uri), Err(InvalidPath::TooLong));
    }

    proptest! {
        #[test]
        fn normal_paths_stay_as_they_are(raw in "[/a.%2FfeE5c\\\\~]{0,24}") {
            if let Ok((decoded, encoded)) = forms(&format!("/{raw}")) {
                prop_assert!(decoded.starts_with('/') && !decoded.contains("//"));
                prop_assert!(decoded.split('/').all(|segment| segment != "." && segment != ".."));
                prop_assert!(encoded.starts_with('/') && !encoded.contains("//") && !encoded.contains('\\'));
                // The encoded form is a fixed point, and means the same.
                prop_assert_eq!(forms(&encoded), Ok((decoded, encoded.clone())));
            }
        }
    }
}
