//! HTTP/1.1.
use std::sync::Arc;

use crate::engine::Settings;
use crate::{Application, ConnectionInfo, RequestBodyError};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode};
use http_body::{Frame, SizeHint};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};
/// Serves one connection to its end. `prefix` is what was read of it already.
pub(crate) async fn serve<A: Application>(
    _io: impl AsyncRead + AsyncWrite + Unpin + Send,
    _prefix: BytesMut,
    _info: Arc<ConnectionInfo>,
    _settings: &Settings,
    _app: &Arc<A>,
    _drain: impl Future<Output = ()> + Send,
) {
    todo!()
}
/// Reads a request's body.
#[derive(Debug)]
pub struct BodyReader;
impl BodyReader {
    /// Replaces the limit in bytes where one is given; what it is now.
    pub(crate) fn limit(&mut self, _bytes: Option<u64>) -> u64 {
        todo!()
    }
    pub(crate) fn poll_frame(
        &mut self,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        todo!()
    }
    pub(crate) fn is_end_stream(&self) -> bool {
        todo!()
    }
    pub(crate) fn size_hint(&self) -> SizeHint {
        todo!()
    }
}
/// Queues interim answers.
#[derive(Clone, Debug)]
pub struct InformationalSender;
impl InformationalSender {
    /// See [`crate::exchange::Informational::send`].
    pub fn send(&self, _status: StatusCode, _headers: HeaderMap) {
        todo!()
    }
}
