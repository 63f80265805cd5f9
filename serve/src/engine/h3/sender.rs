//! Our side of a request stream.

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, Response, StatusCode};
use playhouse_protocol::http3::{Code, encode};
use quinn::SendStream;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::Outcome;

/// Writes an answer. Dropped before its end, it resets the stream: what the client has is not to be taken for the whole.
pub(super) struct Sender {
    stream: SendStream,
    /// What is to be written before anything else.
    pending: BytesMut,
    timeout: Duration,
    finished: bool,
    stopped: Option<Stopped>,
}

type Stopped = Pin<Box<dyn Future<Output = Result<Option<quinn::VarInt>, quinn::StoppedError>> + Send>>;

impl Sender {
    /// Every write has to make progress within `timeout`.
    pub(super) fn new(stream: SendStream, timeout: Duration) -> Self {
        Sender { stream, pending: BytesMut::new(), timeout, finished: false, stopped: None }
    }

    /// Queues the head of the final answer, behind interim ones that are encoded already.
    pub(super) fn head(&mut self, interim: BytesMut, status: StatusCode, headers: &HeaderMap) {
        self.pending = interim;
        encode::head(&mut self.pending, status, headers);
    }

    /// Queues trailers.
    pub(super) fn trailers(&mut self, trailers: &HeaderMap) {
        encode::trailers(&mut self.pending, trailers);
    }

    /// Writes a DATA frame behind what is queued.
    pub(super) async fn data(&mut self, data: Bytes) -> Result<(), Outcome> {
        encode::data(&mut self.pending, data.len() as u64);
        let head = self.pending.split().freeze();
        self.write(&mut [head, data]).await
    }

    /// Queues a DATA frame with a copy of this.
    pub(super) fn queue_data(&mut self, data: &[u8]) {
        encode::data(&mut self.pending, data.len() as u64);
        self.pending.extend_from_slice(data);
    }

    /// Gives what is queued to QUIC as the windows allow, without a deadline.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.pending.is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.pending)) {
                Ok(written) => self.pending.advance(written),
                Err(_) => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Ends the answer; nothing is queued any more. Again it does nothing.
    pub(super) fn end(&mut self) -> io::Result<()> {
        if !std::mem::replace(&mut self.finished, true) {
            self.stream.finish().map_err(|_| io::ErrorKind::ConnectionReset)?;
        }
        Ok(())
    }

    /// Whether something is queued.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Writes what is queued.
    pub(super) async fn flush(&mut self) -> Result<(), Outcome> {
        let pending = self.pending.split().freeze();
        self.write(&mut [pending]).await
    }

    /// Writes frames that are encoded already.
    pub(super) async fn frames(&mut self, frames: Bytes) -> Result<(), Outcome> {
        self.write(&mut [frames]).await
    }

    /// Gives bytes to QUIC as the windows allow. A client that opens none within the deadline is gone.
    async fn write(&mut self, mut pieces: &mut [Bytes]) -> Result<(), Outcome> {
        while let Some(first) = pieces.first() {
            if first.is_empty() {
                pieces = &mut pieces[1..];
                continue;
            }
            match tokio::time::timeout(self.timeout, self.stream.write_chunks(pieces)).await {
                Ok(Ok(written)) => pieces = &mut pieces[written.chunks..],
                Ok(Err(_)) => return Err(Outcome::ClientGone),
                Err(_) => {
                    self.reset(Code::RequestCancelled);
                    return Err(Outcome::ClientGone);
                }
            }
        }
        Ok(())
    }

    /// Ends the answer, behind what is queued.
    pub(super) async fn finish(&mut self) -> Result<(), Outcome> {
        self.flush().await?;
        self.end().map_err(|_| Outcome::ClientGone)
    }

    /// Cuts the answer.
    pub(super) fn reset(&mut self, code: Code) {
        self.finished = true;
        // Fails only where the stream has ended.
        let _ = self.stream.reset(super::code(code));
    }

    /// Ready when the client wants no more of the answer, or has all of it: whether it is that.
    pub(super) fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let stream = &self.stream;
        let stopped = self.stopped.get_or_insert_with(|| Box::pin(stream.stopped()));
        stopped.as_mut().poll(cx).map(|stopped| {
            self.stopped = None;
            matches!(stopped, Ok(None))
        })
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if !self.finished {
            self.reset(Code::InternalError);
        }
    }
}

/// Answers what never became a request: the whole of an answer without content. Whether it was sent.
pub(super) async fn refuse(sender: &mut Sender, response: &Response<()>) -> bool {
    sender.head(BytesMut::new(), response.status(), response.headers());
    sender.finish().await.is_ok()
}
