//! WebSocket endpoints of an embedding program: the main cases of the Autobahn test suite, and what a panic costs.

use std::sync::Arc;

use playhouse::config::Site;
use playhouse::config::file::Target;
use playhouse::websocket::{self, Message, Options, WebSocket as Socket};
use playhouse::{Handlers, Instance};
use tokio::runtime::Runtime;
use tokio::sync::broadcast;

use crate::harness::websocket::{BINARY, CLOSE, HANDSHAKE, PING, PONG, TEXT};
use crate::harness::{Process, WebSocket, Wire, eventually, javascript, pattern, python};

struct Embedded {
    runtime: Runtime,
    instance: Arc<Instance>,
}

async fn echo(mut socket: Socket) {
    while let Some(Ok(message)) = socket.receive().await {
        assert!(message != Message::Text("panic".into()), "on purpose");
        if message == Message::Text("bye".into()) {
            return;
        }
        if message == Message::Text("close".into()) {
            let _ = socket.close(4000, "as you wish").await;
            return;
        }
        if message == Message::Text("subprotocol".into()) {
            let agreed = socket.subprotocol().unwrap_or("none").to_owned();
            let _ = socket.send(Message::Text(agreed)).await;
            continue;
        }
        if socket.send(message).await.is_err() {
            break;
        }
    }
}

async fn chat(mut socket: Socket, room: broadcast::Sender<Message>) {
    let mut heard = room.subscribe();
    loop {
        tokio::select! {
            said = socket.receive() => match said {
                Some(Ok(message)) => drop(room.send(message)),
                Some(Err(_)) | None => break,
            },
            message = heard.recv() => {
                let Ok(message) = message else { break };
                if socket.send(message).await.is_err() {
                    break;
                }
            }
        }
    }
}

impl Embedded {
    fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let options = Options { max_message: 1 << 20, subprotocols: vec!["chat".into(), "other".into()] };
        let (room, _) = broadcast::channel(64);
        let handlers = Handlers::from([
            ("echo".into(), websocket::handler(options.clone(), echo)),
            ("chat".into(), websocket::handler(options, move |socket| chat(socket, room.clone()))),
        ]);
        let site = Site::builder("embedded")
            .listener("http", "127.0.0.1:0")
            .route(("/echo", Target::handler("echo")))
            .route(("/chat", Target::handler("chat")))
            .route(("/plain", Target::respond(200, "plain")))
            .build()
            .unwrap();
        let options = playhouse::Options { handlers, ..playhouse::Options::default() };
        let instance = runtime.block_on(async {
            let instance = Instance::open(site, options).unwrap();
            tokio::spawn({
                let instance = instance.clone();
                async move { instance.run().await }
            });
            instance
        });
        eventually("the site is ready", || instance.is_ready());
        Embedded { runtime, instance }
    }

    fn address(&self) -> std::net::SocketAddr {
        self.instance.addresses()[0].1.parse().unwrap()
    }

    fn open(&self) -> WebSocket {
        WebSocket::open(self.address(), "/echo")
    }

    fn settled(&self) -> playhouse::Totals {
        eventually("nothing is in flight", || self.instance.ledger().in_flight == 0);
        self.instance.ledger()
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.runtime.block_on(self.instance.stop());
    }
}

const FIN: u8 = 0x80;

#[test]
fn messages_are_echoed_whole_however_they_were_sent() {
    let embedded = Embedded::start();
    let mut socket = embedded.open();
    for length in [0, 1, 125, 126, 127, 128, 65_535, 65_536, 1 << 20] {
        let payload = pattern(length);
        socket.send(BINARY, &payload);
        let (first, got) = message(&mut socket);
        assert!((first, got) == (BINARY, payload), "{length}");
    }
    // In fragments, with a control frame between them; and byte by byte.
    socket.send(TEXT & !FIN, "Hel").send(0, "").send(PING, "here?").send(0, "lo, ").send(FIN, "wörld");
    assert_eq!(socket.read(), (PONG, b"here?".to_vec()));
    assert_eq!(message(&mut socket), (TEXT, "Hello, wörld".as_bytes().to_vec()));
    for byte in socket.frame(TEXT, "κόσμε".as_bytes()) {
        socket.wire.send([byte]);
    }
    assert_eq!(message(&mut socket), (TEXT, "κόσμε".as_bytes().to_vec()));
    // A character that is cut between two fragments is one all the same.
    let text = "κόσμε".as_bytes();
    socket.send(TEXT & !FIN, &text[..3]).send(FIN, &text[3..]);
    assert_eq!(message(&mut socket), (TEXT, text.to_vec()));
    // Pongs that nobody has asked for are ignored; ten Pings get ten Pongs.
    socket.send(PONG, "unasked");
    for number in 0..10_u8 {
        socket.send(PING, [number; 125]);
    }
    for number in 0..10_u8 {
        assert_eq!(socket.read(), (PONG, vec![number; 125]));
    }
    socket.close(1000);
    assert_eq!(socket.read_close(), 1000);
    socket.wire.expect_closed();
    drop(socket);
    assert_eq!(embedded.settled().answered, 1);
}

/// A message, its frames joined.
fn message(socket: &mut WebSocket) -> (u8, Vec<u8>) {
    let (first, mut payload) = socket.read();
    let mut last = first;
    while last & FIN == 0 {
        let (next, more) = socket.read();
        payload.extend(more);
        last = next;
    }
    (first | FIN, payload)
}

#[test]
fn what_breaks_the_protocol_is_closed_with_the_code_that_says_so() {
    let embedded = Embedded::start();
    /// Frames, as opcodes and payloads.
    type Frames = &'static [(u8, &'static [u8])];
    let cases: [(&str, Frames, u16); 14] = [
        ("a reserved bit", &[(0xc1, b"a")], 1002),
        ("a reserved opcode", &[(0x83, b"a")], 1002),
        ("a reserved control opcode", &[(0x8b, b"")], 1002),
        ("a fragmented Ping", &[(PING & !FIN, b"a"), (FIN, b"b")], 1002),
        ("a Ping that is too long", &[(PING, &[0; 126])], 1002),
        ("a continuation of nothing", &[(FIN, b"a")], 1002),
        ("a message within a message", &[(TEXT & !FIN, b"a"), (TEXT, b"b")], 1002),
        ("no UTF-8", &[(TEXT, b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80\x65")], 1007),
        ("a character that is too long", &[(TEXT, b"\xf0\x80\x80\x80")], 1007),
        ("a character that is cut", &[(TEXT, b"\xce")], 1007),
        ("no UTF-8 in the second fragment", &[(TEXT & !FIN, b"a"), (FIN, b"\xff")], 1007),
        ("a Close with half a code", &[(CLOSE, b"\x03")], 1002),
        ("a Close with a code that is not to be sent", &[(CLOSE, b"\x03\xed")], 1002),
        ("a message that is too long", &[(BINARY, &[0; (1 << 20) + 1])], 1009),
    ];
    for (what, frames, code) in cases {
        let mut socket = embedded.open();
        for (first, payload) in frames {
            let frame = socket.frame(*first, payload);
            // It may be closed before all of it is sent.
            let _ = socket.wire.try_send(frame);
        }
        assert_eq!(socket.read_close(), code, "{what}");
    }
    embedded.settled();
}

#[test]
fn closing_is_a_handshake_whoever_begins() {
    let embedded = Embedded::start();
    for code in [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 4999] {
        let mut socket = embedded.open();
        socket.close(code);
        assert_eq!(socket.read_close(), code);
        socket.wire.expect_closed();
    }
    let mut socket = embedded.open();
    socket.send(CLOSE, "");
    assert_eq!(socket.read(), (CLOSE, Vec::new()));

    let mut socket = embedded.open();
    socket.send(TEXT, "close");
    let (first, payload) = socket.read();
    assert_eq!((first, payload), (CLOSE, b"\x0f\xa0as you wish".to_vec()));
    socket.close(4000);
    socket.wire.expect_closed();

    // An endpoint that only returns has closed as well.
    let mut socket = embedded.open();
    socket.send(TEXT, "bye");
    assert_eq!(socket.read_close(), 1000);
    socket.close(1000);
    socket.wire.expect_closed();
    let ledger = embedded.settled();
    assert_eq!(ledger.answered, ledger.accepted);
}

#[test]
fn a_panic_costs_one_tunnel_and_says_so() {
    let embedded = Embedded::start();
    let mut other = embedded.open();
    let mut socket = embedded.open();
    socket.send(TEXT, "before");
    assert_eq!(socket.read(), (TEXT, b"before".to_vec()));
    socket.send(TEXT, "panic");
    assert_eq!(socket.read_close(), 1011);
    drop(socket);
    other.send(TEXT, "still here");
    assert_eq!(other.read(), (TEXT, b"still here".to_vec()));
    other.close(1000);
    assert_eq!(other.read_close(), 1000);
    drop(other);
    let ledger = embedded.settled();
    assert_eq!((ledger.answered, ledger.killed), (1, 1), "{ledger:?}");
}

#[test]
fn what_is_no_handshake_is_refused() {
    let embedded = Embedded::start();
    let mut wire = Wire::connect(embedded.address());
    wire.send("GET /echo HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(wire.response().status, 400);
    wire.send(format!("GET /echo HTTP/1.1\r\n{}", HANDSHAKE.replace("Version: 13", "Version: 8")));
    let response = wire.response();
    assert_eq!((response.status, response.header("sec-websocket-version")), (426, Some("13")));
    // Where no endpoint is, the wish is ignored.
    wire.send(format!("GET /plain HTTP/1.1\r\n{HANDSHAKE}"));
    assert_eq!(wire.response().text(), "plain");
    wire.send(format!("GET /echo HTTP/1.1\r\nSec-WebSocket-Protocol: x, other\r\n{HANDSHAKE}"));
    let response = wire.response_head().unwrap();
    assert_eq!((response.status, response.header("sec-websocket-protocol")), (101, Some("other")));
    let mut socket = WebSocket::of_client(wire);
    socket.send(TEXT, "subprotocol");
    assert_eq!(socket.read(), (TEXT, b"other".to_vec()));
}

#[test]
fn a_message_reaches_all_who_are_there() {
    let embedded = Embedded::start();
    let mut sockets: Vec<_> = (0..5).map(|_| WebSocket::open(embedded.address(), "/chat")).collect();
    // Whoever has heard himself is there.
    for number in 0..sockets.len() {
        sockets[number].send(TEXT, format!("{number}"));
        for socket in &mut sockets[..=number] {
            while socket.read() != (TEXT, number.to_string().into_bytes()) {}
        }
    }
    sockets[3].send(BINARY, "to all");
    for socket in &mut sockets {
        let mut got = socket.read();
        while got.0 == TEXT {
            got = socket.read();
        }
        assert_eq!(got, (BINARY, b"to all".to_vec()));
    }
}

#[test]
fn foreign_clients_speak_with_it_over_both_versions_and_a_drain_says_1001() {
    let embedded = Embedded::start();
    let url = format!("ws://{}/echo", embedded.address());
    let mut command = python("websocket_client.py");
    let mut hold = Process::start("a client", command.args(["hold", &url, "50"]));
    hold.line("open", |line| (line == "open").then_some(()));
    let mut command = javascript("websocket_h2_client.js");
    command.args([&embedded.address().to_string(), "/echo"]);
    let mut http2 = Process::start("an HTTP/2 client", &mut command);
    http2.line("open", |line| (line == "open").then_some(()));
    embedded.runtime.block_on(embedded.instance.stop());
    assert!(hold.wait().success(), "{}", hold.output());
    let last = hold.stdout().pop().unwrap_or_default();
    assert!(last.contains("{\"1001\": 50}"), "{last}");
    assert!(http2.wait().success(), "{}", http2.output());
    assert!(http2.stdout().pop().unwrap_or_default().contains("1001"), "{}", http2.output());
}
