//! The content of requests.

use super::*;

fn chunked(path: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
}

fn expecting(path: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
}

#[tokio::test(start_paused = true)]
async fn content_is_read_as_it_arrives() {
    let mut client = Client::new();
    client.send(post("/echo", 5)).await;
    client.send("ab").await;
    client.settle().await;
    client.send("cde").await;
    assert_eq!(client.answer().await, (200, "abcde".into()));
    client.send(chunked("/echo")).await;
    client.send("2\r\nab\r\n1\r\nc\r\n0\r\n\r\n").await;
    assert_eq!(client.answer().await, (200, "abc".into()));
    assert_eq!(client.ledger().await.1, [(Outcome::Answered, 2)]);
}

#[tokio::test(start_paused = true)]
async fn content_larger_than_any_buffer_is_read_under_back_pressure() {
    let mut client = Client::with(settings(), 1024);
    let content = vec![b'x'; 150_000];
    client.send(post("/echo", content.len())).await;
    client.send(&content).await;
    assert_eq!(client.answer().await.1.len(), content.len());
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_sent_while_its_request_still_comes() {
    let mut client = Client::new();
    client.send(chunked("/stream")).await;
    for piece in ["ab", "cd", "ef"] {
        client.send(format!("2\r\n{piece}\r\n")).await;
        if piece == "ab" {
            assert_eq!(client.head().await.status, 200);
        }
        while !client.input.ends_with(format!("{piece}\r\n").as_bytes()) {
            assert_ne!(client.io.read_buf(&mut client.input).await.expect("open"), 0);
        }
    }
    client.send("0\r\n\r\n").await;
    client.send(get("/hello")).await;
    client.settle().await;
    client.shut_down().await;
    let rest = client.rest().await;
    assert!(rest.starts_with("2\r\nab\r\n2\r\ncd\r\n2\r\nef\r\n0\r\n\r\nHTTP/1.1 200 OK"), "{rest}");
    assert_eq!(client.ledger().await.1, [(Outcome::Answered, 2)]);
}

#[tokio::test(start_paused = true)]
async fn content_may_be_read_by_another_task() {
    let mut client = Client::new();
    client.send(post("/elsewhere", 5)).await;
    client.settle().await;
    client.send("abcde").await;
    assert_eq!(client.answer().await, (200, "abcde".into()));
}

#[tokio::test(start_paused = true)]
async fn content_is_not_read_before_the_handler_asks() {
    let mut client = Client::with(settings(), 1024);
    client.send(post("/slow", 100_000)).await;
    let sent = timeout(Duration::from_secs(5), client.io.write_all(&vec![b'x'; 100_000])).await;
    assert!(sent.is_err(), "the stream is full, and nobody reads");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_for_100_gets_it_when_the_body_is_asked_for() {
    let mut client = Client::new();
    client.send(expecting("/echo")).await;
    assert_eq!(client.head().await.status, 100);
    client.send("abcde").await;
    assert_eq!(client.answer().await, (200, "abcde".into()));
    client.send(expecting("/stream")).await;
    assert_eq!(client.head().await.status, 100);
    client.send("abcde").await;
    assert_eq!(client.answer().await, (200, "abcde".into()));
    assert_eq!(client.ledger().await.1, [(Outcome::Answered, 2)]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_for_100_gets_none_when_nobody_asks_for_the_body() {
    let mut client = Client::new();
    client.send(expecting("/hello")).await;
    let head = client.head().await;
    assert_eq!((head.status.as_u16(), head.keep_alive), (200, false));
    assert_eq!(client.rest().await, "hello");
    assert_eq!(client.ledger().await.1, [(Outcome::Answered, 1)]);
}

#[tokio::test(start_paused = true)]
async fn content_that_nobody_reads_is_thrown_away_if_it_is_small() {
    let mut client = Client::new();
    client.send([post("/hello", 50_000), "x".repeat(50_000), get("/hello")].concat()).await;
    assert_eq!(client.answer().await, (200, "hello".into()));
    assert_eq!(client.answer().await, (200, "hello".into()));
    client.send([post("/hello", 150_000), "x".repeat(150_000), get("/hello")].concat()).await;
    let head = client.head().await;
    assert_eq!((head.status.as_u16(), head.keep_alive), (200, false));
    assert_eq!(client.rest().await, "hello");
    assert_eq!(client.ledger().await.1, [(Outcome::Answered, 3)]);
}

#[tokio::test(start_paused = true)]
async fn content_that_nobody_reads_and_that_does_not_come_ends_the_connection() {
    let mut client = Client::new();
    client.send(post("/hello", 50_000)).await;
    assert_eq!(client.answer().await, (200, "hello".into()));
    let start = Instant::now();
    client.assert_closed().await;
    assert_eq!(start.elapsed(), super::super::connection::LINGER);
    assert_eq!(client.ledger().await.1, [(Outcome::Answered, 1)]);
}

#[tokio::test(start_paused = true)]
async fn broken_chunks_are_answered_with_400_and_close() {
    for broken in ["x\r\n", "3\r\nabcd\r\n", "3\nabc\r\n", "+3\r\nabc\r\n", "3\r\nabc\n0\r\n\r\n"] {
        let mut client = Client::new();
        client.send(chunked("/echo")).await;
        client.send([broken, &get("/hello")].concat()).await;
        let head = client.head().await;
        assert_eq!((head.status.as_u16(), head.keep_alive), (400, false), "{broken:?}");
        assert_eq!(client.rest().await, "malformed");
        assert_eq!(client.ledger().await.1, [(Outcome::Rejected, 1)], "{broken:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn broken_chunks_behind_the_head_of_the_answer_cut_it() {
    let mut client = Client::new();
    client.send(chunked("/stream")).await;
    client.send("2\r\nab\r\n").await;
    let head = client.head().await;
    client.send("nonsense\r\n").await;
    client.content(&head).await.expect_err("incomplete");
    assert_eq!(client.ledger().await, (Ending::Aborted, vec![(Outcome::Rejected, 1)]));
}

#[tokio::test(start_paused = true)]
async fn content_over_the_limit_is_refused_at_once_or_at_the_first_byte_over() {
    let mut client = Client::new();
    client.send(post("/echo", 200_001)).await;
    let head = client.head().await;
    assert_eq!((head.status.as_u16(), head.keep_alive), (413, false));
    assert_eq!(client.ledger().await.1, [(Outcome::Rejected, 1)]);

    let mut client = Client::new();
    client.send(chunked("/echo")).await;
    client.send(format!("{:x}\r\n{}", 250_000, "x".repeat(200_001))).await;
    assert_eq!(client.head().await.status, 413);
    assert_eq!(client.ledger().await.1, [(Outcome::Rejected, 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_route_may_have_a_limit_of_its_own() {
    let mut client = Client::new();
    client.send([post("/limited", 3), "abc".into()].concat()).await;
    assert_eq!(client.answer().await, (200, "ok".into()));
    client.send([post("/limited", 4), "abcd".into()].concat()).await;
    assert_eq!(client.answer().await.0, 413);
    client.send(post("/limited", 4)).await;
    assert_eq!(client.answer().await.0, 413);
}
