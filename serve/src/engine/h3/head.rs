//! Heads: a request out of its field section (RFC 9114 §4.2, §4.3).

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, Uri, Version};
use playhouse_protocol::http3::qpack::Field;

/// The request of these fields; `None` where it is malformed (RFC 9114 §4.1.2). What is well-formed and cannot be handled
/// even so is told by [`crate::engine::h2::head::refusal`].
pub(super) fn request(fields: Vec<Field>) -> Option<Request<()>> {
    let mut pseudo = Pseudo::default();
    let mut headers = HeaderMap::with_capacity(fields.len());
    for (name, value) in fields {
        if name.first() == Some(&b':') {
            // They come first (RFC 9114 §4.3).
            if !headers.is_empty() {
                return None;
            }
            pseudo.set(&name, value)?;
        } else {
            add(&mut headers, &name, value)?;
        }
    }
    if !content_length_is_valid(&headers) {
        return None;
    }
    let method = Method::from_bytes(pseudo.method.as_deref()?).ok()?;
    let protocol = match &pseudo.protocol {
        // RFC 8441 §4, by RFC 9220 §3
        Some(_) if method != Method::CONNECT || pseudo.authority.is_none() => return None,
        Some(protocol) => Some(h2::ext::Protocol::from(std::str::from_utf8(protocol).ok()?)),
        None => None,
    };
    let uri = pseudo.uri(&method)?;
    let mut request = Request::new(());
    if let Some(protocol) = protocol {
        request.extensions_mut().insert(protocol);
    }
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_3;
    *request.headers_mut() = headers;
    Some(request)
}

/// The trailers of these fields; `None` where they are malformed: there are no pseudo-header fields among them.
pub(super) fn trailers(fields: Vec<Field>) -> Option<HeaderMap> {
    let mut trailers = HeaderMap::with_capacity(fields.len());
    for (name, value) in fields {
        add(&mut trailers, &name, value)?;
    }
    Some(trailers)
}

/// The pseudo-header fields of requests (RFC 9114 §4.3.1), none of them twice.
#[derive(Debug, Default)]
struct Pseudo {
    method: Option<Bytes>,
    scheme: Option<Bytes>,
    authority: Option<Bytes>,
    path: Option<Bytes>,
    /// Of extended CONNECT (RFC 9220 §3).
    protocol: Option<Bytes>,
}

impl Pseudo {
    fn set(&mut self, name: &[u8], value: Bytes) -> Option<()> {
        let field = match name {
            b":method" => &mut self.method,
            b":scheme" => &mut self.scheme,
            b":authority" => &mut self.authority,
            b":path" => &mut self.path,
            b":protocol" => &mut self.protocol,
            _ => return None,
        };
        field.replace(value).is_none().then_some(())
    }

    fn uri(self, method: &Method) -> Option<Uri> {
        let authority = match self.authority {
            Some(authority) if authority.is_empty() => return None,
            Some(authority) => Some(Authority::from_maybe_shared(authority).ok()?),
            None => None,
        };
        let mut parts = http::uri::Parts::default();
        if *method == Method::CONNECT && self.protocol.is_none() {
            // RFC 9114 §4.4
            if self.scheme.is_some() || self.path.is_some() {
                return None;
            }
            parts.authority = Some(authority?);
            return Uri::from_parts(parts).ok();
        }
        let scheme = self.scheme.filter(|scheme| !scheme.is_empty())?;
        let scheme = Scheme::try_from(&*scheme).ok()?;
        // A fragment is no part of it (RFC 9114 §4.3.1), and would be left out silently.
        let path = self.path.filter(|path| !path.is_empty() && !path.contains(&b'#'))?;
        parts.path_and_query = Some(PathAndQuery::from_maybe_shared(path).ok()?);
        if authority.is_some() {
            parts.scheme = Some(scheme);
            parts.authority = authority;
        } else if scheme != Scheme::HTTPS && scheme != Scheme::HTTP {
            return None;
        }
        Uri::from_parts(parts).ok()
    }
}

/// Adds a field; `None` where it makes the message malformed (RFC 9114 §4.2).
fn add(headers: &mut HeaderMap, name: &[u8], value: Bytes) -> Option<()> {
    // No upper case, and nothing else that is no token; a pseudo-header field's colon is none.
    let name = HeaderName::from_lowercase(name).ok()?;
    let is_of_connection = [&CONNECTION, &TRANSFER_ENCODING, &UPGRADE].contains(&&name)
        || matches!(name.as_str(), "keep-alive" | "proxy-connection");
    if is_of_connection || (name == TE && !value.eq_ignore_ascii_case(b"trailers")) {
        return None;
    }
    headers.try_append(name, HeaderValue::from_maybe_shared(value).ok()?).ok().map(|_| ())
}

/// One length at most, in digits.
fn content_length_is_valid(headers: &HeaderMap) -> bool {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    match (lengths.next(), lengths.next()) {
        (None, _) => true,
        (Some(length), None) => content_length_of(length).is_some(),
        (Some(_), Some(_)) => false,
    }
}

/// The announced length.
pub(super) fn content_length(headers: &HeaderMap) -> Option<u64> {
    content_length_of(headers.get(CONTENT_LENGTH)?)
}

fn content_length_of(length: &HeaderValue) -> Option<u64> {
    let digits = !length.is_empty() && length.as_bytes().iter().all(u8::is_ascii_digit);
    length.to_str().ok().filter(|_| digits)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: [(&str, &str); 4] =
        [(":method", "GET"), (":scheme", "https"), (":authority", "a.example"), (":path", "/x?y")];

    fn of(fields: &[(&'static str, &'static str)]) -> Option<Request<()>> {
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        request(fields.iter().map(|(name, value)| (bytes(name), bytes(value))).collect())
    }

    fn with(more: &[(&'static str, &'static str)]) -> bool {
        of(&[&GET[..], more].concat()).is_some()
    }

    /// `GET` with another value of one field, or without it.
    fn changed(name: &str, value: Option<&'static str>) -> Option<Request<()>> {
        let changed = |(field, old): &(&'static str, &'static str)| match value {
            Some(value) if *field == name => Some((*field, value)),
            None if *field == name => None,
            _ => Some((*field, *old)),
        };
        of(&GET.iter().filter_map(changed).collect::<Vec<_>>())
    }

    #[test]
    fn a_request_is_made_of_its_fields() {
        let request = of(&[&GET[..], &[("cookie", "a=1"), ("cookie", "b=2"), ("te", "trailers")]].concat());
        let request = request.unwrap();
        assert_eq!(request.version(), Version::HTTP_3);
        assert_eq!(request.uri(), "https://a.example/x?y");
        assert_eq!(request.headers().get_all("cookie").iter().count(), 2);
        assert!(changed(":path", Some("/x#y")).is_none());
        let asterisk =
            of(&[(":method", "OPTIONS"), (":scheme", "https"), (":authority", "a"), (":path", "*")]);
        assert_eq!(asterisk.unwrap().uri().path(), "*");
    }

    #[test]
    fn pseudo_header_fields_are_there_once_and_first() {
        for (name, _) in GET.iter().filter(|(name, _)| *name != ":authority") {
            assert!(changed(name, None).is_none(), "{name}");
            assert!(changed(name, Some("")).is_none(), "{name}");
        }
        for field in GET {
            assert!(!with(&[field]), "{field:?}");
        }
        assert!(!with(&[(":status", "200")]));
        assert!(!with(&[(":protocol", "websocket")]), "only with CONNECT");
        let late = [&[("accept", "*/*")][..], &GET].concat();
        assert!(of(&late).is_none());
    }

    #[test]
    fn the_authority_may_be_left_to_the_host() {
        assert!(changed(":authority", Some("")).is_none());
        let request = changed(":authority", None).unwrap();
        assert_eq!((request.uri().host(), request.uri().path()), (None, "/x"));
    }

    #[test]
    fn connect_has_an_authority_alone() {
        let request = of(&[(":method", "CONNECT"), (":authority", "a.example:443")]).unwrap();
        assert_eq!(request.uri(), "a.example:443");
        assert!(changed(":method", Some("CONNECT")).is_none());
        assert!(of(&[(":method", "CONNECT")]).is_none());
    }

    #[test]
    fn extended_connect_has_a_target_and_a_protocol() {
        let connect =
            [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "https"), (":path", "/ws")];
        assert!(of(&connect).is_none(), "no authority");
        let request = of(&[&connect[..], &[(":authority", "a.example")]].concat()).unwrap();
        assert!(crate::engine::h2::head::is_websocket(&request));
        assert_eq!(request.uri(), "https://a.example/ws");
        for missing in [2, 3] {
            let mut fields = connect.to_vec();
            fields.remove(missing);
            fields.push((":authority", "a.example"));
            assert!(of(&fields).is_none());
        }
    }

    #[test]
    fn fields_of_a_connection_are_malformed() {
        for name in ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"] {
            assert!(!with(&[(name, "x")]), "{name}");
        }
        assert!(!with(&[("te", "gzip")]));
        assert!(with(&[("te", "Trailers")]));
    }

    #[test]
    fn names_and_values_are_checked() {
        for name in ["", "X-Upper", "a b", "a:b", "x\0"] {
            assert!(!with(&[(name, "x")]), "{name:?}");
        }
        for value in ["a\r\nb", "a\nb", "\0"] {
            assert!(!with(&[("x", value)]), "{value:?}");
        }
        assert!(with(&[("x", ""), ("x", "a\tb")]));
    }

    #[test]
    fn a_length_is_said_once_in_digits() {
        assert!(with(&[("content-length", "17")]));
        for length in ["", "+1", "1, 1", "-1", "99999999999999999999", "0x1"] {
            assert!(!with(&[("content-length", length)]), "{length:?}");
        }
        assert!(!with(&[("content-length", "1"), ("content-length", "1")]));
    }
}
