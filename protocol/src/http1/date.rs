//! `Date` (RFC 9110 §6.6.1), formatted once a second.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use http::HeaderValue;
use http::header::DATE;

use super::encode;

/// The last date that was formatted. Keep one per thread or connection.
#[derive(Debug, Default)]
pub struct DateCache {
    second: u64,
    value: Option<HeaderValue>,
    /// The whole field line.
    line: BytesMut,
}

impl DateCache {
    /// Writes the whole field line.
    pub fn field(&mut self, out: &mut BytesMut, now: SystemTime) {
        self.refresh(now);
        out.extend_from_slice(&self.line);
    }

    /// The field's value, whose memory is shared by all that are given in one second.
    pub fn value(&mut self, now: SystemTime) -> HeaderValue {
        self.refresh(now).clone()
    }

    fn refresh(&mut self, now: SystemTime) -> &HeaderValue {
        // A clock before 1970 gives 1970.
        let second = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if self.second != second {
            self.value = None;
            self.second = second;
        }
        self.value.get_or_insert_with(|| {
            let value = imf_fixdate(second);
            self.line.clear();
            encode::field(&mut self.line, &DATE, &value);
            value
        })
    }
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`
fn imf_fixdate(second: u64) -> HeaderValue {
    // Beyond the year 9999 there is no format.
    let second = second.min(253_402_300_799);
    let (days, time) = (second / 86_400, second % 86_400);
    let weekday = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"][(days % 7) as usize];
    let (year, month, day) = civil(days);
    let month = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"][month];
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    let text = format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT");
    HeaderValue::from_maybe_shared(Bytes::from(text)).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// Year, month from 0 and day from 1 of a day since 1970, in the proleptic Gregorian calendar.
fn civil(days: u64) -> (u64, usize, u64) {
    // Days since 1 March of the year 0: an era has 400 years, and leap days stand at the end of a year.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12;
    let year = era * 400 + year_of_era + u64::from(month < 2);
    (year, month as usize, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn date(second: u64) -> String {
        let value = DateCache::default().value(UNIX_EPOCH + Duration::from_secs(second));
        value.to_str().expect("ASCII").to_owned()
    }

    #[test]
    fn dates_are_imf_fixdates() {
        assert_eq!(date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(date(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(date(1_709_251_199), "Thu, 29 Feb 2024 23:59:59 GMT");
        assert_eq!(date(4_107_542_400), "Mon, 01 Mar 2100 00:00:00 GMT");
        assert_eq!(date(u64::MAX >> 2), "Fri, 31 Dec 9999 23:59:59 GMT");
    }

    #[test]
    fn a_date_is_formatted_anew_when_the_second_changes() {
        let mut cache = DateCache::default();
        let at = |millis| UNIX_EPOCH + Duration::from_millis(millis);
        let first = cache.value(at(1_000));
        assert_eq!(cache.value(at(1_999)), first);
        assert_ne!(cache.value(at(2_000)), first);
        let mut out = BytesMut::new();
        cache.field(&mut out, at(2_000));
        assert_eq!(out, "date: Thu, 01 Jan 1970 00:00:02 GMT\r\n");
    }
}
