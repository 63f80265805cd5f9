//! The main cases of the Autobahn test suite through a proxied route: what one side sends is what the other gets, byte for
//! byte and however it is cut, and what breaks the protocol ends the tunnel on both sides.

use std::sync::{Arc, Mutex};

use crate::harness::websocket::{BINARY, CLOSE, HANDSHAKE, PING, PONG, SWITCHED, TEXT, frame};
use crate::harness::{Real, Running, Scripted, Site, WebSocket, Wire, eventually, pattern};

/// A frame's first byte, and its payload.
type Frames = Vec<(u8, Vec<u8>)>;

const FIN: u8 = 0x80;
/// Of a message that is compressed (RFC 7692 §6).
const RSV1: u8 = 0x40;

fn frames(frames: &[(u8, &[u8])]) -> Frames {
    frames.iter().map(|(first, payload)| (*first, payload.to_vec())).collect()
}

/// By the suite's chapters.
fn valid() -> Vec<(&'static str, Frames)> {
    let of_each_length = |first: u8| {
        let lengths = [0, 1, 125, 126, 127, 128, 65_535, 65_536];
        lengths.iter().map(|length| (first, vec![b'*'; *length])).collect()
    };
    let chopped = |length: usize, size: usize| {
        let content = pattern(length);
        let mut pieces: Frames = content.chunks(size).map(|piece| (0, piece.to_vec())).collect();
        pieces[0].0 = BINARY & !FIN;
        pieces.last_mut().expect("a piece").0 |= FIN;
        pieces
    };
    vec![
        ("1: text of each length", of_each_length(TEXT)),
        ("1: binary of each length", of_each_length(BINARY)),
        (
            "2: Pings and Pongs",
            (0..20).map(|size| (if size % 3 == 0 { PONG } else { PING }, pattern(size * 6))).collect(),
        ),
        (
            "5: fragments, and control frames between them",
            frames(&[
                (TEXT & !FIN, b"frag"),
                (PING, b"between"),
                (0, b""),
                (PONG, b""),
                (0, b"ment"),
                (PING, b""),
                (FIN, b"ed"),
            ]),
        ),
        (
            "6: a character that is cut between two fragments",
            frames(&[(TEXT & !FIN, b"\xce\xba\xe1"), (0, b"\xbd"), (FIN, b"\xb9\xcf\x83")]),
        ),
        // That it is none is for the two sides to find.
        ("6: no UTF-8", frames(&[(TEXT, b"\xce\xba\xe1\xbd\xb9\xed\xa0\x80")])),
        ("9: 16 MiB in a frame", vec![(BINARY, pattern(16 << 20))]),
        ("9: 16 MiB in frames of 64 KiB", chopped(16 << 20, 64 << 10)),
        ("9: 64 KiB in frames of 64 bytes", chopped(64 << 10, 64)),
        (
            "12: compressed",
            frames(&[
                (TEXT | RSV1, b"\xf2\x48\xcd\xc9\xc9\x07\x00"),
                (TEXT & !FIN | RSV1, b"\xf2\x48\xcd"),
                (PING, b"between"),
                (FIN, b"\xc9\xc9\x07\x00"),
            ]),
        ),
    ]
}

/// A server that keeps what it gets, and sends `pushed` first; the connection's path says how it is cut.
fn keeping(pushed: Vec<u8>, kept: Arc<Mutex<Vec<u8>>>) -> Scripted {
    Scripted::start(move |mut connection| {
        let Some(request) = connection.request_head() else { return };
        let extension = request.header("sec-websocket-extensions").unwrap_or("none").to_owned();
        connection.send(format!("{SWITCHED}Sec-WebSocket-Extensions: {extension}\r\n\r\n"));
        let size = request.target.rsplit('/').next().and_then(|size| size.parse().ok()).unwrap_or(usize::MAX);
        for piece in pushed.chunks(size.min(pushed.len())) {
            if !connection.send(piece) {
                return;
            }
        }
        let all = connection.wire.rest();
        *kept.lock().unwrap() = all;
    })
}

fn site(upstream: &Scripted) -> Running {
    Site::new().server("up", upstream.address).route(r#"(path: "/", to: Proxy("up"))"#).start()
}

fn open(site: &Running, target: &str) -> Wire {
    let mut wire = site.wire();
    wire.send(format!(
        "GET {target} HTTP/1.1\r\nSec-WebSocket-Extensions: permessage-deflate\r\n{HANDSHAKE}"
    ));
    let response = wire.response_head().expect("an answer");
    assert_eq!(
        (response.status, response.header("sec-websocket-extensions")),
        (101, Some("permessage-deflate"))
    );
    wire
}

#[test]
fn frames_of_every_kind_pass_byte_for_byte_however_they_are_cut() {
    for (what, frames) in valid() {
        let mut closing = frames.clone();
        closing.push((CLOSE, [&1000_u16.to_be_bytes()[..], "fertig, 完".as_bytes()].concat()));
        let bytes = |masked: bool| -> Vec<u8> {
            closing.iter().flat_map(|(first, payload)| frame(*first, payload, masked)).collect()
        };
        let (pushed, sent) = (bytes(false), bytes(true));
        let kept = Arc::new(Mutex::new(Vec::new()));
        let upstream = keeping(pushed.clone(), kept.clone());
        let site = site(&upstream);
        let sizes: &[usize] = if pushed.len() > 1 << 20 { &[1 << 20] } else { &[1, 7, 1460, 1 << 20] };
        for size in sizes.iter().filter(|size| **size > 1 || pushed.len() < 10_000) {
            kept.lock().unwrap().clear();
            let mut wire = open(&site, &format!("/{size}"));
            let got = wire.take(pushed.len()).expect("all that the server has sent");
            assert!(got == pushed, "{what}, to the client, in pieces of {size}");
            for piece in sent.chunks(*size) {
                wire.send(piece);
            }
            wire.finish();
            wire.expect_closed();
            eventually("the server has read all", || !kept.lock().unwrap().is_empty());
            assert!(*kept.lock().unwrap() == sent, "{what}, to the server, in pieces of {size}");
        }
        let ledger = site.admin.settled_ledger();
        assert_eq!(ledger.answered, ledger.accepted, "{what}: {ledger:?}");
    }
}

#[test]
fn what_breaks_the_protocol_is_closed_with_1002_on_both_sides() {
    let cases: [(&str, Frames); 9] = [
        ("3: a reserved bit", frames(&[(TEXT | RSV1, b"a")])),
        ("3: all reserved bits", frames(&[(PING | 0x70, b"")])),
        ("4: a reserved opcode", frames(&[(FIN | 3, b"a")])),
        ("4: a reserved control opcode", frames(&[(FIN | 0xb, b"")])),
        ("2: a Ping that is too long", vec![(PING, vec![0; 126])]),
        ("5: a Ping in fragments", frames(&[(PING & !FIN, b"a"), (FIN, b"b")])),
        ("5: a continuation of nothing", frames(&[(FIN, b"a")])),
        ("5: a message within a message", frames(&[(TEXT & !FIN, b"a"), (TEXT, b"b")])),
        ("5: nothing goes on behind an end", frames(&[(TEXT & !FIN, b"a"), (FIN, b"b"), (FIN, b"c")])),
    ];
    let count = cases.len() as u64;
    let closes = Arc::new(Mutex::new(Vec::new()));
    let upstream = Scripted::start({
        let closes = closes.clone();
        move |connection| {
            let Some((mut socket, _)) = WebSocket::accept(connection.wire) else { return };
            while let Ok((first, payload)) = socket.try_read() {
                if first == CLOSE {
                    closes.lock().unwrap().push(payload);
                    let answer = socket.frame(CLOSE, &1002_u16.to_be_bytes());
                    let _ = socket.wire.try_send(answer);
                    return;
                }
            }
        }
    });
    let site = site(&upstream);
    for (what, frames) in cases {
        let mut socket = WebSocket::open(site.address("http"), "/");
        for (first, payload) in &frames {
            let frame = socket.frame(*first, payload);
            // It may be closed before all of it is sent.
            let _ = socket.wire.try_send(frame);
        }
        assert_eq!(socket.read_close(), 1002, "{what}");
        socket.wire.finish();
        socket.wire.expect_closed();
    }
    eventually("the server has heard of all", || closes.lock().unwrap().len() as u64 == count);
    assert!(closes.lock().unwrap().iter().all(|payload| payload.starts_with(&1002_u16.to_be_bytes())));
    let ledger = site.admin.settled_ledger();
    assert_eq!((ledger.accepted, ledger.rejected), (count, count), "{ledger:?}");
}

#[test]
fn every_code_of_a_close_and_none_go_through_both_ways() {
    let upstream = Scripted::start(|connection| {
        let Some((mut socket, request)) = WebSocket::accept(connection.wire) else { return };
        match request.target.trim_start_matches("/from-server/").parse::<u16>() {
            Ok(code) => {
                let close = socket.frame(CLOSE, &[&code.to_be_bytes()[..], b"why"].concat());
                let _ = socket.wire.try_send(close);
                assert_eq!(socket.read(), (CLOSE, code.to_be_bytes().to_vec()));
            }
            Err(_) => {
                let (first, payload) = socket.read();
                assert_eq!(first, CLOSE);
                let close = socket.frame(CLOSE, &payload);
                let _ = socket.wire.try_send(close);
            }
        }
    });
    let site = site(&upstream);
    // Also those that are not to be sent: it is for the two sides to judge them.
    let codes: [u16; 15] =
        [1000, 1001, 1002, 1003, 1005, 1007, 1008, 1009, 1010, 1011, 1014, 3000, 3999, 4000, 4999];
    for code in codes {
        let mut socket = WebSocket::open(site.address("http"), &format!("/from-server/{code}"));
        assert_eq!(socket.read(), (CLOSE, [&code.to_be_bytes()[..], b"why"].concat()));
        socket.close(code);
        socket.wire.expect_closed();

        let mut socket = WebSocket::open(site.address("http"), "/from-client");
        socket.send(CLOSE, [&code.to_be_bytes()[..], &[b'.'; 123]].concat());
        assert_eq!(socket.read(), (CLOSE, [&code.to_be_bytes()[..], &[b'.'; 123]].concat()));
        socket.wire.expect_closed();
    }
    let mut socket = WebSocket::open(site.address("http"), "/from-client");
    socket.send(CLOSE, "");
    assert_eq!(socket.read(), (CLOSE, Vec::new()));
    let ledger = site.admin.settled_ledger();
    assert_eq!(ledger.answered, ledger.accepted, "{ledger:?}");
}

#[test]
fn a_foreign_server_judges_text_that_is_no_text() {
    let upstream = Real::websockets();
    let site = Site::new().server("up", upstream.address).route(r#"(path: "/", to: Proxy("up"))"#).start();
    let texts: [(&[u8], u16); 3] = [("κόσμε".as_bytes(), 1000), (b"\xed\xa0\x80", 1007), (b"\xce", 1007)];
    for (text, code) in texts {
        let mut socket = WebSocket::open(site.address("http"), "/echo");
        socket.send(TEXT, text);
        if code == 1000 {
            assert_eq!(socket.read(), (TEXT, text.to_vec()));
            socket.close(1000);
        }
        assert_eq!(socket.read_close(), code);
        socket.close(code);
    }
}
