//! What servers answer, well or badly, and what a client gets to see of it.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use crate::harness::{Scripted, curl, ok, pattern, through};

#[test]
fn interim_answers_pass_over_http1() {
    let upstream = Scripted::answering(|_| {
        let mut bytes = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n".to_vec();
        bytes.extend(ok("ok"));
        bytes
    });
    let site = through(&upstream);
    let mut wire = site.wire();
    wire.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    let response = wire.response();
    assert_eq!(response.text(), "ok");
    assert_eq!(response.interim.len(), 1);
    let (status, fields) = &response.interim[0];
    assert_eq!(*status, 103);
    assert!(
        fields
            .iter()
            .any(|(name, value)| name.eq_ignore_ascii_case("link") && value == "</a.css>; rel=preload")
    );
    // A client of HTTP/1.0 knows no interim answers (RFC 9110 §15.2).
    let mut old = site.wire();
    old.send("GET / HTTP/1.0\r\nHost: x\r\n\r\n");
    let response = old.response();
    assert_eq!((response.text().as_str(), response.interim.len()), ("ok", 0));
    curl(["--http2-prior-knowledge", &site.url("http", "/")]).expect(200);
}

#[test]
fn an_upstream_that_answers_early_ends_a_large_upload() {
    let (over, wait) = mpsc::channel::<()>();
    let wait = Arc::new(Mutex::new(wait));
    let upstream = Scripted::start(move |mut connection| {
        if connection.request_head().is_some() {
            connection.send(REFUSAL);
            // It reads no further, and stays until the test is over.
            let _ = wait.lock().unwrap().recv();
        }
    });
    let site = through(&upstream).writing("upload", pattern(64 << 20));
    let upload = site.path("upload");
    for expect in ["Expect: 100-continue", "Expect:"] {
        let answer = curl(["-H", expect, "-T", upload.to_str().unwrap(), &site.url("http", "/upload")]);
        assert_eq!((answer.status, answer.text().as_str()), (403, "refused\n"), "{expect} {answer:?}");
    }
    assert_eq!(site.admin.settled_ledger().accepted, 2);
    drop(over);
}

#[test]
fn an_answer_that_ends_with_the_connection_arrives_whole() {
    let content = pattern(3 << 20);
    let sent = content.clone();
    let upstream = Scripted::start(move |mut connection| {
        if connection.request().is_some() {
            connection.send("HTTP/1.1 200 OK\r\n\r\n");
            connection.send(&sent);
        }
    });
    let site = through(&upstream);
    for option in ["--http1.0", "--http1.1", "--http2-prior-knowledge"] {
        assert!(curl([option, &site.url("http", "/")]).expect(200).body == content, "{option}");
    }
}

#[test]
fn answers_without_content_do_not_wait_for_any() {
    let upstream = Scripted::answering(|request| {
        match request.target.as_str() {
            "/204" => "HTTP/1.1 204 No Content\r\n\r\n",
            "/304" => "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 100\r\n\r\n",
            _ => "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n",
        }
        .as_bytes()
        .to_vec()
    });
    let site = through(&upstream);
    for option in ["--http1.1", "--http2-prior-knowledge"] {
        curl([option, &site.url("http", "/204")]).expect(204);
        curl([option, &site.url("http", "/304")]).expect(304);
        assert_eq!(
            curl([option, "-I", &site.url("http", "/head")]).expect(200).header("content-length"),
            "100"
        );
    }
    assert!(upstream.accepted() <= 2, "such answers leave the connection usable");
}

#[test]
fn an_answer_that_is_not_http_is_502_and_its_connection_is_not_used_again() {
    let answers: &[(&str, &str)] = &[
        ("no HTTP", "hello\r\n\r\n"),
        ("no status", "HTTP/1.1\r\n\r\n"),
        ("a status of two digits", "HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n"),
        ("another version", "HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n"),
        ("two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\nhello"),
        (
            "length and coding",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        ("a NUL in a value", "HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 0\r\n\r\n"),
        (
            "a switch nobody asked for",
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
        ),
        ("nothing", ""),
    ];
    for (what, bytes) in answers {
        let upstream = Scripted::start(move |mut connection| {
            if connection.request().is_some() {
                connection.send(bytes);
            }
        });
        let site = through(&upstream);
        for option in ["--http1.1", "--http2-prior-knowledge"] {
            let answer = curl([option, &site.url("http", "/")]);
            assert_eq!((answer.exit, answer.status), (0, 502), "{what} {option}: {answer:?}");
        }
        assert_eq!(site.admin.settled_ledger().upstream_failed, 2, "{what}");
    }
}

#[test]
fn an_answer_that_breaks_off_is_cut_and_never_looks_whole() {
    // Where nothing was passed on yet, the whole answer may be a 502 in its place.
    for length in [5, 1 << 20] {
        let content = "x".repeat(length);
        let chunked = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{length:x}\r\n{content}");
        let longer = length + 100;
        let answers = [
            ("short of its length", format!("HTTP/1.1 200 OK\r\nContent-Length: {longer}\r\n\r\n{content}")),
            ("without its last chunk", format!("{chunked}\r\n")),
            ("within a chunk", format!("{chunked}\r\n64\r\nshort")),
            ("a bad chunk", format!("{chunked}\r\nzz\r\n")),
        ];
        for (what, bytes) in answers {
            let upstream = Scripted::start(move |mut connection| {
                if connection.request().is_some() {
                    connection.send(&bytes);
                }
            });
            let site = through(&upstream);
            for option in ["--http1.1", "--http2-prior-knowledge"] {
                let answer = curl([option, &site.url("http", "/")]);
                let cut = answer.exit != 0;
                assert!(cut || (answer.status == 502 && length == 5), "{what} {option}: {answer:?}");
            }
            assert_eq!(site.admin.settled_ledger().upstream_failed, 2, "{what}");
        }
    }
}

#[test]
fn bytes_after_an_answer_are_never_taken_for_the_next_one() {
    let upstream = Scripted::start(|mut connection| {
        if connection.request().is_some() {
            let mut bytes = ok("first");
            bytes.extend(ok("POISON"));
            connection.send(bytes);
            // Stays open, as a kept connection would.
            connection.request();
        }
    });
    let site = through(&upstream);
    for _ in 0..20 {
        assert_eq!(curl([&site.url("http", "/")]).expect(200).text(), "first");
    }
}

#[test]
fn a_client_of_http_1_0_gets_no_chunks() {
    let upstream = Scripted::answering(|_| {
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n".to_vec()
    });
    let site = through(&upstream);
    let mut wire = site.wire();
    wire.send("GET / HTTP/1.0\r\n\r\n");
    let response = wire.response();
    assert_eq!(response.header("transfer-encoding"), None);
    assert_eq!(response.text(), "hello");
}

const REFUSAL: &str = "HTTP/1.1 403 Forbidden\r\nContent-Length: 8\r\nConnection: close\r\n\r\nrefused\n";
