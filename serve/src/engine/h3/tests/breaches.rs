//! Clients that break the protocol.

use futures_util::FutureExt;
use http::Response;
use http_body_util::BodyExt;

use super::*;
use crate::Body;

fn hello() -> Arc<TestApplication> {
    TestApplication::new(|_| async move { Response::new(Body::from("hello")) }.boxed())
}

/// Reads what comes with a request.
fn reading() -> Arc<TestApplication> {
    TestApplication::new(|exchange| {
        async move {
            let _ = exchange.request.body_mut().collect().await;
            Response::new(Body::from("hello"))
        }
        .boxed()
    })
}

const FRAME_UNEXPECTED: u64 = 0x105;
const FRAME_ERROR: u64 = 0x106;
const MESSAGE_ERROR: u32 = 0x10e;

#[tokio::test]
async fn a_malformed_request_costs_its_stream() {
    let client = connect(hello()).await;
    let malformed = [
        section(&[
            (":method", "GET"),
            (":scheme", "https"),
            (":path", "/"),
            (":path", "/"),
            (":authority", "a"),
        ]),
        section(&[(":method", "GET"), (":scheme", "https"), ("x", "y"), (":path", "/"), (":authority", "a")]),
        head(&[("connection", "close")]),
        head(&[("transfer-encoding", "chunked")]),
        head(&[("X-Upper", "1")]),
        head(&[("x", "a\r\nb")]),
        head(&[(":path", "")]),
        head(&[(":authority", "")]),
        head(&[("te", "gzip")]),
        head(&[("content-length", "5")]),
        head(&[("content-length", "0"), ("content-length", "0")]),
        head(&[(":protocol", "websocket")]),
    ];
    for stream in &malformed {
        let reset = client.send(stream).await.unwrap_err();
        assert_eq!(reset, quinn::ReadError::Reset(MESSAGE_ERROR.into()), "{stream:?}");
    }
    assert_eq!(client.get("/").await.unwrap().content, b"hello");
    let totals = client.settled().await;
    assert_eq!((totals.rejected, totals.answered), (malformed.len() as u64, 1));
    assert_eq!(client.application.refusals.lock().len(), malformed.len());
}

#[tokio::test]
async fn a_broken_request_stream_ends_the_connection() {
    let streams: [(Vec<u8>, u64); 6] = [
        (frame(0, b"content"), FRAME_UNEXPECTED),
        ([head(&[]), frame(4, b"")].concat(), FRAME_UNEXPECTED),
        (frame(2, b""), FRAME_UNEXPECTED),
        (head(&[])[..20].to_vec(), FRAME_ERROR),
        (frame(1, &[0, 0, 0x80]), 0x200),
        (frame(1, &[0, 0, 0x51, 0xff]), 0x200),
    ];
    for (stream, code) in streams {
        // Whoever wants no content does not see what comes in its place.
        let client = connect(reading()).await;
        let (mut send, _recv) = client.connection.open_bi().await.unwrap();
        let _ = send.write_all(&stream).await;
        let _ = send.finish();
        assert_eq!(client.closed().await, code, "{stream:?}");
        let totals = client.settled().await;
        assert_eq!((totals.accepted, totals.killed), (1, 0), "{stream:?}");
    }
}

#[tokio::test]
async fn a_broken_critical_stream_ends_the_connection() {
    // What is sent, whether the stream ends then, and the code.
    let streams: [(&[&[u8]], bool, u64); 10] = [
        (&[&[0, 7, 1, 0]], false, 0x10a),
        (&[&[0, 4, 0, 4, 0]], false, FRAME_UNEXPECTED),
        (&[&[0, 4, 0, 0, 1, 0]], false, FRAME_UNEXPECTED),
        (&[&[0, 4, 2, 2, 0]], false, 0x109),
        (&[&[0, 4, 0]], true, 0x104),
        (&[&[0, 4, 0], &[0, 4, 0]], false, 0x103),
        (&[&[1, 0]], false, 0x103),
        (&[&[2, 0x3f]], false, 0x201),
        (&[&[3, 0x80]], false, 0x202),
        (&[&[2]], true, 0x104),
    ];
    for (streams, ends, code) in streams {
        let client = connect(hello()).await;
        let mut held = Vec::new();
        for stream in streams {
            let mut send = client.connection.open_uni().await.unwrap();
            send.write_all(stream).await.unwrap();
            if ends {
                send.finish().unwrap();
            }
            held.push(send);
        }
        assert_eq!(client.closed().await, code, "{streams:?}");
    }
}

#[tokio::test]
async fn streams_of_unknown_types_are_ignored() {
    let client = connect(hello()).await;
    for _ in 0..20 {
        let mut send = client.connection.open_uni().await.unwrap();
        let _ = send.write_all(&[0x21, 1, 2, 3]).await;
        assert_eq!(send.stopped().await, Ok(Some(0x103_u32.into())));
    }
    assert_eq!(client.get("/").await.unwrap().status(), "200");
}

#[tokio::test]
async fn a_flood_of_requests_that_are_given_up_ends_the_connection() {
    let application = TestApplication::new(|_| std::future::pending().boxed());
    let client = connect(application).await;
    let flood = async {
        while let Ok((mut send, mut recv)) = client.connection.open_bi().await {
            let _ = send.write_all(&head(&[])).await;
            let _ = recv.stop(0x10c_u32.into());
        }
    };
    let (code, ()) = futures_util::future::join(client.closed(), flood).await;
    assert_eq!(code, 0x107);
    let totals = client.settled().await;
    assert_eq!((totals.killed, totals.client_gone), (0, totals.accepted));
}
