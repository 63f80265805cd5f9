//! How connections end: half-closed, gone, panicked, drained, killed.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_client_that_has_shut_down_its_side_still_gets_its_answer() {
    for request in [get("/soon"), get("/chunks"), [post("/echo", 2), "ab".into()].concat()] {
        let mut client = Client::new();
        client.send(&request).await;
        client.shut_down().await;
        assert_eq!(client.answer().await.0, 200, "{request}");
        client.assert_closed().await;
        assert_eq!(client.ledger().await, (Ending::Done, vec![(Outcome::Answered, 1)]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_has_shut_down_its_side_and_cannot_be_written_to_is_gone_after_a_while() {
    let mut client = Client::new();
    client.send(get("/never")).await;
    client.shut_down().await;
    let start = Instant::now();
    assert_eq!(client.ledger().await, (Ending::Aborted, vec![(Outcome::ClientGone, 1)]));
    assert_eq!(start.elapsed(), super::super::input::HALF_CLOSED);
}

#[tokio::test(start_paused = true)]
async fn chunks_that_were_all_sent_before_the_shutdown_are_all_read() {
    let mut client = Client::new();
    client
        .send("POST /soon HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n")
        .await;
    client.shut_down().await;
    assert_eq!(client.answer().await, (200, "soon".into()));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_in_its_body_has_gone() {
    for path in ["/echo", "/slow", "/elsewhere"] {
        let mut client = Client::new();
        client.send(post(path, 5)).await;
        client.send("abc").await;
        client.settle().await;
        client.shut_down().await;
        let start = Instant::now();
        let app = client.app.clone();
        let (ending, outcomes) = client.ledger().await;
        assert_eq!((ending, outcomes), (Ending::Aborted, vec![(Outcome::ClientGone, 1)]), "{path}");
        assert_eq!(start.elapsed(), Duration::ZERO, "the handler is dropped at once");
        assert_eq!(app.ends.lock()[0].status, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_in_its_answer_has_gone() {
    let mut client = Client::with(settings(), 1024);
    client.send(get("/endless")).await;
    client.head().await;
    assert_eq!(client.ledger().await, (Ending::Aborted, vec![(Outcome::ClientGone, 1)]));
}

#[tokio::test(start_paused = true)]
async fn a_panic_before_the_head_is_answered_with_500_and_closes() {
    for path in ["/panic", "/panic-first", "/panic-unsent"] {
        let mut client = Client::new();
        client.send([get("/hello"), get(path), get("/hello")].concat()).await;
        assert_eq!(client.answer().await.0, 200);
        let head = client.head().await;
        assert_eq!((head.status.as_u16(), head.keep_alive), (500, false), "{path}");
        client.assert_closed().await;
        assert_eq!(*client.app.panics.lock(), ["on purpose"]);
        assert_eq!(
            client.ledger().await,
            (Ending::Closed, vec![(Outcome::Answered, 1), (Outcome::Killed, 1)])
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_behind_the_head_cuts_the_answer() {
    let mut client = Client::new();
    client.send(get("/panic-later")).await;
    let head = client.head().await;
    client.content(&head).await.expect_err("incomplete");
    assert_eq!(*client.app.panics.lock(), ["on purpose"]);
    assert_eq!(client.ledger().await, (Ending::Aborted, vec![(Outcome::Killed, 1)]));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_fails_is_502_or_a_cut_answer() {
    let mut client = Client::new();
    client.send(get("/fail-first")).await;
    let head = client.head().await;
    assert_eq!((head.status.as_u16(), head.keep_alive), (502, false));
    assert_eq!(client.ledger().await, (Ending::Closed, vec![(Outcome::UpstreamFailed, 1)]));
    let mut client = Client::new();
    client.send(get("/fail-later")).await;
    let head = client.head().await;
    client.content(&head).await.expect_err("incomplete");
    assert_eq!(client.ledger().await, (Ending::Aborted, vec![(Outcome::UpstreamFailed, 1)]));
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_drained_after_the_grace() {
    for requests in 0..2 {
        let mut client = Client::new();
        for _ in 0..requests {
            client.send(get("/hello")).await;
            client.answer().await;
        }
        tokio::time::sleep(Duration::from_secs(7)).await;
        let start = Instant::now();
        client.drain.take().expect("once").send(()).expect("served");
        client.assert_closed().await;
        assert_eq!(start.elapsed().as_millis(), 750);
        client.ledger().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_ignores_our_end_holds_a_drain_no_longer_than_the_grace() {
    let mut client = Client::new();
    client.send(get("/hello")).await;
    client.answer().await;
    let start = Instant::now();
    client.drain.take().expect("once").send(()).expect("served");
    let Client { io: _ignored, connection, .. } = client;
    assert_eq!(connection.await.expect("no panic"), Ending::Closed);
    assert_eq!(start.elapsed().as_millis(), 1000);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_on_its_way_when_the_drain_began_is_answered() {
    for requests in 0..2 {
        let mut client = Client::new();
        for _ in 0..requests {
            client.send(get("/hello")).await;
            client.answer().await;
        }
        client.drain.take().expect("once").send(()).expect("served");
        tokio::time::sleep(Duration::from_millis(700)).await;
        // Not even a head that takes longer than the grace is cut.
        client.send("GET /hel").await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        client.send("lo HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let head = client.head().await;
        assert_eq!((head.status.as_u16(), head.keep_alive), (200, false));
        assert_eq!(client.rest().await, "hello");
        assert_eq!(client.ledger().await, (Ending::Closed, vec![(Outcome::Answered, requests + 1)]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_comes_after_the_grace_meets_an_end_and_no_reset() {
    let mut client = Client::new();
    client.drain.take().expect("once").send(()).expect("served");
    client.assert_closed().await;
    client.send(get("/hello")).await;
    client.settle().await;
    assert!(!client.connection.is_finished());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(client.ledger().await, (Ending::Closed, vec![]));
}

#[tokio::test(start_paused = true)]
async fn the_grace_of_a_drain_in_the_middle_of_an_answer_begins_with_its_end() {
    let mut client = Client::with(settings(), 1024);
    client.send(get("/large")).await;
    let head = client.head().await;
    assert!(head.keep_alive);
    client.drain.take().expect("once").send(()).expect("served");
    tokio::time::sleep(Duration::from_secs(5)).await;
    client.content(&head).await.expect("complete");
    tokio::time::sleep(Duration::from_millis(700)).await;
    client.send(get("/hello")).await;
    assert!(!client.head().await.keep_alive);
    assert_eq!(client.rest().await, "hello");
}

#[tokio::test(start_paused = true)]
async fn the_request_in_flight_is_answered_when_its_connection_is_drained() {
    let mut client = Client::new();
    client.send("GET /slo").await;
    client.settle().await;
    client.drain.take().expect("once").send(()).expect("served");
    client.settle().await;
    client.send("w HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let head = client.head().await;
    assert_eq!((head.status.as_u16(), head.keep_alive), (200, false));
    assert_eq!(client.rest().await, "slow");
    assert_eq!(client.ledger().await, (Ending::Closed, vec![(Outcome::Answered, 1)]));
}

#[tokio::test(start_paused = true)]
async fn a_killed_connection_leaves_the_ledger_balanced() {
    let starts =
        ["GET / HT", "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n", &post("/elsewhere", 5), &get("/endless")];
    for (number, start) in starts.into_iter().enumerate() {
        let mut client = Client::with(settings(), 1024);
        client.send(start).await;
        client.settle().await;
        assert_eq!(client.app.totals().in_flight, 1);
        client.connection.abort();
        assert!((&mut client.connection).await.expect_err("aborted").is_cancelled());
        assert_eq!(outcomes(&client.app), [(Outcome::Killed, 1)]);
        let ended: Vec<Outcome> = client.app.ends.lock().iter().map(|end| end.outcome).collect();
        assert_eq!(ended, if number == 0 { vec![] } else { vec![Outcome::Killed] });
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_small() {
    let settings = settings();
    let app = TestApplication::new(|exchange: &mut Exchange| Box::pin(handle(exchange)));
    let (_, server) = tokio::io::duplex(16);
    let future = serve(
        server,
        BytesMut::new(),
        connection_info(),
        &settings,
        &app,
        Drain::new(std::future::pending()),
    );
    let size = std::mem::size_of_val(&future);
    assert!(size <= 2560, "{size}");
}

#[tokio::test]
async fn a_client_that_resets_is_seen_while_the_handler_waits() {
    let (mut client, server) = tokio::net::UnixStream::pair().expect("a pair of sockets");
    let app = TestApplication::new(|exchange: &mut Exchange| Box::pin(handle(exchange)));
    let connection = tokio::spawn({
        let app = app.clone();
        async move {
            let settings = settings();
            serve(
                server,
                BytesMut::new(),
                connection_info(),
                &settings,
                &app,
                Drain::new(std::future::pending()),
            )
            .await
        }
    });
    client.write_all([get("/hello"), get("/slow")].concat().as_bytes()).await.expect("room");
    client.readable().await.expect("the first answer");
    // Closed with something unread, a socket is reset.
    drop(client);
    assert_eq!(connection.await.expect("no panic"), Ending::Aborted);
    assert_eq!(outcomes(&app), [(Outcome::Answered, 1), (Outcome::ClientGone, 1)]);
}
