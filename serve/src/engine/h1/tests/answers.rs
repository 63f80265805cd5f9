//! The form of answers.

use playhouse_protocol::http1::BodyLength;

use super::*;

async fn raw(request: &str) -> String {
    let mut client = Client::new();
    client.send(request).await;
    client.shut_down().await;
    let answer = client.rest().await;
    answer.lines().filter(|line| !line.starts_with("date: ")).collect::<Vec<_>>().join("\n")
}

#[tokio::test(start_paused = true)]
async fn a_known_size_is_announced_and_an_unknown_one_is_chunked() {
    let mut client = Client::new();
    client.send(get("/large")).await;
    let head = client.head().await;
    assert_eq!(head.body, BodyLength::Length(100_000));
    assert_eq!(client.content(&head).await.expect("complete").0.len(), 100_000);
    client.send(get("/chunks")).await;
    let head = client.head().await;
    assert_eq!(head.body, BodyLength::Chunked);
    assert_eq!(client.content(&head).await.expect("complete").0, b"abcde");
    client.send(get("/exact")).await;
    assert_eq!(client.answer().await, (200, "abcde".into()));
    client.send(get("/empty")).await;
    assert_eq!(client.head().await.body, BodyLength::Length(0));
}

#[tokio::test(start_paused = true)]
async fn trailers_are_sent_behind_chunks() {
    let mut client = Client::new();
    client.send(get("/trailers")).await;
    let head = client.head().await;
    let (content, trailers) = client.content(&head).await.expect("complete");
    assert_eq!(content, b"ab");
    let trailers = trailers.expect("trailers");
    assert_eq!((trailers.len(), &trailers["x-sum"]), (1, &HeaderValue::from_static("1")));
    client.send(get("/hello")).await;
    assert_eq!(client.answer().await, (200, "hello".into()));
}

#[tokio::test(start_paused = true)]
async fn answers_to_http_1_0_have_no_chunks_and_close_unless_asked_to_stay() {
    assert_eq!(raw("GET /chunks HTTP/1.0\r\n\r\n").await, "HTTP/1.1 200 OK\nconnection: close\n\nabcde");
    assert_eq!(
        raw("GET /chunks HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await,
        "HTTP/1.1 200 OK\nconnection: close\n\nabcde"
    );
    let mut client = Client::new();
    for _ in 0..2 {
        client.send("GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await;
        let head = client.head().await;
        assert_eq!(
            (head.body, &head.headers["connection"]),
            (BodyLength::Length(5), &HeaderValue::from_static("keep-alive"))
        );
        client.content(&head).await.expect("complete");
    }
    client.send("GET /hello HTTP/1.0\r\n\r\n").await;
    assert!(!client.head().await.keep_alive);
    assert_eq!(client.rest().await, "hello");
}

#[tokio::test(start_paused = true)]
async fn head_has_the_length_of_a_get_and_no_content() {
    let mut client = Client::new();
    for (path, length) in
        [("/hello", Some("5")), ("/length-only", Some("55")), ("/empty", None), ("/chunks", None)]
    {
        client.send(format!("HEAD {path} HTTP/1.1\r\nHost: a\r\n\r\n")).await;
        let head = client.head_for(&Method::HEAD).await;
        assert_eq!(
            head.headers.get("content-length").map(|length| length.to_str().expect("text")),
            length,
            "{path}"
        );
        assert!(!head.headers.contains_key("transfer-encoding"), "{path}");
    }
    client.send(get("/hello")).await;
    assert_eq!(client.answer().await, (200, "hello".into()));
}

#[tokio::test(start_paused = true)]
async fn statuses_without_content_have_none() {
    let mut client = Client::new();
    for (status, length) in [(204, None), (304, None), (205, Some("0"))] {
        client.send(get(&format!("/{status}"))).await;
        let head = client.head().await;
        assert_eq!(head.status.as_u16(), status);
        assert_eq!(head.headers.get("content-length").map(|length| length.to_str().expect("text")), length);
    }
    client.send(get("/hello")).await;
    assert_eq!(client.answer().await, (200, "hello".into()));
}

#[tokio::test(start_paused = true)]
async fn fields_of_the_connection_are_the_engines_own() {
    assert_eq!(raw(&get("/fields")).await, "HTTP/1.1 200 OK\nx-y: z\ncontent-length: 2\n\nok");
    let mut client = Client::new();
    client.send(get("/fields")).await;
    assert_eq!(client.head().await.headers["date"], "today");
}

#[tokio::test(start_paused = true)]
async fn a_handler_may_close_the_connection() {
    let mut client = Client::new();
    client.send([get("/close"), get("/hello")].concat()).await;
    let head = client.head().await;
    assert_eq!(head.headers["connection"], "close");
    assert_eq!(client.rest().await, "bye");
    assert_eq!(client.ledger().await, (Ending::Closed, vec![(Outcome::Answered, 1)]));
}

#[tokio::test(start_paused = true)]
async fn interim_answers_come_before_the_final_one_in_order() {
    let mut client = Client::new();
    client.send(get("/hints")).await;
    let hints = client.head().await;
    assert_eq!((hints.status.as_u16(), &hints.headers["link"]), (103, &HeaderValue::from_static("</a>")));
    assert_eq!(client.head().await.status, 102);
    assert_eq!(client.answer().await, (200, "done".into()));
    client.send("GET /hints HTTP/1.0\r\n\r\n").await;
    assert_eq!(client.answer().await, (200, "done".into()));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_final_or_opens_a_tunnel_is_an_error() {
    for request in [get("/101"), get("/103"), "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n".into()] {
        let mut client = Client::new();
        client.send(&request).await;
        let head = client.head().await;
        assert_eq!((head.status.as_u16(), head.keep_alive), (500, false), "{request:?}");
        assert_eq!(client.ledger().await.1, [(Outcome::Killed, 1)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_not_as_long_as_announced_never_looks_whole() {
    for path in ["/short", "/long"] {
        let mut client = Client::new();
        client.send(get(path)).await;
        let head = client.head().await;
        client.content(&head).await.expect_err("incomplete");
        assert_eq!(client.ledger().await, (Ending::Aborted, vec![(Outcome::Killed, 1)]), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_the_handler_sets_is_entered() {
    let mut client = Client::new();
    client.send(get("/shed")).await;
    assert_eq!(client.answer().await.0, 200);
    assert_eq!(client.ledger().await.1, [(Outcome::Shed, 1)]);
}
