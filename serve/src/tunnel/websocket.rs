//! WebSocket endpoints of the embedding program (RFC 6455): messages, on the library's `tungstenite`.
//!
//! The endpoint's future runs within the tunnel, and the tunnel within its connection: it is dropped with it, and a panic
//! in it costs that one tunnel. Idle and life deadlines, pings and drains are the tunnel's; fragments, UTF-8, limits, the
//! answers to Pings and the closing handshake are done here.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, SinkExt, StreamExt};
use http::header::{HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION};
use http::{Request, Response, StatusCode};
use playhouse_protocol::http1::list_items;
use playhouse_protocol::websocket::control::{self, code};
use tokio::io::DuplexStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite;
use tungstenite::protocol::frame::CloseFrame;
use tungstenite::protocol::{Role, WebSocketConfig};

use super::{Offer, Tunnel};
use crate::handler::Handler;
use crate::{Body, Exchange, Outcome, respond};

/// What an endpoint takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of a message; a longer one is answered with Close 1009. Default 1 MiB.
    pub max_message: usize,
    /// Subprotocols in the endpoint's order of preference. Without any, none is agreed.
    pub subprotocols: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Options { max_message: 1 << 20, subprotocols: Vec::new() }
    }
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// UTF-8.
    Text(String),
    /// Anything.
    Binary(Bytes),
}

/// Why a WebSocket gives no more messages, or takes none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WebSocketError {
    /// The client has gone without a Close.
    #[error("the client has gone")]
    Gone,
    /// One side has sent a Close.
    #[error("closed")]
    Closed,
    /// What the client has sent breaks the protocol. It was sent Close 1002.
    #[error("the client has broken the protocol")]
    Protocol,
    /// A text is no UTF-8. The client was sent Close 1007.
    #[error("a text that is no UTF-8")]
    Utf8,
    /// A message is longer than the endpoint takes. The client was sent Close 1009.
    #[error("a message that is too long")]
    TooLong,
}

/// One client's WebSocket, in the hands of an endpoint.
///
/// When the endpoint returns without [`WebSocket::close`], the client is sent Close 1000.
#[derive(Debug)]
pub struct WebSocket {
    stream: WebSocketStream<DuplexStream>,
    request: Request<()>,
    subprotocol: Option<String>,
}

impl WebSocket {
    /// The next message, once all of it is there; `None` when the client has closed in order. Pings are answered
    /// meanwhile. To give up waiting loses nothing.
    pub async fn receive(&mut self) -> Option<Result<Message, WebSocketError>> {
        loop {
            match self.stream.next().await? {
                Ok(tungstenite::Message::Text(text)) => {
                    return Some(Ok(Message::Text(text.as_str().to_owned())));
                }
                Ok(tungstenite::Message::Binary(bytes)) => return Some(Ok(Message::Binary(bytes))),
                Ok(tungstenite::Message::Close(_)) => {
                    // The answer is in the library's queue.
                    let _ = self.stream.flush().await;
                    return None;
                }
                Ok(_) => {}
                Err(error) => {
                    let error = kind(&error);
                    if let Some(code) = error.code() {
                        let _ = self.close(code, "").await;
                    }
                    return if error == WebSocketError::Closed { None } else { Some(Err(error)) };
                }
            }
        }
    }

    /// Sends a message; waits while the client takes none.
    ///
    /// # Errors
    /// Where the client has gone, or one side has closed.
    pub async fn send(&mut self, message: Message) -> Result<(), WebSocketError> {
        let message = match message {
            Message::Text(text) => tungstenite::Message::text(text),
            Message::Binary(bytes) => tungstenite::Message::Binary(bytes),
        };
        self.stream.send(message).await.map_err(|error| kind(&error))
    }

    /// Closes with a code of RFC 6455 §7.4 or one of 3000 to 4999, and waits for the client's Close: what it has sent
    /// before is dropped. Another code is sent as 1011.
    ///
    /// # Errors
    /// Where the client has gone.
    pub async fn close(&mut self, code: u16, reason: &str) -> Result<(), WebSocketError> {
        let code = if control::is_sendable(code) { code } else { code::INTERNAL_ERROR };
        let mut end = reason.len().min(control::MAX_PAYLOAD - 2);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        let frame = CloseFrame { code: code.into(), reason: reason[..end].into() };
        match self.stream.close(Some(frame)).await.map_err(|error| kind(&error)) {
            Ok(()) | Err(WebSocketError::Closed) => {}
            Err(error) => return Err(error),
        }
        while let Some(Ok(_)) = self.stream.next().await {}
        Ok(())
    }

    /// The head of the request that it began with.
    pub fn request(&self) -> &Request<()> {
        &self.request
    }

    /// What was agreed of the endpoint's subprotocols.
    pub fn subprotocol(&self) -> Option<&str> {
        self.subprotocol.as_deref()
    }
}

impl WebSocketError {
    /// What the client is told.
    fn code(self) -> Option<u16> {
        match self {
            WebSocketError::Gone | WebSocketError::Closed => None,
            WebSocketError::Protocol => Some(code::PROTOCOL_ERROR),
            WebSocketError::Utf8 => Some(code::INVALID_PAYLOAD),
            WebSocketError::TooLong => Some(code::TOO_BIG),
        }
    }
}

fn kind(error: &tungstenite::Error) -> WebSocketError {
    use tungstenite::error::ProtocolError;
    match error {
        tungstenite::Error::ConnectionClosed
        | tungstenite::Error::AlreadyClosed
        | tungstenite::Error::Protocol(ProtocolError::SendAfterClosing) => WebSocketError::Closed,
        tungstenite::Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => WebSocketError::Gone,
        tungstenite::Error::Protocol(_) => WebSocketError::Protocol,
        tungstenite::Error::Utf8(_) => WebSocketError::Utf8,
        tungstenite::Error::Capacity(_) => WebSocketError::TooLong,
        _ => WebSocketError::Gone,
    }
}

/// Answers the request with a WebSocket that `endpoint` runs; to be called in a [`Handler`]. Whoever wants to know where
/// the client's page is from looks at `Origin` before: browsers let any page open a WebSocket.
///
/// A request that is no WebSocket's handshake is answered with 400, or 426 where it is of another version.
pub fn accept<F, R>(exchange: &mut Exchange, options: &Options, endpoint: F) -> Response<Body>
where
    F: FnOnce(WebSocket) -> R + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let version = exchange.request.headers().get(SEC_WEBSOCKET_VERSION);
    let offer = exchange.request.extensions().get::<Offer>().filter(|offer| offer.upgrade.is_websocket());
    let refusal = match (offer, version.map(HeaderValue::as_bytes)) {
        (Some(_), Some(b"13")) => None,
        (Some(_), _) => Some(StatusCode::UPGRADE_REQUIRED),
        (None, _) => Some(StatusCode::BAD_REQUEST),
    };
    let (None, Some(offer)) = (refusal, offer.cloned()) else {
        exchange.record.outcome = Some(Outcome::Rejected);
        let mut response = respond::error(refusal.unwrap_or(StatusCode::BAD_REQUEST));
        response.headers_mut().insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        return response;
    };
    let mut head = Request::new(());
    *head.method_mut() = exchange.request.method().clone();
    *head.uri_mut() = exchange.request.uri().clone();
    *head.version_mut() = exchange.request.version();
    *head.headers_mut() = exchange.request.headers().clone();
    let asked = head.headers().get_all(SEC_WEBSOCKET_PROTOCOL);
    let is_asked = |name: &&String| asked.iter().flat_map(list_items).any(|item| item == name.as_bytes());
    let subprotocol = options.subprotocols.iter().find(is_asked).cloned();

    let mut response = Response::new(Body::Empty);
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let accept = offer.upgrade.accept().map(|value| (SEC_WEBSOCKET_ACCEPT, value));
    let agreed = subprotocol.as_deref().and_then(|name| HeaderValue::from_str(name).ok());
    response
        .headers_mut()
        .extend(accept.into_iter().chain(agreed.map(|name| (SEC_WEBSOCKET_PROTOCOL, name))));
    let (near, far) = tokio::io::duplex(PIPE);
    let config = WebSocketConfig::default()
        .max_message_size(Some(options.max_message))
        .max_frame_size(Some(options.max_message));
    let task = async move {
        let stream = WebSocketStream::from_raw_socket(near, Role::Server, Some(config)).await;
        endpoint(WebSocket { stream, request: head, subprotocol }).await;
    };
    *response.body_mut() = Body::Tunnel(Box::new(Tunnel::to_endpoint(offer, far, task.boxed())));
    response
}

/// A handler whose route is a WebSocket endpoint.
///
/// ```
/// use playhouse_serve::tunnel::websocket::{self, Options};
///
/// let echo = websocket::handler(Options::default(), |mut socket| async move {
///     while let Some(Ok(message)) = socket.receive().await {
///         if socket.send(message).await.is_err() {
///             break;
///         }
///     }
/// });
/// # let _ = echo;
/// ```
pub fn handler<F, R>(options: Options, endpoint: F) -> Arc<dyn Handler>
where
    F: Fn(WebSocket) -> R + Send + Sync + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    Arc::new(Endpoint { options, endpoint: Arc::new(endpoint) })
}

struct Endpoint<F> {
    options: Options,
    endpoint: Arc<F>,
}

impl<F, R> Handler for Endpoint<F>
where
    F: Fn(WebSocket) -> R + Send + Sync + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    fn handle<'a>(&'a self, exchange: &'a mut Exchange) -> BoxFuture<'a, Response<Body>> {
        let endpoint = self.endpoint.clone();
        let response = accept(exchange, &self.options, move |socket| endpoint(socket));
        std::future::ready(response).boxed()
    }
}

/// Bytes between tunnel and endpoint in each direction.
const PIPE: usize = 16 << 10;
