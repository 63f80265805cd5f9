//! Buffers that files are read into, used again once they have been sent.

use std::cell::RefCell;

use bytes::Bytes;

/// Bytes of a pooled buffer.
pub(super) const CHUNK: usize = 128 << 10;

/// A buffer to read into. All of it is initialised.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Box<[u8]>,
    filled: usize,
}

impl Buffer {
    /// A buffer for at least `length` bytes, at most [`CHUNK`].
    pub(super) fn new(length: usize) -> Self {
        let bytes = if length <= SMALL {
            vec![0; length].into()
        } else {
            POOL.with_borrow_mut(Vec::pop).unwrap_or_else(|| vec![0; CHUNK].into())
        };
        Buffer { bytes, filled: 0 }
    }

    /// Where at most `length` bytes go.
    pub(super) fn space(&mut self, length: usize) -> &mut [u8] {
        let length = length.min(self.bytes.len());
        &mut self.bytes[..length]
    }

    /// The first `length` bytes, without a copy. The buffer goes back to the pool with the last reference to them.
    pub(super) fn freeze(mut self, length: usize) -> Bytes {
        self.filled = length.min(self.bytes.len());
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes.len() != CHUNK {
            return;
        }
        let bytes = std::mem::take(&mut self.bytes);
        // A thread that ends has no pool any more.
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < POOLED {
                pool.push(bytes);
            }
        });
    }
}

/// Below this a buffer is made for the purpose.
const SMALL: usize = 16 << 10;

/// Buffers kept per thread: 1 MiB.
const POOLED: usize = 8;

thread_local! {
    static POOL: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_when_its_bytes_are_gone() {
        let mut buffer = Buffer::new(CHUNK);
        buffer.space(3).copy_from_slice(b"abc");
        let address = buffer.bytes.as_ptr();
        let bytes = buffer.freeze(3);
        assert_eq!(bytes, "abc");
        assert_ne!(Buffer::new(CHUNK).bytes.as_ptr(), address);
        let tail = bytes.slice(1..);
        drop(bytes);
        assert_eq!(tail, "bc");
        drop(tail);
        assert_eq!(Buffer::new(SMALL + 1).bytes.as_ptr(), address);
    }

    #[test]
    fn small_buffers_are_as_small_as_they_need_to_be() {
        assert_eq!(Buffer::new(10).space(100).len(), 10);
        assert_eq!(Buffer::new(SMALL + 1).space(usize::MAX).len(), CHUNK);
    }
}
