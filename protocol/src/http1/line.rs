//! Lines of a head, one at a time, each byte looked at once however it arrives.

use bytes::BytesMut;
use memchr::memchr;

/// Takes CRLF-terminated lines off a buffer, within a budget of bytes.
#[derive(Clone, Debug)]
pub(super) struct Lines {
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
        Lines { scanned: 0, left: budget }
    }

    /// The next line without its CRLF, `None` until all of it is there. Whether a line is too long is seen before its
    /// content is, so that the answer does not depend on how the bytes arrive.
    pub(super) fn next(&mut self, buf: &mut BytesMut) -> Result<Option<BytesMut>, LineError> {
        let seen = buf.len().min(self.left);
        match memchr(b'\n', &buf[self.scanned.min(seen)..seen]) {
            Some(offset) => {
                let feed = self.scanned + offset;
                if feed == 0 || buf[feed - 1] != b'\r' {
                    return Err(LineError::BareLineFeed);
                }
                let mut line = buf.split_to(feed + 1);
                line.truncate(feed - 1);
                self.left -= feed + 1;
                self.scanned = 0;
                Ok(Some(line))
            }
            None if seen == self.left => Err(LineError::TooLong),
            None => {
                self.scanned = seen;
                Ok(None)
            }
        }
    }
}
