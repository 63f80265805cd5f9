//! Byte ranges (RFC 9110 §14).

use http::{HeaderMap, header};

/// What of a representation is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteRange {
    /// No range, a malformed one, or several: all of them may be ignored (RFC 9110 §14.2).
    Whole,
    /// `first <= last < size`.
    Part { first: u64, last: u64 },
    /// Begins behind the end.
    Unsatisfiable,
}

/// The range that a GET asks for of a representation of `size` bytes.
pub(super) fn of_request(headers: &HeaderMap, size: u64) -> ByteRange {
    let mut fields = headers.get_all(header::RANGE).iter();
    match (fields.next(), fields.next()) {
        (Some(field), None) => field.to_str().map_or(ByteRange::Whole, |field| parse(field, size)),
        _ => ByteRange::Whole,
    }
}

fn parse(field: &str, size: u64) -> ByteRange {
    let Some((unit, set)) = field.split_once('=') else { return ByteRange::Whole };
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return ByteRange::Whole;
    }
    // A list may have empty elements (RFC 9110 §5.6.1.2).
    let mut ranges =
        set.split(',').map(|range| range.trim_matches([' ', '\t'])).filter(|range| !range.is_empty());
    let (Some(range), None) = (ranges.next(), ranges.next()) else { return ByteRange::Whole };
    let Some((first, last)) = range.split_once('-') else { return ByteRange::Whole };
    if first.is_empty() {
        return match position(last) {
            None => ByteRange::Whole,
            Some(0) => ByteRange::Unsatisfiable,
            // There is no way to name a part of nothing.
            Some(_) if size == 0 => ByteRange::Whole,
            Some(length) => ByteRange::Part { first: size.saturating_sub(length), last: size - 1 },
        };
    }
    let Some(first) = position(first) else { return ByteRange::Whole };
    let last = if last.is_empty() { Some(u64::MAX) } else { position(last) };
    match last {
        Some(last) if last >= first => {}
        _ => return ByteRange::Whole,
    }
    if first >= size {
        return ByteRange::Unsatisfiable;
    }
    ByteRange::Part { first, last: last.unwrap_or(u64::MAX).min(size - 1) }
}

/// Digits alone; a number too large for any file is as good as the largest.
fn position(digits: &str) -> Option<u64> {
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    Some(digits.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn part(first: u64, last: u64) -> ByteRange {
        ByteRange::Part { first, last }
    }

    #[test]
    fn ranges_are_read_as_the_rfc_has_them() {
        use ByteRange::{Unsatisfiable, Whole};
        for (field, expected) in [
            ("bytes=0-0", part(0, 0)),
            ("bytes=0-", part(0, 99)),
            ("bytes=10-19", part(10, 19)),
            ("bytes=10-1000", part(10, 99)),
            ("bytes=99-", part(99, 99)),
            ("bytes=-1", part(99, 99)),
            ("bytes=-1000", part(0, 99)),
            ("BYTES=1-2", part(1, 2)),
            ("bytes= 1-2", part(1, 2)),
            ("bytes=1-2,", part(1, 2)),
            ("bytes=, 1-2", part(1, 2)),
            ("bytes=0-99999999999999999999999999", part(0, 99)),
            ("bytes=-99999999999999999999999999", part(0, 99)),
            ("bytes=100-", Unsatisfiable),
            ("bytes=100-200", Unsatisfiable),
            ("bytes=18446744073709551615-", Unsatisfiable),
            ("bytes=99999999999999999999999999-", Unsatisfiable),
            ("bytes=-0", Unsatisfiable),
            ("bytes=2-1", Whole),
            ("bytes=200-100", Whole),
            ("bytes=0-1,5-6", Whole),
            ("bytes=", Whole),
            ("bytes=-", Whole),
            ("bytes", Whole),
            ("bytes=a-b", Whole),
            ("bytes=+1-2", Whole),
            ("bytes=1--2", Whole),
            ("bytes=1 - 2", Whole),
            ("bytes=0x1-2", Whole),
            ("lines=0-1", Whole),
        ] {
            assert_eq!(parse(field, 100), expected, "{field}");
        }
    }

    #[test]
    fn nothing_has_no_parts() {
        assert_eq!(parse("bytes=0-", 0), ByteRange::Unsatisfiable);
        assert_eq!(parse("bytes=-5", 0), ByteRange::Whole);
    }

    #[test]
    fn several_fields_are_ignored() {
        let mut headers = HeaderMap::new();
        headers.append(header::RANGE, "bytes=0-1".parse().unwrap());
        assert_eq!(of_request(&headers, 10), part(0, 1));
        headers.append(header::RANGE, "bytes=2-3".parse().unwrap());
        assert_eq!(of_request(&headers, 10), ByteRange::Whole);
    }

    proptest! {
        #[test]
        fn a_range_is_what_a_slice_would_be(
            size in 0_usize..40,
            first in prop::option::of(0_usize..50),
            last in prop::option::of(0_usize..50),
        ) {
            let show = |n: Option<usize>| n.map(|n| n.to_string()).unwrap_or_default();
            let content: Vec<usize> = (0..size).collect();
            // The model: the positions that the words of the RFC pick out.
            let wanted: Option<Vec<usize>> = match (first, last) {
                (None, None) => None,
                (None, Some(0)) => Some(vec![]),
                (None, Some(_)) if size == 0 => None,
                (None, Some(n)) => Some(content.iter().rev().take(n).rev().copied().collect()),
                (Some(a), Some(b)) if b < a => None,
                (Some(a), b) => Some(content.iter().copied().filter(|i| *i >= a && b.is_none_or(|b| *i <= b)).collect()),
            };
            let range = parse(&format!("bytes={}-{}", show(first), show(last)), size as u64);
            let got = match range {
                ByteRange::Whole => None,
                ByteRange::Unsatisfiable => Some(vec![]),
                ByteRange::Part { first, last } => Some(content[first as usize..=last as usize].to_vec()),
            };
            prop_assert_eq!(got, wanted);
        }

        #[test]
        fn no_field_makes_a_part_beyond_the_end(field in "bytes=[0-9, -]{0,45}", size in any::<u64>()) {
            if let ByteRange::Part { first, last } = parse(&field, size) {
                prop_assert!(first <= last && last < size);
            }
        }
    }
}
