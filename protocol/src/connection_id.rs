//! QUIC connection IDs (RFC 9000 §5.1) that say whose connection it is: which slot of a site.
//!
//! An ID is a random word, a second word, and more randomness. The second word is check bits and the slot, masked by a
//! keyed function of the first: who does not have the key sees randomness in all of it, and cannot tell two IDs of a connection
//! from two of different ones. The function is one that a program in the kernel can compute with 32 bits and without a
//! loop; it keeps IDs unlinkable for who only looks on, and is no signature: a client that wants its packets at another slot
//! and breaks it gets them there, where they are nobody's.

/// How IDs are made and read: the same in all processes of a site.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ConnectionIds {
    /// Mixed into the first word.
    pub salt: u32,
    /// Odd.
    pub first: u32,
    /// Odd.
    pub second: u32,
    /// What the upper 24 bits of the second word are, unmasked; its own upper 8 bits are 0.
    pub check: u32,
}

/// Bytes of an ID.
pub const LENGTH: usize = 12;
/// Bytes of a key.
pub const KEY_LENGTH: usize = 16;
/// A client's first packet goes to one of so many buckets, by the ID that it has chosen.
pub const BUCKETS: usize = 256;
/// Where the word is that a bucket is made of. Clients choose 8 bytes at least (RFC 9000 §7.2).
pub const BUCKET_OFFSET: usize = 0;

impl ConnectionIds {
    /// With this key.
    pub fn new(key: [u8; KEY_LENGTH]) -> Self {
        let word = |at: usize| u32::from_be_bytes([key[at], key[at + 1], key[at + 2], key[at + 3]]);
        ConnectionIds { salt: word(0), first: word(4) | 1, second: word(8) | 1, check: word(12) >> 8 }
    }

    /// An ID of this slot, from so much randomness.
    pub fn write(&self, slot: u8, random: [u8; LENGTH - 4]) -> [u8; LENGTH] {
        let [a, b, c, d, rest @ ..] = random;
        let word = self.mask(u32::from_be_bytes([a, b, c, d])) ^ (self.check << 8 | u32::from(slot));
        let mut id = [0; LENGTH];
        id[..4].copy_from_slice(&[a, b, c, d]);
        id[4..8].copy_from_slice(&word.to_be_bytes());
        id[8..].copy_from_slice(&rest);
        id
    }

    /// The slot that an ID is of; `None` where it is none of ours, but for one in 16 million.
    pub fn slot(&self, id: &[u8]) -> Option<u8> {
        let &[a, b, c, d, e, f, g, h, ..] = id else { return None };
        let word = u32::from_be_bytes([e, f, g, h]) ^ self.mask(u32::from_be_bytes([a, b, c, d]));
        (id.len() == LENGTH && word >> 8 == self.check).then_some(word as u8)
    }

    /// The bucket of a client's first packet, by the ID in it.
    pub fn bucket(&self, id: &[u8]) -> Option<usize> {
        let word = id.get(BUCKET_OFFSET..BUCKET_OFFSET + 4)?.try_into().ok()?;
        Some((self.mask(u32::from_be_bytes(word)) >> 24) as usize)
    }

    /// In this order, since a program in the kernel does it as well.
    fn mask(&self, word: u32) -> u32 {
        let mut mask = (word ^ self.salt).wrapping_mul(self.first);
        mask ^= mask >> SHIFTS[0];
        mask = mask.wrapping_mul(self.second);
        mask ^ mask >> SHIFTS[1]
    }
}

/// By how much the mask is folded after each multiplication.
pub const SHIFTS: [u32; 2] = [15, 13];

impl std::fmt::Debug for ConnectionIds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectionIds").finish_non_exhaustive()
    }
}

/// The connection ID to which a datagram is sent, and whether it begins with a long header (RFC 8999 §5); `None` where it
/// is too short for one. Behind a short header an ID has as many bytes as ours have.
pub fn destination(datagram: &[u8]) -> Option<(&[u8], bool)> {
    let first = datagram.first()?;
    if first & LONG_HEADER == 0 {
        return Some((datagram.get(1..1 + LENGTH)?, false));
    }
    let length = usize::from(*datagram.get(5)?);
    Some((datagram.get(6..6 + length)?, true))
}

/// The bit of a packet's first byte that says so (RFC 8999 §5.1).
pub const LONG_HEADER: u8 = 0x80;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_id_says_its_slot_to_who_has_the_key(
            key in any::<[u8; KEY_LENGTH]>(), slot in any::<u8>(), random in any::<[u8; LENGTH - 4]>(),
        ) {
            let ids = ConnectionIds::new(key);
            let id = ids.write(slot, random);
            prop_assert_eq!(ids.slot(&id), Some(slot));
            prop_assert!(ids.bucket(&id).unwrap() < BUCKETS);
            prop_assert_eq!(ids.slot(&id[..LENGTH - 1]), None);
            prop_assert_eq!(ids.slot(&[&id[..], &[0]].concat()), None);
        }

        #[test]
        fn a_datagram_says_where_it_goes(id in any::<[u8; LENGTH]>(), rest in any::<[u8; 20]>()) {
            let short = [&[0x40], &id[..], &rest].concat();
            prop_assert_eq!(destination(&short), Some((&id[..], false)));
            let long = [&[0xc0, 0, 0, 0, 1, LENGTH as u8], &id[..], &rest].concat();
            prop_assert_eq!(destination(&long), Some((&id[..], true)));
            for end in 0..=LENGTH {
                prop_assert_eq!(destination(&short[..end]), None);
                prop_assert_eq!(destination(&long[..end + 5]), None);
            }
        }
    }

    #[test]
    fn what_a_client_has_chosen_is_hardly_ever_taken_for_ours() {
        let ids = ConnectionIds::new(*b"0123456789abcdef");
        let id = |number: u64| {
            let mut id = [0; LENGTH];
            id[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
            id
        };
        assert!((0..100_000).filter(|number| ids.slot(&id(*number)).is_some()).count() < 3);
    }

    #[test]
    fn first_packets_are_spread_over_all_buckets() {
        let ids = ConnectionIds::new(*b"fedcba9876543210");
        let mut counts = [0; BUCKETS];
        // Not even where clients count.
        (0..BUCKETS as u32 * 100).for_each(|number| counts[ids.bucket(&number.to_be_bytes()).unwrap()] += 1);
        assert!(counts.iter().all(|count| (40..=180).contains(count)), "{counts:?}");
    }
}
