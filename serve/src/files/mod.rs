//! Static files.
use crate::BodyError;
use bytes::Bytes;
use http_body::Frame;
use std::task::{Context, Poll};
/// A range of an open file.
#[derive(Debug)]
pub struct FileBody;
impl FileBody {
    /// Bytes not yet given.
    pub fn remaining(&self) -> u64 {
        todo!()
    }
    pub(crate) fn poll_frame(
        &mut self,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        todo!()
    }
}
