//! Deadlines: idle, head, body, write.

use super::*;

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_silently() {
    let mut client = Client::new();
    client.send(get("/hello")).await;
    client.answer().await;
    let start = Instant::now();
    client.assert_closed().await;
    assert_eq!(start.elapsed(), Duration::from_secs(75));
    assert_eq!(client.ledger().await.1, [(Outcome::Answered, 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_was_idle_for_long_is_served_again() {
    let mut client = Client::new();
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(70)).await;
        client.send(get("/hello")).await;
        assert_eq!(client.answer().await, (200, "hello".into()));
    }
}

#[tokio::test(start_paused = true)]
async fn empty_lines_do_not_keep_an_idle_connection() {
    let mut client = Client::new();
    let start = Instant::now();
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        client.send("\r\n").await;
    }
    client.assert_closed().await;
    assert_eq!(start.elapsed(), Duration::from_secs(75));
    assert_eq!(client.ledger().await.1, []);
}

#[tokio::test(start_paused = true)]
async fn a_slow_head_is_answered_with_408_from_its_first_byte_on() {
    let mut client = Client::new();
    tokio::time::sleep(Duration::from_secs(30)).await;
    let start = Instant::now();
    for byte in b"GET /hell" {
        client.send([*byte]).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let head = client.head().await;
    assert_eq!((head.status.as_u16(), head.keep_alive), (408, false));
    assert_eq!(start.elapsed(), Duration::from_secs(10));
    client.assert_closed().await;
    assert_eq!(*client.app.refusals.lock(), [Some(StatusCode::REQUEST_TIMEOUT)]);
    assert_eq!(client.ledger().await.1, [(Outcome::Rejected, 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_makes_no_progress_is_answered_with_408() {
    let mut client = Client::new();
    client.send(post("/echo", 100)).await;
    for _ in 0..3 {
        client.send("x").await;
        tokio::time::sleep(Duration::from_secs(29)).await;
    }
    let start = Instant::now();
    let head = client.head().await;
    assert_eq!((head.status.as_u16(), head.keep_alive), (408, false));
    assert_eq!(start.elapsed(), Duration::from_secs(1));
    assert_eq!(client.rest().await, "too slow");
    assert_eq!(client.ledger().await.1, [(Outcome::Rejected, 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_nobody_waits_for_has_no_deadline() {
    let mut client = Client::with(
        Settings {
            timeouts: ClientTimeouts { body: Duration::from_secs(3), ..ClientTimeouts::default() },
            ..settings()
        },
        1 << 20,
    );
    client.send(post("/slow", 5)).await;
    tokio::time::sleep(Duration::from_secs(19)).await;
    client.send("abcde").await;
    assert_eq!(client.answer().await, (200, "slow".into()));
    client.send(get("/hello")).await;
    assert_eq!(client.answer().await, (200, "hello".into()));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_is_cut() {
    for path in ["/endless", "/large"] {
        let mut client = Client::with(settings(), 1024);
        let start = Instant::now();
        client.send(get(path)).await;
        let Client { connection, app, io: _io, .. } = client;
        assert_eq!(connection.await.expect("no panic"), Ending::Aborted);
        assert_eq!(start.elapsed(), Duration::from_secs(30));
        assert_eq!(outcomes(&app), [(Outcome::ClientGone, 1)]);
        assert!(app.ends.lock()[0].bytes_sent <= 1024);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_slowly_is_not_cut() {
    let mut client = Client::with(settings(), 1024);
    client.send(get("/large")).await;
    let head = client.head().await;
    let mut content = client.input.len();
    while content < 100_000 {
        tokio::time::sleep(Duration::from_secs(20)).await;
        client.input.clear();
        content += client.io.read_buf(&mut client.input).await.expect("open");
    }
    assert_eq!((head.status.as_u16(), content), (200, 100_000));
}
