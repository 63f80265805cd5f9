//! Heads: which requests are refused before they are handled, and what of an answer's head crosses the wire.

use http::header::{
    CONNECTION, CONTENT_LENGTH, DATE, HOST, HeaderMap, HeaderName, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body::Body as _;

use crate::Body;
use crate::engine::date;

/// The status that refuses a request which is complete, but cannot be handled; `None` for the others. What RFC 9113
/// §8.2 and §8.3 make a stream error (connection-specific fields, wrong pseudo-header fields, a content length that does
/// not fit) is refused by the `h2` crate with RST_STREAM.
pub(in crate::engine) fn refusal<B>(request: &Request<B>, header_count: usize) -> Option<StatusCode> {
    // This is no forward proxy, and of the protocols of RFC 8441 §4 it knows one.
    if request.method() == Method::CONNECT && !is_websocket(request) {
        return Some(StatusCode::NOT_IMPLEMENTED);
    }
    if request.headers().len() > header_count {
        return Some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    }
    let valid = is_valid_target(request)
        && is_valid_host(request.uri(), request.headers())
        && are_valid_values(request.headers());
    (!valid).then_some(StatusCode::BAD_REQUEST)
}

/// Whether it is an extended CONNECT for a WebSocket (RFC 8441 §5).
pub(in crate::engine) fn is_websocket<B>(request: &Request<B>) -> bool {
    let protocol = request.extensions().get::<h2::ext::Protocol>();
    *request.method() == Method::CONNECT
        && protocol.is_some_and(|protocol| protocol.as_str().eq_ignore_ascii_case("websocket"))
}

/// No value begins or ends with white space (RFC 9113 §8.2.1).
pub(in crate::engine) fn are_valid_values(fields: &HeaderMap) -> bool {
    let is_white = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    fields
        .values()
        .map(http::HeaderValue::as_bytes)
        .all(|value| !is_white(value.first()) && !is_white(value.last()))
}

/// `:path` is an absolute path, or `*` for OPTIONS (RFC 9113 §8.3.1), and `:scheme` is one that we serve.
fn is_valid_target<B>(request: &Request<B>) -> bool {
    let uri = request.uri();
    let path = uri.path_and_query().map_or("", |path| path.as_str());
    let asterisk = path == "*" && request.method() == Method::OPTIONS;
    let scheme = uri.scheme_str().is_none_or(|scheme| matches!(scheme, "http" | "https"));
    scheme && (asterisk || path.starts_with('/'))
}

/// One host, without user information; a `Host` beside `:authority` must be the same (RFC 9113 §8.3.1).
fn is_valid_host(uri: &Uri, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => Some(host.as_bytes()),
        (None, _) => None,
        (Some(_), Some(_)) => return false,
    };
    let authority = uri.authority().map(|authority| authority.as_str().as_bytes());
    match (authority, host) {
        (Some(authority), Some(host)) => authority.eq_ignore_ascii_case(host) && is_host(authority),
        (Some(one), None) | (None, Some(one)) => is_host(one),
        (None, None) => false,
    }
}

fn is_host(host: &[u8]) -> bool {
    playhouse_protocol::http1::is_valid_host(host)
}

/// What is sent of an answer, and what follows it.
#[derive(Debug)]
pub(in crate::engine) struct Prepared {
    pub(in crate::engine) head: Response<()>,
    /// `None`: the head ends the stream.
    pub(in crate::engine) body: Option<Body>,
    /// How long the body must become.
    pub(in crate::engine) length: Option<u64>,
}

/// Completes the head of an answer: `Date`, `Content-Length` where the length is known, and no field that belongs to a
/// connection (RFC 9113 §8.2.2).
pub(in crate::engine) fn prepare(response: Response<Body>, method: &Method) -> Prepared {
    let (mut parts, body) = response.into_parts();
    if parts.status.is_informational() {
        // Not a final status: an error of whoever made it.
        parts.status = StatusCode::INTERNAL_SERVER_ERROR;
    }
    strip(&mut parts.headers);
    if !parts.headers.contains_key(DATE) {
        parts.headers.insert(DATE, date());
    }
    // RFC 9110 §8.6, §15.3.5, §15.4.5
    let bodiless = matches!(parts.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if parts.status == StatusCode::NO_CONTENT {
        parts.headers.remove(CONTENT_LENGTH);
    } else if !bodiless
        && !parts.headers.contains_key(CONTENT_LENGTH)
        && let Some(length) = body.size_hint().exact()
        // The answer to HEAD may leave out what its handler did not care to find out.
        && (method != Method::HEAD || length > 0)
    {
        parts.headers.insert(CONTENT_LENGTH, length.into());
    }
    let length = parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let whole = bodiless
        || method == Method::HEAD
        || (body.is_end_stream() && length.is_none_or(|length| length == 0));
    Prepared { head: Response::from_parts(parts, ()), body: (!whole).then_some(body), length }
}

/// Takes away what has a meaning only for one connection: the fixed set, and what `Connection` lists.
pub(in crate::engine) fn strip(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let listed: Vec<HeaderName> = headers
            .get_all(CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|name| name.trim().parse().ok())
            .collect();
        for name in listed {
            headers.remove(name);
        }
        headers.remove(CONNECTION);
    }
    for name in [TRANSFER_ENCODING, UPGRADE, TE, KEEP_ALIVE, PROXY_CONNECTION] {
        headers.remove(name);
    }
}

/// Takes from trailers what may not stand there (RFC 9110 §6.5.1).
pub(in crate::engine) fn strip_trailers(trailers: &mut HeaderMap) {
    strip(trailers);
    for name in [CONTENT_LENGTH, HOST, TRAILER] {
        trailers.remove(name);
    }
}

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::HeaderValue;

    fn request(method: Method, uri: &str, hosts: &[&'static str]) -> Request<()> {
        let mut request = Request::builder().method(method).uri(uri);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn a_request_needs_one_valid_host() {
        let refused = |uri, hosts| refusal(&request(Method::GET, uri, hosts), 100);
        assert_eq!(refused("http://a.example/", &[]), None);
        assert_eq!(refused("http://a.example/", &["A.example"]), None);
        assert_eq!(refused("/", &["a.example:80"]), None);
        let bad = Some(StatusCode::BAD_REQUEST);
        assert_eq!(refused("http://a.example/", &["b.example"]), bad);
        assert_eq!(refused("http://user@a.example/", &[]), bad);
        assert_eq!(refused("/", &["user@a.example"]), bad);
        assert_eq!(refused("/", &[]), bad);
        assert_eq!(refused("/", &["a.example", "a.example"]), bad);
        assert_eq!(refused("ftp://a.example/", &[]), bad);
    }

    #[test]
    fn a_target_is_an_absolute_path() {
        assert_eq!(refusal(&request(Method::OPTIONS, "*", &["a"]), 100), None);
        assert_eq!(refusal(&request(Method::GET, "*", &["a"]), 100), Some(StatusCode::BAD_REQUEST));
        let connect = request(Method::CONNECT, "a.example:443", &[]);
        assert_eq!(refusal(&connect, 100), Some(StatusCode::NOT_IMPLEMENTED));
    }

    #[test]
    fn a_value_has_no_white_space_around_it() {
        for (value, valid) in [("a b", true), ("", true), (" a", false), ("a ", false), ("a\t", false)] {
            let mut request = request(Method::GET, "http://a.example/", &[]);
            request.headers_mut().append("x", HeaderValue::from_static(value));
            assert_eq!(refusal(&request, 4).is_none(), valid, "{value:?}");
        }
    }

    #[test]
    fn too_many_fields_are_refused() {
        let mut request = request(Method::GET, "http://a.example/", &[]);
        for value in 0..4 {
            request.headers_mut().append("x", HeaderValue::from(value));
        }
        assert_eq!(refusal(&request, 4), None);
        assert_eq!(refusal(&request, 3), Some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));
    }

    #[test]
    fn fields_of_a_connection_do_not_cross() {
        let response = Response::builder()
            .header(CONNECTION, "close, x-mine")
            .header("x-mine", "1")
            .header("x-other", "1")
            .header("keep-alive", "timeout=5")
            .header(TRANSFER_ENCODING, "chunked")
            .body(Body::from("text"))
            .unwrap();
        let prepared = prepare(response, &Method::GET);
        let names: Vec<_> = prepared.head.headers().keys().map(HeaderName::as_str).collect();
        assert_eq!(names.len(), 3, "{names:?}");
        assert_eq!(prepared.head.headers()[CONTENT_LENGTH], "4");
        assert!(prepared.head.headers().contains_key(DATE));
        assert!(prepared.body.is_some());
    }

    #[test]
    fn answers_without_content_end_with_their_head() {
        let ends = |status: u16, method, body: Body| {
            let response = Response::builder().status(status).body(body).unwrap();
            let prepared = prepare(response, &method);
            let length = prepared.head.headers().get(CONTENT_LENGTH).cloned();
            (prepared.body.is_none(), length.map(|length| length.to_str().unwrap().to_owned()))
        };
        assert_eq!(ends(200, Method::GET, Body::Empty), (true, Some("0".into())));
        assert_eq!(ends(200, Method::HEAD, "text".into()), (true, Some("4".into())));
        assert_eq!(ends(200, Method::HEAD, Body::Empty), (true, None));
        assert_eq!(ends(204, Method::GET, "text".into()), (true, None));
        assert_eq!(ends(304, Method::GET, "text".into()), (true, None));
    }
}
