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
/// Small files in memory.
#[derive(Debug, Default)]
pub struct FileCache;
/// Files beneath a root.
#[derive(Debug)]
pub struct Static;
impl Static {
    /// Compiles.
    pub fn new(
        _config: &playhouse_config::model::Static,
        _path: &playhouse_config::model::PathPattern,
        _cache: &std::sync::Arc<FileCache>,
    ) -> Self {
        Static
    }
    /// Answers.
    pub async fn answer(
        &self,
        _exchange: &mut crate::Exchange,
        _path: &crate::router::NormalisedPath,
    ) -> http::Response<crate::Body> {
        crate::respond::error(http::StatusCode::NOT_FOUND)
    }
}
