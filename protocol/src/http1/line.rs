//! Lines of a head, each byte looked for a line's end once however it arrives.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use http::{HeaderName, HeaderValue};
use memchr::memchr_iter;

use super::syntax;

/// Takes CRLF-terminated lines off a buffer, within a budget of bytes. The lines that are there, usually the whole head, are
/// taken in one piece, whose memory the values share.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    /// Whole lines that were taken off the buffer.
    piece: Bytes,
    /// Where in the piece the next line begins.
    at: usize,
    /// Where the lines of the piece end, behind their line feeds.
    ends: [usize; PIECE],
    /// The line of the piece that is next, and how many there are.
    next: usize,
    count: usize,
    /// Bytes at the front of the buffer that are known to hold no line feed.
    scanned: usize,
    /// Bytes that the lines to come may have together.
    left: usize,
}

/// Why there is no line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineError {
    /// A line feed without a carriage return before it.
    BareLineFeed,
    /// The budget is used up.
    TooLong,
}

impl Lines {
    pub(super) fn new(budget: usize) -> Self {
        Lines { piece: Bytes::new(), at: 0, ends: [0; PIECE], next: 0, count: 0, scanned: 0, left: budget }
    }

    /// Begins anew behind an empty line.
    pub(super) fn reset(&mut self, budget: usize) {
        self.piece = Bytes::new();
        (self.next, self.count) = (0, 0);
        self.left = budget;
    }

    /// Where the next line lies, without its CRLF; `None` until all of it is there. Whether a line is too long is seen
    /// before its content is, so that the answer does not depend on how the bytes arrive. The buffer is not touched
    /// beyond an empty line.
    pub(super) fn next(&mut self, buf: &mut BytesMut) -> Result<Option<Range<usize>>, LineError> {
        if self.next == self.count && !self.take(buf)? {
            return Ok(None);
        }
        let end = self.ends[self.next];
        self.next += 1;
        let start = std::mem::replace(&mut self.at, end);
        if self.piece[start..end].ends_with(b"\r\n") {
            Ok(Some(start..end - 2))
        } else {
            Err(LineError::BareLineFeed)
        }
    }

    /// What the line that was given last is a part of.
    pub(super) fn piece(&self) -> &Bytes {
        &self.piece
    }

    /// The line that was given last, as a field. `None` where it is malformed; see [`syntax::field`].
    pub(super) fn field(
        &self,
        line: Range<usize>,
        blank_before_colon: bool,
    ) -> Option<(HeaderName, HeaderValue)> {
        let (name, value) = syntax::field(&self.piece[line.clone()], blank_before_colon)?;
        let value = self.piece.slice(line.start + value.start..line.start + value.end);
        Some((name, HeaderValue::from_maybe_shared(value).ok()?))
    }

    /// Takes whole lines off the buffer, up to the first empty one. Whether there was any.
    fn take(&mut self, buf: &mut BytesMut) -> Result<bool, LineError> {
        let seen = &buf[..buf.len().min(self.left)];
        let from = self.scanned.min(seen.len());
        let (mut count, mut end) = (0, 0);
        for feed in memchr_iter(b'\n', &seen[from..]).take(PIECE) {
            let line = std::mem::replace(&mut end, from + feed + 1);
            self.ends[count] = end;
            count += 1;
            if seen[line..end] == *b"\r\n" {
                break;
            }
        }
        if count == 0 {
            self.scanned = seen.len();
            return if seen.len() == self.left { Err(LineError::TooLong) } else { Ok(false) };
        }
        self.piece = buf.split_to(end).freeze();
        self.at = 0;
        (self.next, self.count) = (0, count);
        self.left -= end;
        self.scanned = 0;
        Ok(true)
    }
}

/// Lines that are taken at once.
const PIECE: usize = 16;
