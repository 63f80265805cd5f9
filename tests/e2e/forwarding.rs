//! What a proxied request and its answer look like on the other side, byte by byte.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use crate::harness::{Connection, PATIENCE, Running, Scripted, Site, curl, eventually, ok, pattern, through};

#[test]
fn fields_of_one_hop_stay_on_it() {
    let upstream = Scripted::answering(|_| {
        b"HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Hop\r\nKeep-Alive: timeout=5\r\nX-Hop: 1\r\n\
          Proxy-Authenticate: Basic\r\nX-End: 2\r\nContent-Length: 2\r\n\r\nok"
            .to_vec()
    });
    let site = through(&upstream);
    let mut wire = site.wire();
    wire.send(
        "GET /p?q=1 HTTP/1.1\r\nHost: shop.test\r\nConnection: X-Mine, Authorization, X-Forwarded-For\r\n\
         Keep-Alive: 300\r\nX-Mine: 1\r\nTE: trailers, deflate\r\nProxy-Connection: keep-alive\r\n\
         Proxy-Authorization: Basic eDp5\r\nProxy: http://evil.test\r\nAuthorization: Bearer t\r\nX-Other: 2\r\n\r\n",
    );
    let response = wire.response();
    assert_eq!((response.header("x-hop"), response.header("keep-alive")), (None, None), "{response:?}");
    assert_eq!(response.header("x-end"), Some("2"));
    let requests = upstream.requests();
    let seen = &requests[0];
    assert_eq!((seen.method.as_str(), seen.target.as_str()), ("GET", "/p?q=1"));
    assert_eq!(seen.header("host"), Some("shop.test"));
    assert_eq!(seen.header("x-other"), Some("2"));
    for gone in ["x-mine", "keep-alive", "proxy-connection", "proxy-authorization", "proxy"] {
        assert_eq!(seen.header(gone), None, "{gone} is not forwarded: {seen:?}");
    }
    // `Connection` names only what is the client's to remove.
    assert_eq!(seen.header("authorization"), Some("Bearer t"), "{seen:?}");
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"), "{seen:?}");
}

#[test]
fn the_client_is_told_of_and_what_it_claims_of_itself_is_not_believed() {
    let upstream = Scripted::saying("ok");
    let site = through(&upstream);
    curl([
        "-H",
        "X-Forwarded-For: 6.6.6.6",
        "-H",
        "X-Forwarded-Proto: https",
        "-H",
        "X-Forwarded-Host: evil.test",
        "-H",
        "Forwarded: for=6.6.6.6",
        "-H",
        "X-Real-IP: 6.6.6.6",
        "-H",
        "X_Forwarded_For: 6.6.6.6",
        "-H",
        "Host: shop.test",
        &site.url("http", "/"),
    ])
    .expect(200);
    let requests = upstream.requests();
    let seen = &requests[0];
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("http"));
    assert_eq!(seen.header("x-forwarded-host"), Some("shop.test"));
    assert!(!format!("{seen:?}").contains("6.6.6.6"), "{seen:?}");
}

#[test]
fn the_host_and_the_prefix_are_what_the_route_says() {
    let upstream = Scripted::saying("ok");
    let site = Site::new()
        .server("up", upstream.address)
        .route(r#"(path: "/keep/", to: Proxy("up"))"#)
        .route(r#"(path: "/strip/", to: Proxy(upstream: "up", strip_prefix: true, preserve_host: false))"#)
        .start();
    for target in ["/keep/a?b=%20c", "/strip/a?b=%20c", "/strip/"] {
        curl(["-H", "Host: shop.test", &site.url("http", target)]).expect(200);
    }
    let requests = upstream.requests();
    let seen: Vec<_> =
        requests.iter().map(|seen| (seen.target.as_str(), seen.header("host").unwrap_or_default())).collect();
    let server = upstream.address.to_string();
    assert_eq!(seen, [("/keep/a?b=%20c", "shop.test"), ("/a?b=%20c", &server), ("/", &server)]);
}

#[test]
fn an_http2_request_arrives_as_http1() {
    let upstream = Scripted::saying("ok");
    let site = through(&upstream);
    curl([
        "--http2-prior-knowledge",
        "-H",
        "Host: shop.test",
        "-H",
        "Cookie: a=1",
        "-H",
        "X-Upper: Yes",
        "--data",
        "body",
        &site.url("http", "/form"),
    ])
    .expect(200);
    let requests = upstream.requests();
    let seen = &requests[0];
    assert_eq!(
        (seen.method.as_str(), seen.target.as_str(), seen.version.as_str()),
        ("POST", "/form", "HTTP/1.1")
    );
    assert_eq!((seen.header("host"), seen.header("cookie")), (Some("shop.test"), Some("a=1")));
    assert_eq!((seen.header("x-upper"), seen.text().as_str()), (Some("Yes"), "body"));
    assert!(!seen.headers.iter().any(|(name, _)| name.starts_with(':')), "{seen:?}");
}

#[test]
fn connections_to_the_upstream_are_kept_and_shared_by_clients() {
    let upstream = Scripted::saying("ok");
    let site = through(&upstream);
    for _ in 0..20 {
        let mut wire = site.wire();
        wire.send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        assert_eq!(wire.response().text(), "ok");
    }
    assert_eq!(upstream.requests().len(), 20);
    assert!(upstream.accepted() <= 2, "{} connections for 20 requests", upstream.accepted());
}

#[test]
fn a_kept_connection_that_the_upstream_closes_costs_no_request() {
    // Each connection answers once, keeps quiet about closing, and closes.
    let upstream = Scripted::start(|mut connection| {
        if connection.request().is_some() {
            connection.send(ok("ok"));
        }
    });
    let site = through(&upstream);
    for round in 0..200 {
        assert_eq!(curl_free_get(&site), 200, "round {round}");
    }
    assert_eq!(site.admin.settled_ledger().answered, 200);
}

#[test]
fn a_request_that_was_sent_is_not_sent_again() {
    // Takes the request whole and closes without a word.
    let upstream = Scripted::start(|mut connection| drop(connection.request()));
    let site = through(&upstream);
    let mut wire = site.wire();
    wire.send("POST /order HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi");
    assert_eq!(wire.response().status, 502);
    assert_eq!(upstream.requests().len(), 1);
    assert_eq!(site.admin.settled_ledger().upstream_failed, 1);
}

#[test]
fn a_streamed_answer_arrives_as_it_is_sent() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let upstream = Scripted::start(move |mut connection| {
        if connection.request().is_none() {
            return;
        }
        connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n");
        // The client has seen the first piece.
        wait.lock().unwrap().recv_timeout(PATIENCE).expect("the client has got the first piece");
        connection.send("6\r\nsecond\r\n0\r\n\r\n");
    });
    let site = through(&upstream);
    let mut wire = site.wire();
    wire.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    wire.response_head().unwrap();
    assert_eq!(wire.chunk().unwrap(), b"first");
    go.send(()).unwrap();
    assert_eq!(wire.chunk().unwrap(), b"second");
    assert_eq!(wire.chunk().unwrap(), b"");
}

#[test]
fn a_streamed_body_arrives_as_it_is_sent() {
    let (seen, arrived) = mpsc::channel::<Vec<u8>>();
    let seen = Mutex::new(seen);
    let upstream = Scripted::start(move |mut connection| {
        if connection.request_head().is_none() {
            return;
        }
        for _ in 0..3 {
            let Ok(chunk) = connection.wire.chunk() else { return };
            seen.lock().unwrap().send(chunk).unwrap();
        }
        connection.send(ok("done"));
    });
    let site = through(&upstream);
    let mut wire = site.wire();
    wire.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n");
    assert_eq!(arrived.recv_timeout(PATIENCE).unwrap(), b"first");
    wire.send("6\r\nsecond\r\n");
    assert_eq!(arrived.recv_timeout(PATIENCE).unwrap(), b"second");
    wire.send("0\r\n\r\n");
    assert_eq!(wire.response().text(), "done");
}

#[test]
fn trailers_pass_in_both_directions() {
    let upstream = Scripted::answering(|request| {
        let sum = request.trailers.iter().find(|(name, _)| name.eq_ignore_ascii_case("x-sum"));
        let sum = sum.map_or("none", |(_, value)| value);
        format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
             2\r\nok\r\n0\r\nX-Sum: got {sum}\r\n\r\n"
        )
        .into_bytes()
    });
    let site = through(&upstream);
    let mut wire = site.wire();
    wire.send(
        "POST / HTTP/1.1\r\nHost: x\r\nTE: trailers\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n\
         2\r\nhi\r\n0\r\nX-Sum: 42\r\n\r\n",
    );
    let response = wire.response();
    assert_eq!(response.text(), "ok");
    let trailers: Vec<_> =
        response.trailers.iter().map(|(name, value)| (name.to_lowercase(), value)).collect();
    assert_eq!(trailers, [("x-sum".to_owned(), &"got 42".to_owned())]);
}

#[test]
fn a_trailer_cannot_smuggle_framing_or_credentials() {
    let upstream = Scripted::saying("ok");
    let site = through(&upstream);
    let mut wire = site.wire();
    wire.send(
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\
         Content-Length: 5\r\nHost: evil.test\r\nAuthorization: x\r\nTransfer-Encoding: chunked\r\nX-Good: 1\r\n\r\n",
    );
    assert!(matches!(wire.response().status, 200 | 400));
    for seen in upstream.requests() {
        let names: Vec<_> = seen.trailers.iter().map(|(name, _)| name.to_lowercase()).collect();
        for forbidden in ["content-length", "host", "authorization", "transfer-encoding"] {
            assert!(!names.iter().any(|name| name == forbidden), "{names:?}");
        }
    }
}

#[test]
fn a_client_that_expects_100_gets_it_and_its_body_is_read() {
    let upstream = Scripted::answering(|request| ok(&format!("{} bytes", request.body.len())));
    let site = through(&upstream);
    let mut wire = site.wire();
    wire.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    while !wire.pending().ends_with(b"\r\n\r\n") {
        wire.fill().unwrap();
    }
    assert!(wire.pending().starts_with(b"HTTP/1.1 100 Continue\r\n"));
    wire.send("hello");
    assert_eq!(wire.response().text(), "5 bytes");
    // Who has sent the body already needs no 100 (RFC 9110 §10.1.1), and gets its answer all the same.
    wire.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello");
    assert_eq!(wire.response().text(), "5 bytes");
}

#[test]
fn the_upstream_sees_that_a_client_has_gone() {
    let gone = Arc::new(Mutex::new(0));
    let upstream = {
        let gone = gone.clone();
        Scripted::start(move |mut connection| {
            if connection.request().is_some() {
                connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n");
                // Returns when the connection is closed.
                let _ = connection.wire.fill();
                *gone.lock().unwrap() += 1;
            }
        })
    };
    let site = through(&upstream);
    let mut wire = site.wire();
    wire.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    wire.response_head().unwrap();
    drop(wire);
    eventually("the upstream's connection is closed", || *gone.lock().unwrap() == 1);
    // One stream of an HTTP/2 connection.
    let cut = curl(["--http2-prior-knowledge", "--max-time", "1", &site.url("http", "/")]);
    assert_eq!(cut.exit, 28, "{cut:?}");
    eventually("the upstream's connection is closed", || *gone.lock().unwrap() == 2);
    assert_eq!(site.admin.settled_ledger().client_gone, 2);
}

#[test]
fn big_bodies_arrive_unchanged_in_both_directions() {
    let content = pattern(32 << 20);
    let upstream = Scripted::answering(|request| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", request.body.len());
        [head.as_bytes(), &request.body].concat()
    });
    let site = through(&upstream).writing("upload", &content);
    let file = site.path("upload");
    let file = file.to_str().unwrap();
    for option in ["--http1.1", "--http2-prior-knowledge"] {
        for coding in ["X-Nothing: 1", "Transfer-Encoding: chunked"] {
            let answer = curl([option, "-H", coding, "-T", file, &site.url("http", "/")]).expect(200);
            assert!(answer.body == content, "{option} {coding}: {} bytes", answer.body.len());
        }
    }
}

#[test]
fn bytes_flow_both_ways_at_once() {
    // An upstream that mirrors each piece as it comes: neither side may wait for the other's end.
    let upstream = Scripted::start(|mut connection: Connection| {
        if connection.request_head().is_none() {
            return;
        }
        connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        while let Ok(chunk) = connection.wire.chunk() {
            let mut piece = format!("{:x}\r\n", chunk.len()).into_bytes();
            piece.extend_from_slice(&chunk);
            piece.extend_from_slice(b"\r\n");
            if !connection.send(piece) || chunk.is_empty() {
                return;
            }
        }
    });
    let site = through(&upstream);
    let mut wire = site.wire();
    wire.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    wire.send("5\r\nround\r\n");
    wire.response_head().unwrap();
    assert_eq!(wire.chunk().unwrap(), b"round");
    for round in 0..50 {
        let word = format!("round {round}");
        wire.send(format!("{:x}\r\n{word}\r\n", word.len()));
        let mut got = Vec::new();
        while got.len() < word.len() {
            got.extend(wire.chunk().unwrap());
        }
        assert_eq!(got, word.as_bytes());
    }
    wire.send("0\r\n\r\n");
    assert_eq!(wire.chunk().unwrap(), b"");
}

/// A request over a connection of its own; gives the status.
fn curl_free_get(site: &Running) -> u16 {
    let mut wire = site.wire();
    wire.send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    wire.response().status
}
