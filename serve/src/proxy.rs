//! Requests forwarded to an upstream.
use crate::BodyError;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::task::{Context, Poll};
/// What an upstream server sends, as it arrives.
#[derive(Debug)]
pub struct UpstreamBody;
impl UpstreamBody {
    pub(crate) fn poll_frame(
        &mut self,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        todo!()
    }
    pub(crate) fn is_end_stream(&self) -> bool {
        todo!()
    }
    pub(crate) fn size_hint(&self) -> SizeHint {
        todo!()
    }
}
