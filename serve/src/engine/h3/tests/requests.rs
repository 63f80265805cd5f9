//! Requests and their answers.

use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use futures_util::StreamExt;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};

use super::*;
use crate::{Body, BodyError, RequestBody};

/// Gives the content back as it comes, and `x-method`.
fn echo() -> Arc<TestApplication> {
    TestApplication::new(|exchange| {
        let method = exchange.request.method().to_string();
        let body = std::mem::take(exchange.request.body_mut());
        let body = body.map_err(BodyError::Request);
        let response = Response::builder().header("x-method", method).body(Body::Stream(Box::pin(body)));
        async move { response.unwrap() }.boxed()
    })
}

fn hello() -> Arc<TestApplication> {
    TestApplication::new(|exchange| {
        let empty = matches!(exchange.request.body(), RequestBody::Empty);
        async move { Response::new(Body::from(if empty { "hello" } else { "content?" })) }.boxed()
    })
}

#[tokio::test]
async fn a_request_is_answered() {
    let client = connect(hello()).await;
    let answer = client.get("/").await.unwrap();
    assert_eq!((answer.status(), &*answer.content), ("200", &b"hello"[..]));
    assert_eq!(answer.field("content-length"), Some("5"));
    assert!(answer.field("date").is_some());
    let head = client.send(&head(&[(":method", "HEAD")])).await.unwrap();
    assert_eq!((head.field("content-length"), head.content.len()), (Some("5"), 0));
    let totals = client.settled().await;
    assert_eq!((totals.accepted, totals.answered), (2, 2));
    let ends = client.application.ends.lock();
    assert_eq!((ends[0].status, ends[0].bytes_sent), (Some(StatusCode::OK), 5));
}

#[tokio::test]
async fn content_and_trailers_go_both_ways() {
    let client = connect(echo()).await;
    let content: Vec<u8> = (0..3 << 20).map(|byte: u32| (byte / 7) as u8).collect();
    let mut stream = head(&[(":method", "POST"), ("content-length", &content.len().to_string())]);
    content.chunks(100_000).for_each(|piece| stream.extend(frame(0, piece)));
    stream.extend(section(&[("x-sum", "17")]));
    // All at once: the windows are smaller than what is sent.
    let (mut send, recv) = client.connection.open_bi().await.unwrap();
    let sending = async {
        send.write_all(&stream).await.unwrap();
        send.finish().unwrap();
    };
    let (answer, ()) = futures_util::future::join(read(recv), sending).await;
    let answer = answer.unwrap();
    assert_eq!(answer.field("x-method"), Some("POST"));
    assert!(answer.content == content);
    assert_eq!(answer.sections[1], [("x-sum".to_owned(), "17".to_owned())]);
    assert_eq!(client.settled().await.answered, 1);
}

#[tokio::test]
async fn a_length_that_is_not_kept_to_is_malformed() {
    let client = connect(echo()).await;
    for content in ["", "x", "xxx"] {
        let mut stream = head(&[(":method", "POST"), ("content-length", "2")]);
        stream.extend(frame(0, content.as_bytes()));
        assert!(client.send(&stream).await.is_err(), "{content:?}");
    }
    assert_eq!(client.settled().await.rejected, 3);
}

#[tokio::test]
async fn interim_answers_come_first() {
    let application = TestApplication::new(|exchange| {
        async move {
            let mut hints = HeaderMap::new();
            hints.insert("link", HeaderValue::from_static("</a.css>"));
            exchange.informational.send(StatusCode::EARLY_HINTS, hints);
            let content = exchange.request.body_mut().collect().await.unwrap().to_bytes();
            Response::new(content.into())
        }
        .boxed()
    });
    let client = connect(application).await;
    let (mut send, mut recv) = client.connection.open_bi().await.unwrap();
    send.write_all(&head(&[(":method", "POST"), ("expect", "100-continue")])).await.unwrap();
    // The rest is sent when we are asked to.
    let mut interim = Answer::default();
    let mut decoder = RequestDecoder::new(1 << 10);
    while interim.sections.len() < 2 {
        interim.take(&mut decoder, recv.read_chunk(1000, true).await.unwrap().unwrap().bytes);
    }
    let statuses: Vec<_> = interim.sections.iter().map(|section| &*section[0].1).collect();
    assert_eq!(statuses, ["103", "100"]);
    send.write_all(&frame(0, b"content")).await.unwrap();
    send.finish().unwrap();
    let rest = read(recv).await.unwrap();
    assert_eq!((rest.status(), &*rest.content), ("200", &b"content"[..]));
}

#[tokio::test]
async fn heads_over_a_limit_are_answered() {
    let client = connect_with(hello(), |listener| {
        listener.limits.header_bytes = 1 << 10;
        listener.limits.header_count = 8;
    })
    .await;
    let value = "x".repeat(2 << 10);
    assert_eq!(client.send(&head(&[("x", &value)])).await.unwrap().status(), "431");
    let many: Vec<_> = std::iter::repeat_n(("x", "y"), 9).collect();
    assert_eq!(client.send(&head(&many)).await.unwrap().status(), "431");
    // Not even read.
    let (mut send, recv) = client.connection.open_bi().await.unwrap();
    send.write_all(&[1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]).await.unwrap();
    assert_eq!(read(recv).await.unwrap().status(), "431");
    assert_eq!(client.send(&head(&many[..8])).await.unwrap().status(), "200");
    assert_eq!(client.send(&head(&[(":authority", "u@a")])).await.unwrap().status(), "400");
    let connect = section(&[(":method", "CONNECT"), (":authority", "a:1")]);
    assert_eq!(client.send(&connect).await.unwrap().status(), "501");
    let totals = client.settled().await;
    assert_eq!((totals.rejected, totals.answered), (5, 1));
}

#[tokio::test]
async fn a_slow_head_is_given_up_and_an_empty_stream_is_no_request() {
    let client = connect_with(hello(), |listener| {
        listener.timeouts.head = Duration::from_millis(50);
    })
    .await;
    let (mut send, recv) = client.connection.open_bi().await.unwrap();
    send.write_all(&head(&[])[..10]).await.unwrap();
    assert_eq!(read(recv).await.unwrap().status(), "408");
    let (mut send, recv) = client.connection.open_bi().await.unwrap();
    send.finish().unwrap();
    let reset = read(recv).await.unwrap_err();
    assert_eq!(reset, quinn::ReadError::Reset(0x10d_u32.into()));
    let totals = client.settled().await;
    assert_eq!((totals.accepted, totals.rejected), (1, 1));
}

#[tokio::test]
async fn streams_beyond_the_limit_wait_for_those_before() {
    let client = connect_with(echo(), |listener| listener.limits.streams = 2).await;
    let open = async || client.connection.open_bi().await.unwrap();
    let mut first = open().await;
    let second = open().await;
    first.0.write_all(&head(&[(":method", "POST")])).await.unwrap();
    assert!(open().now_or_never().is_none());
    first.0.finish().unwrap();
    assert_eq!(read(first.1).await.unwrap().status(), "200");
    open().await;
    drop(second);
}

#[tokio::test]
async fn a_panic_costs_one_request() {
    let application = TestApplication::new(|exchange| {
        let path = exchange.request.uri().path().to_owned();
        async move {
            match &*path {
                "/handler" => panic!("in the handler"),
                "/body" => {
                    let frames = futures_util::stream::iter(0..2).map(|piece| match piece {
                        0 => Ok(Frame::data(Bytes::from_static(b"begin"))),
                        _ => panic!("in the body"),
                    });
                    Response::new(Body::Stream(Box::pin(StreamBody::new(frames))))
                }
                "/short" => {
                    let body = Body::from("short");
                    Response::builder().header("content-length", "6").body(body).unwrap()
                }
                _ => Response::new(Body::from("fine")),
            }
        }
        .boxed()
    });
    let client = connect(application).await;
    assert_eq!(client.get("/handler").await.unwrap().status(), "500");
    let cut = quinn::ReadError::Reset(0x102_u32.into());
    assert_eq!(client.get("/body").await.unwrap_err(), cut);
    assert_eq!(client.get("/short").await.unwrap_err(), cut);
    assert_eq!(client.get("/").await.unwrap().content, b"fine");
    let totals = client.settled().await;
    assert_eq!((totals.killed, totals.answered), (3, 1));
    assert_eq!(client.application.panics.lock().len(), 2);
}

#[tokio::test]
async fn a_request_that_is_cancelled_is_dropped() {
    static DROPPED: AtomicBool = AtomicBool::new(false);
    struct Note;
    impl Drop for Note {
        fn drop(&mut self) {
            DROPPED.store(true, Ordering::Release);
        }
    }
    let application = TestApplication::new(|_| {
        async move {
            let _note = Note;
            std::future::pending().await
        }
        .boxed()
    });
    let client = connect(application).await;
    let (mut send, mut recv) = client.connection.open_bi().await.unwrap();
    send.write_all(&head(&[])).await.unwrap();
    while client.application.totals().in_flight == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    recv.stop(0x10c_u32.into()).unwrap();
    assert_eq!(client.settled().await.client_gone, 1);
    assert!(DROPPED.load(Ordering::Acquire));
}
