//! HTTP/2.
use crate::RequestBodyError;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::task::{Context, Poll};
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
