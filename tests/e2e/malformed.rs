//! What is not HTTP gets its status and a closed connection, and never reaches an upstream server.

use crate::harness::{Running, Scripted, Site};

/// A proxying site and the upstream server that must see nothing.
fn site() -> (Running, Scripted) {
    let upstream = Scripted::saying("reached\n");
    let site = Site::new()
        .listener("http", r#"(bind: "127.0.0.1:0", limits: (header_bytes: "8KiB", header_count: 50))"#)
        .server("up", upstream.address)
        .route(r#"(path: "/", to: Proxy("up"))"#)
        .start();
    (site, upstream)
}

/// Heads that are refused: what they are, their bytes, and the statuses that may answer.
fn corpus() -> Vec<(&'static str, Vec<u8>, &'static [u16])> {
    let head = |middle: &str| format!("GET / HTTP/1.1\r\nHost: x\r\n{middle}\r\n").into_bytes();
    let post = |middle: &str| format!("POST / HTTP/1.1\r\nHost: x\r\n{middle}\r\n").into_bytes();
    let raw = |bytes: &str| bytes.as_bytes().to_vec();
    let with_body = |middle: &str, body: &str| {
        let mut bytes = post(middle);
        bytes.extend_from_slice(body.as_bytes());
        bytes
    };
    const BAD: &[u16] = &[400];
    const CODING: &[u16] = &[400, 501];
    vec![
        ("no host", raw("GET / HTTP/1.1\r\n\r\n"), BAD),
        ("two hosts", head("Host: y\r\n"), BAD),
        ("two equal hosts", head("Host: x\r\n"), BAD),
        ("a host with a space", raw("GET / HTTP/1.1\r\nHost: a b\r\n\r\n"), BAD),
        ("a host with a slash", raw("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"), BAD),
        ("a host with user information", raw("GET / HTTP/1.1\r\nHost: a@b\r\n\r\n"), BAD),
        ("a host list", raw("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n"), BAD),
        (
            "length and coding",
            with_body("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
            BAD,
        ),
        (
            "coding and length",
            with_body("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n"),
            BAD,
        ),
        ("two lengths", with_body("Content-Length: 5\r\nContent-Length: 6\r\n", "hello"), BAD),
        ("two equal lengths", with_body("Content-Length: 5\r\nContent-Length: 5\r\n", "hello"), BAD),
        ("a list of lengths", with_body("Content-Length: 5, 5\r\n", "hello"), BAD),
        ("a length with a sign", with_body("Content-Length: +5\r\n", "hello"), BAD),
        ("a negative length", with_body("Content-Length: -5\r\n", "hello"), BAD),
        ("a hexadecimal length", with_body("Content-Length: 0x5\r\n", "hello"), BAD),
        ("a length with a fraction", with_body("Content-Length: 5.0\r\n", "hello"), BAD),
        ("an empty length", with_body("Content-Length:\r\n", ""), BAD),
        (
            "a length beyond 64 bits",
            with_body("Content-Length: 18446744073709551621\r\n", "hello"),
            &[400, 413],
        ),
        ("an unknown coding", with_body("Transfer-Encoding: gzip\r\n", "x"), CODING),
        ("chunked not last", with_body("Transfer-Encoding: chunked, gzip\r\n", "0\r\n\r\n"), CODING),
        ("chunked twice", with_body("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n"), CODING),
        (
            "chunked in two fields",
            with_body("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
            CODING,
        ),
        (
            "a coding that looks like chunked",
            with_body("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"),
            CODING,
        ),
        ("chunked with a vertical tab", with_body("Transfer-Encoding: \x0bchunked\r\n", "0\r\n\r\n"), CODING),
        ("an empty coding", with_body("Transfer-Encoding:\r\n", ""), CODING),
        (
            "a coding in HTTP/1.0",
            raw("POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            CODING,
        ),
        ("a bare LF after the request line", raw("GET / HTTP/1.1\nHost: x\r\n\r\n"), BAD),
        ("a bare LF after a field", raw("GET / HTTP/1.1\r\nHost: x\nX: y\r\n\r\n"), BAD),
        ("a bare LF as the empty line", raw("GET / HTTP/1.1\r\nHost: x\r\n\n"), BAD),
        ("a bare CR in a value", head("X: a\rb\r\n"), BAD),
        ("a NUL in a value", head("X: a\0b\r\n"), BAD),
        ("a control byte in a value", head("X: a\x01b\r\n"), BAD),
        ("a folded field", head("X: a\r\n b\r\n"), BAD),
        ("a field folded by a tab", head("X: a\r\n\tb\r\n"), BAD),
        ("a space before the colon", head("X : a\r\n"), BAD),
        ("a space before the first field", raw("GET / HTTP/1.1\r\n Host: x\r\n\r\n"), BAD),
        ("a field without a colon", head("nonsense\r\n"), BAD),
        ("a field without a name", head(": x\r\n"), BAD),
        ("a name with a bracket", head("X(y): z\r\n"), BAD),
        ("a name with a NUL", head("X\0: z\r\n"), BAD),
        ("a name beyond ASCII", head("Xé: z\r\n"), BAD),
        ("a method with a bracket", raw("G(T / HTTP/1.1\r\nHost: x\r\n\r\n"), BAD),
        ("no method", raw(" / HTTP/1.1\r\nHost: x\r\n\r\n"), BAD),
        ("no target", raw("GET HTTP/1.1\r\nHost: x\r\n\r\n"), BAD),
        ("two spaces before the target", raw("GET  / HTTP/1.1\r\nHost: x\r\n\r\n"), BAD),
        ("two spaces before the version", raw("GET /  HTTP/1.1\r\nHost: x\r\n\r\n"), BAD),
        ("a space after the version", raw("GET / HTTP/1.1 \r\nHost: x\r\n\r\n"), BAD),
        ("a tab for a space", raw("GET\t/ HTTP/1.1\r\nHost: x\r\n\r\n"), BAD),
        ("a space in the target", raw("GET /a b HTTP/1.1\r\nHost: x\r\n\r\n"), BAD),
        ("a control byte in the target", raw("GET /\x01 HTTP/1.1\r\nHost: x\r\n\r\n"), BAD),
        ("a NUL in the target", raw("GET /\0 HTTP/1.1\r\nHost: x\r\n\r\n"), BAD),
        ("a relative target", raw("GET a/b HTTP/1.1\r\nHost: x\r\n\r\n"), BAD),
        ("a target with another scheme", raw("GET ftp://x/ HTTP/1.1\r\nHost: x\r\n\r\n"), BAD),
        ("HTTP/0.9", raw("GET /\r\n\r\n"), &[400, 505]),
        ("HTTP/1.2 in lower case", raw("GET / http/1.1\r\nHost: x\r\n\r\n"), &[400, 505]),
        ("a version in words", raw("GET / HTTP/one\r\nHost: x\r\n\r\n"), &[400, 505]),
        ("HTTP/2 in a request line", raw("GET / HTTP/2.0\r\nHost: x\r\n\r\n"), &[505]),
        ("HTTP/3 in a request line", raw("GET / HTTP/3.0\r\nHost: x\r\n\r\n"), &[505]),
        ("a version with more digits", raw("GET / HTTP/1.10\r\nHost: x\r\n\r\n"), &[400, 505]),
        ("a TLS hello", vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, b'\r', b'\n', b'\r', b'\n'], BAD),
        (
            "a proxy header nobody asked for",
            raw("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n"),
            BAD,
        ),
        (
            "an expectation that is not 100-continue",
            with_body("Content-Length: 1\r\nExpect: miracles\r\n", "x"),
            &[417],
        ),
        (
            "a target of 20 KB",
            raw(&format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(20 << 10))),
            &[414],
        ),
        ("a field of 20 KB", head(&format!("X: {}\r\n", "a".repeat(20 << 10))), &[431]),
        ("a name of 20 KB", head(&format!("{}: x\r\n", "a".repeat(20 << 10))), &[431]),
        ("51 fields", head(&"X: y\r\n".repeat(51)), &[431]),
        ("many small fields", head(&"X: yyyyyyyyyyyyyyyyyyyyyy\r\n".repeat(2000)), &[431]),
    ]
}

#[test]
fn a_malformed_head_gets_its_status_and_a_closed_connection() {
    let (site, upstream) = site();
    let mut wrong = Vec::new();
    let corpus = corpus();
    let count = corpus.len() as u64;
    for (what, bytes, statuses) in corpus {
        let mut wire = site.wire();
        // A second request rides along, as smugglers have it; it must not be answered.
        let smuggled = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
        if wire.try_send([&bytes[..], smuggled].concat()).is_err() {
            // Refused while it was being sent, which is fine: the answer may be there still.
        }
        match wire.try_response(false) {
            Ok(response) if !statuses.contains(&response.status) => {
                wrong.push(format!("{what}: {} for {statuses:?}", response.status));
            }
            Ok(response) => {
                if response.header("connection") != Some("close") {
                    wrong.push(format!("{what}: no Connection: close in {:?}", response.headers));
                }
                let rest = wire.rest();
                if !rest.is_empty() {
                    wrong.push(format!("{what}: after the answer came {:?}", String::from_utf8_lossy(&rest)));
                }
            }
            Err(error) => wrong.push(format!("{what}: {error} for {statuses:?}")),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(upstream.accepted(), 0, "nothing reaches the upstream server: {:?}", upstream.requests());
    let ledger = site.admin.settled_ledger();
    assert_eq!((ledger.accepted, ledger.rejected), (count, count), "{ledger:?}");
}

#[test]
fn a_malformed_chunk_ends_the_request_and_its_connections() {
    let (site, upstream) = site();
    let bodies = [
        ("a size with a sign", "+5\r\nhello\r\n0\r\n\r\n"),
        ("a size with a prefix", "0x5\r\nhello\r\n0\r\n\r\n"),
        ("a size with a space before", " 5\r\nhello\r\n0\r\n\r\n"),
        ("no size", "\r\nhello\r\n0\r\n\r\n"),
        ("a size beyond 64 bits", "10000000000000005\r\nhello\r\n0\r\n\r\n"),
        ("a negative size", "-1\r\nhello\r\n0\r\n\r\n"),
        ("a size followed by a bare LF", "5\nhello\r\n0\r\n\r\n"),
        ("data longer than its size", "5\r\nhello world\r\n0\r\n\r\n"),
        ("data followed by a bare LF", "5\r\nhello\n0\r\n\r\n"),
        ("a last chunk followed by a bare LF", "5\r\nhello\r\n0\n\n"),
        ("an extension with a bare LF", "5;a\n=b\r\nhello\r\n0\r\n\r\n"),
        ("a trailer without a colon", "0\r\nnonsense\r\n\r\n"),
        ("a trailer that is folded", "0\r\nX: a\r\n b\r\n\r\n"),
        ("a trailer with a NUL", "0\r\nX: \0\r\n\r\n"),
    ];
    for (what, body) in bodies {
        let mut wire = site.wire();
        wire.send(format!("POST /chunks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{body}"));
        let response = wire.response();
        assert_eq!(response.status, 400, "{what}");
        assert_eq!(response.header("connection"), Some("close"), "{what}");
        assert!(wire.rest().is_empty(), "{what}");
    }
    assert!(
        upstream.requests().is_empty(),
        "no server has seen such a request whole: {:?}",
        upstream.requests()
    );
    let ledger = site.admin.settled_ledger();
    assert_eq!(ledger.rejected, bodies.len() as u64, "{ledger:?}");
}

#[test]
fn what_is_unusual_but_valid_is_answered() {
    let (site, upstream) = site();
    let valid = [
        "\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.1\r\nhost:x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: \t x \t\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
        "GET /a?b=[c]|d HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET http://x/a HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nX: \u{e9}\u{fc}\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nX:\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "PATCH-IT / HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n005;a=b;c=\"d\"\r\nhello\r\n0\r\nX: y\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 005\r\n\r\nhello",
    ];
    for bytes in valid {
        let mut wire = site.wire();
        wire.send(bytes);
        assert_eq!(wire.response().status, 200, "{bytes:?}");
    }
    assert_eq!(upstream.requests().len(), valid.len());
    assert_eq!(site.admin.settled_ledger().answered, valid.len() as u64);
}

#[test]
fn a_head_that_comes_byte_by_byte_is_a_head() {
    let (site, _upstream) = site();
    let mut wire = site.wire();
    for byte in b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n" {
        wire.send([*byte]);
    }
    assert_eq!(wire.response().text(), "reached\n");
}

#[test]
fn an_upgrade_to_h2c_is_not_taken_and_not_forwarded() {
    let (site, upstream) = site();
    let mut wire = site.wire();
    wire.send(
        "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\
         HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n",
    );
    assert_eq!(wire.response().status, 200);
    let seen = &upstream.requests()[0];
    assert_eq!((seen.header("upgrade"), seen.header("http2-settings")), (None, None), "{seen:?}");
}

#[test]
fn connect_and_unknown_targets_do_not_make_a_tunnel() {
    let (site, upstream) = site();
    let mut wire = site.wire();
    wire.send("CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n");
    let status = wire.response().status;
    assert!(matches!(status, 400 | 404 | 405 | 501), "{status}");
    assert_eq!(upstream.accepted(), 0);
}
