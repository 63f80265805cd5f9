//! Variable-length integers (RFC 9000 §16).

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The largest that can be written: 2^62 − 1.
pub const MAX: u64 = (1 << 62) - 1;

/// Reads one integer from bytes that may come one at a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Varint {
    value: u64,
    /// Bytes still to come, once the first is there.
    missing: u8,
    begun: bool,
}

impl Varint {
    /// The integer, once all of it is there; then the next one may be read.
    pub fn read(&mut self, input: &mut Bytes) -> Option<u64> {
        if !self.begun {
            if input.is_empty() {
                return None;
            }
            let first = input.get_u8();
            self.value = u64::from(first & 0x3f);
            self.missing = (1 << (first >> 6)) - 1;
            self.begun = true;
        }
        while self.missing > 0 {
            if input.is_empty() {
                return None;
            }
            self.value = self.value << 8 | u64::from(input.get_u8());
            self.missing -= 1;
        }
        self.begun = false;
        Some(self.value)
    }

    /// Whether a part of one has been read.
    pub fn is_partial(&self) -> bool {
        self.begun
    }
}

/// Appends one, in as few bytes as can be. `value` is at most [`MAX`]; more is written as that.
pub(super) fn put(out: &mut BytesMut, value: u64) {
    match value {
        0..=0x3f => out.put_u8(value as u8),
        0x40..=0x3fff => out.put_u16(value as u16 | 0x4000),
        0x4000..=0x3fff_ffff => out.put_u32(value as u32 | 0x8000_0000),
        _ => out.put_u64(value.min(MAX) | 0xc000_0000_0000_0000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_however_they_are_split() {
        for value in [0, 1, 63, 64, 16_383, 16_384, (1 << 30) - 1, 1 << 30, MAX] {
            let mut bytes = BytesMut::new();
            put(&mut bytes, value);
            let bytes = bytes.freeze();
            for split in 0..=bytes.len() {
                let (mut one, mut other) = (bytes.slice(..split), bytes.slice(split..));
                let mut varint = Varint::default();
                let read = varint.read(&mut one).or_else(|| varint.read(&mut other));
                assert_eq!(read, Some(value));
                assert!(!varint.is_partial());
            }
        }
    }

    #[test]
    fn an_integer_may_be_longer_than_it_has_to_be() {
        let mut input = Bytes::from_static(&[0x40, 0x25]);
        assert_eq!(Varint::default().read(&mut input), Some(37));
    }
}
