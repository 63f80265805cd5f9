//! Conditional requests (RFC 9110 §13), of GET and HEAD for a file that exists.

use std::time::{Duration, SystemTime};

use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue};

use super::head::Head;

/// What the preconditions of a request say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Precondition {
    /// Answer as if there were none.
    Passed,
    /// 304
    NotModified,
    /// 412
    Failed,
}

/// Evaluates all but `If-Range`, in the order of RFC 9110 §13.2.2.
pub(super) fn evaluate(headers: &HeaderMap, head: &Head) -> Precondition {
    if headers.contains_key(header::IF_MATCH) {
        if !any_tag(headers, header::IF_MATCH, |tag| tag == head.entity_tag()) {
            return Precondition::Failed;
        }
    } else if date(headers, header::IF_UNMODIFIED_SINCE).is_some_and(|date| head.stamp.modified.0 > date) {
        return Precondition::Failed;
    }
    if headers.contains_key(header::IF_NONE_MATCH) {
        let weakly = |tag: &[u8]| tag.strip_prefix(b"W/").unwrap_or(tag) == head.entity_tag();
        if any_tag(headers, header::IF_NONE_MATCH, weakly) {
            return Precondition::NotModified;
        }
    } else if date(headers, header::IF_MODIFIED_SINCE).is_some_and(|date| head.stamp.modified.0 <= date) {
        return Precondition::NotModified;
    }
    Precondition::Passed
}

/// Whether `If-Range` lets a range apply (RFC 9110 §13.1.5): its strong validator must be the current one. A date is strong
/// when the file has not changed in the second before now.
pub(super) fn range_applies(headers: &HeaderMap, head: &Head) -> bool {
    let mut fields = headers.get_all(header::IF_RANGE).iter();
    let field = match (fields.next(), fields.next()) {
        (None, _) => return true,
        (Some(field), None) => field.as_bytes().trim_ascii(),
        _ => return false,
    };
    if field.starts_with(b"\"") || field.starts_with(b"W/") {
        return field == head.entity_tag();
    }
    let settled = seconds(SystemTime::now()).is_some_and(|now| now > head.stamp.modified.0.saturating_add(1));
    settled && date(headers, header::IF_RANGE) == Some(head.stamp.modified.0)
}

/// Whether a field's list has `*` or a tag that `matches`. What is no entity tag matches nothing.
fn any_tag(headers: &HeaderMap, name: HeaderName, matches: impl Fn(&[u8]) -> bool) -> bool {
    headers.get_all(name).iter().any(|field| {
        let field = field.as_bytes().trim_ascii();
        field == b"*" || tags(field).any(&matches)
    })
}

/// The tags of a list, `W/` and quotes included. Ends where the list is malformed.
fn tags(mut rest: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        while let [b',' | b' ' | b'\t', after @ ..] = rest {
            rest = after;
        }
        let open = if rest.starts_with(b"W/") { 2 } else { 0 };
        if rest.get(open) != Some(&b'"') {
            return None;
        }
        // Between the quotes anything may stand but a quote, a comma too (RFC 9110 §8.8.3).
        let close = open + 1 + memchr::memchr(b'"', &rest[open + 1..])?;
        let (tag, after) = rest.split_at(close + 1);
        rest = after;
        Some(tag)
    })
}

/// The date of a field that is there once, in seconds since 1970. `None` for what is no HTTP date.
fn date(headers: &HeaderMap, name: HeaderName) -> Option<i64> {
    let mut fields = headers.get_all(name).iter();
    let (Some(field), None) = (fields.next(), fields.next()) else { return None };
    let text = HeaderValue::to_str(field).ok()?;
    seconds(httpdate::parse_http_date(text.trim()).ok()?)
}

fn seconds(time: SystemTime) -> Option<i64> {
    let since: Duration = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    i64::try_from(since.as_secs()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::open::Stamp;

    /// `Sun, 06 Nov 1994 08:49:37 GMT`
    const MODIFIED: i64 = 784_111_777;
    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const SAME: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    fn head(modified: i64) -> Head {
        let mut fields = HeaderMap::new();
        fields.insert(header::ETAG, HeaderValue::from_static("\"a,b\""));
        let stamp = Stamp {
            device: (0, 0),
            inode: 1,
            size: 10,
            modified: (modified, 5),
            changed: (modified, 5),
            mode: 0,
        };
        Head { stamp, fields }
    }

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn preconditions_are_evaluated_in_their_order() {
        use Precondition::{Failed, NotModified, Passed};
        let cases: &[(&[(&'static str, &str)], Precondition)] = &[
            (&[], Passed),
            // If-Match: strong, a list, any.
            (&[("if-match", "\"a,b\"")], Passed),
            (&[("if-match", "\"x\", \"a,b\"")], Passed),
            (&[("if-match", "\"x\""), ("if-match", "\"a,b\"")], Passed),
            (&[("if-match", "*")], Passed),
            (&[("if-match", "W/\"a,b\"")], Failed),
            (&[("if-match", "\"x\"")], Failed),
            (&[("if-match", "a,b")], Failed),
            (&[("if-match", "")], Failed),
            // If-Unmodified-Since, only without If-Match.
            (&[("if-unmodified-since", BEFORE)], Failed),
            (&[("if-unmodified-since", SAME)], Passed),
            (&[("if-unmodified-since", AFTER)], Passed),
            (&[("if-unmodified-since", "yesterday")], Passed),
            (&[("if-match", "\"a,b\""), ("if-unmodified-since", BEFORE)], Passed),
            (&[("if-match", "\"x\""), ("if-unmodified-since", AFTER)], Failed),
            // If-None-Match: weak, a list, any.
            (&[("if-none-match", "\"a,b\"")], NotModified),
            (&[("if-none-match", "W/\"a,b\"")], NotModified),
            (&[("if-none-match", "W/\"x\",, \"a,b\"")], NotModified),
            (&[("if-none-match", "*")], NotModified),
            (&[("if-none-match", "\"x\"")], Passed),
            (&[("if-none-match", "\"a")], Passed),
            (&[("if-none-match", "\"x\", \"*\"")], Passed),
            // If-Modified-Since, only without If-None-Match.
            (&[("if-modified-since", BEFORE)], Passed),
            (&[("if-modified-since", SAME)], NotModified),
            (&[("if-modified-since", AFTER)], NotModified),
            (&[("if-modified-since", "Sunday, 06-Nov-94 08:49:37 GMT")], NotModified),
            (&[("if-modified-since", "Sun Nov  6 08:49:37 1994")], NotModified),
            (&[("if-modified-since", "0")], Passed),
            (&[("if-modified-since", SAME), ("if-modified-since", SAME)], Passed),
            (&[("if-none-match", "\"x\""), ("if-modified-since", AFTER)], Passed),
            (&[("if-none-match", "\"a,b\""), ("if-modified-since", BEFORE)], NotModified),
            // 412 comes before 304.
            (&[("if-match", "\"x\""), ("if-none-match", "\"a,b\"")], Failed),
            (&[("if-match", "\"a,b\""), ("if-none-match", "\"a,b\"")], NotModified),
            (&[("if-unmodified-since", BEFORE), ("if-none-match", "\"a,b\"")], Failed),
            (&[("if-unmodified-since", AFTER), ("if-modified-since", AFTER)], NotModified),
        ];
        for (fields, expected) in cases {
            assert_eq!(evaluate(&headers(fields), &head(MODIFIED)), *expected, "{fields:?}");
        }
    }

    #[test]
    fn a_range_applies_only_with_the_current_strong_validator() {
        for (value, applies) in [
            ("\"a,b\"", true),
            ("W/\"a,b\"", false),
            ("\"x\"", false),
            ("*", false),
            (SAME, true),
            (BEFORE, false),
            (AFTER, false),
            ("tomorrow", false),
        ] {
            assert_eq!(range_applies(&headers(&[("if-range", value)]), &head(MODIFIED)), applies, "{value}");
        }
        assert!(range_applies(&HeaderMap::new(), &head(MODIFIED)));
    }

    #[test]
    fn the_date_of_a_file_that_has_just_changed_is_no_strong_validator() {
        let now = seconds(SystemTime::now()).unwrap() + 100;
        let date = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(now as u64));
        assert!(!range_applies(&headers(&[("if-range", &date)]), &head(now)));
    }
}
