//! The engine over an in-memory stream, on a clock that stands still.

mod answers;
mod bodies;
mod deadlines;
mod ends;
mod requests;

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt;
use playhouse_config::model::{ClientTimeouts, Limits};
use playhouse_protocol::http1::{BodyDecoder, Decoded, HeadLimits, ResponseHead, ResponseParser};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::{Ending, serve};
use crate::engine::Settings;
use crate::engine::drain::Drain;
use crate::engine::test_application::{TestApplication, connection_info, info};
use crate::exchange::Informational;
use crate::{Body, BodyError, Exchange, Outcome, RequestBody};

/// A client at the other end of a connection that is served.
struct Client {
    io: DuplexStream,
    input: BytesMut,
    app: Arc<TestApplication>,
    connection: JoinHandle<Ending>,
    drain: Option<oneshot::Sender<()>>,
}

impl Client {
    fn new() -> Self {
        Self::with(settings(), 1 << 20)
    }

    /// With an in-memory stream that holds so many bytes.
    fn with(settings: Settings, capacity: usize) -> Self {
        let (io, server) = tokio::io::duplex(capacity);
        let app = TestApplication::new(|exchange: &mut Exchange| Box::pin(handle(exchange)));
        let (drain, drained) = oneshot::channel();
        let connection = tokio::spawn({
            let app = app.clone();
            async move {
                let drained = async { drained.await.unwrap_or(()) };
                let drained = pin!(drained);
                let drain = Drain::new(drained);
                serve(server, BytesMut::new(), connection_info(), &settings, &app, drain).await
            }
        });
        Client { io, input: BytesMut::new(), app, connection, drain: Some(drain) }
    }

    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.io.write_all(bytes.as_ref()).await.expect("the server reads");
    }

    async fn shut_down(&mut self) {
        self.io.shutdown().await.expect("open");
    }

    /// Lets the connection run until it waits.
    async fn settle(&self) {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    async fn head(&mut self) -> ResponseHead {
        self.head_for(&Method::GET).await
    }

    async fn head_for(&mut self, method: &Method) -> ResponseHead {
        let mut parser = ResponseParser::new(HeadLimits::default());
        loop {
            if let Some(head) = parser.parse(&mut self.input, method).expect("a valid head") {
                return head;
            }
            assert_ne!(self.io.read_buf(&mut self.input).await.expect("readable"), 0, "closed before a head");
        }
    }

    async fn content(&mut self, head: &ResponseHead) -> Result<(Vec<u8>, Option<HeaderMap>), ()> {
        let mut decoder = BodyDecoder::new(head.body, HeadLimits::default());
        let (mut content, mut trailers) = (Vec::new(), None);
        loop {
            match decoder.decode(&mut self.input).expect("valid framing") {
                Decoded::Data(data) => content.extend_from_slice(&data),
                Decoded::Trailers(fields) => trailers = Some(fields),
                Decoded::End => return Ok((content, trailers)),
                Decoded::NeedMore => {
                    if self.io.read_buf(&mut self.input).await.expect("readable") == 0 {
                        decoder.eof().map_err(|_| ())?;
                    }
                }
            }
        }
    }

    /// Status and content of the next answer.
    async fn answer(&mut self) -> (u16, String) {
        let head = self.head().await;
        let (content, _) = self.content(&head).await.expect("complete");
        (head.status.as_u16(), String::from_utf8(content).expect("text"))
    }

    /// All that comes until the connection is closed.
    async fn rest(&mut self) -> String {
        let mut rest = self.input.split().to_vec();
        self.io.read_to_end(&mut rest).await.expect("readable");
        String::from_utf8(rest).expect("text")
    }

    /// Nothing more comes, and the connection is closed.
    async fn assert_closed(&mut self) {
        assert_eq!(self.input, "");
        assert_eq!(self.io.read_buf(&mut self.input).await.expect("readable"), 0, "{:?}", self.input);
    }

    /// Closes, waits for the connection's end, and gives what the ledger says: outcome and number, where not 0.
    async fn ledger(self) -> (Ending, Vec<(Outcome, u64)>) {
        let Client { io, app, connection, drain: _drain, .. } = self;
        drop(io);
        let ending = timeout(Duration::from_secs(600), connection).await.expect("ends").expect("no panic");
        (ending, outcomes(&app))
    }
}

fn outcomes(app: &TestApplication) -> Vec<(Outcome, u64)> {
    let totals = app.totals();
    assert_eq!((totals.in_flight, totals.accepted), (0, totals.ended()));
    let all = [
        (Outcome::Answered, totals.answered),
        (Outcome::Rejected, totals.rejected),
        (Outcome::Shed, totals.shed),
        (Outcome::ClientGone, totals.client_gone),
        (Outcome::UpstreamFailed, totals.upstream_failed),
        (Outcome::Killed, totals.killed),
    ];
    all.into_iter().filter(|(_, count)| *count > 0).collect()
}

fn settings() -> Settings {
    let limits = Limits { header_bytes: 1024, header_count: 10, body_bytes: 200_000, ..Limits::default() };
    Settings {
        limits,
        timeouts: ClientTimeouts::default(),
        http2: false,
        proxy_protocol: None,
        tls: None,
        quic: None,
    }
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

fn post(path: &str, length: usize) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n")
}

/// What the application answers, by path.
async fn handle(exchange: &mut Exchange) -> Response<Body> {
    let path = exchange.request.uri().path().to_owned();
    let text = |text: &'static str| Response::new(Body::from(text));
    let steps = |steps: Vec<Step>| Response::new(Body::Stream(Box::pin(Script(steps.into()))));
    match path.as_str() {
        // A path of CONNECT is empty.
        "/hello" | "" => text("hello"),
        "/empty" => Response::new(Body::Empty),
        "/large" => Response::new(Body::from("x".repeat(100_000))),
        "/echo" => {
            let body = std::mem::take(exchange.request.body_mut());
            match body.collect().await {
                Ok(all) => Response::new(Body::from(all.to_bytes())),
                Err(error) => {
                    let mut response = Response::new(Body::from(error.to_string()));
                    *response.status_mut() = error.status();
                    response
                }
            }
        }
        "/stream" => {
            let body = std::mem::take(exchange.request.body_mut());
            Response::new(Body::Stream(Box::pin(Echo(body))))
        }
        "/limited" => match exchange.request.body_mut().limit(Some(3)) {
            Ok(()) => text("ok"),
            Err(error) => {
                let mut response = text("too large");
                *response.status_mut() = error.status();
                response
            }
        },
        "/elsewhere" => {
            let body = std::mem::take(exchange.request.body_mut());
            let read = tokio::spawn(async move { body.collect().await.map(|all| all.to_bytes()) });
            Response::new(Body::from(read.await.expect("no panic").expect("complete")))
        }
        "/marks" => {
            let request = &mut exchange.request;
            let fresh = request.extensions_mut().insert("mark").is_none()
                && matches!(request.body(), RequestBody::Empty)
                && request.headers().len() == 1
                && exchange.record.outcome.replace(Outcome::Shed).is_none()
                && exchange.connection.id == 1
                && matches!(exchange.informational, Informational::H1(_));
            request.headers_mut().insert("mark", HeaderValue::from_static("mark"));
            *request.uri_mut() = "http://elsewhere.example/".parse().expect("valid");
            *request.body_mut() = RequestBody::Bytes("mark".into());
            exchange.informational = Informational::Unsupported;
            exchange.connection = Arc::new(info(0));
            text(if fresh { "fresh" } else { "marked" })
        }
        "/hints" => {
            let mut headers = HeaderMap::new();
            headers.insert("link", HeaderValue::from_static("</a>"));
            exchange.informational.send(StatusCode::EARLY_HINTS, headers);
            tokio::time::sleep(Duration::from_secs(1)).await;
            exchange.informational.send(StatusCode::PROCESSING, HeaderMap::new());
            exchange.informational.send(StatusCode::SWITCHING_PROTOCOLS, HeaderMap::new());
            text("done")
        }
        "/slow" => {
            tokio::time::sleep(Duration::from_secs(20)).await;
            text("slow")
        }
        "/soon" => {
            tokio::time::sleep(Duration::from_secs(2)).await;
            text("soon")
        }
        "/never" => std::future::pending().await,
        "/panic" => panic!("on purpose"),
        "/chunks" => steps(vec![Step::Data("ab"), Step::Pause, Step::Data("cde"), Step::Data("")]),
        "/trailers" => steps(vec![Step::Data("ab"), Step::Trailers]),
        "/panic-first" => steps(vec![Step::Panic]),
        "/panic-later" => steps(vec![Step::Data("ab"), Step::Pause, Step::Panic]),
        "/panic-unsent" => steps(vec![Step::Data("ab"), Step::Panic]),
        "/fail-first" => steps(vec![Step::Fail]),
        "/fail-later" => steps(vec![Step::Data("ab"), Step::Pause, Step::Fail]),
        "/short" => with(steps(vec![Step::Data("ab"), Step::Pause]), "content-length", "5"),
        "/long" => with(steps(vec![Step::Data("ab"), Step::Pause, Step::Data("cde")]), "content-length", "3"),
        "/exact" => with(steps(vec![Step::Data("ab"), Step::Data("cde")]), "content-length", "5"),
        "/endless" => steps(vec![Step::Endless]),
        "/fields" => {
            let response = with(text("ok"), "connection", "x-y");
            let response = with(response, "transfer-encoding", "chunked");
            let response = with(response, "keep-alive", "timeout=5");
            let response = with(response, "content-length", "77");
            with(with(response, "date", "today"), "x-y", "z")
        }
        "/close" => with(text("bye"), "connection", "close"),
        "/length-only" => with(text(""), "content-length", "55"),
        "/shed" => {
            exchange.record.outcome = Some(Outcome::Shed);
            text("shed")
        }
        status => {
            let mut response = text("content");
            let status = status.trim_start_matches('/').parse().expect("a status");
            *response.status_mut() = StatusCode::from_u16(status).expect("a status");
            response
        }
    }
}

fn with(mut response: Response<Body>, name: &'static str, value: &'static str) -> Response<Body> {
    response.headers_mut().insert(name, HeaderValue::from_static(value));
    response
}

/// What a body does when it is polled.
enum Step {
    Data(&'static str),
    Trailers,
    Pause,
    Panic,
    Fail,
    Endless,
}

struct Script(VecDeque<Step>);

impl http_body::Body for Script {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(step) = self.0.pop_front() else { return Poll::Ready(None) };
        let frame = match step {
            Step::Data(data) => Frame::data(Bytes::from_static(data.as_bytes())),
            Step::Trailers => {
                let mut trailers = HeaderMap::new();
                trailers.insert("x-sum", HeaderValue::from_static("1"));
                trailers.insert("host", HeaderValue::from_static("b"));
                Frame::trailers(trailers)
            }
            Step::Pause => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Step::Panic => panic!("on purpose"),
            Step::Fail => return Poll::Ready(Some(Err(BodyError::Upstream("reset".into())))),
            Step::Endless => {
                self.0.push_front(Step::Endless);
                Frame::data(Bytes::from_static(&[b'x'; 1000]))
            }
        };
        Poll::Ready(Some(Ok(frame)))
    }
}

/// A request's content as an answer's.
struct Echo(RequestBody);

impl http_body::Body for Echo {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.0).poll_frame(cx).map_err(BodyError::Request)
    }
}
