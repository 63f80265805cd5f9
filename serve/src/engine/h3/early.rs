//! Requests that come before the handshake has ended (0-RTT): which of them are handled at once (RFC 8470).
//!
//! They may be somebody's who has recorded them, until the client has shown by the end of the handshake that it is there. What
//! is safe (RFC 9110 §9.2.1) is handled and says so by `Early-Data: 1`; everything else waits for the end, which costs
//! less than a 425 would, with the second try that follows it (RFC 8470 §3).

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::HeaderName;
use http::{HeaderValue, Method, Request};
use quinn::ZeroRttAccepted;
use tokio::time::{Timeout, timeout};

use crate::net::QuicHandshake;
use crate::tunnel::{Signal, Watch};

/// What streams know of the handshake.
#[derive(Debug)]
pub(super) struct Early {
    ended: Arc<Signal>,
    /// Whether anything is handled before its end.
    handles: bool,
}

impl Early {
    /// The handshake has ended.
    pub(super) fn over() -> Self {
        let early = Early { ended: Arc::default(), handles: false };
        early.end();
        early
    }

    /// The handshake goes on. What comes meanwhile is only handled where the client is known to be where it says, or
    /// where nothing is counted by its address: anybody could use up what another's address may have.
    pub(super) fn begun(address_is_shown: bool, address_is_counted: bool) -> Self {
        Early { ended: Arc::default(), handles: address_is_shown || !address_is_counted }
    }

    pub(super) fn end(&self) {
        self.ended.raise();
    }

    pub(super) fn is_over(&self) -> bool {
        self.ended.since().is_some()
    }

    /// Whether this request is handled before the end, `whole` as it is.
    pub(super) fn admits(&self, request: &Request<()>, whole: bool) -> bool {
        self.handles && whole && matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS)
    }

    /// Waits for the end.
    pub(super) fn watch(&self) -> Watch {
        Watch::new(self.ended.clone())
    }
}

/// Says of a request that it came early, once, whatever it has said itself (RFC 8470 §5.1).
pub(super) fn mark(request: &mut Request<()>) {
    request.headers_mut().insert(EARLY_DATA, HeaderValue::from_static("1"));
}

/// Waits for the end of the handshake; `false` where the client gives up before.
pub(super) async fn ended(early: &Early, mut gone: impl FnMut(&mut Context<'_>) -> Poll<bool>) -> bool {
    let mut watch = early.watch();
    poll_fn(|cx| match watch.poll(cx) {
        Some(_) => Poll::Ready(true),
        None => gone(cx).map(|_| false),
    })
    .await
}

/// A handshake that goes on while its connection is used.
pub(super) struct Handshake {
    ended: Pin<Box<Timeout<ZeroRttAccepted>>>,
    _counted: QuicHandshake,
}

impl Handshake {
    pub(super) fn new(ended: ZeroRttAccepted, within: Duration, counted: QuicHandshake) -> Self {
        Handshake { ended: Box::pin(timeout(within, ended)), _counted: counted }
    }

    /// Waits until it is over, well or not: `false` where that takes too long. For ever where there is none.
    pub(super) async fn over(this: &mut Option<Self>) -> bool {
        match this {
            Some(handshake) => handshake.ended.as_mut().await.is_ok(),
            None => std::future::pending().await,
        }
    }
}

const EARLY_DATA: HeaderName = HeaderName::from_static("early-data");

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: Method) -> Request<()> {
        Request::builder().method(method).uri("/").body(()).unwrap()
    }

    #[test]
    fn only_what_is_safe_and_whole_is_handled_before_the_end() {
        let early = Early::begun(false, false);
        for method in [Method::GET, Method::HEAD, Method::OPTIONS] {
            assert!(early.admits(&request(method.clone()), true) && !early.admits(&request(method), false));
        }
        for method in
            [Method::POST, Method::PUT, Method::DELETE, Method::PATCH, Method::CONNECT, Method::TRACE]
        {
            assert!(!early.admits(&request(method), true));
        }
        let own = Method::from_bytes(b"get").unwrap();
        assert!(!early.admits(&request(own), true));
    }

    #[test]
    fn an_address_that_is_counted_has_to_be_shown_first() {
        let get = request(Method::GET);
        let admits = |shown, counted| Early::begun(shown, counted).admits(&get, true);
        assert_eq!((admits(false, true), admits(true, true), admits(false, false)), (false, true, true));
    }

    #[test]
    fn what_a_request_says_of_itself_is_said_once() {
        let mut request = request(Method::GET);
        request.headers_mut().append(EARLY_DATA, HeaderValue::from_static("0"));
        request.headers_mut().append(EARLY_DATA, HeaderValue::from_static("x"));
        mark(&mut request);
        let values: Vec<_> = request.headers().get_all(EARLY_DATA).iter().collect();
        assert_eq!(values, ["1"]);
    }
}
