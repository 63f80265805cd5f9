//! Sending a range of an open file.

use std::io;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Frame;
use rustix::io::{Errno, ReadWriteFlags};
use tokio::task::JoinHandle;

use super::buffer::{Buffer, CHUNK};
use crate::BodyError;

/// A regular file, open for reading.
#[derive(Clone, Debug)]
pub(super) struct OpenFile {
    file: Arc<OwnedFd>,
    /// Whether reads that need not wait are tried on the runtime thread.
    nowait: bool,
}

impl OpenFile {
    pub(super) fn new(file: OwnedFd, nowait: bool) -> Self {
        OpenFile { file: Arc::new(file), nowait }
    }

    pub(super) fn range(&self, offset: u64, length: u64) -> FileBody {
        FileBody { file: self.file.clone(), nowait: self.nowait, offset, remaining: length, reading: None }
    }
}

/// A range of an open file. Read with `preadv2(RWF_NOWAIT)` on the runtime thread as long as the page cache has it, else
/// in the blocking pool. Dropped in the middle, it closes the file once a read in the pool has ended.
#[derive(Debug)]
pub struct FileBody {
    file: Arc<OwnedFd>,
    nowait: bool,
    offset: u64,
    remaining: u64,
    reading: Option<JoinHandle<(Buffer, io::Result<usize>)>>,
}

impl FileBody {
    /// Bytes not yet given.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// The file; the next byte to be given is at [`FileBody::offset`]. For an engine that sends it by itself
    /// (`sendfile`): it does so for a body that has not been polled, and tells of it by [`FileBody::advance`].
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Where in the file the next byte to be given is.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Leaves out the next `bytes`, at most all that remain.
    pub fn advance(&mut self, bytes: u64) {
        let bytes = bytes.min(self.remaining);
        self.offset += bytes;
        self.remaining -= bytes;
    }

    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.remaining == 0 {
            return Poll::Ready(None);
        }
        let (buffer, read) = match self.read_now() {
            Some(read) => read,
            None => ready!(self.poll_read(cx)),
        };
        let frame = match read {
            // Shorter than it was when the head of the answer was made.
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file has become shorter").into()),
            Ok(read) => {
                self.advance(read as u64);
                Ok(Frame::data(buffer.freeze(read)))
            }
            Err(error) => Err(error.into()),
        };
        if frame.is_err() {
            self.remaining = 0;
        }
        Poll::Ready(Some(frame))
    }

    /// Reads what needs no waiting. `None` where the pool must read.
    fn read_now(&mut self) -> Option<(Buffer, io::Result<usize>)> {
        if self.reading.is_some() || !self.nowait {
            return None;
        }
        let length = self.chunk();
        let mut buffer = Buffer::new(length);
        loop {
            let mut slices = [IoSliceMut::new(buffer.space(length))];
            match rustix::io::preadv2(&self.file, &mut slices, self.offset, ReadWriteFlags::NOWAIT) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return None,
                Err(error) if has_no_nowait(error) => {
                    self.nowait = false;
                    return None;
                }
                read => return Some((buffer, read.map_err(io::Error::from))),
            }
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<(Buffer, io::Result<usize>)> {
        let (length, offset) = (self.chunk(), self.offset);
        let file = &self.file;
        let reading = self.reading.get_or_insert_with(|| {
            let file = file.clone();
            tokio::task::spawn_blocking(move || {
                let mut buffer = Buffer::new(length);
                let read = loop {
                    match rustix::io::pread(&*file, buffer.space(length), offset) {
                        Err(Errno::INTR) => {}
                        read => break read.map_err(io::Error::from),
                    }
                };
                (buffer, read)
            })
        });
        let read = ready!(Pin::new(reading).poll(cx));
        self.reading = None;
        Poll::Ready(read.unwrap_or_else(|error| (Buffer::new(0), Err(io::Error::other(error)))))
    }

    fn chunk(&self) -> usize {
        usize::try_from(self.remaining).unwrap_or(CHUNK).min(CHUNK)
    }
}

/// Whether a file system or kernel has no `RWF_NOWAIT`.
pub(super) fn has_no_nowait(error: Errno) -> bool {
    matches!(error, Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use http_body_util::BodyExt;

    use super::*;
    use crate::Body;

    fn file(content: &[u8]) -> (std::fs::File, OwnedFd) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        let copy = file.try_clone().unwrap().into();
        (file, copy)
    }

    fn content() -> Vec<u8> {
        (0..3 * CHUNK + 77).map(|n| (n % 251) as u8).collect()
    }

    #[tokio::test]
    async fn every_byte_of_a_range_arrives_on_either_way() {
        let content = content();
        for nowait in [true, false] {
            for (first, length) in
                [(0, content.len()), (1, CHUNK), (CHUNK - 1, 2), (5, 2 * CHUNK + 3), (9, 0)]
            {
                let (_, copy) = file(&content);
                let body = Body::File(OpenFile::new(copy, nowait).range(first as u64, length as u64));
                assert_eq!(http_body::Body::size_hint(&body).exact(), Some(length as u64));
                let sent = body.collect().await.unwrap().to_bytes();
                assert!(sent == content[first..first + length], "{nowait} {first} {length}");
            }
        }
    }

    #[tokio::test]
    async fn a_file_that_shrinks_is_an_error_and_never_a_short_body() {
        for nowait in [true, false] {
            let (original, copy) = file(&content());
            let mut body = Body::File(OpenFile::new(copy, nowait).range(0, content().len() as u64));
            let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert!(!first.is_empty());
            original.set_len(first.len() as u64).unwrap();
            let error = body.frame().await.unwrap().unwrap_err();
            assert!(matches!(error, BodyError::File(error) if error.kind() == io::ErrorKind::UnexpectedEof));
            assert!(body.frame().await.is_none());
        }
    }

    #[tokio::test]
    async fn a_body_dropped_in_the_middle_of_a_read_leaves_no_descriptor() {
        let (_, copy) = file(&content());
        let open = OpenFile::new(copy, false);
        let watch = Arc::downgrade(&open.file);
        let mut body = open.range(0, 10);
        drop(open);
        let poll = std::future::poll_fn(|cx| Poll::Ready(body.poll_frame(cx).is_ready()));
        let _ = poll.await;
        drop(body);
        while watch.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn an_engine_can_send_the_file_by_itself() {
        let (_, copy) = file(b"0123456789");
        let mut body = OpenFile::new(copy, true).range(2, 6);
        assert_eq!(body.offset(), 2);
        body.advance(4);
        assert_eq!((body.offset(), body.remaining()), (6, 2));
        let rest = Body::File(body).collect().await.unwrap().to_bytes();
        assert_eq!(rest, "67");
    }
}
