//! What becomes of fields on their way through.

use super::*;

const SERVER: HeaderValue = HeaderValue::from_static("127.0.0.1:9000");

fn connection() -> ConnectionInfo {
    ConnectionInfo {
        id: 1,
        listener: "http".into(),
        listener_index: 0,
        peer: Peer::Tcp("[::ffff:192.0.2.7]:4000".parse().unwrap()),
        local: None,
        proxied: None,
        tls: None,
        rate: None,
        alternative: None,
    }
}

fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
    let pair = |(name, value): &(&'static str, &'static str)| {
        (HeaderName::from_static(name), HeaderValue::from_static(value))
    };
    lines.iter().map(pair).fold(HeaderMap::new(), |mut map, (name, value)| {
        map.append(name, value);
        map
    })
}

fn written_as(
    method: Method,
    uri: &str,
    version: Version,
    lines: &[(&'static str, &'static str)],
    length: BodyLength,
) -> Vec<String> {
    let (uri, headers, connection) = (uri.parse::<Uri>().unwrap(), headers(lines), connection());
    let head =
        RequestHead { method: &method, uri: &uri, version, headers: &headers, connection: &connection };
    let mut out = BytesMut::new();
    let outbound = Outbound {
        target: uri.path_and_query().unwrap(),
        server: &SERVER,
        preserve_host: true,
        length,
        expect: head.expects_continue(),
        close: false,
        upgrade: None,
    };
    assert!(head.write(&mut out, &outbound).is_ok());
    let text = String::from_utf8(out.to_vec()).unwrap();
    text.strip_suffix("\r\n\r\n").unwrap().split("\r\n").map(str::to_owned).collect()
}

fn written(lines: &[(&'static str, &'static str)]) -> Vec<String> {
    written_as(Method::GET, "/x?y", Version::HTTP_11, lines, BodyLength::None)
}

#[test]
fn a_request_says_who_asks_and_by_whom() {
    assert_eq!(
        written(&[("host", "example.org:81"), ("accept", "*/*")]),
        [
            "GET /x?y HTTP/1.1",
            "host: example.org:81",
            "accept: */*",
            "x-forwarded-for: 192.0.2.7",
            "x-forwarded-proto: http",
            "x-forwarded-host: example.org:81",
            "via: 1.1 playhouse",
        ]
    );
}

#[test]
fn what_the_client_says_about_itself_is_replaced_in_any_spelling() {
    let lines = written(&[
        ("host", "a"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x_forwarded_for", "127.0.0.1"),
        ("x-forwarded-host", "evil"),
        ("x-forwarded-port", "1"),
        ("forwarded", "for=127.0.0.1"),
        ("x-real-ip", "127.0.0.1"),
        ("proxy", "evil"),
        ("content_length", "5"),
    ]);
    assert_eq!(lines.iter().filter(|line| line.contains("evil") || line.contains("127.0.0.1")).count(), 0);
    assert_eq!(lines.len(), 6, "{lines:?}");
}

#[test]
fn hop_by_hop_fields_end_here_and_security_fields_do_not() {
    let lines = written(&[
        ("host", "a"),
        (
            "connection",
            "x-private, Authorization, x-forwarded-for, keep-alive, Cookie, content-type, Early-Data",
        ),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("proxy-authorization", "Basic x"),
        ("upgrade", "h2c"),
        ("http2-settings", "AAMAAABkAARAAAAAAAIAAAAA"),
        ("te", "gzip"),
        ("x-private", "1"),
        ("authorization", "Bearer t"),
        ("cookie", "a=b"),
        ("content-type", "text/plain"),
        ("early-data", "1"),
    ]);
    let kept = ["authorization: Bearer t", "cookie: a=b", "content-type: text/plain", "early-data: 1"];
    assert_eq!(lines[2..6], kept);
    assert!(lines[6].starts_with("x-forwarded-for: 192.0.2.7"));
    assert_eq!(lines.len(), 10, "{lines:?}");
}

#[test]
fn framing_is_made_anew() {
    let sent = [("host", "a"), ("content-length", "7"), ("transfer-encoding", "chunked")];
    let post = |length| written_as(Method::POST, "/", Version::HTTP_11, &sent, length)[2].clone();
    assert_eq!(post(BodyLength::Length(3)), "content-length: 3");
    assert_eq!(post(BodyLength::Chunked), "transfer-encoding: chunked");
    assert_eq!(post(BodyLength::None), "content-length: 0");
    assert!(!written(&sent).iter().any(|line| line.contains("length") || line.contains("chunked")));
}

#[test]
fn crumbs_of_a_cookie_are_joined_and_the_authority_is_the_host() {
    let lines = written_as(
        Method::GET,
        "https://example.org:8443/p",
        Version::HTTP_2,
        &[("cookie", "a=1"), ("accept", "*/*"), ("cookie", "b=2"), ("host", "other")],
        BodyLength::None,
    );
    assert_eq!(lines[..3], ["GET /p HTTP/1.1", "host: example.org:8443", "cookie: a=1; b=2"]);
    assert_eq!(lines.last().unwrap(), "via: 2 playhouse");
}

#[test]
fn a_client_that_takes_trailers_is_announced() {
    let lines = written(&[("host", "a"), ("te", "gzip;q=0.5, Trailers")]);
    assert_eq!(lines[2..4], ["te: trailers", "connection: te"]);
}

#[test]
fn max_forwards_is_counted_down_for_options_only() {
    let sent = [("host", "a"), ("max-forwards", "3")];
    let options = written_as(Method::OPTIONS, "/", Version::HTTP_11, &sent, BodyLength::None);
    assert_eq!(options[2], "max-forwards: 2");
    assert_eq!(written(&sent)[2], "max-forwards: 3");
}

#[test]
fn a_circle_is_noticed() {
    let (uri, connection) = (Uri::from_static("/"), connection());
    let mut headers = HeaderMap::new();
    (0..MOST_HOPS).for_each(|_| {
        headers.append(header::VIA, HeaderValue::from_static("1.1 playhouse"));
    });
    let head = RequestHead {
        method: &Method::GET,
        uri: &uri,
        version: Version::HTTP_11,
        headers: &headers,
        connection: &connection,
    };
    let target = PathAndQuery::from_static("/");
    let outbound = Outbound {
        target: &target,
        server: &SERVER,
        preserve_host: true,
        length: BodyLength::None,
        expect: false,
        close: false,
        upgrade: None,
    };
    assert!(head.write(&mut BytesMut::new(), &outbound).is_err());
}

fn answer(status: u16, lines: &[(&'static str, &'static str)]) -> ResponseHead {
    ResponseHead {
        version: Version::HTTP_11,
        status: StatusCode::from_u16(status).unwrap(),
        headers: headers(lines),
        body: BodyLength::None,
        keep_alive: true,
    }
}

#[test]
fn an_answer_loses_its_hop_by_hop_fields() {
    let mut head = answer(
        200,
        &[
            ("connection", "keep-alive, x-hop, set-cookie"),
            ("keep-alive", "timeout=5, max=100"),
            ("x-hop", "1"),
            ("set-cookie", "a=b"),
            ("transfer-encoding", "chunked"),
            ("trailer", "x-sum"),
            ("server", "backend"),
        ],
    );
    assert_eq!(strip_answer(&mut head, true), Some(Duration::from_secs(4)));
    let mut names: Vec<_> = head.headers.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["server", "set-cookie", "trailer"]);
}

#[test]
fn an_answer_without_content_has_no_length() {
    let mut head = answer(204, &[("content-length", "0")]);
    assert_eq!(strip_answer(&mut head, false), None);
    assert!(head.headers.is_empty());
    let mut head = answer(304, &[("content-length", "10")]);
    strip_answer(&mut head, false);
    assert_eq!(head.headers[header::CONTENT_LENGTH], "10");
}
