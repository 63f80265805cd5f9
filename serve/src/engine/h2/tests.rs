//! The engine against the `h2` crate's client, and against bytes of our own.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use playhouse_config::model::{ClientTimeouts, Limits};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::serve;
use crate::engine::Settings;
use crate::engine::drain::Drain;
use crate::engine::test_application::{TestApplication, connection_info};
use crate::{Body, BodyError, Exchange, Outcome};

mod drain;
mod hostile;

fn settings() -> Settings {
    Settings {
        limits: Limits::default(),
        timeouts: ClientTimeouts::default(),
        http2: true,
        proxy_protocol: None,
        tls: None,
        quic: None,
    }
}

/// A connection that is served, and the client's end of it.
struct Served {
    client: DuplexStream,
    application: Arc<TestApplication>,
    drain: oneshot::Sender<()>,
    connection: JoinHandle<()>,
}

fn served(application: Arc<TestApplication>, settings: Settings) -> Served {
    served_over(256 << 10, application, settings)
}

/// Over a transport that holds so many bytes each way.
fn served_over(capacity: usize, application: Arc<TestApplication>, settings: Settings) -> Served {
    let (client, server) = tokio::io::duplex(capacity);
    let (drain, drained) = oneshot::channel();
    let app = application.clone();
    let connection = tokio::spawn(async move {
        // A sender that is dropped is no drain.
        let drained = async {
            if drained.await.is_err() {
                std::future::pending().await
            }
        };
        let drained = pin!(drained);
        let drain = Drain::new(drained);
        serve(server, BytesMut::new(), connection_info(), &settings, &app, drain).await;
    });
    Served { client, application, drain, connection }
}

async fn client(io: DuplexStream) -> (SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>) {
    let (client, connection) = h2::client::handshake(io).await.unwrap();
    (client.ready().await.unwrap(), tokio::spawn(connection))
}

fn get(path: &str) -> Request<()> {
    Request::builder().uri(format!("http://a.example{path}")).body(()).unwrap()
}

async fn answer(
    response: ResponseFuture,
) -> Result<(StatusCode, HeaderMap, Bytes, Option<HeaderMap>), h2::Error> {
    let (parts, mut body) = response.await?.into_parts();
    let mut content = BytesMut::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        content.extend_from_slice(&data);
    }
    Ok((parts.status, parts.headers, content.freeze(), body.trailers().await?))
}

fn text(text: &'static str) -> Arc<TestApplication> {
    TestApplication::new(move |_| async move { Response::new(Body::from(text)) }.boxed())
}

/// Gives back what it was sent.
fn echo() -> Arc<TestApplication> {
    TestApplication::new(|exchange: &mut Exchange| {
        async {
            let body = std::mem::take(exchange.request.body_mut());
            match body.collect().await {
                Ok(body) => {
                    let trailers = body.trailers().cloned();
                    let frames =
                        [Some(Ok(Frame::data(body.to_bytes()))), trailers.map(|t| Ok(Frame::trailers(t)))];
                    let frames = futures_util::stream::iter(frames.into_iter().flatten());
                    Response::new(Body::Stream(Box::pin(StreamBody::new(frames))))
                }
                Err(error) => {
                    exchange.record.outcome = Some(Outcome::Rejected);
                    let mut response = Response::new(Body::Empty);
                    *response.status_mut() = error.status();
                    response
                }
            }
        }
        .boxed()
    })
}

/// Never answers.
fn silent() -> Arc<TestApplication> {
    TestApplication::new(|_| std::future::pending().boxed())
}

fn failing_body(error: fn() -> BodyError) -> Arc<TestApplication> {
    TestApplication::new(move |_| {
        async move {
            let frames = [Ok(Frame::data(Bytes::from_static(b"some"))), Err(error())];
            Response::new(Body::Stream(Box::pin(StreamBody::new(futures_util::stream::iter(frames)))))
        }
        .boxed()
    })
}

async fn request_with_body(
    client: &mut SendRequest<Bytes>,
    request: Request<()>,
) -> (ResponseFuture, SendStream<Bytes>) {
    client.clone().ready().await.unwrap().send_request(request, false).unwrap()
}

#[tokio::test]
async fn a_request_is_answered_and_entered() {
    let served = served(text("hello"), settings());
    let (mut client, connection) = client(served.client).await;
    let (response, _) = client.send_request(get("/"), true).unwrap();
    let (status, headers, content, _) = answer(response).await.unwrap();
    assert_eq!((status, &content[..]), (StatusCode::OK, &b"hello"[..]));
    assert_eq!(headers["content-length"], "5");
    assert!(headers.contains_key("date"));
    drop(client);
    connection.await.unwrap().unwrap();
    served.connection.await.unwrap();
    let totals = served.application.totals();
    assert_eq!((totals.accepted, totals.answered, totals.in_flight), (1, 1, 0));
    let end = served.application.ends.lock()[0];
    assert_eq!((end.status, end.bytes_sent), (Some(StatusCode::OK), 5));
}

#[tokio::test]
async fn many_streams_at_once_carry_bodies_and_trailers_both_ways() {
    let served = served(echo(), settings());
    let (client, _connection) = client(served.client).await;
    let exchanges = (0..100u32).map(|number| {
        let mut client = client.clone();
        async move {
            let (response, mut body) = request_with_body(&mut client, get("/")).await;
            let sent = Bytes::from(vec![number as u8; 5_000 * number as usize]);
            let mut left = sent.clone();
            while !left.is_empty() {
                body.reserve_capacity(left.len());
                let capacity = std::future::poll_fn(|cx| body.poll_capacity(cx)).await.unwrap().unwrap();
                body.send_data(left.split_to(capacity), false).unwrap();
            }
            let mut trailers = HeaderMap::new();
            trailers.insert("x-number", number.into());
            body.send_trailers(trailers).unwrap();
            let (_, _, content, trailers) = answer(response).await.unwrap();
            assert_eq!(content, sent);
            assert_eq!(trailers.unwrap()["x-number"], number.to_string().as_str());
        }
    });
    futures_util::future::join_all(exchanges).await;
}

#[tokio::test]
async fn head_and_bodiless_statuses_end_with_their_head() {
    let application = TestApplication::new(|exchange: &mut Exchange| {
        let status = exchange.request.uri().path()[1..].parse().unwrap();
        async move { Response::builder().status::<u16>(status).body(Body::from("content")).unwrap() }.boxed()
    });
    let served = served(application, settings());
    let (mut client, _connection) = client(served.client).await;
    for (method, path, length) in [("HEAD", "/200", Some("7")), ("GET", "/204", None), ("GET", "/304", None)]
    {
        let mut request = get(path);
        *request.method_mut() = method.parse().unwrap();
        let (response, _) = client.send_request(request, true).unwrap();
        let (_, headers, content, _) = answer(response).await.unwrap();
        assert_eq!(content.len(), 0);
        assert_eq!(headers.get("content-length").map(|length| length.to_str().unwrap()), length);
    }
}

#[tokio::test]
async fn what_cannot_be_handled_is_refused_and_entered() {
    let mut settings = settings();
    settings.limits.header_count = 3;
    let served = served(text("never"), settings);
    let (mut client, _connection) = client(served.client).await;
    let mut fields = get("/");
    for _ in 0..4 {
        fields.headers_mut().append("x", "y".parse().unwrap());
    }
    let other_host =
        Request::builder().uri("http://a.example/").header("host", "b.example").body(()).unwrap();
    let connect = Request::builder().method("CONNECT").uri("a.example:443").body(()).unwrap();
    for (request, expected) in [(fields, 431), (other_host, 400), (connect, 501)] {
        let (response, _) = client.send_request(request, true).unwrap();
        assert_eq!(answer(response).await.unwrap().0, expected);
    }
    assert_eq!(served.application.totals().rejected, 3);
    assert_eq!(served.application.refusals.lock().len(), 3);
}

#[tokio::test]
async fn a_panic_costs_its_own_stream() {
    let application = TestApplication::new(|exchange: &mut Exchange| {
        let path = exchange.request.uri().path().to_owned();
        async move {
            match &*path {
                "/handler" => panic!("in the handler"),
                "/body" => {
                    let frames = futures_util::stream::iter([1, 2]).map_panicking();
                    Response::new(Body::Stream(Box::pin(StreamBody::new(frames))))
                }
                _ => Response::new(Body::from("fine")),
            }
        }
        .boxed()
    });
    let served = served(application, settings());
    let (mut client, _connection) = client(served.client).await;
    let mut send = |path| client.send_request(get(path), true).unwrap().0;
    let (handler, body, fine) = (send("/handler"), send("/body"), send("/fine"));
    assert_eq!(answer(handler).await.unwrap().0, 500);
    assert_eq!(answer(body).await.unwrap_err().reason(), Some(Reason::INTERNAL_ERROR));
    assert_eq!(&answer(fine).await.unwrap().2[..], b"fine");
    let totals = served.application.totals();
    assert_eq!((totals.killed, totals.answered), (2, 1));
    assert_eq!(*served.application.panics.lock(), ["in the handler", "in the body"]);
}

trait MapPanicking: futures_util::Stream<Item = i32> + Send + Sized + 'static {
    fn map_panicking(self) -> impl futures_util::Stream<Item = Result<Frame<Bytes>, BodyError>> + Send {
        futures_util::StreamExt::map(self, |number| {
            assert!(number == 1, "in the body");
            Ok(Frame::data(Bytes::from_static(b"some")))
        })
    }
}
impl<S: futures_util::Stream<Item = i32> + Send + 'static> MapPanicking for S {}

#[tokio::test]
async fn a_body_that_fails_resets_its_stream_and_never_ends_it() {
    let cases: [(fn() -> BodyError, Outcome); 2] = [
        (|| BodyError::Upstream("gone".into()), Outcome::UpstreamFailed),
        (|| BodyError::Handler("broken".into()), Outcome::Killed),
    ];
    for (error, outcome) in cases {
        let served = served(failing_body(error), settings());
        let (mut client, _connection) = client(served.client).await;
        let (response, _) = client.send_request(get("/"), true).unwrap();
        assert_eq!(answer(response).await.unwrap_err().reason(), Some(Reason::INTERNAL_ERROR));
        assert_eq!(served.application.ends.lock()[0].outcome, outcome);
    }
}

#[tokio::test]
async fn a_body_that_is_not_as_long_as_announced_is_reset() {
    let application = TestApplication::new(|_| {
        async { Response::builder().header("content-length", "9").body(Body::from("short")).unwrap() }.boxed()
    });
    let served = served(application, settings());
    let (mut client, _connection) = client(served.client).await;
    let (response, _) = client.send_request(get("/"), true).unwrap();
    assert!(answer(response).await.is_err());
    assert_eq!(served.application.ends.lock()[0].outcome, Outcome::Killed);
}

#[tokio::test]
async fn a_reset_by_the_client_drops_the_handler() {
    let served = served(silent(), settings());
    let (client, _connection) = client(served.client).await;
    let (_response, mut body) = request_with_body(&mut client.clone(), get("/")).await;
    while served.application.totals().in_flight == 0 {
        tokio::task::yield_now().await;
    }
    body.send_reset(Reason::CANCEL);
    while served.application.totals().in_flight > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(served.application.totals().client_gone, 1);
    assert!(!served.connection.is_finished());
}

#[tokio::test]
async fn a_client_that_goes_and_a_kill_are_told_apart() {
    for (kill, outcome) in [(false, Outcome::ClientGone), (true, Outcome::Killed)] {
        let served = served(silent(), settings());
        let (mut client, connection) = client(served.client).await;
        let (_response, _) = client.send_request(get("/"), true).unwrap();
        while served.application.totals().in_flight == 0 {
            tokio::task::yield_now().await;
        }
        if kill {
            served.connection.abort();
        } else {
            connection.abort();
        }
        let _ = served.connection.await;
        assert_eq!(served.application.ends.lock()[0].outcome, outcome);
        assert_eq!(served.application.totals().in_flight, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_that_stays_shut_ends_its_stream() {
    let application =
        TestApplication::new(|_| async { Response::new(Body::from(Bytes::from(vec![0; 1 << 20]))) }.boxed());
    let served = served(application, settings());
    let (mut client, _connection) = client(served.client).await;
    let (response, _) = client.send_request(get("/"), true).unwrap();
    // Reads the head and never opens the window.
    let mut body = response.await.unwrap().into_body();
    let failed = loop {
        match body.data().await {
            Some(Ok(_)) => {}
            Some(Err(error)) => break error,
            None => panic!("the body has ended"),
        }
    };
    assert_eq!(failed.reason(), Some(Reason::CANCEL));
    assert_eq!(served.application.totals().client_gone, 1);
}

/// Half a megabyte, whose content tells its place.
fn large() -> Bytes {
    (0..1u32 << 17).flat_map(u32::to_be_bytes).collect()
}

#[tokio::test]
async fn a_transport_that_takes_little_at_a_time_gets_everything() {
    let application = TestApplication::new(|_| async { Response::new(Body::from(large())) }.boxed());
    let served = served_over(1000, application, settings());
    let (client, connection) = client(served.client).await;
    let expected = large();
    let downloads = (0..20).map(|_| {
        let mut client = client.clone();
        let expected = expected.clone();
        async move {
            let (response, _) = client.send_request(get("/"), true).unwrap();
            assert!(answer(response).await.unwrap().2 == expected);
        }
    });
    futures_util::future::join_all(downloads).await;
    drop(client);
    connection.await.unwrap().unwrap();
    served.connection.await.unwrap();
    assert_eq!(served.application.totals().answered, 20);
}

#[tokio::test(start_paused = true)]
async fn a_transport_that_takes_nothing_meets_the_write_deadline() {
    let application = TestApplication::new(|_| async { Response::new(Body::from(large())) }.boxed());
    let mut served = served_over(4096, application, settings());
    // SETTINGS that open every window, a request, and the connection's window.
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\0\x04\x7f\xff\xff\xff".to_vec();
    bytes.extend(b"\0\0\x04\x08\0\0\0\0\0\x7f\xff\0\0");
    bytes.extend(b"\0\0\x0e\x01\x05\0\0\0\x01\x82\x86\x84\x41\x09a.example");
    served.client.write_all(&bytes).await.unwrap();
    let started = tokio::time::Instant::now();
    served.connection.await.unwrap();
    assert!((30..35).contains(&started.elapsed().as_secs()));
    let totals = served.application.totals();
    assert_eq!((totals.client_gone, totals.in_flight), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn bodies_have_a_deadline_and_a_limit() {
    let mut settings = settings();
    settings.limits.body_bytes = 10;
    let served = served(echo(), settings);
    let (client, _connection) = client(served.client).await;
    let (slow, _body) = request_with_body(&mut client.clone(), get("/")).await;
    let (large, mut body) = request_with_body(&mut client.clone(), get("/")).await;
    body.send_data(Bytes::from_static(b"eleven byte"), true).unwrap();
    assert_eq!(answer(large).await.unwrap().0, 413);
    assert_eq!(answer(slow).await.unwrap().0, 408);
    assert_eq!(served.application.totals().rejected, 2);
}

#[tokio::test]
async fn a_client_that_expects_100_gets_it_when_the_body_is_wanted() {
    let served = served(echo(), settings());
    let (client, _connection) = client(served.client).await;
    let mut request = get("/");
    request.headers_mut().insert("expect", "100-continue".parse().unwrap());
    let (mut response, mut body) = request_with_body(&mut client.clone(), request).await;
    let interim = std::future::poll_fn(|cx| response.poll_informational(cx)).await.unwrap().unwrap();
    assert_eq!(interim.status(), StatusCode::CONTINUE);
    body.send_data(Bytes::from_static(b"now"), true).unwrap();
    assert_eq!(&answer(response).await.unwrap().2[..], b"now");
}

#[tokio::test]
async fn a_drain_lets_open_streams_finish_and_then_closes() {
    let (release, released) = oneshot::channel::<()>();
    let released = parking_lot::Mutex::new(Some(released));
    let application = TestApplication::new(move |_| {
        let released = released.lock().take().unwrap();
        async move {
            released.await.unwrap();
            Response::new(Body::from("late"))
        }
        .boxed()
    });
    let served = served(application, settings());
    let (mut client, connection) = client(served.client).await;
    let (response, _) = client.send_request(get("/"), true).unwrap();
    while served.application.totals().in_flight == 0 {
        tokio::task::yield_now().await;
    }
    served.drain.send(()).unwrap();
    // The client has seen GOAWAY when it takes no more requests.
    while client.clone().ready().await.is_ok() {
        tokio::task::yield_now().await;
    }
    release.send(()).unwrap();
    assert_eq!(&answer(response).await.unwrap().2[..], b"late");
    connection.await.unwrap().unwrap();
    served.connection.await.unwrap();
    assert_eq!(served.application.totals().answered, 1);
}

#[tokio::test(start_paused = true)]
async fn silent_connections_meet_their_deadline() {
    // Nothing at all; a preface and no frame.
    for bytes in [&b""[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut served = served(text("never"), settings());
        served.client.write_all(bytes).await.unwrap();
        let started = tokio::time::Instant::now();
        served.client.read_to_end(&mut Vec::new()).await.unwrap();
        assert_eq!(started.elapsed().as_secs(), 10);
    }
    let served = served(text("hello"), settings());
    let (mut client, connection) = client(served.client).await;
    let (response, _) = client.send_request(get("/"), true).unwrap();
    answer(response).await.unwrap();
    let started = tokio::time::Instant::now();
    connection.await.unwrap().unwrap();
    assert_eq!(started.elapsed().as_secs(), 75);
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_requests_are_answered_at_once_is_not_idle() {
    let served = served(text("hello"), settings());
    let (mut client, connection) = client(served.client).await;
    let mut last = tokio::time::Instant::now();
    for _ in 0..20 {
        let (response, _) = client.send_request(get("/"), true).unwrap();
        assert_eq!(&answer(response).await.unwrap().2[..], b"hello");
        last = tokio::time::Instant::now();
        tokio::time::sleep(Duration::from_secs(30)).await;
    }
    connection.await.unwrap().unwrap();
    assert_eq!(last.elapsed().as_secs(), 75);
    assert_eq!(served.application.totals().answered, 20);
}
