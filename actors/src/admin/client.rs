//! A client of the admin interface that each instance has at a socket of its own: how the controller asks them.
//!
//! A connection for each question: the sockets are local, and an instance that is being replaced keeps nobody's
//! connection. Whoever answers is of our own user, but may be of another build, stuck, or just dying.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, StatusCode};
use playhouse_config::model::Address;
use playhouse_protocol::http1::{BodyDecoder, BodyError, Decoded, HeadLimits, ResponseError, ResponseParser};
use playhouse_serve::net::{Connector, Stream};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::supervision::Event;

/// An instance's admin interface.
#[derive(Clone, Debug)]
pub struct Client {
    address: Address,
}

/// Why there is no answer, or not the one that was hoped for.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("cannot be reached: {0}")]
    Unreachable(io::Error),
    /// Nothing came in time.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// The connection has ended too early.
    #[error("the connection has ended: {0}")]
    Broken(#[from] io::Error),
    /// The head of the answer is not HTTP/1.1.
    #[error("the answer's head: {0}")]
    Head(#[from] ResponseError),
    /// The content of the answer is cut or malformed.
    #[error("the answer's content: {0}")]
    Content(#[from] BodyError),
    /// The answer is longer than anything that an instance says.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
    /// The answer is an error.
    #[error("{message}")]
    Refused {
        /// 300 to 599.
        status: StatusCode,
        /// As the instance has said it.
        message: String,
    },
    /// The answer is not the JSON that was expected.
    #[error("the answer is not what was expected: {0}")]
    Unexpected(#[from] serde_json::Error),
}

impl Client {
    /// For the interface at this Unix socket.
    pub fn new(socket: PathBuf) -> Self {
        Client { address: Address::Unix(socket) }
    }

    /// Asks for a page; waits at most [`READ`].
    ///
    /// # Errors
    /// See [`ClientError`]; any status but 2xx is one.
    pub async fn get(&self, target: &str) -> Result<Bytes, ClientError> {
        within(READ, self.ask(Method::GET, target, b"")).await
    }

    /// As [`get`](Self::get), read as JSON.
    ///
    /// # Errors
    /// As of [`get`](Self::get).
    pub async fn read<T: DeserializeOwned>(&self, target: &str) -> Result<T, ClientError> {
        Ok(serde_json::from_slice(&self.get(target).await?)?)
    }

    /// Tells it to do something; waits at most [`READ`].
    ///
    /// # Errors
    /// As of [`get`](Self::get). After [`ClientError::Late`] it may still happen.
    pub async fn post(&self, target: &str, command: &serde_json::Value) -> Result<Bytes, ClientError> {
        within(READ, self.ask(Method::POST, target, command.to_string().as_bytes())).await
    }

    /// Follows its events, those after the one with this number.
    ///
    /// # Errors
    /// As of [`get`](Self::get).
    pub async fn events(&self, after: u64) -> Result<EventReader, ClientError> {
        let fields = format!("Last-Event-ID: {after}\r\n");
        let mut reply =
            within(READ, Reply::begin(&self.address, Method::GET, "/v1/events", &fields, b"")).await?;
        if !reply.status.is_success() {
            let message = within(READ, reply.whole()).await?;
            return Err(refused(reply.status, &message));
        }
        Ok(EventReader { reply, text: BytesMut::new() })
    }

    async fn ask(&self, method: Method, target: &str, content: &[u8]) -> Result<Bytes, ClientError> {
        let mut reply = Reply::begin(&self.address, method, target, "Connection: close\r\n", content).await?;
        let answer = reply.whole().await?;
        if reply.status.is_success() { Ok(answer) } else { Err(refused(reply.status, &answer)) }
    }
}

/// The events of an instance, as they happen.
#[derive(Debug)]
pub struct EventReader {
    reply: Reply,
    /// What has come of the events' text and is not read yet.
    text: BytesMut,
}

impl EventReader {
    /// The next event. What is no event that we know is passed over. Cancel-safe.
    ///
    /// # Errors
    /// The stream has ended, or nothing came for longer than the interval of its comments.
    pub async fn next(&mut self) -> Result<Event, ClientError> {
        loop {
            while let Some(end) = self.text.windows(2).position(|pair| pair == b"\n\n") {
                let block = self.text.split_to(end + 2);
                let data =
                    block[..].split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"data: "));
                if let Some(event) = data.and_then(|data| serde_json::from_slice(data).ok()) {
                    return Ok(event);
                }
            }
            if self.text.len() > MAX_EVENT {
                return Err(ClientError::TooLong(MAX_EVENT));
            }
            match within(SILENCE, self.reply.piece()).await? {
                Some(piece) => self.text.extend_from_slice(&piece),
                None => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            }
        }
    }
}

/// An answer whose head has come.
#[derive(Debug)]
struct Reply {
    status: StatusCode,
    stream: Stream,
    buffer: BytesMut,
    content: BodyDecoder,
}

impl Reply {
    async fn begin(
        address: &Address,
        method: Method,
        target: &str,
        fields: &str,
        content: &[u8],
    ) -> Result<Reply, ClientError> {
        let mut stream = Connector::connect(address).await.map_err(ClientError::Unreachable)?;
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            content.len()
        );
        stream.write_all(&[head.as_bytes(), content].concat()).await?;
        let limits = HeadLimits::default();
        let (mut parser, mut buffer) = (ResponseParser::new(limits), BytesMut::new());
        loop {
            match parser.parse(&mut buffer, &method)? {
                Some(head) if head.status.is_informational() => {}
                Some(head) => {
                    let content = BodyDecoder::for_answer(head.body, limits);
                    return Ok(Reply { status: head.status, stream, buffer, content });
                }
                None => {
                    if stream.read_buf(&mut buffer).await? == 0 {
                        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                    }
                }
            }
        }
    }

    /// The next piece of content, `None` at its end. Cancel-safe.
    async fn piece(&mut self) -> Result<Option<Bytes>, ClientError> {
        loop {
            match self.content.decode(&mut self.buffer)? {
                Decoded::Data(piece) => return Ok(Some(piece)),
                Decoded::Trailers(_) => {}
                Decoded::End => return Ok(None),
                Decoded::NeedMore => {
                    self.buffer.reserve(PIECE);
                    if self.stream.read_buf(&mut self.buffer).await? == 0 {
                        self.content.eof()?;
                    }
                }
            }
        }
    }

    async fn whole(&mut self) -> Result<Bytes, ClientError> {
        let mut whole = BytesMut::new();
        while let Some(piece) = self.piece().await? {
            if whole.len() + piece.len() > MAX_ANSWER {
                return Err(ClientError::TooLong(MAX_ANSWER));
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
    }
}

async fn within<T>(
    deadline: Duration,
    answer: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    tokio::time::timeout(deadline, answer).await.unwrap_or(Err(ClientError::Late(deadline)))
}

/// What an error page says: the `error` of a JSON object, or all of its text.
fn refused(status: StatusCode, content: &[u8]) -> ClientError {
    #[derive(serde::Deserialize)]
    struct Page {
        error: String,
    }
    let message = match serde_json::from_slice::<Page>(content) {
        Ok(page) => page.error,
        Err(_) => String::from_utf8_lossy(content).trim().to_owned(),
    };
    let message = if message.is_empty() { format!("answered with status {status}") } else { message };
    ClientError::Refused { status, message }
}

/// For one answer: one that is stuck must not hold up a page about all of them.
pub const READ: Duration = Duration::from_secs(2);
/// Three of the comments that stand for silence.
const SILENCE: Duration = Duration::from_secs(45);
/// A tree with all connections of a busy instance is some 20 MB.
const MAX_ANSWER: usize = 256 << 20;
/// A reload's refusal has every error of the site file in it.
const MAX_EVENT: usize = 1 << 20;
/// What is read at once, at least.
const PIECE: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use playhouse_config::model::Bind;
    use playhouse_serve::net::Listener;

    use super::*;

    /// A server that reads one head, and then says these pieces one by one.
    struct Scripted {
        client: Client,
        _dir: tempfile::TempDir,
        served: tokio::task::JoinHandle<String>,
    }

    impl Scripted {
        fn new(pieces: &'static [&'static str], then: Option<Duration>) -> Scripted {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("instance-1.sock");
            let listener = Listener::bind(&Bind::Unix { path: path.clone(), mode: None }, 8).unwrap();
            let served = tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = BytesMut::new();
                while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                    stream.read_buf(&mut request).await.unwrap();
                }
                for piece in pieces {
                    stream.write_all(piece.as_bytes()).await.unwrap();
                    tokio::task::yield_now().await;
                }
                if let Some(pause) = then {
                    tokio::time::sleep(pause).await;
                }
                String::from_utf8(request.to_vec()).unwrap()
            });
            Scripted { client: Client::new(path), _dir: dir, served }
        }
    }

    #[tokio::test]
    async fn an_answer_is_read_however_it_is_framed_and_cut() {
        for pieces in [
            &["HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{\"a\":1}"][..],
            &["HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200", " OK\r\n\r\n{\"a\"", ":1}"],
            &[
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{\"a\"\r\n3\r\n:1",
                "}\r\n0\r\n\r\n",
            ],
        ] {
            let server = Scripted::new(pieces, None);
            let value: serde_json::Value = server.client.read("/v1/status").await.unwrap();
            assert_eq!(value, serde_json::json!({"a": 1}));
            let request = server.served.await.unwrap();
            assert!(request.starts_with("GET /v1/status HTTP/1.1\r\nHost: localhost\r\n"), "{request}");
        }
    }

    #[tokio::test]
    async fn a_refusal_is_told_in_the_instances_words() {
        let pieces =
            &["HTTP/1.1 404 Not Found\r\nContent-Length: 27\r\n\r\n{\"error\": \"no actor \\\"x\\\"\"}\n"];
        let error =
            Scripted::new(pieces, None).client.post("/v1/kill", &serde_json::json!({})).await.unwrap_err();
        assert!(matches!(error, ClientError::Refused { status, .. } if status == 404), "{error:?}");
        assert_eq!(error.to_string(), "no actor \"x\"");
        let plain = &["HTTP/1.1 503 Service Unavailable\r\nContent-Length: 10\r\n\r\nnot ready\n"];
        assert_eq!(Scripted::new(plain, None).client.get("/").await.unwrap_err().to_string(), "not ready");
    }

    #[tokio::test]
    async fn a_cut_or_foreign_answer_is_an_error() {
        for pieces in [
            &["HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"][..],
            &["HTTP/1.1 200 OK\r\n"],
            &["SSH-2.0-x\r\n\r\n"],
            &[],
        ] {
            assert!(Scripted::new(pieces, None).client.get("/").await.is_err(), "{pieces:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_that_does_not_answer_is_waited_for_no_longer_than_the_deadline() {
        let server = Scripted::new(&[], Some(Duration::from_secs(3600)));
        let begun = tokio::time::Instant::now();
        let error = server.client.get("/v1/status").await.unwrap_err();
        assert!(matches!(error, ClientError::Late(_)), "{error:?}");
        assert_eq!(begun.elapsed().as_secs(), READ.as_secs());
        let gone = Client::new("/nonexistent/instance-1.sock".into());
        assert!(matches!(gone.get("/").await.unwrap_err(), ClientError::Unreachable(_)));
    }

    #[tokio::test]
    async fn events_are_read_as_they_come_and_what_is_none_is_passed_over() {
        let pieces = &[
            "HTTP/1.1 200 OK\r\n\r\n",
            ": hello\n\n",
            "id: 7\ndata: {\"sequence\":7,\"unix_ms\":1,\"kind\":\"ended\",\"path\":\"instance-1/metrics\",\"messag",
            "e\":\"killed\"}\n\ndata: garbage\n\ndat",
            "a: {\"sequence\":8,\"unix_ms\":2,\"kind\":\"of a later build\",\"path\":\"instance-1\",\"message\":\"\"}\n",
            "\n",
        ];
        let server = Scripted::new(pieces, None);
        let mut events = server.client.events(6).await.unwrap();
        let event = events.next().await.unwrap();
        assert_eq!((event.sequence, &*event.path, &*event.message), (7, "instance-1/metrics", "killed"));
        assert_eq!(events.next().await.unwrap().sequence, 8);
        assert!(events.next().await.is_err());
        assert!(server.served.await.unwrap().contains("\r\nLast-Event-ID: 6\r\n"));
    }
}
