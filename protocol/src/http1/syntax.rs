//! Characters and lists (RFC 9110 §5.6).

use std::ops::Range;

use http::{HeaderName, HeaderValue};

/// RFC 9110 §5.6.2.
pub(super) fn is_token(byte: u8) -> bool {
    matches!(byte, b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|'
        | b'~' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z')
}

/// Space or horizontal tab.
pub(super) fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Without leading and trailing blanks.
pub(super) fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = bytes
        && is_blank(*first)
    {
        bytes = rest;
    }
    while let [rest @ .., last] = bytes
        && is_blank(*last)
    {
        bytes = rest;
    }
    bytes
}

/// The elements of a comma-separated list without quoted strings (`Connection`, `Transfer-Encoding`, `Expect`),
/// trimmed; empty ones are left out (RFC 9110 §5.6.1.2).
pub fn list_items(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    value.as_bytes().split(|byte| *byte == b',').map(trim).filter(|item| !item.is_empty())
}

/// The name of a field line, and where its value lies in it. `None` where it is malformed, obs-fold and (unless
/// `blank_before_colon`) whitespace before the colon included; the value's characters are not looked at.
pub(crate) fn field(line: &[u8], blank_before_colon: bool) -> Option<(HeaderName, Range<usize>)> {
    // Names are short.
    let colon = line.iter().position(|byte| *byte == b':')?;
    let mut name = &line[..colon];
    if blank_before_colon {
        while let [rest @ .., last] = name
            && is_blank(*last)
        {
            name = rest;
        }
    }
    let name = HeaderName::from_bytes(name).ok()?;
    let value = &line[colon + 1..];
    let start = colon + 1 + value.iter().take_while(|byte| is_blank(**byte)).count();
    Some((name, start..start + trim(value).len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Option<(String, Vec<u8>)> {
        let (name, value) = field(line.as_bytes(), false)?;
        let value = HeaderValue::from_bytes(&line.as_bytes()[value]).ok()?;
        Some((name.to_string(), value.as_bytes().to_vec()))
    }

    #[test]
    fn a_field_is_trimmed_of_blanks_around_its_value_only() {
        assert_eq!(parse("A: \t b c\t "), Some(("a".into(), b"b c".to_vec())));
        assert_eq!(parse("a:"), Some(("a".into(), b"".to_vec())));
        assert_eq!(parse("a: b:c"), Some(("a".into(), b"b:c".to_vec())));
        for malformed in [
            "", ":", ": b", "a b", "a : b", " a: b", "\ta: b", "a\0: b", "a: b\0", "a: b\rc", "a: \x7f",
            "\"a: b",
        ] {
            assert_eq!(parse(malformed), None, "{malformed:?}");
        }
    }

    #[test]
    fn a_blank_before_the_colon_is_removed_where_it_is_tolerated() {
        let (name, _) = field(b"Content-Length : 1", true).expect("tolerated");
        assert_eq!(name, http::header::CONTENT_LENGTH);
        assert!(field(b" a: 1", true).is_none());
    }

    #[test]
    fn a_list_has_no_empty_elements() {
        let value = HeaderValue::from_static(", a,, b\t,");
        assert_eq!(list_items(&value).collect::<Vec<_>>(), [b"a", b"b"]);
    }
}
