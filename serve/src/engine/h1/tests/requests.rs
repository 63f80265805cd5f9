//! Requests in order, malformed, pipelined, and in pieces.

use proptest::prelude::*;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::*;

#[tokio::test(start_paused = true)]
async fn requests_on_a_kept_connection_are_answered_one_after_the_other() {
    let mut client = Client::new();
    for _ in 0..3 {
        client.send(get("/hello")).await;
        assert_eq!(client.answer().await, (200, "hello".into()));
    }
    let app = client.app.clone();
    assert_eq!(client.ledger().await, (Ending::Done, vec![(Outcome::Answered, 3)]));
    let ends = app.ends.lock();
    assert!(ends.iter().all(|end| end.status == Some(StatusCode::OK) && end.bytes_sent == 5));
}

#[tokio::test(start_paused = true)]
async fn what_a_handler_leaves_in_a_request_is_not_in_the_next_one() {
    let mut client = Client::new();
    for _ in 0..4 {
        client.send(get("/marks")).await;
        assert_eq!(client.answer().await, (200, "fresh".into()));
    }
    assert_eq!(client.ledger().await.1, [(Outcome::Shed, 4)]);
}

#[tokio::test(start_paused = true)]
async fn pipelined_requests_are_answered_in_order() {
    let mut client = Client::new();
    client.send([get("/slow"), post("/echo", 2), "ab".into(), get("/204"), get("/chunks")].concat()).await;
    assert_eq!(client.answer().await, (200, "slow".into()));
    assert_eq!(client.answer().await, (200, "ab".into()));
    assert_eq!(client.answer().await, (204, "".into()));
    assert_eq!(client.answer().await, (200, "abcde".into()));
    assert_eq!(client.ledger().await.1, [(Outcome::Answered, 4)]);
}

#[tokio::test(start_paused = true)]
async fn a_malformed_head_is_answered_with_its_status_and_closes() {
    let long = "x".repeat(1100);
    let many = "A: b\r\n".repeat(11);
    let cases: &[(String, u16)] = &[
        ("GET / HTTP/1.1\nHost: a\n\n".into(), 400),
        ("\x16\x03\x01".into(), 400),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n".into(), 400),
        (format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n"), 414),
        (format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n"), 431),
        (format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n"), 431),
        ("GET / HTTP/3.0\r\n\r\n".into(), 505),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n".into(), 501),
        ("GET / HTTP/1.1\r\nHost: a\r\nExpect: wonders\r\n\r\n".into(), 417),
    ];
    for (input, status) in cases {
        let mut client = Client::new();
        client.send([get("/hello"), input.clone(), get("/hello")].concat()).await;
        assert_eq!(client.answer().await.0, 200);
        let head = client.head().await;
        assert_eq!(head.status.as_u16(), *status, "{input:?}");
        assert_eq!(head.headers["connection"], "close");
        assert!(head.headers.contains_key("date"));
        client.assert_closed().await;
        assert_eq!(*client.app.refusals.lock(), [Some(head.status)]);
        let (ending, outcomes) = client.ledger().await;
        assert_eq!(ending, Ending::Closed);
        assert_eq!(outcomes, [(Outcome::Answered, 1), (Outcome::Rejected, 1)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_client_that_still_sends_can_read_its_answer() {
    let mut client = Client::with(settings(), 256);
    let writer = async |io: &mut DuplexStream| io.write_all(&[b'a'; 100_000]).await;
    client.send("GET / HTTP/9.9\r\n\r\n").await;
    writer(&mut client.io).await.expect("what still comes is read");
    assert_eq!(client.head().await.status, 505);
    client.assert_closed().await;
}

#[tokio::test(start_paused = true)]
async fn a_lingering_connection_ends_at_its_bounds() {
    let mut client = Client::new();
    client.send("GET / HTTP/9.9\r\n\r\n").await;
    assert_eq!(client.head().await.status, 505);
    let start = Instant::now();
    let Client { connection, io, .. } = client;
    assert_eq!(connection.await.expect("no panic"), Ending::Closed);
    assert_eq!(start.elapsed(), super::super::connection::LINGER);
    drop(io);
}

#[tokio::test(start_paused = true)]
async fn empty_lines_between_requests_are_no_requests() {
    let mut client = Client::new();
    client.send(format!("\r\n{}\r\n\r\n{}\r\n", get("/hello"), get("/hello"))).await;
    assert_eq!(client.answer().await.0, 200);
    assert_eq!(client.answer().await.0, 200);
    assert_eq!(client.ledger().await.1, [(Outcome::Answered, 2)]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_in_a_head_has_gone() {
    let mut client = Client::new();
    client.send("GET / HTT").await;
    client.shut_down().await;
    client.assert_closed().await;
    assert_eq!(*client.app.refusals.lock(), [None]);
    assert_eq!(client.ledger().await.1, [(Outcome::ClientGone, 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_request_enters_nothing() {
    let client = Client::new();
    assert_eq!(client.ledger().await, (Ending::Done, vec![]));
}

#[tokio::test(start_paused = true)]
async fn what_was_read_before_is_part_of_the_first_request() {
    let (mut io, server) = tokio::io::duplex(4096);
    let app = TestApplication::new(|exchange: &mut Exchange| Box::pin(handle(exchange)));
    io.write_all(b"llo HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.expect("room");
    let prefix = BytesMut::from("GET /he");
    serve(server, prefix, connection_info(), &settings(), &app, Drain::new(std::future::pending())).await;
    let mut answer = String::new();
    io.read_to_string(&mut answer).await.expect("text");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nhello"), "{answer}");
}

fn undated(answers: &str) -> String {
    answers.lines().filter(|line| !line.starts_with("date: ")).collect::<Vec<_>>().join("\n")
}

#[tokio::test(start_paused = true)]
async fn bytes_one_by_one_have_the_same_answers_as_all_at_once() {
    let chunked = "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n2\r\nde\r\n0\r\nA: b\r\n\r\n";
    let last = "GET /chunks HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let scripts = [
        [get("/hello"), post("/echo", 5), "12345".into(), chunked.into(), get("/trailers"), last.into()]
            .concat(),
        [post("/hello", 5), "12345".into(), post("/stream", 3), "abc".into(), last.into()].concat(),
        [get("/hello"), "GET / HTTP/1.1\nHost: a\r\n\r\n".into()].concat(),
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n".into(),
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n".into(),
    ];
    for script in scripts {
        let mut whole = Client::new();
        whole.send(&script).await;
        let expected = undated(&whole.rest().await);
        assert!(expected.contains("HTTP/1.1"), "{expected}");
        let expected_ledger = whole.ledger().await;

        let mut pieces = Client::new();
        for byte in script.as_bytes() {
            pieces.send([*byte]).await;
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
        }
        // `/stream` has one chunk for each piece that arrives.
        if !script.contains("/stream") {
            assert_eq!(undated(&pieces.rest().await), expected, "{script}");
        }
        assert_eq!(pieces.ledger().await, expected_ledger, "{script}");
    }
}

/// Counts what a kernel would be asked for.
struct Counting {
    io: DuplexStream,
    calls: Arc<parking_lot::Mutex<(usize, usize)>>,
}

impl AsyncRead for Counting {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let poll = Pin::new(&mut self.io).poll_read(cx, buf);
        self.calls.lock().0 += usize::from(poll.is_ready());
        poll
    }
}

impl AsyncWrite for Counting {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.calls.lock().1 += 1;
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[tokio::test(start_paused = true)]
async fn a_small_request_costs_one_read_and_one_write() {
    let (mut client, io) = tokio::io::duplex(4096);
    let app = TestApplication::new(|exchange: &mut Exchange| Box::pin(handle(exchange)));
    let calls = Arc::<parking_lot::Mutex<(usize, usize)>>::default();
    let server = Counting { io, calls: calls.clone() };
    let connection = tokio::spawn(async move {
        let settings = settings();
        serve(server, BytesMut::new(), connection_info(), &settings, &app, Drain::new(std::future::pending()))
            .await
    });
    for request in 1..=5 {
        for content in [get("/hello"), [post("/echo", 5), "hello".into()].concat(), get("/trailers")] {
            client.write_all(content.as_bytes()).await.expect("room");
            let mut answer = [0; 4096];
            assert_ne!(client.read(&mut answer).await.expect("an answer"), 0);
        }
        assert_eq!(*calls.lock(), (3 * request, 3 * request));
    }
    drop(client);
    connection.await.expect("no panic");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn whatever_is_sent_every_request_has_one_outcome(
        paths in proptest::collection::vec(prop::sample::select(vec![
            "/hello", "/echo", "/stream", "/chunks", "/trailers", "/large", "/204", "/panic", "/fail-later", "/short",
        ]), 1..4),
        content in proptest::collection::vec(any::<u8>(), 0..50),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut input = Vec::new();
        for (number, path) in paths.iter().enumerate() {
            if number % 2 == 0 {
                input.extend_from_slice(post(path, content.len()).as_bytes());
            } else {
                let head = format!("PUT {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n", content.len());
                input.extend_from_slice(head.as_bytes());
            }
            input.extend_from_slice(&content);
            if number % 2 != 0 {
                input.extend_from_slice(if content.is_empty() { b"\r\n" } else { b"\r\n0\r\n\r\n" });
            }
        }
        for (at, byte) in flips {
            let at = at.index(input.len());
            input[at] = byte;
        }
        let cut = cut.index(input.len());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let mut client = Client::new();
            // The connection may be over before all is sent.
            let _ = client.io.write_all(&input[..cut]).await;
            client.settle().await;
            let _ = client.io.write_all(&input[cut..]).await;
            let _ = client.io.shutdown().await;
            let _ = client.io.read_to_end(&mut Vec::new()).await;
            // Asserts that nothing is in flight.
            client.ledger().await;
        });
    }
}
