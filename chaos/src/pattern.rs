//! Bytes that can be checked without being kept: a function of a seed and an offset, in which a piece that is left out,
//! doubled or moved does not match.

use bytes::Bytes;

/// Writes the bytes of the pattern `seed` from `offset` on.
pub fn fill(seed: u64, offset: u64, out: &mut [u8]) {
    let mut at = offset;
    let mut rest = out;
    while !rest.is_empty() {
        let word = word(seed, at / 8).to_le_bytes();
        let within = (at % 8) as usize;
        let n = rest.len().min(8 - within);
        let (head, tail) = rest.split_at_mut(n);
        head.copy_from_slice(&word[within..within + n]);
        at += n as u64;
        rest = tail;
    }
}

/// The first `length` bytes of the pattern `seed`.
pub fn bytes(seed: u64, length: usize) -> Bytes {
    let mut out = vec![0; length];
    fill(seed, 0, &mut out);
    out.into()
}

/// Compares `data` with the pattern `seed` at `offset`; gives the index in `data` of the first byte that differs.
pub fn mismatch(seed: u64, offset: u64, data: &[u8]) -> Option<usize> {
    let mut expected = [0; 4096];
    let mut done = 0;
    for piece in data.chunks(expected.len()) {
        let expected = &mut expected[..piece.len()];
        fill(seed, offset + done as u64, expected);
        if piece != expected {
            return piece.iter().zip(expected.iter()).position(|(a, b)| a != b).map(|at| done + at);
        }
        done += piece.len();
    }
    None
}

/// SplitMix64's output function, so that neighbouring words share nothing.
fn word(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_piece_is_the_same_as_that_piece_of_the_whole() {
        let whole = bytes(7, 100);
        for from in 0..100 {
            for to in from..100 {
                let mut piece = vec![0; to - from];
                fill(7, from as u64, &mut piece);
                assert_eq!(piece, whole[from..to]);
            }
        }
    }

    #[test]
    fn a_changed_missing_or_moved_byte_is_found() {
        let mut data = bytes(1, 10_000).to_vec();
        assert_eq!(mismatch(1, 0, &data), None);
        data[9_000] ^= 1;
        assert_eq!(mismatch(1, 0, &data), Some(9_000));
        data.remove(5_000);
        assert!(mismatch(1, 0, &data).is_some_and(|at| at >= 5_000));
        assert!(mismatch(2, 0, &bytes(1, 100)).is_some());
    }
}
