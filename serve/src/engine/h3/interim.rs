//! Interim answers (RFC 9114 §4.1): handed over by whoever handles the request, sent by its stream.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use playhouse_protocol::http3::encode;

use crate::engine::h2::head::strip;

/// Sends interim answers on a stream until its final answer begins.
#[derive(Clone, Debug, Default)]
pub struct InformationalSender(Arc<Mutex<Queue>>);

#[derive(Debug, Default)]
struct Queue {
    encoded: BytesMut,
    answers: u32,
    /// The final answer has begun.
    closed: bool,
    waker: Option<Waker>,
}

impl InformationalSender {
    /// See [`crate::exchange::Informational::send`].
    pub fn send(&self, status: StatusCode, mut headers: HeaderMap) {
        if !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS {
            return;
        }
        let queue = &mut *self.0.lock();
        if queue.closed || queue.answers == INTERIM_ANSWERS {
            return;
        }
        queue.answers += 1;
        strip(&mut headers);
        encode::head(&mut queue.encoded, status, &headers);
        if let Some(waker) = queue.waker.take() {
            waker.wake();
        }
    }

    /// What is to be sent.
    pub(super) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Bytes> {
        let queue = &mut *self.0.lock();
        if queue.encoded.is_empty() {
            queue.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(queue.encoded.split().freeze())
    }

    /// The final answer begins: what is still to be sent before it.
    pub(super) fn close(&self) -> BytesMut {
        let queue = &mut *self.0.lock();
        queue.closed = true;
        std::mem::take(&mut queue.encoded)
    }
}

/// They are queued without back-pressure, so that their number needs a bound.
const INTERIM_ANSWERS: u32 = 32;
