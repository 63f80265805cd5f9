//! Requests forwarded to servers that are scripted byte by byte, over real sockets.

mod again;
mod answers;
mod content;
mod target;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Request};
use http_body::{Body as _, Frame, SizeHint};
use playhouse_config::model::{self, Address, Bind, KeepAlive, PathPattern};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use super::*;
use crate::exchange::{ConnectionInfo, Informational, Peer, Record};
use crate::metrics::Metrics;
use crate::net::{Listener, Stream};
use crate::upstream::Upstream;
use crate::{BodyError, Outcome, RequestBody, RequestBodyError};

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
        protocol: Default::default(),
        proxy_protocol: None,
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
            proxied: None,
            tls: None,
            rate: None,
            alternative: None,
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
