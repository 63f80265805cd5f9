//! Masking (RFC 6455 §5.3).

/// Masks or unmasks a piece of a payload in place. `offset` is how many bytes of the payload stand before it.
pub fn apply(piece: &mut [u8], key: [u8; 4], offset: u64) {
    // No more than 3: fits.
    let shift = (offset % 4) as usize;
    let mut rotated = key;
    rotated.rotate_left(shift);
    for chunk in piece.chunks_mut(4) {
        for (byte, key) in chunk.iter_mut().zip(rotated) {
            *byte ^= key;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_masked_alike_in_one_piece_and_in_many() {
        let key = [1, 2, 3, 4];
        let plain: Vec<u8> = (0..23).collect();
        let mut whole = plain.clone();
        apply(&mut whole, key, 0);
        assert_eq!(whole[5], plain[5] ^ 2);
        for cut in 0..=plain.len() {
            let mut pieces = plain.clone();
            let (first, second) = pieces.split_at_mut(cut);
            apply(first, key, 0);
            apply(second, key, cut as u64);
            assert_eq!(pieces, whole, "{cut}");
        }
        apply(&mut whole, key, 0);
        assert_eq!(whole, plain);
    }
}
