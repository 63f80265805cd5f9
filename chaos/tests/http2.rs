//! HTTP/2 servers that misbehave in each way, with and without TLS, and the class that the generator finds for it.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::{Request, Response};
use playhouse_chaos::{
    Body, Class, Exchange, Expect, Failure, Load, Protocol, Report, Sent, Stream, Target, Tls, pattern,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

const LONG: Duration = Duration::from_secs(20);

/// What the server does with the n-th request of a connection.
#[derive(Clone, Copy)]
enum Act {
    /// Content and the end.
    Answer(&'static [u8]),
    Status(u16),
    /// The request's content.
    Echo,
    /// Half of a pattern of 1000 bytes, then the reset.
    CutByReset(Reason),
    Reset(Reason),
    /// A GOAWAY with an error, at once.
    Abrupt,
    /// Closes the socket.
    Drop,
    /// Half of a pattern of 1000 bytes, then closes the socket.
    CutByDrop,
    /// Declares another length than it sends.
    Mislabelled,
    Hang,
    /// Announces the end, answers this one, and takes no more.
    Graceful,
}

/// A server whose first connection is told to go as soon as it has been made, as one is that is accepted right before a
/// drain.
async fn going_at_first(say: bool) -> Target {
    let accepted = Arc::new(AtomicBool::new(false));
    listen(move |stream| {
        let first = !accepted.swap(true, Ordering::SeqCst);
        async move {
            if !first {
                return serve(stream, &[Act::Answer(b"hello")]).await;
            }
            if say {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                connection.graceful_shutdown();
                while let Some(Ok((request, respond))) = connection.accept().await {
                    act(Act::Answer(b"hello"), &mut connection, request, respond).await;
                }
            }
        }
    })
    .await
}

async fn serve(io: impl AsyncRead + AsyncWrite + Unpin, script: &[Act]) {
    let mut connection = h2::server::handshake(io).await.unwrap();
    let mut acts = script.iter().copied();
    let mut last = *script.last().unwrap();
    while let Some(Ok((request, respond))) = connection.accept().await {
        last = acts.next().unwrap_or(last);
        if act(last, &mut connection, request, respond).await.is_none() {
            return;
        }
    }
}

async fn act(
    act: Act,
    connection: &mut Connection<impl AsyncRead + AsyncWrite + Unpin, Bytes>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> Option<()> {
    let head = |status: u16| Response::builder().status(status).body(()).unwrap();
    let half = pattern::bytes(0, 500);
    match act {
        Act::Answer(content) => {
            respond
                .send_response(head(200), false)
                .ok()?
                .send_data(Bytes::from_static(content), true)
                .ok()?;
        }
        Act::Status(status) => drop(respond.send_response(head(status), true).ok()?),
        Act::Echo => {
            let mut body = request.into_body();
            tokio::spawn(async move {
                let mut send = respond.send_response(head(200), false).unwrap();
                while let Some(data) = body.data().await {
                    let data = data.unwrap();
                    body.flow_control().release_capacity(data.len()).unwrap();
                    send.send_data(data, false).unwrap();
                }
                send.send_data(Bytes::new(), true).unwrap();
            });
        }
        Act::CutByReset(reason) => {
            let mut send = respond.send_response(head(200), false).ok()?;
            send.send_data(half, false).ok()?;
            tokio::spawn(async move {
                // The data must have left before the reset drops what is queued.
                send.reserve_capacity(1 << 20);
                while send.capacity() < 1000 {
                    std::future::poll_fn(|cx| send.poll_capacity(cx)).await.unwrap().unwrap();
                }
                send.send_reset(reason);
            });
        }
        Act::Reset(reason) => respond.send_reset(reason),
        Act::Abrupt => {
            connection.abrupt_shutdown(Reason::INTERNAL_ERROR);
            std::mem::forget(respond);
        }
        Act::Drop => return None,
        Act::CutByDrop => {
            respond.send_response(head(200), false).ok()?.send_data(half, false).ok()?;
            // Only what the connection writes in this time goes out; whether that is something does not matter.
            let _ = tokio::time::timeout(Duration::from_millis(20), connection.accept()).await;
            return None;
        }
        Act::Mislabelled => {
            let head = Response::builder().header("content-length", "7").body(()).unwrap();
            respond.send_response(head, false).ok()?.send_data(Bytes::from_static(b"short"), true).ok()?;
        }
        Act::Hang => {
            tokio::spawn(async move { std::future::poll_fn(|cx| respond.poll_reset(cx)).await });
        }
        Act::Graceful => {
            connection.graceful_shutdown();
            respond.send_response(head(200), true).ok()?;
        }
    }
    Some(())
}

async fn server(script: &'static [Act]) -> Target {
    listen(move |stream| async move { serve(stream, script).await }).await
}

async fn listen<F: Future<Output = ()> + Send + 'static>(
    handle: impl Fn(TcpStream) -> F + Send + 'static,
) -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(handle(stream));
        }
    });
    Target::Tcp(address)
}

async fn run(target: Target, stream: Stream) -> Report {
    Load::new(target).stream(stream.deadline(LONG)).start().unwrap().finished().await
}

fn get(expect: Expect) -> Stream {
    Stream::get(Protocol::Http2 { streams: 1 }, "/", expect).requests(1)
}

/// The class and detail of the only failure.
async fn class(script: &'static [Act]) -> Class {
    let report = run(server(script).await, get(Expect::pattern(0, 1000))).await;
    assert_eq!((report.counts.failed(), report.counts.begun), (1, 1), "{report}");
    report.failures[0].class
}

#[tokio::test]
async fn many_streams_share_a_connection() {
    let target = server(&[Act::Answer(b"hello")]).await;
    let stream = Stream::get(Protocol::Http2 { streams: 16 }, "/", Expect::body("hello")).concurrency(2);
    let report = run(target, stream.requests(500)).await;
    assert!(report.is_clean() && report.counts.answered == 500, "{report}");
    assert_eq!(report.counts.connections, 2);
    assert!(!report.first_answers.is_empty() && report.first_answers.len() <= 2);
}

#[tokio::test]
async fn content_goes_both_ways() {
    let target = server(&[Act::Echo]).await;
    for body in [Body::Pattern { seed: 1, length: 300_000 }, Body::Streamed { seed: 1, length: 300_000 }] {
        let exchange = Exchange::post("/", body, Expect::pattern(1, 300_000));
        let stream = Stream::repeat(Protocol::Http2 { streams: 3 }, exchange).requests(9);
        let report = run(target.clone(), stream).await;
        assert!(report.is_clean() && report.counts.answered == 9, "{report}");
    }
}

#[tokio::test]
async fn a_refused_stream_is_unsent() {
    assert_eq!(class(&[Act::Reset(Reason::REFUSED_STREAM)]).await, Class::Unsent);
}

#[tokio::test]
async fn a_reset_stream_is_in_flight() {
    assert_eq!(class(&[Act::Reset(Reason::INTERNAL_ERROR)]).await, Class::InFlight);
    assert_eq!(class(&[Act::CutByReset(Reason::CANCEL)]).await, Class::InFlight);
    assert_eq!(class(&[Act::CutByReset(Reason::NO_ERROR)]).await, Class::InFlight);
}

#[tokio::test]
async fn a_connection_that_ends_leaves_its_streams_in_flight() {
    for script in [&[Act::Drop], &[Act::CutByDrop], &[Act::Abrupt]] {
        assert_eq!(class(script).await, Class::InFlight);
    }
}

#[tokio::test]
async fn wrong_content_is_wrong() {
    assert_eq!(class(&[Act::Answer(b"something else")]).await, Class::Wrong);
    assert_eq!(class(&[Act::Answer(b"")]).await, Class::Wrong);
    assert_eq!(class(&[Act::Mislabelled]).await, Class::Wrong);
}

#[tokio::test]
async fn another_status_is_counted_by_status() {
    assert_eq!(class(&[Act::Status(502)]).await, Class::Status(502));
}

#[tokio::test]
async fn a_request_that_http2_does_not_allow_ends() {
    let stream = Stream::generate(Protocol::Http2 { streams: 1 }, |id| {
        let exchange = Exchange::get("/", Expect::body("hello"));
        let connection = http::HeaderValue::from_static("keep-alive");
        if id == 0 { exchange } else { exchange.header(http::header::CONNECTION, connection) }
    });
    let report = run(server(&[Act::Answer(b"hello")]).await, stream.requests(2)).await;
    assert_eq!((report.counts.answered, report.counts.wrong), (1, 1), "{report}");
}

#[tokio::test]
async fn no_answer_on_an_open_connection_is_lost() {
    let stream = get(Expect::body("")).deadline(Duration::from_millis(50));
    let report = Load::new(server(&[Act::Hang]).await).stream(stream).start().unwrap().finished().await;
    assert_eq!(report.failures[0].class, Class::Lost);
}

#[tokio::test]
async fn a_server_that_says_goodbye_loses_nothing() {
    let target = server(&[Act::Status(200), Act::Graceful]).await;
    let stream = Stream::get(Protocol::Http2 { streams: 1 }, "/", Expect::body("")).requests(20);
    let report = run(target, stream).await;
    // A request that crossed with the GOAWAY is refused by it, and provably unsent.
    assert_eq!(report.counts.answered + report.counts.unsent, 20, "{report}");
    assert!(report.counts.answered >= 10 && report.counts.connections >= 2, "{report}");
}

#[tokio::test]
async fn a_fresh_connection_that_is_told_to_go_is_replaced_and_one_that_just_ends_is_a_failure() {
    for say in [true, false] {
        let stream = Stream::get(Protocol::Http2 { streams: 4 }, "/", Expect::body("hello")).requests(40);
        let report = run(going_at_first(say).await, stream).await;
        // Those that have crossed with the GOAWAY are refused by it; what had not been sent has been, elsewhere.
        let unsent = |failure: &Failure| failure.sent == Sent::None;
        assert!(if say { !report.failures.iter().any(unsent) } else { !report.is_clean() }, "{report}");
        assert_eq!(report.counts.answered + report.counts.failed(), 40, "{report}");
    }
}

#[tokio::test]
async fn tls_is_verified_and_alpn_chooses_h2() {
    let made = rcgen::generate_simple_self_signed(["site.example".to_owned()]).unwrap();
    let cert: CertificateDer<'static> = made.cert.der().clone();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let target = listen(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                serve(stream, &[Act::Answer(b"hello")]).await;
            }
        }
    })
    .await;
    for tls in [Tls::trusting("site.example", [cert.clone()]), Tls::accepting_any("any.example")] {
        let report = run(target.clone(), get(Expect::body("hello")).tls(tls.unwrap())).await;
        assert!(report.is_clean(), "{report}");
    }
    let other = Tls::trusting("other.example", [cert]).unwrap();
    let report = run(target.clone(), get(Expect::body("hello")).tls(other)).await;
    assert_eq!(report.failures[0].class, Class::Wrong, "{report}");
    // A server that closes in the handshake has processed nothing.
    let closing = listen(|stream| async move { drop(stream) }).await;
    let report = run(closing, get(Expect::body("")).tls(Tls::accepting_any("x.example").unwrap())).await;
    assert!(report.failures[0].class.is_safe_to_retry(), "{report}");
}
