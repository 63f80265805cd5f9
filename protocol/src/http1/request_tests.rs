use proptest::prelude::*;

use super::*;
use crate::http1::encode;

const SMALL: HeadLimits = HeadLimits { bytes: 1024, fields: 10 };

/// The heads that the input holds, as text, the error or what is left behind them.
type Outcome = (Vec<String>, Result<Vec<u8>, HeadError>);

fn feed(pieces: &[&[u8]], limits: HeadLimits) -> Outcome {
    let mut parser = RequestParser::new(limits);
    let mut buf = BytesMut::new();
    let mut heads = Vec::new();
    for piece in pieces {
        buf.extend_from_slice(piece);
        loop {
            match parser.parse(&mut buf) {
                Ok(Some(head)) => heads.push(format!("{head:?}")),
                Ok(None) => break,
                Err(error) => return (heads, Err(error)),
            }
        }
    }
    (heads, Ok(buf.to_vec()))
}

fn one(input: &[u8]) -> Result<RequestHead, HeadError> {
    let mut buf = BytesMut::from(input);
    match RequestParser::new(HeadLimits::default()).parse(&mut buf) {
        Ok(Some(head)) => {
            assert!(buf.is_empty(), "{input:?} has left {buf:?}");
            Ok(std::mem::take(head))
        }
        Ok(None) => panic!("{:?} is incomplete", String::from_utf8_lossy(input)),
        Err(error) => Err(error),
    }
}

fn status(input: &[u8]) -> u16 {
    one(input).map_or_else(|error| error.status().as_u16(), |_| 200)
}

/// What is sent with a valid request line and `Host`.
fn fields(fields: &str) -> Result<RequestHead, HeadError> {
    one(format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes())
}

/// Inputs of any kind, valid and not, for the tests that cut them.
fn corpus() -> Vec<Vec<u8>> {
    let mut inputs: Vec<Vec<u8>> = [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "\r\n\r\nGET /x?y=z HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nX-Y:  z \r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n",
        "GET / HTTP/1.1\nHost: a\n\n",
        "GET / HTTP/1.1\r\nHost: a\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n",
        "GET / HTTP/1.1\r\nA\r\n\r\n",
        "GET / HTTP/2.0\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00",
        "\r\rGET / HTTP/1.1\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        "CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n",
    ]
    .into_iter()
    .map(|text| text.as_bytes().to_vec())
    .collect();
    inputs.push([b"GET /".as_slice(), &[b'x'; 1200], b" HTTP/1.1\r\nHost: a\r\n\r\n"].concat());
    inputs.push([b"GET / HTTP/1.1\r\nHost: a\r\nX: ".as_slice(), &[b'x'; 1200], b"\r\n\r\n"].concat());
    inputs.push([b"GET / HTTP/1.1\r\nHost: a\r\n".as_slice(), &b"A: b\r\n".repeat(10), b"\r\n"].concat());
    inputs.push(b"\r\n".repeat(20));
    inputs
}

#[test]
fn a_plain_request_is_read() {
    let head =
        one(b"GET /a?b=c HTTP/1.1\r\nHost: example.org\r\nX-Two: 1\r\nx-two:2 \r\n\r\n").expect("valid");
    assert_eq!((head.method, head.version), (Method::GET, Version::HTTP_11));
    assert_eq!(head.uri, "/a?b=c");
    assert_eq!(head.headers.get_all("x-two").iter().collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!((head.body, head.keep_alive, head.expect_continue), (BodyLength::None, true, false));
}

#[test]
fn what_two_servers_could_read_differently_is_refused() {
    let cases: &[(&str, u16)] = &[
        // Line ends.
        ("GET / HTTP/1.1\nHost: a\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\n\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\rX: y\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\r\nHost: a\r\n\r\n", 400),
        ("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("\rGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (" GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        // The request line.
        ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET /  HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400),
        ("GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET /\r\nHost: a\r\n\r\n", 400),
        ("GET\r\n\r\n", 400),
        ("G@T / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET / http/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET / HTTP/1.10\r\nHost: a\r\n\r\n", 400),
        ("GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505),
        ("GET / HTTP/0.9\r\nHost: a\r\n\r\n", 505),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        // The target.
        ("GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET /\u{e9} HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET /\x7f HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET a HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET ?a HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 200),
        ("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", 200),
        ("CONNECT [::1]:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", 200),
        ("CONNECT a HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("CONNECT [::1] HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("CONNECT a: HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("CONNECT / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("CONNECT http://a:80/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 200),
        ("GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        // Host.
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost:\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", 400),
        ("GET / HTTP/1.0\r\n\r\n", 200),
        ("GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        ("GET / HTTP/1.0\r\nHost: a b\r\n\r\n", 400),
        // Fields.
        ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n\tz\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\n: y\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: \x1b[0m\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nX\u{e9}: y\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: \u{e9}\r\n\r\n", 200),
    ];
    for (input, expected) in cases {
        assert_eq!(status(input.as_bytes()), *expected, "{input:?}");
    }
}

#[test]
fn ambiguous_framing_is_refused() {
    let cases: &[(&str, Result<BodyLength, u16>)] = &[
        ("", Ok(BodyLength::None)),
        ("Content-Length: 0\r\n", Ok(BodyLength::Length(0))),
        ("Content-Length:   17  \r\n", Ok(BodyLength::Length(17))),
        ("Content-Length: 18446744073709551615\r\n", Ok(BodyLength::Length(u64::MAX))),
        ("Content-Length: 18446744073709551616\r\n", Err(400)),
        ("Content-Length: 99999999999999999999999\r\n", Err(400)),
        ("Content-Length:\r\n", Err(400)),
        ("Content-Length: +1\r\n", Err(400)),
        ("Content-Length: -1\r\n", Err(400)),
        ("Content-Length: 0x1\r\n", Err(400)),
        ("Content-Length: 1 1\r\n", Err(400)),
        ("Content-Length: 1,1\r\n", Err(400)),
        ("Content-Length: 1\r\nContent-Length: 1\r\n", Err(400)),
        ("Content-Length: 1\r\nContent-Length: 2\r\n", Err(400)),
        ("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", Err(400)),
        ("Transfer-Encoding: chunked\r\nContent-Length: 1\r\n", Err(400)),
        ("Transfer-Encoding: chunked\r\n", Ok(BodyLength::Chunked)),
        ("Transfer-Encoding: CHUNKED\r\n", Ok(BodyLength::Chunked)),
        ("Transfer-Encoding: , chunked,\r\n", Ok(BodyLength::Chunked)),
        ("Transfer-Encoding:\r\n", Err(400)),
        ("Transfer-Encoding: chunked, chunked\r\n", Err(400)),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", Err(400)),
        ("Transfer-Encoding: chunked, identity\r\n", Err(400)),
        ("Transfer-Encoding: identity\r\n", Err(501)),
        ("Transfer-Encoding: gzip, chunked\r\n", Err(501)),
        ("Transfer-Encoding: xchunked\r\n", Err(501)),
        ("Transfer-Encoding: chunked;q=1\r\n", Err(501)),
        ("Transfer-Encoding: \"chunked\"\r\n", Err(501)),
        ("Transfer-Encoding: \x0bchunked\r\n", Err(400)),
        ("Transfer-Encoding : chunked\r\n", Err(400)),
        ("Transfer_Encoding: chunked\r\nContent-Length: 1\r\n", Ok(BodyLength::Length(1))),
    ];
    for (input, expected) in cases {
        let actual = fields(input).map(|head| head.body).map_err(|error| error.status().as_u16());
        assert_eq!(actual, *expected, "{input:?}");
    }
    assert_eq!(status(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
}

#[test]
fn the_authority_of_an_absolute_target_is_the_host() {
    let head = one(b"GET http://A.example:81/x HTTP/1.1\r\nHost: b.example\r\n\r\n").expect("valid");
    assert_eq!(head.headers[HOST], "A.example:81");
    let head = one(b"GET http://a.example/x HTTP/1.0\r\n\r\n").expect("valid");
    assert_eq!(head.headers[HOST], "a.example");
}

#[test]
fn a_connection_is_kept_as_its_version_and_options_say() {
    let kept = |version: &str, options: &str| {
        let input = format!("GET / HTTP/{version}\r\nHost: a\r\n{options}\r\n");
        one(input.as_bytes()).expect("valid").keep_alive
    };
    assert!(kept("1.1", ""));
    assert!(kept("1.1", "Connection: upgrade, x\r\n"));
    assert!(!kept("1.1", "Connection: x\r\nConnection: Close\r\n"));
    assert!(!kept("1.0", ""));
    assert!(kept("1.0", "Connection: Keep-Alive\r\n"));
    assert!(!kept("1.0", "Connection: keep-alive, close\r\n"));
}

#[test]
fn only_100_continue_is_an_expectation() {
    assert!(fields("Expect: 100-Continue\r\n").expect("valid").expect_continue);
    assert_eq!(fields("Expect: 200-ok\r\n").expect_err("unknown").status(), 417);
    let old = one(b"GET / HTTP/1.0\r\nExpect: x\r\n\r\n").expect("ignored");
    assert!(!old.expect_continue);
}

#[test]
fn a_head_of_exactly_the_limits_is_read_and_one_more_is_not() {
    let head = b"GET /abc HTTP/1.1\r\nHost: a\r\nA: b\r\n\r\n";
    let exact = HeadLimits { bytes: head.len(), fields: 2 };
    assert_eq!(feed(&[head], exact).0.len(), 1);
    let error = |limits| feed(&[head], limits).1.expect_err("over the limit").status().as_u16();
    assert_eq!(error(HeadLimits { bytes: head.len() - 1, fields: 2 }), 431);
    assert_eq!(error(HeadLimits { bytes: head.len(), fields: 1 }), 431);
    assert_eq!(error(HeadLimits { bytes: 18, fields: 2 }), 414);
}

#[test]
fn a_target_beyond_what_an_uri_holds_is_too_long() {
    let limits = HeadLimits { bytes: 1 << 20, fields: 10 };
    let input = [b"GET /".as_slice(), &vec![b'a'; 70_000], b" HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
    assert_eq!(feed(&[&input], limits).1.expect_err("too long").status(), 414);
}

#[test]
fn empty_lines_before_a_request_are_skipped_but_not_for_ever() {
    let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".as_slice();
    assert_eq!(feed(&[&b"\r\n".repeat(MAX_EMPTY_LINES), request], SMALL).0.len(), 1);
    assert!(feed(&[&b"\r\n".repeat(MAX_EMPTY_LINES + 1), request], SMALL).1.is_err());
    let mut parser = RequestParser::new(SMALL);
    assert!(!parser.begin(&mut BytesMut::from("\r\n\r")));
    assert!(parser.begin(&mut BytesMut::from("\r\nG")));
    assert!(parser.begin(&mut BytesMut::from("\rG")));
}

#[test]
fn what_is_no_http_is_refused_at_its_first_bytes() {
    assert!(feed(&[b"\x16\x03\x01"], SMALL).1.is_err());
    assert!(feed(&[b"GET\x00"], SMALL).1.is_err());
    assert_eq!(feed(&[b"GET /"], SMALL).1, Ok(b"GET /".to_vec()));
}

#[test]
fn a_recycled_map_keeps_nothing_of_the_request_before() {
    let mut parser = RequestParser::new(SMALL);
    let mut buf =
        BytesMut::from("GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\nGET / HTTP/1.1\r\nHost: b\r\n\r\n");
    let mut first = std::mem::take(parser.parse(&mut buf).expect("valid").expect("complete"));
    parser.recycle(&mut first.headers);
    let second = parser.parse(&mut buf).expect("valid").expect("complete");
    assert_eq!(second.headers.len(), 1);
    assert_eq!(second.headers[HOST], "b");
}

#[test]
fn a_cut_at_any_byte_changes_nothing() {
    for input in corpus() {
        let whole = feed(&[&input], SMALL);
        for at in 0..=input.len() {
            assert_eq!(feed(&[&input[..at], &input[at..]], SMALL), whole, "{input:?} cut at {at}");
        }
        let bytes: Vec<&[u8]> = input.chunks(1).collect();
        assert_eq!(feed(&bytes, SMALL), whole, "{input:?} byte by byte");
    }
}

proptest! {
    #[test]
    fn cuts_at_random_points_change_nothing(
        which in 0..17usize,
        flip in proptest::option::of((any::<prop::sample::Index>(), any::<u8>())),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let mut input = corpus().swap_remove(which);
        if let Some((at, byte)) = flip {
            let at = at.index(input.len());
            input[at] = byte;
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(input.len())).collect();
        cuts.sort_unstable();
        let mut pieces = Vec::new();
        let mut from = 0;
        for cut in cuts {
            pieces.push(&input[from..cut]);
            from = cut;
        }
        pieces.push(&input[from..]);
        prop_assert_eq!(feed(&pieces, SMALL), feed(&[&input], SMALL));
    }

    #[test]
    fn random_bytes_never_panic(input in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = feed(&[&input], SMALL);
        let _ = feed(&[b"GET / HTTP/1.1\r\nHost: a\r\n", &input, b"\r\n\r\n"], SMALL);
    }

    #[test]
    fn what_is_written_is_read_again(
        method in "[A-Z]{1,12}".prop_filter("has a form of its own", |method| method != "CONNECT"),
        path in "/[a-z0-9/%._-]{0,40}(\\?[a-z=&]{0,20})?",
        fields in proptest::collection::vec(("x-[a-z0-9-]{1,20}", "([!-~]([ -~\t]{0,30}[!-~])?)?"), 0..8),
    ) {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("a.example"));
        for (name, value) in &fields {
            let name = http::HeaderName::from_bytes(name.as_bytes()).expect("a name");
            headers.append(name, HeaderValue::from_str(value).expect("a value"));
        }
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        let target = path.parse().expect("a target");
        let mut out = BytesMut::new();
        encode::request_line(&mut out, &method, &target);
        encode::fields(&mut out, &headers);
        out.extend_from_slice(encode::END_OF_HEAD);
        let head = one(&out).expect("valid");
        prop_assert_eq!(head.method, method);
        prop_assert_eq!(head.uri.path_and_query(), Some(&target));
        prop_assert_eq!(head.headers, headers);
    }
}
