//! WebSocket servers that misbehave in each way, over HTTP/1.1 and HTTP/2, and what the generator says about them.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use playhouse_chaos::{Class, Load, Messages, Protocol, Report, Stream, Target};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::{TcpListener, TcpStream};

const LONG: Duration = Duration::from_secs(20);
const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
    sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
const CLOSE: u8 = 0x88;

/// What a server does once it has echoed so many messages.
#[derive(Clone, Copy, Debug)]
enum Then {
    /// Says that it goes, and waits for the answer.
    Drain,
    /// The same between two fragments of the next message.
    DrainWithinMessage,
    /// Says that it goes, and does so at once.
    DrainAndDrop,
    /// Says that it goes, and something after that.
    DrainAndSay(&'static [u8]),
    /// Says that it goes, and stays.
    DrainAndStay,
    /// Sends these bytes in place of the next message.
    Say(&'static [u8]),
    /// Sends these bytes, and ends.
    SayAndDrop(&'static [u8]),
    /// Swallows a message, and goes on.
    Swallow,
    /// Never answers again.
    Hang,
}

/// A client's frame, unmasked.
async fn frame(io: &mut (impl AsyncRead + Unpin)) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 2];
    io.read_exact(&mut head).await.ok()?;
    assert!(head[1] & 0x80 != 0, "a client masks");
    let length = match head[1] & 0x7f {
        126 => u64::from(io.read_u16().await.ok()?),
        127 => io.read_u64().await.ok()?,
        length => u64::from(length),
    };
    let mut key = [0; 4];
    io.read_exact(&mut key).await.ok()?;
    let mut payload = vec![0; length as usize];
    io.read_exact(&mut payload).await.ok()?;
    payload.iter_mut().zip(key.iter().cycle()).for_each(|(byte, key)| *byte ^= key);
    Some((head[0], payload))
}

/// A server's frame.
fn framed(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match payload.len() {
        length @ 0..126 => frame.push(length as u8),
        length @ 126..0x1_0000 => {
            frame.push(126);
            frame.extend((length as u16).to_be_bytes());
        }
        length => {
            frame.push(127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend(payload);
    frame
}

/// Sends messages back, fragment by fragment, and then does what it is to do.
async fn echo(mut io: impl AsyncRead + AsyncWrite + Unpin, messages: u64, then: Then) -> Option<()> {
    let going = framed(CLOSE, &1001u16.to_be_bytes());
    let mut echoed = 0;
    while let Some((first, payload)) = frame(&mut io).await {
        if first == CLOSE {
            io.write_all(&framed(CLOSE, &payload)).await.ok()?;
            return io.flush().await.ok();
        }
        if echoed == messages && first & 0x7f != 0 {
            echoed += 1;
            match then {
                Then::Drain | Then::DrainWithinMessage => {
                    if matches!(then, Then::DrainWithinMessage) {
                        io.write_all(&framed(first & 0x7f, &payload[..payload.len() / 2])).await.ok()?;
                    }
                    io.write_all(&going).await.ok()?;
                    while frame(&mut io).await?.0 != CLOSE {}
                    return Some(());
                }
                Then::DrainAndDrop => return io.write_all(&going).await.ok(),
                Then::DrainAndSay(what) => io.write_all(&[&going, what].concat()).await.ok()?,
                Then::DrainAndStay => io.write_all(&going).await.ok()?,
                Then::Say(what) => io.write_all(what).await.ok()?,
                Then::SayAndDrop(what) => {
                    io.write_all(what).await.ok()?;
                    return io.shutdown().await.ok();
                }
                Then::Swallow | Then::Hang => {}
            }
            if !matches!(then, Then::Swallow) {
                std::future::pending::<()>().await;
            }
            continue;
        }
        echoed += u64::from(first & 0x80 != 0);
        io.write_all(&framed(first, &payload)).await.ok()?;
        io.flush().await.ok()?;
    }
    None
}

async fn listen<F: Future<Output = ()> + Send + 'static>(
    handle: impl Fn(TcpStream) -> F + Send + 'static,
) -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(handle(stream));
        }
    });
    Target::Tcp(address)
}

/// A server that answers handshakes with `answer`.
async fn answering(answer: &'static str, messages: u64, then: Then) -> Target {
    listen(move |mut stream| async move {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("GET /ws HTTP/1.1\r\n") && !head.contains("close"), "{head}");
        stream.write_all(answer.as_bytes()).await.unwrap();
        // Whatever the client makes of it.
        let _ = echo(stream, messages, then).await;
    })
    .await
}

/// The same over HTTP/2.
async fn over_http2(messages: u64, then: Then) -> Target {
    listen(move |stream| async move {
        let mut builder = h2::server::Builder::new();
        let mut connection = builder.enable_connect_protocol().handshake::<_, Bytes>(stream).await.unwrap();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            let protocol = request.extensions().get::<h2::ext::Protocol>();
            assert_eq!(protocol.map(|protocol| protocol.as_str()), Some("websocket"));
            assert_eq!((request.uri().path(), request.method()), ("/ws", &http::Method::CONNECT));
            let (near, far) = tokio::io::duplex(1 << 20);
            let to = respond.send_response(Response::new(()), false).unwrap();
            tokio::spawn(carry(request.into_body(), to, near));
            tokio::spawn(echo(far, messages, then));
        }
    })
    .await
}

/// Carries bytes between a stream and a pipe.
async fn carry(mut from: h2::RecvStream, mut to: h2::SendStream<Bytes>, io: DuplexStream) {
    let (mut read, mut write) = tokio::io::split(io);
    let up = async {
        while let Some(Ok(data)) = from.data().await {
            from.flow_control().release_capacity(data.len()).unwrap();
            if write.write_all(&data).await.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await
    };
    let down = async {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(n @ 1..) = read.read(&mut buffer).await {
            if to.send_data(Bytes::copy_from_slice(&buffer[..n]), false).is_err() {
                return;
            }
        }
        let _ = to.send_data(Bytes::new(), true);
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}

fn websockets(protocol: Protocol) -> Stream {
    Stream::websockets(protocol, "/ws", Messages::default().each(12))
}

async fn run(target: Target, stream: Stream) -> Report {
    Load::new(target).stream(stream.deadline(LONG)).start().unwrap().finished().await
}

const KEPT: Protocol = Protocol::Http1KeepAlive;
const HTTP2: Protocol = Protocol::Http2 { streams: 3 };

/// The only failure of one WebSocket, over either version.
async fn failure(messages: u64, then: Then) -> [(Class, String); 2] {
    let mut failures = Vec::new();
    for (target, protocol) in [
        (answering(SWITCHED, messages, then).await, KEPT),
        (over_http2(messages, then).await, Protocol::Http2 { streams: 1 }),
    ] {
        let report = run(target, websockets(protocol).requests(1)).await;
        assert_eq!((report.counts.failed(), report.counts.begun), (1, 1), "{then:?}: {report}");
        assert_eq!((report.counts.messages, report.counts.drained), (messages, 0), "{then:?}: {report}");
        failures.push((report.failures[0].class, report.failures[0].detail.clone()));
    }
    failures.try_into().unwrap()
}

#[tokio::test]
async fn messages_of_every_form_come_back() {
    for (target, protocol) in [
        (answering(SWITCHED, u64::MAX, Then::Hang).await, KEPT),
        (over_http2(u64::MAX, Then::Hang).await, HTTP2),
    ] {
        let report = run(target, websockets(protocol).concurrency(3).requests(20)).await;
        let counts = report.counts;
        assert!(report.is_clean(), "{report}");
        assert_eq!((counts.begun, counts.answered, counts.opened), (20, 20, 20));
        assert_eq!((counts.messages, counts.drained, counts.unreturned), (240, 0, 0));
        assert_eq!(
            (report.latency.count(), counts.connections),
            (240, if protocol == KEPT { 20 } else { 3 })
        );
    }
}

#[tokio::test]
async fn a_drain_is_an_end_in_order_and_the_next_is_opened() {
    for then in [Then::Drain, Then::DrainWithinMessage] {
        for (target, protocol) in
            [(answering(SWITCHED, 5, then).await, KEPT), (over_http2(5, then).await, HTTP2)]
        {
            let report = run(target, websockets(protocol).concurrency(2).requests(10)).await;
            let counts = report.counts;
            assert!(report.is_clean(), "{then:?}: {report}");
            assert_eq!((counts.answered, counts.drained, counts.messages), (10, 10, 50), "{report}");
            // At least the one that was read, at most those that may be on their way.
            assert!((10..=40).contains(&counts.unreturned), "{report}");
        }
    }
}

#[tokio::test]
async fn an_end_without_a_close_is_in_flight_and_where_it_cut_is_said() {
    let cases: [(&'static [u8], &str); 4] = [
        (b"", "between two frames"),
        (b"\x82", "within a frame"),
        (b"\x82\x7e\x00", "within a frame"),
        (b"\x88\x02\x03", "within a frame"),
    ];
    for (bytes, place) in cases {
        for (class, detail) in failure(3, Then::SayAndDrop(bytes)).await {
            assert_eq!(class, Class::InFlight, "{detail}");
            assert!(detail.contains(place) && detail.starts_with("after 3 messages"), "{bytes:?}: {detail}");
        }
    }
}

#[tokio::test]
async fn what_is_not_the_message_that_was_sent_is_wrong() {
    for then in [
        // Other bytes, another message, one too many, a mask, a server that fails, a Close without a code.
        Then::Say(b"\x82\x7e\x04\x00\0\0\0\0\0\0\0\0"),
        Then::Swallow,
        Then::Say(b"\x82\x81abcde"),
        Then::Say(b"\x88\x02\x03\xf3"),
        Then::Say(b"\x88\x00"),
        Then::DrainAndSay(b"\x82\x00"),
    ] {
        for (target, protocol) in
            [(answering(SWITCHED, 4, then).await, KEPT), (over_http2(4, then).await, HTTP2)]
        {
            let report = run(target, websockets(protocol).requests(1)).await;
            assert_eq!(report.failures[0].class, Class::Wrong, "{then:?}: {report}");
        }
    }
}

#[tokio::test]
async fn a_drain_that_does_not_wait_for_the_answer_is_in_flight() {
    // A client that has answered by then has lost nothing; one in the middle of a message has.
    let slow = Messages { sizes: vec![100], ..Messages::default() };
    let target = answering(SWITCHED, 3, Then::DrainAndDrop).await;
    let report = run(target, Stream::websockets(KEPT, "/ws", slow).requests(30)).await;
    assert!(report.counts.in_flight > 0 && report.counts.in_flight + report.counts.drained == 30, "{report}");
}

#[tokio::test]
async fn a_message_that_does_not_come_back_and_an_end_that_does_not_come_are_lost() {
    for (then, what) in [(Then::Hang, "a message"), (Then::DrainAndStay, "no end after the Close")] {
        let target = answering(SWITCHED, 3, then).await;
        let stream = websockets(KEPT).requests(1).deadline(Duration::from_secs(2));
        let report = Load::new(target).stream(stream).start().unwrap().finished().await;
        assert_eq!(report.failures[0].class, Class::Lost, "{report}");
        assert!(report.failures[0].detail.contains(what), "{report}");
    }
}

#[tokio::test]
async fn an_answer_that_does_not_switch_is_counted_as_any_answer() {
    let cases = [
        ("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n", Class::Status(502)),
        ("HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n", Class::Wrong),
        ("HTTP/1.1 101 Switching Protocols\r\nupgrade: other\r\n\r\n", Class::Wrong),
    ];
    for (answer, class) in cases {
        let report = run(answering(answer, 0, Then::Hang).await, websockets(KEPT).requests(1)).await;
        assert_eq!((report.failures[0].class, report.counts.opened), (class, 0), "{report}");
    }
}

#[tokio::test]
async fn a_pause_and_a_stop_close_in_order() {
    let target = answering(SWITCHED, u64::MAX, Then::Hang).await;
    let stream = Stream::websockets(KEPT, "/ws", Messages::default()).concurrency(4).deadline(LONG);
    let running = Load::new(target).stream(stream).start().unwrap();
    running.messages(100, LONG).await.unwrap();
    running.pause().await;
    let counts = running.counts();
    assert_eq!((counts.begun, counts.answered, counts.pending()), (4, 4, 0));
    running.resume();
    running.messages(100, LONG).await.unwrap();
    let report = running.stop().await;
    assert!(report.is_clean() && report.counts.opened == 8 && report.counts.drained == 0, "{report}");
    assert_eq!(report.counts.unreturned, 0);
}
