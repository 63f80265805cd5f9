//! HTTP/2 from real clients, and frames that no real client sends.

use crate::harness::{H2load, PATIENCE, Running, Scripted, Site, Wire, eventually, pattern};

fn site() -> Running {
    Site::new()
        .file("public/hello.txt", "hello\n")
        .route(r#"(path: "/", to: Static(root: "public"))"#)
        .start()
}

#[test]
fn h2load_sees_no_failure_on_files() {
    let site = site();
    let counted = H2load::start(&site.url("http", "/hello.txt"), 20_000, 10, 32, &[]).finish();
    assert_eq!((counted.succeeded, counted.failed, counted.ok), (20_000, 0, 20_000), "{counted:?}");
    assert_eq!(site.admin.settled_ledger().answered, 20_000);
}

#[test]
fn h2load_sees_no_failure_through_a_proxy() {
    let upstream = crate::harness::Real::nginx();
    std::fs::write(upstream.folder.path().join("hello.txt"), "hello\n").unwrap();
    let site = Site::new().server("up", upstream.address).route(r#"(path: "/", to: Proxy("up"))"#).start();
    let url = site.url("http", "/hello.txt");
    let counted = H2load::start(&url, 5_000, 4, 16, &[]).finish();
    assert_eq!((counted.succeeded, counted.ok), (5_000, 5_000), "{counted:?}");
    let over_http1 = H2load::start(&url, 5_000, 8, 1, &["--h1"]).finish();
    assert_eq!((over_http1.succeeded, over_http1.ok), (5_000, 5_000), "{over_http1:?}");
    assert_eq!(site.admin.settled_ledger().answered, 10_000);
}

#[test]
fn h2load_posts_through_a_proxy() {
    let upstream = Scripted::answering(|request| {
        let status = if request.body == pattern(100_000) { "200 OK" } else { "400 Bad Request" };
        format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").into_bytes()
    });
    let site = Site::new()
        .server("up", upstream.address)
        .route(r#"(path: "/", to: Proxy("up"))"#)
        .file("body", pattern(100_000))
        .start();
    let body = site.path("body");
    let counted = H2load::start(&site.url("http", "/"), 500, 4, 8, &["-d", body.to_str().unwrap()]).finish();
    assert_eq!((counted.succeeded, counted.ok), (500, 500), "{counted:?}");
}

#[test]
fn a_frame_beyond_the_size_limit_ends_the_connection() {
    let site = site();
    let mut wire = greeted(&site);
    wire.send([0x01, 0x00, 0x01, 0, 0, 0, 0, 0, 1]);
    wire.send(vec![0; 65_537]);
    ends(wire);
    serves(&site);
}

#[test]
fn a_header_block_that_never_ends_ends_the_connection() {
    let site = site();
    let mut wire = greeted(&site);
    // HEADERS without END_HEADERS, then CONTINUATION after CONTINUATION (CVE-2024-27316).
    let _ = wire.try_send(frame(1, 1, 1, b"\x82\x84\x86"));
    for _ in 0..20_000 {
        let block: Vec<u8> = std::iter::repeat_n(b"\x40\x01a\x01b", 100).flatten().copied().collect();
        if wire.try_send(frame(9, 0, 1, &block)).is_err() {
            break;
        }
    }
    ends(wire);
    serves(&site);
}

#[test]
fn streams_that_are_opened_and_reset_at_once_end_the_connection() {
    let site = site();
    let mut wire = greeted(&site);
    // Rapid reset (CVE-2023-44487).
    for number in 0..100_000_u32 {
        let stream = 2 * number + 1;
        let mut both = frame(1, 5, stream, HEADERS);
        both.extend(frame(3, 0, stream, &8_u32.to_be_bytes()));
        if wire.try_send(both).is_err() {
            break;
        }
    }
    ends(wire);
    serves(&site);
    let ledger = site.admin.settled_ledger();
    assert!(ledger.accepted < 20_000, "{ledger:?}");
}

#[test]
fn floods_of_frames_that_bring_nothing_end_the_connection() {
    let floods: [(&str, Vec<u8>); 5] = [
        ("PING", frame(6, 0, 0, &[0; 8])),
        ("SETTINGS", frame(4, 0, 0, &[])),
        ("PRIORITY", frame(2, 0, 1, &[0, 0, 0, 3, 1])),
        ("WINDOW_UPDATE", frame(8, 0, 0, &[0, 0, 0, 1])),
        ("unknown frames", frame(0x42, 0, 0, &[])),
    ];
    for (what, flood) in floods {
        let site = site();
        let before = site.process.resident();
        let mut wire = greeted(&site);
        let piece: Vec<u8> = flood.iter().copied().cycle().take(flood.len() * 1000).collect();
        // Does not read, so that answers pile up if they may.
        for _ in 0..1000 {
            if wire.try_send(&piece).is_err() {
                break;
            }
        }
        let grown = site.process.resident().saturating_sub(before) >> 20;
        assert!(grown < 32, "{what}: {grown} MiB");
        ends(wire);
        serves(&site);
    }
}

#[test]
fn an_early_answer_is_whole_and_then_the_upload_is_stopped_without_an_error() {
    let site = Site::new()
        .listener("http", r#"(bind: "127.0.0.1:0", limits: (body_bytes: "100KiB"))"#)
        .route(r#"(path: "/", to: Respond(status: 200, body: "enough\n"))"#)
        .start();
    let mut wire = greeted(&site);
    // POST without END_STREAM, and some of its content.
    wire.send(frame(1, 4, 1, b"\x83\x86\x84\x41\x01x"));
    wire.send(frame(0, 0, 1, &[b'x'; 1000]));
    let (_, data) = next_frame(&mut wire, "the answer", |kind, _, _| kind == 0);
    assert_eq!(data, b"enough\n");
    // RFC 9113 §8.1: RST_STREAM with NO_ERROR.
    let (_, code) = next_frame(&mut wire, "RST_STREAM", |kind, _, _| kind == 3);
    assert_eq!(code, [0; 4]);
    // The connection goes on.
    wire.send(frame(1, 5, 3, HEADERS));
    let (_, data) = next_frame(&mut wire, "the next answer", |kind, _, _| kind == 0);
    assert_eq!(data, b"enough\n");
}

#[test]
fn a_window_that_stays_shut_meets_the_write_deadline() {
    let site = Site::new()
        .listener("http", r#"(bind: "127.0.0.1:0", timeouts: (write: "500ms"))"#)
        .file("public/big", pattern(1 << 20))
        .route(r#"(path: "/", to: Static(root: "public"))"#)
        .start();
    let mut wire = http2(&site);
    // A window of no bytes for each stream.
    wire.send(frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]));
    wire.send(frame(1, 5, 1, b"\x82\x86\x04\x04/big\x41\x01x"));
    let ledger = crate::harness::eventually_some("the stalled stream has ended", || {
        Some(site.admin.ledger()).filter(|ledger| ledger.accepted == 1 && ledger.in_flight == 0)
    });
    assert_eq!(ledger.client_gone, 1, "{ledger:?}");
}

#[test]
fn malformed_requests_over_http2_never_reach_the_upstream() {
    let upstream = Scripted::saying("reached\n");
    let site = Site::new().server("up", upstream.address).route(r#"(path: "/", to: Proxy("up"))"#).start();
    let literal = |name: &str, value: &[u8]| {
        let mut field = vec![0, name.len() as u8];
        field.extend_from_slice(name.as_bytes());
        field.push(value.len() as u8);
        field.extend_from_slice(value);
        field
    };
    let valid = [literal(":method", b"GET"), literal(":scheme", b"http"), literal(":path", b"/")].concat();
    let with = |field: Vec<u8>| [&valid[..], &literal(":authority", b"x"), &field].concat();
    let blocks: [(&str, Vec<u8>); 16] = [
        ("a value with CRLF", with(literal("x", b"a\r\nevil: 1"))),
        ("a value with NUL", with(literal("x", b"a\0b"))),
        ("a name with a colon", with(literal("x:y", b"a"))),
        ("a name with a space", with(literal("x y", b"a"))),
        ("a name in upper case", with(literal("X-Upper", b"a"))),
        ("connection", with(literal("connection", b"close"))),
        ("transfer-encoding", with(literal("transfer-encoding", b"chunked"))),
        ("upgrade", with(literal("upgrade", b"h2c"))),
        ("te that is not trailers", with(literal("te", b"gzip"))),
        ("an unknown pseudo-header", with(literal(":evil", b"1"))),
        ("a pseudo-header after a field", [with(literal("a", b"b")), literal(":path", b"/y")].concat()),
        ("two paths", [&valid[..], &literal(":path", b"/y")].concat()),
        (
            "a path with a space",
            [literal(":method", b"GET"), literal(":scheme", b"http"), literal(":path", b"/a b")].concat(),
        ),
        (
            "a path with CRLF",
            [literal(":method", b"GET"), literal(":scheme", b"http"), literal(":path", b"/\r\nx")].concat(),
        ),
        (
            "an empty path",
            [literal(":method", b"GET"), literal(":scheme", b"http"), literal(":path", b"")].concat(),
        ),
        (
            "a method with CRLF",
            [literal(":method", b"GET /x HTTP/1.1\r\n"), literal(":scheme", b"http"), literal(":path", b"/")]
                .concat(),
        ),
    ];
    for (what, block) in blocks {
        let mut wire = greeted(&site);
        wire.send(frame(1, 5, 1, &block));
        // The stream or the whole connection ends, or there is an answer of 400.
        answered_or_reset(&mut wire, what);
        assert_eq!(upstream.requests().len(), 0, "{what}: {:?}", upstream.requests());
    }
    eventually("nothing is in flight", || site.admin.ledger().in_flight == 0);
}

#[test]
fn the_authority_wins_over_the_host_field() {
    let upstream = Scripted::saying("reached\n");
    let site = Site::new().server("up", upstream.address).route(r#"(path: "/", to: Proxy("up"))"#).start();
    let mut wire = greeted(&site);
    // :method GET, :scheme http, :path /, :authority good, host evil
    wire.send(frame(1, 5, 1, b"\x82\x86\x84\x41\x04good\x00\x04host\x04evil"));
    answered_or_reset(&mut wire, "two hosts");
    for request in upstream.requests() {
        assert_eq!(request.header("host"), Some("good"), "{request:?}");
    }
}

#[test]
fn a_stop_sends_goaway_and_open_streams_finish() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let upstream = Scripted::start(move |mut connection| {
        if connection.request().is_some() {
            wait.lock().unwrap().recv_timeout(PATIENCE).expect("the test goes on");
            connection.send(crate::harness::ok("finished\n"));
        }
    });
    let mut site =
        Site::new().server("up", upstream.address).route(r#"(path: "/", to: Proxy("up"))"#).start();
    let mut wire = greeted(&site);
    wire.send(frame(1, 5, 1, HEADERS));
    eventually("the upstream has the request", || upstream.requests().len() == 1);
    site.stop();
    next_frame(&mut wire, "GOAWAY", |kind, _, _| kind == 7);
    go.send(()).unwrap();
    let (_, data) = next_frame(&mut wire, "the stream's data", |kind, _, data| kind == 0 && !data.is_empty());
    assert_eq!(data, b"finished\n");
    wire.rest();
    assert_eq!(site.process.wait().code(), Some(0));
}

/// `GET /` of `http://x`: indexed fields, and `:authority` as a literal.
const HEADERS: &[u8] = b"\x82\x86\x84\x41\x01x";

/// A connection on which the preface was sent.
fn http2(site: &Running) -> Wire {
    let mut wire = site.wire();
    wire.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    wire
}

/// A connection on which SETTINGS were exchanged.
fn greeted(site: &Running) -> Wire {
    let mut wire = http2(site);
    wire.send(frame(4, 0, 0, &[]));
    next_frame(&mut wire, "SETTINGS", |kind, flags, _| kind == 4 && flags == 0);
    wire.send(frame(4, 1, 0, &[]));
    wire
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

fn read_frame(wire: &mut Wire) -> std::io::Result<(u8, u8, Vec<u8>)> {
    let head = wire.take(9)?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    Ok((head[3], head[4], wire.take(length)?))
}

/// Skips to the frame that fits; gives its flags and payload.
#[track_caller]
fn next_frame(wire: &mut Wire, what: &str, fits: impl Fn(u8, u8, &[u8]) -> bool) -> (u8, Vec<u8>) {
    loop {
        let (kind, flags, payload) = read_frame(wire).unwrap_or_else(|error| panic!("{what}: {error}"));
        if fits(kind, flags, &payload) {
            return (flags, payload);
        }
    }
}

/// Reads until stream 1 is answered or reset, or the connection ends.
fn answered_or_reset(wire: &mut Wire, what: &str) {
    while let Ok((kind, flags, _)) = read_frame(wire) {
        let reset = matches!(kind, 3 | 7);
        let answered = matches!(kind, 0 | 1) && flags & 1 == 1;
        if reset || answered {
            return;
        }
        assert!(kind != 0x42, "{what}");
    }
}

/// The server closes: GOAWAY may come before it.
fn ends(mut wire: Wire) {
    wire.patience(PATIENCE);
    wire.rest();
}

fn serves(site: &Running) {
    crate::harness::curl(["--http2-prior-knowledge", &site.url("http", "/hello.txt")]).expect(200);
}
