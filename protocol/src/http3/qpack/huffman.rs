//! The Huffman code of strings (RFC 7541, appendix B, which RFC 9204 §4.1.2 takes over).

use std::sync::LazyLock;

/// Decodes a string; `None` where it has the symbol EOS in it, or is not padded with the begin of EOS, by less than
/// eight bits (RFC 7541 §5.2).
pub(super) fn decode(encoded: &[u8]) -> Option<Vec<u8>> {
    // No code is shorter than five bits.
    let mut decoded = Vec::with_capacity(encoded.len() * 8 / 5);
    let steps = &*STEPS;
    let mut state = ROOT;
    for byte in encoded {
        for nibble in [byte >> 4, byte & 0xf] {
            let step = steps.next[usize::from(state)][usize::from(nibble)]?;
            decoded.extend(step.symbol);
            state = step.state;
        }
    }
    steps.may_end[usize::from(state)].then_some(decoded)
}

/// The root of the tree of codes.
const ROOT: u8 = 0;

/// What four more bits do. At most one symbol ends within them.
#[derive(Clone, Copy)]
struct Step {
    state: u8,
    symbol: Option<u8>,
}

struct Steps {
    /// By the inner node of the tree of codes that the bits before have led to.
    next: Vec<[Option<Step>; 16]>,
    /// Whether those bits are none, or padding.
    may_end: Vec<bool>,
}

/// Where a bit leads.
#[derive(Clone, Copy)]
enum Branch {
    Node(u8),
    Symbol(u8),
    /// EOS, which is never sent.
    End,
}

static STEPS: LazyLock<Steps> = LazyLock::new(|| {
    let tree = tree();
    let follow = |state: u8, nibble: u8| {
        let mut step = Step { state, symbol: None };
        for bit in [3, 2, 1, 0] {
            match tree[usize::from(step.state)][usize::from(nibble >> bit & 1)] {
                Branch::Node(node) => step.state = node,
                Branch::Symbol(symbol) => step = Step { state: ROOT, symbol: Some(symbol) },
                Branch::End => return None,
            }
        }
        Some(step)
    };
    let states = 0..=(tree.len() - 1) as u8;
    let next = states.map(|state| std::array::from_fn(|nibble| follow(state, nibble as u8))).collect();
    let mut may_end = vec![false; tree.len()];
    let mut padding = Branch::Node(ROOT);
    for _ in 0..8 {
        let Branch::Node(node) = padding else { break };
        may_end[usize::from(node)] = true;
        padding = tree[usize::from(node)][1];
    }
    Steps { next, may_end }
});

/// The tree of codes by its 256 inner nodes. The code is canonical: codes of one length are successive numbers in the
/// order of their symbols, and EOS is the last of all.
fn tree() -> Vec<[Branch; 2]> {
    let mut by_length: Vec<_> = (0..=255u8).collect();
    by_length.sort_by_key(|symbol| (LENGTHS[usize::from(*symbol)], *symbol));
    // `End` stands for what is not there yet; when all symbols are in, only EOS is missing.
    let mut tree = vec![[Branch::End; 2]];
    let (mut code, mut length) = (0_u32, 0);
    for symbol in by_length {
        let longer = LENGTHS[usize::from(symbol)];
        code <<= longer - length;
        length = longer;
        let mut node = usize::from(ROOT);
        for bit in (1..length).rev() {
            let branch = (code >> bit & 1) as usize;
            node = match tree[node][branch] {
                Branch::Node(next) => usize::from(next),
                _ => {
                    let new = tree.len();
                    tree[node][branch] = Branch::Node(new as u8);
                    tree.push([Branch::End; 2]);
                    new
                }
            };
        }
        tree[node][(code & 1) as usize] = Branch::Symbol(symbol);
        code += 1;
    }
    tree
}

/// Bits of each symbol's code.
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28,
    28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6,
    6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7,
    8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7,
    15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24,
    23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23,
    23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26,
    26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20,
    21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27,
    27, 27, 26,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_rfc_7541_are_decoded() {
        let cases: [(&[u8], &str); 3] = [
            (&[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff], "www.example.com"),
            (&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf], "no-cache"),
            (&[0x64, 0x02], "302"),
        ];
        for (encoded, text) in cases {
            assert_eq!(decode(encoded).as_deref(), Some(text.as_bytes()));
        }
        assert_eq!(decode(&[]).as_deref(), Some(&[][..]));
    }

    #[test]
    fn the_tree_has_a_place_for_each_symbol_and_for_the_end() {
        let tree = tree();
        assert_eq!(tree.len(), 256);
        let ends = tree.iter().flatten().filter(|branch| matches!(branch, Branch::End)).count();
        assert_eq!(ends, 1);
    }

    #[test]
    fn padding_is_less_than_a_byte_of_ones() {
        // "0" is 00000.
        assert_eq!(decode(&[0b0000_0111]).as_deref(), Some(&b"0"[..]));
        assert_eq!(decode(&[0b0000_0110]), None);
        assert_eq!(decode(&[0b0000_0111, 0xff]), None);
        assert_eq!(decode(&[0xff; 4]), None);
    }
}
