//! How a connection is drained: two GOAWAYs with a round trip between them (RFC 9113 §6.8).

use super::hostile::head;
use super::*;

const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const ACK: u8 = 1;
const END_STREAM: u8 = 1;

/// A frame of the server's.
#[derive(Debug, PartialEq)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Frame {
    /// The last stream of a GOAWAY.
    fn last_stream(&self) -> u32 {
        assert_eq!((self.kind, &self.payload[4..8]), (7, &[0; 4][..]), "GOAWAY with NO_ERROR: {self:?}");
        u32::from_be_bytes(self.payload[..4].try_into().unwrap())
    }
}

/// The next frame that is none of SETTINGS and WINDOW_UPDATE; `None` at the end.
async fn frame(served: &mut Served) -> Option<Frame> {
    loop {
        let mut header = [0; 9];
        served.client.read_exact(&mut header).await.ok()?;
        let [a, b, c, kind, flags, stream @ ..] = header;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        served.client.read_exact(&mut payload).await.unwrap();
        if !matches!(kind, 4 | 8) {
            return Some(Frame { kind, flags, stream: u32::from_be_bytes(stream), payload });
        }
    }
}

/// Begins a drain, and gives the payload of the PING behind the first GOAWAY.
async fn drain(served: &mut Served) -> Vec<u8> {
    std::mem::replace(&mut served.drain, oneshot::channel().0).send(()).unwrap();
    assert_eq!(frame(served).await.unwrap().last_stream(), (1 << 31) - 1);
    let ping = frame(served).await.unwrap();
    assert_eq!((ping.kind, ping.flags & ACK), (6, 0));
    ping.payload
}

async fn pong(served: &mut Served, payload: &[u8]) {
    served.client.write_all(&[b"\0\0\x08\x06\x01\0\0\0\0", payload].concat()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_on_its_way_when_the_drain_began_is_answered() {
    let mut served = served(text("racing"), settings());
    served.client.write_all(GREETING).await.unwrap();
    let ping = drain(&mut served).await;
    served.client.write_all(&head(1, true, &[])).await.unwrap();
    pong(&mut served, &ping).await;
    let (mut content, mut last_stream) = (Vec::new(), None);
    while let Some(frame) = frame(&mut served).await {
        match frame.kind {
            0 => content.extend(frame.payload),
            1 => assert_eq!((frame.stream, frame.flags & END_STREAM), (1, 0)),
            _ => last_stream = Some(frame.last_stream()),
        }
    }
    assert_eq!(last_stream, Some(1));
    assert_eq!(content, b"racing");
    drop(served.client);
    served.connection.await.unwrap();
    assert_eq!(served.application.totals().answered, 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_queued_behind_the_answer_to_the_ping_is_answered() {
    // In one write, and in several with the frame in pieces.
    for pieces in [vec![0], vec![17, 0], vec![17, 22, 0], vec![17, 30, 0], vec![20, 0]] {
        let mut served = served(text("queued"), settings());
        served.client.write_all(GREETING).await.unwrap();
        let ping = drain(&mut served).await;
        let mut sent = [b"\0\0\x08\x06\x01\0\0\0\0", &*ping].concat();
        sent.extend(head(1, true, &[]));
        let mut from = 0;
        for to in pieces.iter().map(|to| if *to == 0 { sent.len() } else { *to }) {
            served.client.write_all(&sent[from..to]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
            from = to;
        }
        let (mut answered, mut last_stream) = (Vec::new(), None);
        while let Some(frame) = frame(&mut served).await {
            match frame.kind {
                0 => assert_eq!(frame.payload, b"queued"),
                1 => answered.push(frame.stream),
                _ => last_stream = Some(frame.last_stream()),
            }
        }
        assert_eq!((&*answered, last_stream), (&[1][..], Some(1)), "{pieces:?}");
        drop(served.client);
        served.connection.await.unwrap();
        assert_eq!(served.application.totals().answered, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_a_ping_that_nobody_sent_changes_nothing() {
    let mut served = served(text("well"), settings());
    served.client.write_all(GREETING).await.unwrap();
    pong(&mut served, b"whatever").await;
    let ping = drain(&mut served).await;
    pong(&mut served, b"whatever").await;
    pong(&mut served, &ping).await;
    served.client.write_all(&head(1, true, &[])).await.unwrap();
    let mut last_stream = None;
    while let Some(frame) = frame(&mut served).await {
        if frame.kind == 7 {
            last_stream = Some(frame.last_stream());
        }
    }
    assert!(last_stream.is_some());
    drop(served.client);
    served.connection.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_closes_with_the_round_trip_or_without_it_after_a_second() {
    for answers in [true, false] {
        let mut served = served(text("never"), settings());
        served.client.write_all(GREETING).await.unwrap();
        let started = tokio::time::Instant::now();
        let ping = drain(&mut served).await;
        if answers {
            pong(&mut served, &ping).await;
        }
        assert_eq!(frame(&mut served).await.unwrap().last_stream(), 0);
        assert_eq!(frame(&mut served).await, None);
        assert_eq!(started.elapsed().as_secs(), if answers { 0 } else { 1 });
        drop(served.client);
        served.connection.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_preface_that_was_on_its_way_is_answered() {
    let mut served = served(text("late"), settings());
    served.client.write_all(&GREETING[..10]).await.unwrap();
    std::mem::replace(&mut served.drain, oneshot::channel().0).send(()).unwrap();
    tokio::time::sleep(Duration::from_millis(900)).await;
    served.client.write_all(&GREETING[10..]).await.unwrap();
    assert_eq!(frame(&mut served).await.unwrap().last_stream(), (1 << 31) - 1);
}
