//! The content of answers and requests.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response, StatusCode};
use http_body::{Frame, SizeHint};
use playhouse_protocol::http1::encode;

use crate::engine::{h1, h2, h3};
use crate::files::FileBody;
use crate::proxy::UpstreamBody;
use crate::tunnel::Tunnel;

/// A body of any kind, for what the other variants do not cover.
pub type BoxBody = Pin<Box<dyn http_body::Body<Data = Bytes, Error = BodyError> + Send>>;

/// The content of an answer. An enum, so that an engine can treat each kind in its own way (one write for head and
/// bytes, `sendfile` for a file).
#[derive(Default)]
pub enum Body {
    /// None.
    #[default]
    Empty,
    /// All of it, in memory.
    Bytes(Bytes),
    /// A whole answer that a cache holds, fields included.
    Cached(Arc<CachedAnswer>),
    /// A range of an open file.
    File(FileBody),
    /// What an upstream server sends, as it arrives.
    Upstream(Box<UpstreamBody>),
    /// Not content: the request has become a tunnel. The answer's status is 101, whatever the engine makes of it.
    Tunnel(Box<Tunnel>),
    /// Anything else.
    Stream(BoxBody),
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self {
            Body::Empty => "Empty",
            Body::Bytes(_) => "Bytes",
            Body::Cached(_) => "Cached",
            Body::File(_) => "File",
            Body::Upstream(_) => "Upstream",
            Body::Tunnel(_) => "Tunnel",
            Body::Stream(_) => "Stream",
        };
        write!(f, "Body::{kind}({:?})", http_body::Body::size_hint(self))
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        if bytes.is_empty() { Body::Empty } else { Body::Bytes(bytes) }
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        match this {
            Body::Empty => Poll::Ready(None),
            Body::Bytes(bytes) => {
                let bytes = std::mem::take(bytes);
                *this = Body::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Body::Cached(answer) => {
                let content = answer.content.clone();
                *this = Body::Empty;
                Poll::Ready(if content.is_empty() { None } else { Some(Ok(Frame::data(content))) })
            }
            Body::File(file) => file.poll_frame(cx),
            Body::Upstream(body) => body.poll_frame(cx),
            Body::Tunnel(_) => Poll::Ready(None),
            Body::Stream(body) => body.as_mut().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Empty | Body::Tunnel(_) => true,
            Body::Bytes(_) => false,
            Body::Cached(answer) => answer.content.is_empty(),
            Body::File(file) => file.remaining() == 0,
            Body::Upstream(body) => body.is_end_stream(),
            Body::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Empty | Body::Tunnel(_) => SizeHint::with_exact(0),
            Body::Bytes(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Body::Cached(answer) => SizeHint::with_exact(answer.content.len() as u64),
            Body::File(file) => SizeHint::with_exact(file.remaining()),
            Body::Upstream(body) => body.size_hint(),
            Body::Stream(body) => body.size_hint(),
        }
    }
}

/// Fields and content of an answer, made once and shared by all requests that get it. As long as a [`Body::Cached`] is in
/// a response, these fields are not in the response's own map; [`CachedAnswer::spread`] puts them there.
#[derive(Debug)]
pub struct CachedAnswer {
    fields: HeaderMap,
    /// The same as HTTP/1.1 has them, the content's length among them.
    lines: Bytes,
    content: Bytes,
}

impl CachedAnswer {
    /// An answer with this content. `Content-Length` among the fields is for those who read the map; engines count.
    pub fn new(fields: HeaderMap, content: Bytes) -> Self {
        let mut lines = BytesMut::new();
        for (name, value) in fields.iter().filter(|(name, _)| *name != http::header::CONTENT_LENGTH) {
            encode::field(&mut lines, name, value);
        }
        encode::content_length(&mut lines, content.len() as u64);
        CachedAnswer { fields, lines: lines.freeze(), content }
    }

    /// The content.
    pub fn content(&self) -> &Bytes {
        &self.content
    }

    /// The fields as lines, each with its end.
    pub(crate) fn lines(&self) -> &[u8] {
        &self.lines
    }

    /// Puts the fields of a cached answer into the response's own map, so that they can be read and changed. What is in
    /// the map already stays.
    pub fn spread(response: &mut Response<Body>) {
        let Body::Cached(answer) = response.body() else { return };
        let answer = answer.clone();
        *response.body_mut() = answer.content.clone().into();
        if response.headers().is_empty() {
            response.headers_mut().clone_from(&answer.fields);
            return;
        }
        for (name, value) in &answer.fields {
            if !response.headers().contains_key(name) {
                response.headers_mut().insert(name.clone(), value.clone());
            }
        }
    }
}

/// Why the content of an answer ended before its end. The engine resets the stream or closes the connection; it never
/// ends such a body as if it were whole.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The upstream server closed, reset, stalled or broke its framing. Ends as `UpstreamFailed`.
    #[error("upstream: {0}")]
    Upstream(String),
    /// A file could not be read, or shrank. Ends as `Killed`.
    #[error("file: {0}")]
    File(#[from] std::io::Error),
    /// The request body on which the answer depends failed.
    #[error("request body: {0}")]
    Request(#[from] RequestBodyError),
    /// A handler's own error. Ends as `Killed`.
    #[error("handler: {0}")]
    Handler(String),
}

/// A request body of any kind, for what the other variants do not cover.
pub type BoxRequestBody = Pin<Box<dyn http_body::Body<Data = Bytes, Error = RequestBodyError> + Send + Sync>>;

/// The content of a request, as it arrives. Nothing is read from the client before it is polled.
#[derive(Default)]
pub enum RequestBody {
    /// None.
    #[default]
    Empty,
    /// All of it, in memory.
    Bytes(Bytes),
    /// From an HTTP/1.1 connection.
    H1(h1::BodyReader),
    /// From an HTTP/2 stream.
    H2(Box<h2::BodyReader>),
    /// From an HTTP/3 stream.
    H3(Box<h3::BodyReader>),
    /// From anywhere else.
    Stream(BoxRequestBody),
}

impl std::fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self {
            RequestBody::Empty => "Empty",
            RequestBody::Bytes(_) => "Bytes",
            RequestBody::H1(_) => "H1",
            RequestBody::H2(_) => "H2",
            RequestBody::H3(_) => "H3",
            RequestBody::Stream(_) => "Stream",
        };
        write!(f, "RequestBody::{kind}({:?})", http_body::Body::size_hint(self))
    }
}

impl RequestBody {
    /// Sets how many bytes it may have, in place of the listener's limit; `None` leaves that. An error at once where the
    /// length that was announced is more; else the body ends with [`RequestBodyError::TooLarge`] when it turns out to
    /// be.
    pub fn limit(&mut self, bytes: Option<u64>) -> Result<(), RequestBodyError> {
        let limit = match self {
            RequestBody::Empty => return Ok(()),
            RequestBody::Bytes(_) | RequestBody::Stream(_) => bytes,
            RequestBody::H1(reader) => Some(reader.limit(bytes)),
            RequestBody::H2(reader) => Some(reader.limit(bytes)),
            RequestBody::H3(reader) => Some(reader.limit(bytes)),
        };
        match limit {
            Some(limit) if http_body::Body::size_hint(self).lower() > limit => {
                Err(RequestBodyError::TooLarge)
            }
            _ => Ok(()),
        }
    }
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        let this = self.get_mut();
        match this {
            RequestBody::Empty => Poll::Ready(None),
            RequestBody::Bytes(bytes) => {
                let bytes = std::mem::take(bytes);
                *this = RequestBody::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            RequestBody::H1(reader) => reader.poll_frame(cx),
            RequestBody::H2(reader) => reader.poll_frame(cx),
            RequestBody::H3(reader) => reader.poll_frame(cx),
            RequestBody::Stream(body) => body.as_mut().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            RequestBody::Empty => true,
            RequestBody::Bytes(_) => false,
            RequestBody::H1(reader) => reader.is_end_stream(),
            RequestBody::H2(reader) => reader.is_end_stream(),
            RequestBody::H3(reader) => reader.is_end_stream(),
            RequestBody::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Empty => SizeHint::with_exact(0),
            RequestBody::Bytes(bytes) => SizeHint::with_exact(bytes.len() as u64),
            RequestBody::H1(reader) => reader.size_hint(),
            RequestBody::H2(reader) => reader.size_hint(),
            RequestBody::H3(reader) => reader.size_hint(),
            RequestBody::Stream(body) => body.size_hint(),
        }
    }
}

/// Why the content of a request ended before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestBodyError {
    /// The client closed or reset.
    #[error("the client has gone")]
    Gone,
    /// Broken framing (RFC 9112 §7.1), or not as long as its `Content-Length`.
    #[error("malformed")]
    Malformed,
    /// Over the limit of the route or listener.
    #[error("too large")]
    TooLarge,
    /// No progress within the deadline.
    #[error("too slow")]
    Timeout,
}

impl RequestBodyError {
    /// What to answer when no answer has begun.
    pub fn status(self) -> StatusCode {
        match self {
            RequestBodyError::Gone | RequestBodyError::Malformed => StatusCode::BAD_REQUEST,
            RequestBodyError::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            RequestBodyError::Timeout => StatusCode::REQUEST_TIMEOUT,
        }
    }
}
