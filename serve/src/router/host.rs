//! The host of a request.

use std::borrow::Cow;
use std::net::Ipv6Addr;

use http::{HeaderMap, Uri, header};

/// Neither a name nor an IP literal, or more than one. Answered with 400 (RFC 9112 §3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request's host is malformed")]
pub struct InvalidHost;

/// The host a request is for: the authority of its URI (`:authority`, absolute form), else its `Host` field (RFC 9110
/// §7.2). Lower case, without port and final dot; an IPv6 literal in its canonical form and without brackets. `None`
/// where the client gave none (HTTP/1.0).
pub fn of_request<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Result<Option<Cow<'a, str>>, InvalidHost> {
    if let Some(authority) = uri.authority() {
        return parse(authority.as_str());
    }
    let mut fields = headers.get_all(header::HOST).iter();
    let Some(field) = fields.next() else { return Ok(None) };
    if fields.next().is_some() {
        return Err(InvalidHost);
    }
    parse(field.to_str().map_err(|_| InvalidHost)?)
}

/// A host as a URI has it: an IPv6 literal in brackets.
pub fn bracketed(host: &str) -> Cow<'_, str> {
    if host.contains(':') { format!("[{host}]").into() } else { host.into() }
}

/// A host from the site file in the form of [`of_request`].
pub(super) fn canonical(name: &str) -> Box<str> {
    let literal = name.trim_start_matches('[').trim_end_matches(']');
    match literal.parse::<Ipv6Addr>() {
        Ok(address) => address.to_string().into(),
        Err(_) => name.into(),
    }
}

fn parse(value: &str) -> Result<Option<Cow<'_, str>>, InvalidHost> {
    if let Some(rest) = value.strip_prefix('[') {
        let (literal, port) = rest.split_once(']').ok_or(InvalidHost)?;
        if !port.is_empty() {
            check_port(port.strip_prefix(':').ok_or(InvalidHost)?)?;
        }
        let address: Ipv6Addr = literal.parse().map_err(|_| InvalidHost)?;
        return Ok(Some(address.to_string().into()));
    }
    // Stricter than RFC 3986's reg-name: no real host has more, and the value goes into redirects and logs.
    let (mut length, mut kinds) = (0, 0);
    for byte in value.bytes() {
        let kind = NAME[usize::from(byte)];
        if kind == 0 {
            break;
        }
        kinds |= kind;
        length += 1;
    }
    let (name, port) = value.split_at(length);
    if !port.is_empty() {
        check_port(port.strip_prefix(':').ok_or(InvalidHost)?)?;
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.is_empty() {
        return if value.is_empty() { Ok(None) } else { Err(InvalidHost) };
    }
    if name.len() > MAX_NAME {
        return Err(InvalidHost);
    }
    Ok(Some(if kinds & UPPER != 0 { name.to_ascii_lowercase().into() } else { name.into() }))
}

/// What a name is made of; 0 is nothing that it could have.
const NAME: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match byte as u8 {
            b'A'..=b'Z' => UPPER,
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' => OTHER,
            _ => 0,
        };
        byte += 1;
    }
    table
};
const UPPER: u8 = 1;
const OTHER: u8 = 2;

fn check_port(port: &str) -> Result<(), InvalidHost> {
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    if digits && port.len() <= 5 { Ok(()) } else { Err(InvalidHost) }
}

/// RFC 1035 §2.3.4.
const MAX_NAME: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_brought_into_one_form() {
        let cases = [
            ("example.org", "example.org"),
            ("EXAMPLE.org:8080", "example.org"),
            ("example.org.", "example.org"),
            ("example.org.:443", "example.org"),
            ("example.org:", "example.org"),
            ("127.0.0.1:80", "127.0.0.1"),
            ("[::1]", "::1"),
            ("[2001:DB8:0:0::1]:443", "2001:db8::1"),
            ("a_b-c", "a_b-c"),
        ];
        for (value, host) in cases {
            assert_eq!(parse(value), Ok(Some(host.into())), "{value}");
        }
        assert_eq!(parse(""), Ok(None));
    }

    #[test]
    fn malformed_hosts_are_refused() {
        let long = "a".repeat(254);
        for value in [
            "user@example.org",
            "a b",
            "a/b",
            "a,b",
            "a:b",
            "a:123456",
            "::1",
            "[::1",
            "[::1]x",
            "[x]",
            "[v1.a]",
            ".",
            ":80",
            "a\\b",
            "a%2eb",
            "<a>",
            &long,
        ] {
            assert_eq!(parse(value), Err(InvalidHost), "{value}");
        }
    }

    #[test]
    fn the_authority_comes_before_the_field() {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, "field.example".parse().unwrap());
        let origin = Uri::from_static("/x");
        assert_eq!(of_request(&origin, &headers), Ok(Some("field.example".into())));
        let absolute = Uri::from_static("http://Authority.example:81/x");
        assert_eq!(of_request(&absolute, &headers), Ok(Some("authority.example".into())));
        headers.append(header::HOST, "other.example".parse().unwrap());
        assert_eq!(of_request(&origin, &headers), Err(InvalidHost));
        assert_eq!(of_request(&origin, &HeaderMap::new()), Ok(None));
    }
}
