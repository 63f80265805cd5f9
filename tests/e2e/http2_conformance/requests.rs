//! Requests: RFC 9113 §8.

use super::wire::*;
use super::{Case, Owed::*, case};

pub(super) fn cases() -> Vec<Case> {
    let get = |fields: &[(&str, &str)]| {
        let all = [&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", HOST)], fields]
            .concat();
        frame(HEADERS, END_STREAM | END_HEADERS, 1, &block(&all))
    };
    let only = |fields: &[(&str, &str)]| frame(HEADERS, END_STREAM | END_HEADERS, 1, &block(fields));
    let method = (":method", "GET");
    let scheme = (":scheme", "http");
    let slash = (":path", "/");
    let authority = (":authority", HOST);
    let mut cases = vec![
        case(
            "8.1",
            "a second HEADERS that does not end the stream",
            [post(1), frame(HEADERS, END_HEADERS, 1, &block(&[("x-trailer", "1")]))],
            Malformed(1),
        ),
        case(
            "8.1",
            "trailers",
            [
                post(1),
                frame(DATA, 0, 1, b"test"),
                frame(HEADERS, END_STREAM | END_HEADERS, 1, &block(&[("x-trailer", "1")])),
            ],
            Answer(1, 200),
        ),
        case(
            "8.1",
            "a pseudo-header in trailers, which `h2` drops",
            [post(1), frame(HEADERS, END_STREAM | END_HEADERS, 1, &block(&[(":method", "200")]))],
            Answer(1, 200),
        ),
        case(
            "8.1",
            "an upper-case name in trailers",
            [post(1), frame(HEADERS, END_STREAM | END_HEADERS, 1, &block(&[("X-Trailer", "200")]))],
            MalformedOrConnection(1),
        ),
        case("8.3", "an empty path", only(&[method, scheme, (":path", ""), authority]), Malformed(1)),
        case("8.3", "no method", only(&[scheme, slash, authority]), Malformed(1)),
        case("8.3", "no scheme", only(&[method, slash, authority]), Malformed(1)),
        case("8.3", "no path", only(&[method, scheme, authority]), Malformed(1)),
        case("8.3", "nothing at all", only(&[]), Malformed(1)),
        case("8.3", "two authorities", only(&[method, scheme, slash, authority, authority]), Malformed(1)),
        case(
            "8.3",
            "a path without a slash",
            only(&[method, scheme, (":path", "index"), authority]),
            Malformed(1),
        ),
        case(
            "8.3",
            "a path that is a URL",
            only(&[method, scheme, (":path", "http://x/"), authority]),
            Malformed(1),
        ),
        case(
            "8.3",
            "a path with a fragment, which `h2` drops",
            only(&[method, scheme, (":path", "/#x"), authority]),
            Answer(1, 200),
        ),
        case("8.3", "an asterisk for GET", only(&[method, scheme, (":path", "*"), authority]), Malformed(1)),
        case(
            "8.3",
            "an authority with user information",
            only(&[method, scheme, slash, (":authority", "u@x")]),
            Malformed(1),
        ),
        case(
            "8.3",
            "an authority with a path",
            only(&[method, scheme, slash, (":authority", "x/y")]),
            Malformed(1),
        ),
        case("8.3", "an empty authority", only(&[method, scheme, slash, (":authority", "")]), Malformed(1)),
        case("8.3", "no host at all", only(&[method, scheme, slash]), Malformed(1)),
        case(
            "8.3",
            "a host in place of an authority",
            only(&[method, scheme, slash, ("host", HOST)]),
            Answer(1, 200),
        ),
        case("8.3", "another host than the authority", get(&[("host", "other")]), Malformed(1)),
        case("8.3", "the authority's host", get(&[("host", HOST)]), Answer(1, 200)),
        case(
            "8.3",
            "a method that is no token",
            only(&[(":method", "G ET"), scheme, slash, authority]),
            MalformedOrConnection(1),
        ),
        case(
            "8.3",
            "an empty method",
            only(&[(":method", ""), scheme, slash, authority]),
            MalformedOrConnection(1),
        ),
        case(
            "8.3",
            "a scheme that is none",
            only(&[method, (":scheme", "http://"), slash, authority]),
            Malformed(1),
        ),
        case("8.5", "CONNECT", only(&[(":method", "CONNECT"), authority]), Answer(1, 501)),
        case(
            "8.5",
            "CONNECT with a path",
            only(&[(":method", "CONNECT"), scheme, slash, authority]),
            Malformed(1),
        ),
        case(
            "8.5",
            "extended CONNECT (RFC 8441) where no tunnel is",
            only(&[(":method", "CONNECT"), (":protocol", "websocket"), scheme, slash, authority]),
            Answer(1, 501),
        ),
        case(
            "8.5",
            "extended CONNECT for another protocol",
            only(&[(":method", "CONNECT"), (":protocol", "connect-udp"), scheme, slash, authority]),
            Answer(1, 501),
        ),
        case(
            "8.5",
            "extended CONNECT without a path",
            only(&[(":method", "CONNECT"), (":protocol", "websocket"), scheme, authority]),
            Malformed(1),
        ),
        case(
            "8.5",
            "GET with a protocol",
            only(&[(":method", "GET"), (":protocol", "websocket"), scheme, slash, authority]),
            Malformed(1),
        ),
        case("8.2.2", "te: trailers", get(&[("te", "trailers")]), Answer(1, 200)),
        case("8.2.3", "crumbs of a cookie", get(&[("cookie", "a=b"), ("cookie", "c=d")]), Answer(1, 200)),
        case(
            "8.1.1",
            "a body longer than its content-length",
            [post_with(1, &[("content-length", "1")]), frame(DATA, END_STREAM, 1, b"test")],
            Malformed(1),
        ),
        case(
            "8.1.1",
            "a body longer than its content-length in two frames",
            [
                post_with(1, &[("content-length", "5")]),
                frame(DATA, 0, 1, b"test"),
                frame(DATA, END_STREAM, 1, b"test"),
            ],
            Malformed(1),
        ),
        case(
            "8.1.1",
            "a body shorter than its content-length",
            [post_with(1, &[("content-length", "5")]), frame(DATA, END_STREAM, 1, b"test")],
            Malformed(1),
        ),
        case(
            "8.1.1",
            "a body shorter than its content-length before trailers",
            [
                post_with(1, &[("content-length", "5")]),
                frame(DATA, 0, 1, b"test"),
                frame(HEADERS, END_STREAM | END_HEADERS, 1, &block(&[("x-trailer", "1")])),
            ],
            Malformed(1),
        ),
        case("8.1.1", "a content-length without a body", get(&[("content-length", "5")]), Malformed(1)),
        case(
            "8.1.1",
            "a content-length that is no number",
            [post_with(1, &[("content-length", "+4")]), frame(DATA, END_STREAM, 1, b"test")],
            Malformed(1),
        ),
        case(
            "8.1.1",
            "two content-lengths",
            [
                post_with(1, &[("content-length", "4"), ("content-length", "5")]),
                frame(DATA, END_STREAM, 1, b"test"),
            ],
            Malformed(1),
        ),
        case(
            "8.1.1",
            "a content-length that fits",
            [post_with(1, &[("content-length", "4")]), frame(DATA, END_STREAM, 1, b"test")],
            Answer(1, 200),
        ),
        case("8.1.1", "a content-length of 0", get(&[("content-length", "0")]), Answer(1, 200)),
    ];
    for (what, name, value) in [
        ("an upper-case name", "X-Test", "ok"),
        ("a name with a space", "x test", "ok"),
        ("a name with a colon", "x:test", "ok"),
        ("a name with NUL", "x\0test", "ok"),
        ("a name with DEL", "x\x7ftest", "ok"),
        ("an empty name", "", "ok"),
        ("a value with NUL", "x-test", "a\0b"),
        ("a value with CR", "x-test", "a\rb"),
        ("a value with LF", "x-test", "a\nb"),
        ("a value with a leading space", "x-test", " a"),
        ("a value with a trailing space", "x-test", "a "),
        ("a value with a leading tab", "x-test", "\ta"),
    ] {
        let white = value.trim() != value && !value.contains(['\r', '\n']);
        let owed = if white { Malformed(1) } else { MalformedOrConnection(1) };
        cases.push(case("8.2.1", what, get(&[(name, value)]), owed));
    }
    for (what, name, value) in [
        ("connection", "connection", "keep-alive"),
        ("proxy-connection", "proxy-connection", "keep-alive"),
        ("keep-alive", "keep-alive", "timeout=5"),
        ("transfer-encoding", "transfer-encoding", "chunked"),
        ("upgrade", "upgrade", "h2c"),
        ("te that is not trailers", "te", "trailers, deflate"),
    ] {
        cases.push(case("8.2.2", what, get(&[(name, value)]), Malformed(1)));
    }
    for (what, field) in [
        ("an unknown pseudo-header", (":test", "ok")),
        ("a pseudo-header of answers", (":status", "200")),
        ("a second method", method),
        ("a second scheme", scheme),
        ("a second path", slash),
    ] {
        let owed = if field.0 == ":test" { MalformedOrConnection(1) } else { Malformed(1) };
        cases.push(case("8.3", what, get(&[field]), owed));
    }
    cases.push(case(
        "8.3",
        "a pseudo-header after a field",
        only(&[method, scheme, authority, ("x-test", "ok"), slash]),
        Malformed(1),
    ));
    cases
}
