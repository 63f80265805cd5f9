//! Requests forwarded to servers that are scripted byte by byte, over real sockets.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Context;

use bytes::Bytes;
use futures_util::future::join;
use http::{HeaderMap, HeaderName, Request};
use http_body::{Body as _, Frame, SizeHint};
use playhouse_config::model::{Address, Bind, KeepAlive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use super::*;
use crate::exchange::{ConnectionInfo, Informational, Peer, Record};
use crate::metrics::Metrics;
use crate::net::{Listener, Stream};
use crate::{BodyError, RequestBody};

/// A scripted server.
struct Backend {
    listener: Listener,
}

impl Backend {
    fn new() -> Self {
        let address = "127.0.0.1:0".parse().unwrap();
        Backend { listener: Listener::bind(&Bind::Tcp { address, only_v6: false }, 64).unwrap() }
    }

    fn address(&self) -> SocketAddr {
        self.listener.local().unwrap()
    }

    async fn accept(&self) -> Peered {
        Peered { stream: self.listener.accept().await.unwrap().0, input: Vec::new() }
    }

    /// Accepts, reads one request and answers it.
    async fn answer(&self, answer: &str) -> (String, Peered) {
        let mut peered = self.accept().await;
        let head = peered.head().await;
        peered.send(answer).await;
        (head, peered)
    }
}

/// The server's end of a connection.
struct Peered {
    stream: Stream,
    input: Vec<u8>,
}

impl Peered {
    async fn until(&mut self, end: &str) -> String {
        loop {
            if let Some(at) = memchr::memmem::find(&self.input, end.as_bytes()) {
                let rest = self.input.split_off(at + end.len());
                return String::from_utf8(std::mem::replace(&mut self.input, rest)).unwrap();
            }
            assert_ne!(self.stream.read_buf(&mut self.input).await.unwrap(), 0, "closed: {:?}", self.input);
        }
    }

    async fn head(&mut self) -> String {
        self.until("\r\n\r\n").await
    }

    async fn send(&mut self, bytes: &str) {
        self.stream.write_all(bytes.as_bytes()).await.unwrap();
    }

    /// Completes when the proxy has closed; what it has sent until then.
    async fn closed(mut self) -> Vec<u8> {
        // A reset is an end, too.
        while matches!(self.stream.read_buf(&mut self.input).await, Ok(1..)) {}
        self.input
    }
}

fn settings(backends: &[&Backend]) -> model::Upstream {
    let addresses: Vec<SocketAddr> = backends.iter().map(|backend| backend.address()).collect();
    settings_of(&addresses)
}

fn settings_of(addresses: &[SocketAddr]) -> model::Upstream {
    let server = |address: &SocketAddr| model::Server {
        address: Address::Tcp(*address),
        weight: std::num::NonZeroU32::MIN,
    };
    model::Upstream {
        name: "api".into(),
        servers: addresses.iter().map(server).collect(),
        balance: model::Balance::RoundRobin,
        health: None,
        ejection: Some(model::Ejection::default()),
        timeouts: model::UpstreamTimeouts::default(),
        keep_alive: KeepAlive::default(),
        retries: 2,
    }
}

fn target(settings: &model::Upstream) -> ProxyTarget {
    let upstream = Upstream::new(settings, &Metrics::default());
    let config = model::Proxy { upstream: "api".into(), strip_prefix: false, preserve_host: true };
    ProxyTarget::new(&config, &PathPattern::Prefix("/".into()), upstream)
}

fn request(method: Method, headers: &[(&'static str, &'static str)], body: RequestBody) -> Exchange {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = "/x?y=1".parse().unwrap();
    request.headers_mut().insert(header::HOST, HeaderValue::from_static("example.org"));
    for (name, value) in headers {
        request.headers_mut().append(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    Exchange {
        request,
        connection: Arc::new(ConnectionInfo {
            id: 1,
            listener: "http".into(),
            listener_index: 0,
            peer: Peer::Tcp("192.0.2.7:4000".parse().unwrap()),
            local: None,
            tls: None,
        }),
        informational: Informational::Unsupported,
        record: Record::new(Instant::now()),
    }
}

fn get() -> Exchange {
    request(Method::GET, &[], RequestBody::Empty)
}

fn post(content: &'static str) -> Exchange {
    request(Method::POST, &[], RequestBody::Bytes(Bytes::from_static(content.as_bytes())))
}

/// An answer, read to its end.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: HeaderMap,
    content: Vec<u8>,
    trailers: Option<HeaderMap>,
    error: Option<BodyError>,
}

async fn read(response: Response<Body>) -> Answer {
    let (head, mut body) = response.into_parts();
    let mut answer = Answer {
        status: head.status.as_u16(),
        headers: head.headers,
        content: Vec::new(),
        trailers: None,
        error: None,
    };
    while let Some(frame) = next(&mut body).await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => answer.content.extend_from_slice(&data),
            Ok(Err(frame)) => answer.trailers = frame.into_trailers().ok(),
            Err(error) => answer.error = Some(error),
        }
    }
    answer
}

async fn next(body: &mut Body) -> Option<Result<Frame<Bytes>, BodyError>> {
    std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await
}

async fn call(target: &ProxyTarget, mut exchange: Exchange) -> (Answer, Option<Outcome>) {
    let response = proxy(target, &mut exchange).await;
    (read(response).await, exchange.record.outcome)
}

/// A request's content that a test sends by and by.
struct Streamed {
    frames: mpsc::UnboundedReceiver<Result<Frame<Bytes>, RequestBodyError>>,
    length: Option<u64>,
}

type Client = mpsc::UnboundedSender<Result<Frame<Bytes>, RequestBodyError>>;

fn streamed(length: Option<u64>) -> (Client, RequestBody) {
    let (client, frames) = mpsc::unbounded_channel();
    (client, RequestBody::Stream(Box::pin(Streamed { frames, length })))
}

fn data(text: &'static str) -> Result<Frame<Bytes>, RequestBodyError> {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

impl http_body::Body for Streamed {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        self.frames.poll_recv(cx)
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[tokio::test]
async fn a_request_is_forwarded_and_its_connection_used_again() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let ((answer, outcome), (head, mut peered)) = join(call(&target, get()), backend.answer(OK)).await;
    assert_eq!((answer.status, &answer.content[..], outcome), (200, b"ok".as_slice(), None));
    assert!(head.starts_with("GET /x?y=1 HTTP/1.1\r\nhost: example.org\r\n"), "{head}");
    let status = target.upstream().status();
    assert_eq!((status.servers[0].idle, status.servers[0].in_flight), (1, 0));
    let script = async {
        let head = peered.until("abc").await;
        peered.send(OK).await;
        head
    };
    let ((answer, _), head) = join(call(&target, post("abc")), script).await;
    assert_eq!(answer.status, 200);
    assert!(head.contains("\r\ncontent-length: 3\r\n"), "{head}");
}

#[tokio::test]
async fn a_server_that_closes_idle_connections_at_the_worst_moment_costs_no_idempotent_request() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let server = async {
        loop {
            // Answers one request of each connection and closes it without a word, at once or after the next request.
            let (_, mut peered) = backend.answer(OK).await;
            drop(peered);
            (_, peered) = backend.answer(OK).await;
            let _ = peered.stream.read_buf(&mut peered.input).await;
        }
    };
    let client = async {
        for round in 0..200 {
            let (answer, _) = call(&target, get()).await;
            assert_eq!(answer.status, 200, "round {round}");
        }
    };
    tokio::select! {
        () = client => {}
        () = server => {}
    }
    assert_eq!(target.upstream().status().servers[0].failures, 0, "nobody's fault");
}

#[tokio::test]
async fn what_a_server_may_have_acted_on_is_not_sent_again() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let (_, (_, mut peered)) = join(call(&target, get()), backend.answer(OK)).await;
    let script = async {
        peered.until("pay").await;
        drop(peered);
    };
    let ((answer, outcome), ()) = join(call(&target, post("pay")), script).await;
    assert_eq!((answer.status, outcome), (502, Some(Outcome::UpstreamFailed)));
    // Nobody has connected a second time.
    assert!(futures_util::FutureExt::now_or_never(backend.accept()).is_none());
}

#[tokio::test]
async fn on_a_new_connection_not_even_an_idempotent_request_is_sent_again() {
    let (first, second) = (Backend::new(), Backend::new());
    let target = target(&settings(&[&first, &second]));
    let script = async {
        let mut peered = first.accept().await;
        peered.head().await;
    };
    let ((answer, _), ()) = join(call(&target, get()), script).await;
    assert_eq!(answer.status, 502);
    assert_eq!(target.upstream().status().servers[0].failures, 1);
    assert_eq!(target.upstream().status().servers[1].requests, 0);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_was_idle_for_long_gets_no_request_that_cannot_be_repeated() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let (_, (_, _peered)) = join(call(&target, get()), backend.answer(OK)).await;
    tokio::time::advance(FRESH * 2).await;
    let ((answer, _), _) = join(call(&target, post("x")), backend.answer(OK)).await;
    assert_eq!(answer.status, 200);
    assert_eq!(target.upstream().status().servers[0].idle, 2);
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_passed_over() {
    let gone = Backend::new().address();
    let backend = Backend::new();
    let target = target(&settings_of(&[gone, backend.address()]));
    let ((answer, _), (head, _)) = join(call(&target, post("abc")), backend.answer(OK)).await;
    assert_eq!(answer.status, 200);
    assert!(head.starts_with("POST "));
    assert_eq!(target.upstream().status().servers[0].failures, 1);
}

#[tokio::test]
async fn retries_are_counted() {
    let gone: Vec<_> = (0..4).map(|_| Backend::new()).collect();
    let addresses: Vec<_> = gone.iter().map(Backend::address).collect();
    drop(gone);
    let target = target(&settings_of(&addresses));
    let (answer, outcome) = call(&target, get()).await;
    assert_eq!((answer.status, outcome), (502, Some(Outcome::UpstreamFailed)));
    let failures: u64 = target.upstream().status().servers.iter().map(|server| server.failures).sum();
    assert_eq!(failures, 3);
}

#[tokio::test]
async fn a_broken_answer_is_a_502() {
    let answers = [
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok",
        "HTTP/1.1 200 OK\ncontent-length: 2\n\nok",
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "SSH-2.0-OpenSSH\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nok",
    ];
    for text in answers {
        let backend = Backend::new();
        let target = target(&settings(&[&backend]));
        let script = async { drop(backend.answer(text).await) };
        let ((answer, outcome), ()) = join(call(&target, get()), script).await;
        assert_eq!((answer.status, outcome), (502, Some(Outcome::UpstreamFailed)), "{text}");
        assert_eq!(target.upstream().status().servers[0].failures, 1, "{text}");
        assert_eq!(target.upstream().status().servers[0].idle, 0, "{text}");
    }
}

#[tokio::test]
async fn a_truncated_answer_is_never_silent() {
    let heads = ["content-length: 100000\r\n\r\nbegin", "transfer-encoding: chunked\r\n\r\n5\r\nbegin\r\n"];
    for head in heads {
        let backend = Backend::new();
        let target = target(&settings(&[&backend]));
        let script = async { drop(backend.answer(&format!("HTTP/1.1 200 OK\r\n{head}")).await) };
        let ((answer, _), ()) = join(call(&target, get()), script).await;
        assert_eq!((answer.status, &answer.content[..]), (200, b"begin".as_slice()));
        assert!(matches!(answer.error, Some(BodyError::Upstream(_))), "{answer:?}");
        assert_eq!(target.upstream().status().servers[0].failures, 1);
    }
}

#[tokio::test]
async fn chunks_and_trailers_come_through_and_the_connection_is_kept() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let text =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\nx-sum: 7\r\n\r\n";
    let wanted = request(Method::GET, &[("te", "trailers")], RequestBody::Empty);
    let ((answer, _), (_, mut peered)) = join(call(&target, wanted), backend.answer(text)).await;
    assert_eq!(answer.content, b"abcdef");
    assert_eq!(answer.trailers.unwrap()["x-sum"], "7");
    assert!(!answer.headers.contains_key(header::TRANSFER_ENCODING));
    let script = async {
        peered.head().await;
        peered.send(text).await;
    };
    let ((answer, _), ()) = join(call(&target, get()), script).await;
    assert_eq!((answer.content, answer.trailers), (b"abcdef".to_vec(), None));
    assert_eq!(target.upstream().status().servers[0].idle, 1);
}

#[tokio::test]
async fn answers_without_content_end_with_their_head() {
    let cases = [
        (Method::HEAD, "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n", Some("7")),
        (Method::GET, "HTTP/1.1 204 No Content\r\n\r\n", None),
        (Method::GET, "HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n", Some("9")),
    ];
    for (method, text, length) in cases {
        let backend = Backend::new();
        let target = target(&settings(&[&backend]));
        let exchange = request(method, &[], RequestBody::Empty);
        let ((answer, _), _peered) = join(call(&target, exchange), backend.answer(text)).await;
        assert!(answer.content.is_empty() && answer.error.is_none());
        assert_eq!(answer.headers.get(header::CONTENT_LENGTH).map(|v| v.to_str().unwrap()), length);
        assert_eq!(target.upstream().status().servers[0].idle, 1, "{text}");
    }
}

#[tokio::test]
async fn an_answer_may_end_with_its_connection() {
    for version in ["HTTP/1.0", "HTTP/1.1"] {
        let backend = Backend::new();
        let target = target(&settings(&[&backend]));
        let text = format!("{version} 200 OK\r\nserver: old\r\n\r\nall of it");
        let script = async { drop(backend.answer(&text).await) };
        let ((answer, _), ()) = join(call(&target, get()), script).await;
        assert_eq!((answer.status, &answer.content[..]), (200, b"all of it".as_slice()));
        assert!(answer.error.is_none());
        assert_eq!(target.upstream().status().servers[0].idle, 0);
    }
}

#[tokio::test]
async fn bytes_behind_an_answer_are_no_answer_to_the_next_request() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let text = format!("{OK}HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil");
    let ((answer, _), _peered) = join(call(&target, get()), backend.answer(&text)).await;
    assert_eq!(answer.content, b"ok");
    assert_eq!(target.upstream().status().servers[0].idle, 0);
}

#[tokio::test]
async fn a_large_answer_is_streamed_and_its_connection_kept() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let content = "0123456789".repeat(100_000);
    let text = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{content}", content.len());
    let ((answer, _), _peered) = join(call(&target, get()), backend.answer(&text)).await;
    assert_eq!(answer.content, content.as_bytes());
    assert_eq!(target.upstream().status().servers[0].idle, 1);
}

#[tokio::test]
async fn content_of_unknown_length_is_sent_in_chunks_with_its_trailers() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let (client, body) = streamed(None);
    client.send(data("first")).unwrap();
    let script = async {
        let mut peered = backend.accept().await;
        let begin = peered.until("first\r\n").await;
        client.send(data("second")).unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", HeaderValue::from_static("1"));
        client.send(Ok(Frame::trailers(trailers))).unwrap();
        let end = peered.until("\r\n\r\n").await;
        peered.send(OK).await;
        (begin, end, peered)
    };
    let exchange = request(Method::POST, &[], body);
    let ((answer, _), (begin, end, _peered)) = join(call(&target, exchange), script).await;
    assert_eq!(answer.status, 200);
    assert!(begin.contains("transfer-encoding: chunked\r\n") && begin.ends_with("\r\n\r\n5\r\nfirst\r\n"));
    assert_eq!(end, "6\r\nsecond\r\n0\r\nx-sum: 1\r\n\r\n");
    assert_eq!(target.upstream().status().servers[0].idle, 1);
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_request_is_delivered() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let (client, body) = streamed(Some(1 << 30));
    client.send(data("some")).unwrap();
    let text = "HTTP/1.1 413 Content Too Large\r\ncontent-length: 3\r\nconnection: close\r\n\r\nno\n";
    let script = async { drop(backend.answer(text).await) };
    let exchange = request(Method::POST, &[], body);
    let ((answer, outcome), ()) = join(call(&target, exchange), script).await;
    assert_eq!((answer.status, &answer.content[..], outcome), (413, b"no\n".as_slice(), None));
    assert_eq!(target.upstream().status().servers[0].idle, 0);
}

#[tokio::test]
async fn content_flows_both_ways_at_once() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let (client, body) = streamed(None);
    let script = async {
        let mut peered = backend.accept().await;
        peered.head().await;
        peered.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
        for _ in 0..3 {
            peered.until("ping\r\n").await;
            peered.send("4\r\npong\r\n").await;
        }
        peered.until("0\r\n\r\n").await;
        peered.send("0\r\n\r\n").await;
        peered
    };
    let talk = async {
        let mut exchange = request(Method::POST, &[], body);
        let mut body = proxy(&target, &mut exchange).await.into_body();
        for _ in 0..3 {
            client.send(data("ping")).unwrap();
            assert_eq!(next(&mut body).await.unwrap().unwrap().into_data().unwrap(), "pong");
        }
        drop(client);
        assert!(next(&mut body).await.is_none());
    };
    let ((), _peered) = join(talk, script).await;
    assert_eq!(target.upstream().status().servers[0].idle, 1);
}

#[tokio::test]
async fn a_client_that_goes_closes_the_connection_to_the_server() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    // While the answer is waited for.
    let mut exchange = get();
    let mut waiting = Box::pin(proxy(&target, &mut exchange));
    let mut peered = tokio::select! {
        _ = &mut waiting => unreachable!("nothing was answered"),
        peered = backend.accept() => peered,
    };
    tokio::select! {
        _ = &mut waiting => unreachable!("nothing was answered"),
        _ = peered.head() => {}
    }
    assert_eq!(target.upstream().status().servers[0].in_flight, 1);
    drop(waiting);
    peered.closed().await;
    assert_eq!(target.upstream().status().servers[0].in_flight, 0);
    // In the middle of it.
    let begun = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n";
    let mut exchange = get();
    let (response, (_, peered)) = join(proxy(&target, &mut exchange), backend.answer(begun)).await;
    let mut body = response.into_body();
    assert!(next(&mut body).await.unwrap().is_ok());
    drop(body);
    peered.closed().await;
    let status = target.upstream().status();
    assert_eq!((status.servers[0].in_flight, status.servers[0].idle, status.servers[0].failures), (0, 0, 0));
}

#[tokio::test]
async fn a_client_that_fails_is_answered_and_the_server_learns_it() {
    let cases = [
        (RequestBodyError::TooLarge, 413, Outcome::Rejected),
        (RequestBodyError::Timeout, 408, Outcome::Rejected),
        (RequestBodyError::Gone, 400, Outcome::ClientGone),
    ];
    for (error, status, outcome) in cases {
        let backend = Backend::new();
        let target = target(&settings(&[&backend]));
        let (client, body) = streamed(None);
        let script = async {
            let mut peered = backend.accept().await;
            peered.head().await;
            client.send(data("a")).unwrap();
            client.send(Err(error)).unwrap();
            peered.closed().await
        };
        let exchange = request(Method::POST, &[], body);
        let ((answer, ended), sent) = join(call(&target, exchange), script).await;
        assert_eq!((answer.status, ended), (status, Some(outcome)));
        assert!(!sent.ends_with(b"0\r\n\r\n"), "the content must not look complete");
        assert_eq!(target.upstream().status().servers[0].failures, 0);
    }
}

#[tokio::test]
async fn a_content_shorter_than_announced_is_not_passed_off_as_whole() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let (client, body) = streamed(Some(10));
    client.send(data("five!")).unwrap();
    drop(client);
    let script = async { backend.accept().await.closed().await };
    let exchange = request(Method::POST, &[], body);
    let ((answer, _), _) = join(call(&target, exchange), script).await;
    assert_eq!(answer.status, 400);
}

#[tokio::test(start_paused = true)]
async fn expected_content_waits_for_the_server_but_not_for_ever() {
    for says_continue in [true, false] {
        let backend = Backend::new();
        let target = target(&settings(&[&backend]));
        let body = RequestBody::Bytes(Bytes::from_static(b"content"));
        let exchange = request(Method::PUT, &[("expect", "100-continue")], body);
        let script = async {
            let mut peered = backend.accept().await;
            let head = peered.head().await;
            assert!(head.contains("\r\nexpect: 100-continue\r\n"), "{head}");
            assert!(peered.input.is_empty());
            if says_continue {
                peered.send("HTTP/1.1 100 Continue\r\n\r\n").await;
            }
            peered.until("content").await;
            peered.send(OK).await;
            peered
        };
        let ((answer, _), _peered) = join(call(&target, exchange), script).await;
        assert_eq!(answer.status, 200);
        assert_eq!(target.upstream().status().servers[0].idle, 1);
    }
}

#[tokio::test]
async fn expected_content_that_is_refused_is_never_read() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let (client, body) = streamed(Some(4));
    client.send(Err(RequestBodyError::Gone)).unwrap();
    let exchange = request(Method::PUT, &[("expect", "100-continue")], body);
    let text = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n";
    let ((answer, _), (_, peered)) = join(call(&target, exchange), backend.answer(text)).await;
    assert_eq!(answer.status, 401);
    // The server would take the next request for the content.
    assert_eq!(target.upstream().status().servers[0].idle, 0);
    peered.closed().await;
}

#[tokio::test]
async fn interim_answers_come_before_the_final_one() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let text = format!("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n{OK}");
    let ((answer, _), _peered) = join(call(&target, get()), backend.answer(&text)).await;
    assert_eq!((answer.status, &answer.content[..]), (200, b"ok".as_slice()));
    assert!(!answer.headers.contains_key(header::LINK));
    let flood = "HTTP/1.1 102 Processing\r\n\r\n".repeat(MOST);
    let script = async { backend.answer(&flood).await };
    let another = ProxyTarget::new(
        &model::Proxy { upstream: "api".into(), strip_prefix: false, preserve_host: true },
        &PathPattern::Prefix("/".into()),
        Upstream::new(&settings(&[&backend]), &Metrics::default()),
    );
    let ((answer, _), _) = join(call(&another, get()), script).await;
    assert_eq!(answer.status, 502);
}

const MOST: usize = 40;

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_is_a_504() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let started = Instant::now();
    let script = async {
        let mut peered = backend.accept().await;
        peered.head().await;
        peered
    };
    let ((answer, outcome), _peered) = join(call(&target, get()), script).await;
    assert_eq!((answer.status, outcome), (504, Some(Outcome::UpstreamFailed)));
    assert_eq!(started.elapsed().as_secs(), 60);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stalls_within_its_answer_cuts_it() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let begun = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n";
    let ((answer, _), _peered) = join(call(&target, get()), backend.answer(begun)).await;
    assert_eq!(answer.content, b"a");
    assert!(matches!(answer.error, Some(BodyError::Upstream(_))));
    assert_eq!(target.upstream().status().servers[0].failures, 1);
}

#[tokio::test]
async fn a_server_that_says_how_long_it_keeps_a_connection_is_believed() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let text = "HTTP/1.1 200 OK\r\nkeep-alive: timeout=5\r\ncontent-length: 0\r\n\r\n";
    let ((answer, _), _peered) = join(call(&target, get()), backend.answer(text)).await;
    assert!(!answer.headers.contains_key("keep-alive"));
    let epoch = target.upstream().claim();
    tokio::time::pause();
    tokio::time::advance(Duration::from_millis(3_900)).await;
    assert_eq!(target.upstream().decide(epoch).unwrap().closed, 0);
    tokio::time::advance(Duration::from_millis(200)).await;
    assert_eq!(target.upstream().decide(epoch).unwrap().closed, 1);
}

#[test]
fn a_prefix_is_taken_off_by_its_segments() {
    let upstream = Upstream::new(&settings_of(&["127.0.0.1:1".parse().unwrap()]), &Metrics::default());
    let config = model::Proxy { upstream: "api".into(), strip_prefix: true, preserve_host: true };
    let stripped = |path: PathPattern, sent: &'static str| {
        let target = ProxyTarget::new(&config, &path, upstream.clone());
        target.path(&PathAndQuery::from_static(sent)).to_string()
    };
    let prefix = |path: &str| PathPattern::Prefix(path.into());
    assert_eq!(stripped(prefix("/api/v1/"), "/api/v1/a/b?q=1"), "/a/b?q=1");
    assert_eq!(stripped(prefix("/api/"), "/api/?q"), "/?q");
    assert_eq!(stripped(prefix("/a;b/"), "/a%3Bb/%2Fx"), "/%2Fx");
    assert_eq!(stripped(prefix("/"), "/x"), "/x");
    assert_eq!(stripped(PathPattern::Exact("/ws".into()), "/ws?token=1"), "/?token=1");
}

#[tokio::test]
async fn an_options_that_may_go_no_further_is_answered_here() {
    let target = target(&settings_of(&["127.0.0.1:1".parse().unwrap()]));
    let exchange = request(Method::OPTIONS, &[("max-forwards", "0")], RequestBody::Empty);
    assert_eq!(call(&target, exchange).await.0.status, 204);
    let (answer, _) = call(&target, request(Method::TRACE, &[], RequestBody::Empty)).await;
    assert_eq!(answer.status, 405);
}
