use proptest::prelude::*;

use super::*;
use crate::http1::encode;

const LIMITS: HeadLimits = HeadLimits { bytes: 512, fields: 6 };

fn feed(pieces: &[&[u8]]) -> (Vec<String>, Result<Vec<u8>, ResponseError>) {
    let mut parser = ResponseParser::new(LIMITS);
    let mut buf = BytesMut::new();
    let mut heads = Vec::new();
    for piece in pieces {
        buf.extend_from_slice(piece);
        loop {
            match parser.parse(&mut buf, &Method::GET) {
                Ok(Some(head)) => heads.push(format!("{head:?}")),
                Ok(None) => break,
                Err(error) => return (heads, Err(error)),
            }
        }
    }
    (heads, Ok(buf.to_vec()))
}

fn answer(method: Method, input: &str) -> Result<ResponseHead, ResponseError> {
    let mut buf = BytesMut::from(input);
    let head = ResponseParser::new(LIMITS).parse(&mut buf, &method)?;
    Ok(head.unwrap_or_else(|| panic!("{input:?} is incomplete")))
}

fn body(method: Method, input: &str) -> Option<(BodyLength, bool)> {
    answer(method, input).ok().map(|head| (head.body, head.keep_alive))
}

/// Method of the request, the head, and what is understood.
type Case = (Method, &'static str, Option<(BodyLength, bool)>);

#[test]
fn content_ends_as_method_status_and_fields_say() {
    use BodyLength::{Chunked, Length, None as Nothing, UntilClose};
    let cases: &[Case] = &[
        (Method::GET, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", Some((Length(5), true))),
        (Method::GET, "HTTP/1.1 200 OK\r\n\r\n", Some((UntilClose, false))),
        (Method::GET, "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n", Some((Length(5), false))),
        (
            Method::GET,
            "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\n",
            Some((Length(5), true)),
        ),
        (
            Method::GET,
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\n",
            Some((Length(5), false)),
        ),
        (Method::GET, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Some((Chunked, true))),
        (Method::GET, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", None),
        (Method::GET, "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", None),
        (Method::GET, "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", None),
        (Method::GET, "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", None),
        (
            Method::GET,
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
            Some((Length(5), true)),
        ),
        (Method::GET, "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n", Some((Length(5), true))),
        (Method::GET, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", None),
        (Method::GET, "HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\n", None),
        (Method::GET, "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n", None),
        (Method::GET, "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n", None),
        (Method::HEAD, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", Some((Nothing, true))),
        (Method::HEAD, "HTTP/1.1 200 OK\r\n\r\n", Some((Nothing, true))),
        (Method::GET, "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", Some((Nothing, true))),
        (Method::GET, "HTTP/1.1 204 No Content\r\n\r\n", Some((Nothing, true))),
        (Method::GET, "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", Some((Nothing, false))),
        (Method::GET, "HTTP/1.1 100 Continue\r\n\r\n", Some((Nothing, true))),
        (Method::GET, "HTTP/1.1 101 Switching Protocols\r\n\r\n", Some((Nothing, false))),
        (Method::CONNECT, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", Some((Nothing, false))),
        (Method::CONNECT, "HTTP/1.1 403 Forbidden\r\nContent-Length: 5\r\n\r\n", Some((Length(5), true))),
    ];
    for (method, input, expected) in cases {
        assert_eq!(body(method.clone(), input), *expected, "{method} {input:?}");
    }
}

#[test]
fn repeated_equal_lengths_are_passed_on_as_one() {
    let head = answer(Method::GET, "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\nContent-Length: 5\r\n\r\n")
        .expect("valid");
    assert_eq!(head.headers.get_all(CONTENT_LENGTH).iter().collect::<Vec<_>>(), ["5"]);
}

#[test]
fn a_status_line_may_lack_its_reason_and_nothing_else() {
    for line in ["HTTP/1.1 200", "HTTP/1.1 200 ", "HTTP/1.1 200 Fine \t by me", "HTTP/1.0 599 \u{e9}"] {
        assert!(answer(Method::GET, &format!("{line}\r\n\r\n")).is_ok(), "{line:?}");
    }
    for line in [
        "",
        "HTTP/1.1",
        "HTTP/1.1 ",
        "HTTP/1.1 20",
        "HTTP/1.1 2000",
        "HTTP/1.1 099",
        "HTTP/1.1 600",
        "HTTP/1.1 2x0",
        "HTTP/1.1  200",
        "HTTP/1.1 200OK",
        "HTTP/1.2 200 OK",
        "HTTP/2.0 200 OK",
        "http/1.1 200 OK",
        "200 OK",
        "HTTP/1.1 200 O\0K",
        "HTTP/1.1 200 O\rK",
        "\r\nHTTP/1.1 200 OK",
    ] {
        assert!(answer(Method::GET, &format!("{line}\r\n\r\n")).is_err(), "{line:?}");
    }
}

#[test]
fn malformed_fields_are_refused() {
    for fields in ["A: b\n", "A: b\r\n c\r\n", "A\r\n", "A: \0\r\n", " A: b\r\n", ": b\r\n"] {
        assert!(answer(Method::GET, &format!("HTTP/1.1 200 OK\r\n{fields}\r\n")).is_err(), "{fields:?}");
    }
    let head = answer(Method::GET, "HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\n").expect("tolerated");
    assert_eq!(head.body, BodyLength::Length(5));
}

#[test]
fn what_is_no_answer_is_refused_at_its_first_bytes() {
    assert!(feed(&[b"SSH-2.0"]).1.is_err());
    assert!(feed(&[b"HTTP/2"]).1.is_err());
    assert!(feed(&[b"HTTP/1"]).1.is_ok());
}

fn corpus() -> Vec<Vec<u8>> {
    let mut inputs: Vec<Vec<u8>> = [
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\nA: b\r\n\r\n",
        "HTTP/1.1 200 OK\nA: b\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "HTTX",
    ]
    .into_iter()
    .map(|text| text.as_bytes().to_vec())
    .collect();
    inputs.push([b"HTTP/1.1 200 OK\r\nA: ".as_slice(), &[b'x'; 600], b"\r\n\r\n"].concat());
    inputs.push([b"HTTP/1.1 200 OK\r\n".as_slice(), &b"A: b\r\n".repeat(7), b"\r\n"].concat());
    inputs
}

#[test]
fn a_cut_at_any_byte_changes_nothing() {
    for input in corpus() {
        // A further head begins in what would be content.
        let whole = feed(&[&input]);
        for at in 0..=input.len() {
            assert_eq!(feed(&[&input[..at], &input[at..]]), whole, "{input:?} cut at {at}");
        }
        let bytes: Vec<&[u8]> = input.chunks(1).collect();
        assert_eq!(feed(&bytes), whole, "{input:?} byte by byte");
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(input in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = feed(&[&input]);
        let _ = feed(&[b"HTTP/1.1 200 OK\r\n", &input, b"\r\n\r\n"]);
        let _ = feed(&[b"HTTP/1.1 ", &input, b"\r\n\r\n"]);
    }

    #[test]
    fn what_is_written_is_read_again(
        status in 200u16..600,
        fields in proptest::collection::vec(("x-[a-z0-9-]{1,20}", "([!-~]([ -~\t]{0,30}[!-~])?)?"), 0..6),
    ) {
        let status = StatusCode::from_u16(status).expect("a status");
        let mut headers = HeaderMap::new();
        for (name, value) in &fields {
            let name = http::HeaderName::from_bytes(name.as_bytes()).expect("a name");
            headers.append(name, HeaderValue::from_str(value).expect("a value"));
        }
        let mut out = BytesMut::new();
        encode::response_head(&mut out, status, &headers);
        let head = ResponseParser::new(LIMITS).parse(&mut out, &Method::GET).expect("valid").expect("complete");
        prop_assert_eq!(head.status, status);
        prop_assert_eq!(head.headers, headers);
    }
}
