//! Tunnels between two ends in memory, on paused time.

use std::sync::Arc;

use playhouse_config::model;
use playhouse_protocol::websocket::{Header, Opcode, control};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::JoinHandle;

use super::*;
use crate::random::Random;
use crate::tunnel::Signal;

struct Stage {
    client: DuplexStream,
    server: DuplexStream,
    drain: Arc<Signal>,
    terms: Arc<Terms>,
    end: JoinHandle<(End, Summary)>,
}

/// What is set and differs from the usual.
#[derive(Default)]
struct With {
    settings: model::Tunnel,
    opaque: bool,
    extensions: bool,
    room: usize,
    early: (&'static [u8], &'static [u8]),
}

fn start(with: With) -> Stage {
    let room = if with.room == 0 { 1 << 16 } else { with.room };
    let (client, mut near) = tokio::io::duplex(room);
    let (server, far) = tokio::io::duplex(room);
    let drain = Arc::<Signal>::default();
    let timeout = Arc::<crate::tunnel::plan::DrainTimeout>::default();
    timeout.set(DRAIN);
    let terms = Arc::new(Terms::new(with.settings, Arc::new(Random::seeded(1)), timeout));
    let (watched, terms_too) = (drain.clone(), terms.clone());
    let end = tokio::spawn(async move {
        let mut summary = Summary::new("websocket".into());
        let mut watch = Watch::new(watched);
        let mut near = &mut near;
        let begun = Begun { prefix: with.early.0.into(), eof: false };
        let far = Far { io: far, prefix: with.early.1.into(), write: Duration::from_secs(60) };
        let timeouts = ClientTimeouts::default();
        let websocket = (!with.opaque).then_some(with.extensions);
        let relay = Relay::new(&mut near, begun, far, websocket, terms_too, &timeouts, None, &mut summary);
        let end = relay.run(|cx| watch.poll(cx)).await;
        (end, summary)
    });
    Stage { client, server, drain, terms, end }
}

const DRAIN: Duration = Duration::from_secs(20);
const KEY: [u8; 4] = [1, 2, 3, 4];

/// A frame of the client, masked.
fn masked(fin: bool, opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    frame(fin, opcode, payload, Some(KEY))
}

/// A frame of the server.
fn plain(fin: bool, opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    frame(fin, opcode, payload, None)
}

fn frame(fin: bool, opcode: Opcode, payload: &[u8], mask: Option<[u8; 4]>) -> Vec<u8> {
    let mut out = BytesMut::new();
    Header { fin, reserved: 0, opcode, mask, length: payload.len() as u64 }.write(&mut out);
    let mut payload = payload.to_vec();
    if let Some(key) = mask {
        playhouse_protocol::websocket::mask::apply(&mut payload, key, 0);
    }
    out.extend_from_slice(&payload);
    out.to_vec()
}

/// The next frame: its opcode, and its payload without a mask.
async fn read(from: &mut DuplexStream) -> (Opcode, Vec<u8>) {
    let mut head = [0; 2];
    from.read_exact(&mut head).await.unwrap();
    let length = match head[1] & 0x7f {
        126 => usize::from(from.read_u16().await.unwrap()),
        127 => from.read_u64().await.unwrap() as usize,
        length => usize::from(length),
    };
    let mut key = [0; 4];
    if head[1] & 0x80 != 0 {
        from.read_exact(&mut key).await.unwrap();
    }
    let mut payload = vec![0; length];
    from.read_exact(&mut payload).await.unwrap();
    playhouse_protocol::websocket::mask::apply(&mut payload, key, 0);
    (Opcode::from_bits(head[0]), payload)
}

async fn read_close(from: &mut DuplexStream) -> Option<u16> {
    let (opcode, payload) = read(from).await;
    assert_eq!(opcode, Opcode::Close);
    control::read_close(&payload).unwrap().map(|(code, _)| code)
}

fn close(code: u16, mask: Option<[u8; 4]>) -> BytesMut {
    let mut out = BytesMut::new();
    control::write_close(&mut out, code, "", mask);
    out
}

async fn ends(stage: Stage) -> (Reason, Outcome, Summary) {
    let (end, summary) = stage.end.await.unwrap();
    (summary.reason, end.outcome, summary)
}

#[tokio::test(start_paused = true)]
async fn messages_go_both_ways_and_what_came_early_is_first() {
    let early = (&b"\x81\x81\x00\x00\x00\x00a"[..], &b"\x81\x01b"[..]);
    let mut stage = start(With { early, ..With::default() });
    assert_eq!(read(&mut stage.server).await, (Opcode::Text, b"a".to_vec()));
    assert_eq!(read(&mut stage.client).await, (Opcode::Text, b"b".to_vec()));
    let large = vec![7; 200_000];
    let sent = masked(true, Opcode::Binary, &large);
    let (client, server) = (&mut stage.client, &mut stage.server);
    let (_, got) = tokio::join!(client.write_all(&sent), read(server));
    assert_eq!(got, (Opcode::Binary, large));
    stage.client.write_all(&close(1000, Some(KEY))).await.unwrap();
    assert_eq!(read_close(&mut stage.server).await, Some(1000));
    stage.server.write_all(&close(1000, None)).await.unwrap();
    assert_eq!(read_close(&mut stage.client).await, Some(1000));
    stage.server.shutdown().await.unwrap();
    assert_eq!(stage.client.read(&mut [0]).await.unwrap(), 0);
    stage.client.shutdown().await.unwrap();
    let (reason, outcome, summary) = ends(stage).await;
    assert_eq!((reason, outcome), (Reason::Client, Outcome::Answered));
    assert_eq!((summary.frames_from_client, summary.frames_to_client), (3, 2));
    assert_eq!(summary.bytes_from_client, 7 + sent.len() as u64 + 8);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_is_slow_slows_the_writer_and_nobody_else() {
    let mut stage = start(With { opaque: true, room: 1000, ..With::default() });
    let wrote = tokio::time::timeout(Duration::from_secs(5), stage.client.write_all(&[1; 1 << 20])).await;
    assert!(wrote.is_err(), "somebody has room for all of it");
    stage.server.write_all(b"other way").await.unwrap();
    let mut other = [0; 9];
    stage.client.read_exact(&mut other).await.unwrap();
    assert_eq!(&other, b"other way");
}

#[tokio::test(start_paused = true)]
async fn half_a_tunnel_stays_open() {
    let mut stage = start(With { opaque: true, ..With::default() });
    stage.client.write_all(b"request").await.unwrap();
    stage.client.shutdown().await.unwrap();
    let mut all = Vec::new();
    stage.server.read_to_end(&mut all).await.unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    stage.server.write_all(b"answer").await.unwrap();
    stage.server.shutdown().await.unwrap();
    stage.client.read_to_end(&mut all).await.unwrap();
    assert_eq!(all, b"requestanswer");
    let (reason, outcome, _) = ends(stage).await;
    assert_eq!((reason, outcome), (Reason::Client, Outcome::Answered));
}

#[tokio::test(start_paused = true)]
async fn a_drained_client_is_told_between_two_frames_and_what_it_sends_until_then_arrives() {
    let mut stage = start(With::default());
    let message = plain(true, Opcode::Text, &[b'x'; 300]);
    stage.server.write_all(&message[..100]).await.unwrap();
    let mut part = vec![0; 100];
    stage.client.read_exact(&mut part).await.unwrap();
    stage.drain.raise();
    tokio::time::sleep(Duration::from_secs(1)).await;
    stage.client.write_all(&masked(true, Opcode::Text, b"late")).await.unwrap();
    assert_eq!(read(&mut stage.server).await, (Opcode::Text, b"late".to_vec()));
    let rest = [&message[100..], &plain(true, Opcode::Text, b"after")].concat();
    stage.server.write_all(&rest).await.unwrap();
    let mut whole = vec![0; message.len() - 100];
    stage.client.read_exact(&mut whole).await.unwrap();
    assert_eq!([part, whole].concat(), message);
    assert_eq!(read_close(&mut stage.client).await, Some(1001));
    // The client's own code is not passed on: the server is told why.
    stage.client.write_all(&close(1000, Some(KEY))).await.unwrap();
    assert_eq!(read_close(&mut stage.server).await, Some(1001));
    stage.server.write_all(&close(1001, None)).await.unwrap();
    let (reason, outcome, _) = ends(stage).await;
    assert_eq!((reason, outcome), (Reason::Drain, Outcome::Answered));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_answer_has_the_server_told_all_the_same_and_ends_with_the_drain() {
    let mut stage = start(With::default());
    let begun = Instant::now();
    stage.drain.raise();
    assert_eq!(read_close(&mut stage.client).await, Some(1001));
    assert_eq!(read_close(&mut stage.server).await, Some(1001));
    assert_eq!(begun.elapsed(), Duration::from_secs(2));
    stage.server.write_all(&close(1001, None)).await.unwrap();
    let (reason, outcome, _) = ends(stage).await;
    assert_eq!(
        (reason, outcome, begun.elapsed()),
        (Reason::Drain, Outcome::Answered, Duration::from_secs(19))
    );
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_is_not_whole_at_the_end_of_a_drain_is_cut_as_such() {
    let mut stage = start(With::default());
    stage.server.write_all(b"\x81\x05abc").await.unwrap();
    stage.client.read_exact(&mut [0; 5]).await.unwrap();
    stage.drain.raise();
    let Stage { end, client, server, .. } = stage;
    let (end, summary) = end.await.unwrap();
    assert_eq!((summary.reason, end.outcome, end.abort), (Reason::Drain, Outcome::Killed, true));
    drop((client, server));
}

#[tokio::test(start_paused = true)]
async fn another_tunnel_has_until_the_end_of_the_drain() {
    let mut stage = start(With { opaque: true, ..With::default() });
    stage.drain.raise();
    let begun = Instant::now();
    tokio::time::sleep(Duration::from_secs(15)).await;
    stage.client.write_all(b"still").await.unwrap();
    let mut all = Vec::new();
    stage.server.read_to_end(&mut all).await.unwrap();
    assert_eq!((&all[..], begun.elapsed()), (&b"still"[..], Duration::from_secs(19)));
    let (reason, outcome, _) = ends(stage).await;
    assert_eq!((reason, outcome), (Reason::Drain, Outcome::Answered));
}

#[tokio::test(start_paused = true)]
async fn idle_and_old_tunnels_are_closed() {
    let settings = model::Tunnel { idle: Duration::from_secs(60), ..model::Tunnel::default() };
    let old = model::Tunnel { life: Some(Duration::from_secs(100)), ..settings.clone() };
    for (settings, reason, after) in [(settings, Reason::Idle, 110), (old, Reason::Life, 100)] {
        let mut stage = start(With { settings, ..With::default() });
        let begun = Instant::now();
        tokio::time::sleep(Duration::from_secs(50)).await;
        stage.server.write_all(&plain(true, Opcode::Text, b"a")).await.unwrap();
        assert_eq!(read(&mut stage.client).await, (Opcode::Text, b"a".to_vec()));
        assert_eq!(read_close(&mut stage.client).await, Some(1001));
        assert_eq!(begun.elapsed(), Duration::from_secs(after));
        stage.client.write_all(&close(1001, Some(KEY))).await.unwrap();
        assert_eq!(read_close(&mut stage.server).await, Some(1001));
        stage.server.write_all(&close(1001, None)).await.unwrap();
        let (ended, outcome, _) = ends(stage).await;
        assert_eq!((ended, outcome), (reason, Outcome::Answered));
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_is_pinged_and_its_answer_goes_no_further() {
    let settings = model::Tunnel { ping: Some(Duration::from_secs(30)), ..model::Tunnel::default() };
    let mut stage = start(With { settings, ..With::default() });
    for _ in 0..3 {
        let (opcode, payload) = read(&mut stage.client).await;
        assert_eq!(opcode, Opcode::Ping);
        let pong = masked(true, Opcode::Pong, &payload);
        let (first, second) = pong.split_at(3);
        stage.client.write_all(first).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        stage.client.write_all(second).await.unwrap();
        // A Pong that answers somebody else's Ping is not ours to take.
        stage.client.write_all(&masked(true, Opcode::Pong, b"other")).await.unwrap();
        assert_eq!(read(&mut stage.server).await, (Opcode::Pong, b"other".to_vec()));
    }
    assert_eq!(read(&mut stage.client).await.0, Opcode::Ping);
    let pinged = Instant::now();
    let Stage { end, client, server, .. } = stage;
    let (end, summary) = end.await.unwrap();
    assert_eq!((summary.reason, end.outcome), (Reason::Ping, Outcome::ClientGone));
    assert_eq!(pinged.elapsed(), Duration::from_secs(30));
    drop((client, server));
}

#[tokio::test(start_paused = true)]
async fn a_ping_waits_for_the_end_of_a_frame() {
    let settings = model::Tunnel { ping: Some(Duration::from_secs(30)), ..model::Tunnel::default() };
    let mut stage = start(With { settings, ..With::default() });
    stage.server.write_all(b"\x01\x04ab").await.unwrap();
    tokio::time::sleep(Duration::from_secs(45)).await;
    stage.server.write_all(b"cd\x80\x01e").await.unwrap();
    assert_eq!(read(&mut stage.client).await, (Opcode::Text, b"abcd".to_vec()));
    assert_eq!(read(&mut stage.client).await.0, Opcode::Ping);
    assert_eq!(read(&mut stage.client).await, (Opcode::Continuation, b"e".to_vec()));
}

#[tokio::test(start_paused = true)]
async fn what_is_no_frame_ends_the_tunnel_and_reaches_nobody() {
    let mut stage = start(With::default());
    let good = masked(true, Opcode::Text, b"good");
    stage.client.write_all(&[&good[..], b"\x83\x80\0\0\0\0 more"].concat()).await.unwrap();
    assert_eq!(read(&mut stage.server).await, (Opcode::Text, b"good".to_vec()));
    assert_eq!(read_close(&mut stage.server).await, Some(1002));
    assert_eq!(read_close(&mut stage.client).await, Some(1002));
    stage.server.write_all(&close(1002, None)).await.unwrap();
    let (reason, outcome, _) = ends(stage).await;
    assert_eq!((reason, outcome), (Reason::Protocol, Outcome::Rejected));

    let early = (&b""[..], &b"\x81\x81\0\0\0\0a"[..]);
    let mut stage = start(With { early, ..With::default() });
    assert_eq!(read_close(&mut stage.client).await, Some(1002));
    stage.client.write_all(&close(1002, Some(KEY))).await.unwrap();
    let (reason, outcome, _) = ends(stage).await;
    assert_eq!((reason, outcome), (Reason::Protocol, Outcome::UpstreamFailed));
}

#[tokio::test(start_paused = true)]
async fn extensions_may_use_what_is_reserved() {
    let mut stage = start(With { extensions: true, ..With::default() });
    stage.server.write_all(b"\xc1\x01a").await.unwrap();
    assert_eq!(read(&mut stage.client).await, (Opcode::Text, b"a".to_vec()));
}

#[tokio::test(start_paused = true)]
async fn a_side_that_ends_without_a_close_has_failed() {
    let stage = start(With::default());
    drop(stage.client);
    let (end, summary) = stage.end.await.unwrap();
    assert_eq!((summary.reason, end.outcome, end.abort), (Reason::ClientGone, Outcome::ClientGone, true));
    drop(stage.server);

    let stage = start(With::default());
    drop(stage.server);
    let (end, summary) = stage.end.await.unwrap();
    assert_eq!((summary.reason, end.outcome), (Reason::UpstreamFailed, Outcome::UpstreamFailed));
    drop(stage.client);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_is_given_up() {
    let stage = start(With { room: 64, ..With::default() });
    let begun = Instant::now();
    let Stage { client, mut server, end, .. } = stage;
    let writer = tokio::spawn(async move {
        let _ = server.write_all(&plain(true, Opcode::Binary, &[0; 10_000])).await;
        server
    });
    let (end, summary) = end.await.unwrap();
    assert_eq!((summary.reason, end.outcome), (Reason::ClientGone, Outcome::ClientGone));
    assert_eq!(begun.elapsed(), ClientTimeouts::default().write);
    drop((client, writer));
}

#[tokio::test(start_paused = true)]
async fn a_reload_that_changes_the_route_does_as_the_route_says() {
    for (on_reload, opaque, code, after) in [
        (OnReload::Close, false, Some(1001), 5),
        (OnReload::Drain, false, Some(1001), 20),
        (OnReload::Close, true, None, 0),
        (OnReload::Drain, true, None, 20),
    ] {
        let settings = model::Tunnel { on_reload, ..model::Tunnel::default() };
        let mut stage = start(With { settings, opaque, ..With::default() });
        tokio::task::yield_now().await;
        let begun = Instant::now();
        stage.terms.replaced.raise();
        if code.is_some() {
            assert_eq!(read_close(&mut stage.client).await, code);
        }
        let Stage { client, server, end, .. } = stage;
        let (end, summary) = end.await.unwrap();
        assert_eq!((summary.reason, end.outcome), (Reason::Reload, Outcome::Answered));
        assert_eq!(begun.elapsed().as_secs(), after, "{on_reload:?} {opaque}");
        drop((client, server));
    }
    let mut stage = start(With::default());
    stage.terms.replaced.raise();
    tokio::time::sleep(Duration::from_secs(60)).await;
    stage.client.write_all(&masked(true, Opcode::Text, b"on")).await.unwrap();
    assert_eq!(read(&mut stage.server).await, (Opcode::Text, b"on".to_vec()));
}

#[tokio::test(start_paused = true)]
async fn frames_pass_whole_however_they_are_cut() {
    let message = [
        masked(false, Opcode::Text, b"one"),
        masked(true, Opcode::Ping, b""),
        masked(true, Opcode::Continuation, &[b'y'; 200]),
        masked(true, Opcode::Binary, b""),
    ]
    .concat();
    let settings = model::Tunnel { ping: Some(Duration::from_secs(1)), ..model::Tunnel::default() };
    let mut stage = start(With { settings, ..With::default() });
    // With a Pong expected, every path is gone.
    assert_eq!(read(&mut stage.client).await.0, Opcode::Ping);
    for byte in &message {
        stage.client.write_all(std::slice::from_ref(byte)).await.unwrap();
        tokio::task::yield_now().await;
    }
    let mut passed = vec![0; message.len()];
    stage.server.read_exact(&mut passed).await.unwrap();
    assert_eq!(passed, message);
}
