//! Ranges, names and what is required.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::Resolver;
use crate::error::At;

/// Longest duration: far beyond any use, and far from the end of every clock.
const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Bytes of the longest name.
const MAX_NAME: usize = 64;

impl Resolver<'_, '_> {
    /// Reports an error of a field that has none yet.
    pub(super) fn refuse<T>(&mut self, at: &At, message: impl Into<String>) -> Option<T> {
        self.report.error(at, message);
        None
    }

    /// A field that must be written.
    pub(super) fn required<T>(&mut self, value: Option<T>, at: &At, message: &str) -> Option<T> {
        if value.is_none() && !self.report.failed(at) && !self.report.failed_itself(&at.parent()) {
            self.report.error(at, message);
        }
        value
    }

    /// Letters, digits, `-`, `_` and `.`, beginning with a letter or digit, at most 64 bytes.
    pub(super) fn name(&mut self, name: &str, at: &At) -> Option<()> {
        let valid = name.len() <= MAX_NAME
            && name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
        if valid {
            return Some(());
        }
        let message = format!(
            "{} is no name; names are letters, digits, '-', '_' and '.', begin with a letter or digit and have at most {MAX_NAME} bytes",
            shown(name)
        );
        self.refuse(at, message)
    }

    /// A number in a range; `Some(None)` where it is not written.
    pub(super) fn count(
        &mut self,
        value: Option<u64>,
        at: &At,
        range: RangeInclusive<u64>,
    ) -> Option<Option<u64>> {
        match value {
            Some(value) if !range.contains(&value) => self.refuse(
                at,
                format!("{value} is out of range; {} to {} is allowed", range.start(), range.end()),
            ),
            value => Some(value),
        }
    }

    /// A number in a range that fits its type, or the default.
    pub(super) fn count_or<T: TryFrom<u64>>(
        &mut self,
        value: Option<u64>,
        default: T,
        at: &At,
        range: RangeInclusive<u64>,
    ) -> Option<T> {
        match self.count(value, at, range)? {
            Some(value) => T::try_from(value).ok(),
            None => Some(default),
        }
    }

    /// A positive duration, or the default.
    pub(super) fn duration(
        &mut self,
        value: Option<Duration>,
        default: Duration,
        at: &At,
    ) -> Option<Duration> {
        match value {
            Some(Duration::ZERO) => self.refuse(at, "must be longer than zero"),
            Some(value) if value > MAX_DURATION => self.refuse(at, "is longer than 365 days"),
            Some(value) => Some(value),
            None => Some(default),
        }
    }
}

/// A value for a message, cut where it is long.
pub(super) fn shown(value: &str) -> String {
    const SHOWN: usize = 80;
    match value.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{:?}…", &value[..end]),
        None => format!("{value:?}"),
    }
}
