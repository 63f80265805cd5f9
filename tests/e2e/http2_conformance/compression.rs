//! Field compression: RFC 7541.

use super::wire::*;
use super::{Case, Owed::*, case};

pub(super) fn cases() -> Vec<Case> {
    let with = |tail: &[u8]| frame(HEADERS, END_STREAM | END_HEADERS, 1, &[GET, tail].concat());
    let damaged = || Connection(DAMAGED);
    vec![
        case("2.3.3", "an index beyond both tables", with(&[0xc6]), damaged()),
        case("2.3.3", "the name of an index beyond both tables", with(&[0x7f, 0x0f, 0x01, b'x']), damaged()),
        case("4.2", "a size update after a field", with(&[0x20]), damaged()),
        case(
            "4.2",
            "a size update before all fields",
            frame(HEADERS, END_STREAM | END_HEADERS, 1, &[&[0x20], GET].concat()),
            Answer(1, 200),
        ),
        case(
            "4.2",
            "two size updates",
            frame(HEADERS, END_STREAM | END_HEADERS, 1, &[&[0x20, 0x3f, 0xe1, 0x1f], GET].concat()),
            Answer(1, 200),
        ),
        case(
            "5.1",
            "an integer that overflows",
            with(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]),
            damaged(),
        ),
        case(
            "5.1",
            "a length that overflows",
            with(&[0x00, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]),
            damaged(),
        ),
        case(
            "5.2",
            "Huffman padding of more than 7 bits",
            with(b"\x00\x85\xf2\xb2\x4a\x84\xff\x84\x49\x50\x9f\xff"),
            damaged(),
        ),
        case(
            "5.2",
            "Huffman padding of zeros",
            with(b"\x00\x85\xf2\xb2\x4a\x84\xff\x83\x49\x50\x90"),
            damaged(),
        ),
        case(
            "5.2",
            "Huffman text with EOS",
            with(b"\x00\x85\xf2\xb2\x4a\x84\xff\x87\x49\x51\xff\xff\xff\xfa\x7f"),
            damaged(),
        ),
        case("5.2", "Huffman text", with(b"\x00\x85\xf2\xb2\x4a\x84\xff\x83\x49\x50\x9f"), Answer(1, 200)),
        case("6.1", "the index 0", with(&[0x80]), damaged()),
        case(
            "6.2",
            "a field in each form",
            with(b"\x40\x01a\x01b\x00\x01a\x01c\x10\x01a\x01d\xbe"),
            Answer(1, 200),
        ),
        case(
            "6.3",
            "a table larger than offered",
            frame(HEADERS, END_STREAM | END_HEADERS, 1, &[&[0x3f, 0xe2, 0x1f], GET].concat()),
            damaged(),
        ),
    ]
}
