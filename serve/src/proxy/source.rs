//! The content of the request, which may have to be sent twice.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};
use playhouse_protocol::http1::BodyLength;

use crate::{RequestBody, RequestBodyError};

/// The content of the request, as the client sends it. Its beginning is kept until the answer has begun, so that the
/// request can be sent again where that is safe.
pub(crate) struct Source {
    body: RequestBody,
    length: BodyLength,
    /// Bytes that the client still owes, where it has said how many there are.
    owed: u64,
    kept: Vec<Bytes>,
    kept_bytes: usize,
    /// How many pieces of `kept` have been given since the last rewind.
    given: usize,
    /// More has come than is kept.
    overflown: bool,
    trailers: Option<HeaderMap>,
    trailers_given: bool,
    ended: bool,
}

impl Source {
    pub(crate) fn new(body: RequestBody) -> Self {
        let length = match body.size_hint().exact() {
            _ if body.is_end_stream() => BodyLength::None,
            Some(length) => BodyLength::Length(length),
            None => BodyLength::Chunked,
        };
        Source {
            owed: if let BodyLength::Length(length) = length { length } else { 0 },
            ended: length == BodyLength::None,
            length,
            body,
            kept: Vec::new(),
            kept_bytes: 0,
            given: 0,
            overflown: false,
            trailers: None,
            trailers_given: false,
        }
    }

    /// How the content is delimited on its way to the server: never as the client had it, always as counted here.
    pub(crate) fn length(&self) -> BodyLength {
        self.length
    }

    /// Whether it can be sent again to its end, whenever that turns out to be necessary. Not known of chunks.
    pub(crate) fn fits_replay(&self) -> bool {
        match self.length {
            BodyLength::None => true,
            BodyLength::Length(length) => length <= LARGEST_REPLAY as u64,
            BodyLength::Chunked | BodyLength::UntilClose => false,
        }
    }

    /// Whether all of it has come already, so that nobody need be asked before it is sent.
    pub(crate) fn is_at_hand(&self) -> bool {
        matches!(self.body, RequestBody::Empty | RequestBody::Bytes(_))
    }

    /// Begins again. False where too much has gone by; then nothing changes.
    pub(crate) fn rewind(&mut self) -> bool {
        if !self.overflown {
            self.given = 0;
            self.trailers_given = false;
        }
        !self.overflown
    }

    /// The next piece. A client that does not send as much as it has announced is in error.
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        if let Some(piece) = self.kept.get(self.given) {
            self.given += 1;
            return Poll::Ready(Some(Ok(Frame::data(piece.clone()))));
        }
        while !self.ended {
            match std::task::ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => return Poll::Ready(Some(self.take(data))),
                    Err(frame) => {
                        self.trailers = frame.into_trailers().ok();
                        self.ended = true;
                    }
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => self.ended = true,
            }
        }
        if self.owed > 0 {
            return Poll::Ready(Some(Err(RequestBodyError::Malformed)));
        }
        match &self.trailers {
            Some(trailers) if !self.trailers_given => {
                self.trailers_given = true;
                Poll::Ready(Some(Ok(Frame::trailers(trailers.clone()))))
            }
            _ => Poll::Ready(None),
        }
    }

    fn take(&mut self, data: Bytes) -> Result<Frame<Bytes>, RequestBodyError> {
        if let BodyLength::Length(_) = self.length {
            let size = data.len() as u64;
            self.owed = self.owed.checked_sub(size).ok_or(RequestBodyError::Malformed)?;
        }
        self.kept_bytes += data.len();
        self.overflown |= self.kept_bytes > LARGEST_REPLAY;
        if self.overflown {
            self.kept = Vec::new();
            self.given = 0;
        } else {
            self.kept.push(data.clone());
            self.given += 1;
        }
        Ok(Frame::data(data))
    }

    /// The answer has begun: the request will not be sent again.
    pub(crate) fn forget(&mut self) {
        self.overflown = true;
        // What has been kept has been given: the answer has begun on this very try.
        self.kept.drain(..self.given);
        self.given = 0;
    }
}

/// Bytes of content that are kept for a second try; a longer request is not sent again once more than this has gone by.
const LARGEST_REPLAY: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::FutureExt;

    use super::*;

    fn all(source: &mut Source) -> Result<Vec<u8>, RequestBodyError> {
        let mut all = Vec::new();
        while let Some(frame) = poll_fn(|cx| source.poll_frame(cx)).now_or_never().unwrap() {
            all.extend_from_slice(&frame?.into_data().unwrap());
        }
        Ok(all)
    }

    #[test]
    fn a_small_content_is_given_again_after_a_rewind() {
        let mut source = Source::new(RequestBody::Bytes(Bytes::from_static(b"abc")));
        assert_eq!(source.length(), BodyLength::Length(3));
        for _ in 0..3 {
            assert_eq!(all(&mut source).unwrap(), b"abc");
            assert!(source.rewind());
        }
    }

    #[test]
    fn a_large_content_cannot_be_rewound() {
        let mut source = Source::new(RequestBody::Bytes(Bytes::from(vec![7; LARGEST_REPLAY + 1])));
        assert!(source.rewind());
        assert_eq!(all(&mut source).unwrap().len(), LARGEST_REPLAY + 1);
        assert!(!source.rewind());
    }

    #[test]
    fn no_content_needs_no_framing() {
        let mut source = Source::new(RequestBody::Empty);
        assert_eq!(source.length(), BodyLength::None);
        assert_eq!(all(&mut source).unwrap(), b"");
        assert!(source.rewind());
    }
}
