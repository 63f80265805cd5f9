//! When a certificate ends: the one field that no library in the tree gives out.

use std::time::{Duration, SystemTime};

/// `notAfter` of a DER certificate (RFC 5280 §4.1.2.5); `None` where the bytes are not one.
pub(super) fn not_after(certificate: &[u8]) -> Option<SystemTime> {
    let (_, certificate, _) = element(certificate)?;
    let (_, mut rest, _) = element(certificate)?;
    if element(rest)?.0 == EXPLICIT_VERSION {
        rest = element(rest)?.2;
    }
    // Serial number, signature algorithm, issuer.
    for _ in 0..3 {
        rest = element(rest)?.2;
    }
    let (_, validity, _) = element(rest)?;
    let (_, _, not_after) = element(validity)?;
    let (tag, time, _) = element(not_after)?;
    let time = std::str::from_utf8(time).ok()?.strip_suffix('Z')?;
    if !time.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (year, rest) = match tag {
        UTC_TIME if time.len() == 12 => {
            let year: i64 = time[..2].parse().ok()?;
            (if year >= 50 { 1900 + year } else { 2000 + year }, &time[2..])
        }
        GENERALIZED_TIME if time.len() == 14 => (time[..4].parse().ok()?, &time[4..]),
        _ => return None,
    };
    let two = |at: usize| rest[at..at + 2].parse::<i64>().ok();
    let days = days_since_epoch(year, two(0)?, two(2)?);
    let seconds = days * 86_400 + two(4)? * 3_600 + two(6)? * 60 + two(8)?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(u64::try_from(seconds).ok()?))
}

const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const EXPLICIT_VERSION: u8 = 0xa0;

/// The first element's tag and content, and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// Days of the proleptic Gregorian calendar since 1970-01-01, with years that begin in March.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    365 * year + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + (153 * month + 2) / 5
        + day
        - 719_469
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_over_leap_years() {
        assert_eq!(days_since_epoch(1970, 1, 1), 0);
        assert_eq!(days_since_epoch(2000, 3, 1), 11_017);
        assert_eq!(days_since_epoch(2024, 2, 29), 19_782);
        assert_eq!(days_since_epoch(2100, 3, 1) - days_since_epoch(2100, 2, 28), 1);
    }

    #[test]
    fn the_end_of_a_certificate_is_read() {
        // UTCTime before 2050, GeneralizedTime from then on.
        for (year, days) in [(2031, days_since_epoch(2031, 5, 6)), (2051, days_since_epoch(2051, 5, 6))] {
            let mut params = rcgen::CertificateParams::new(vec!["a.example".into()]).unwrap();
            params.not_after = rcgen::date_time_ymd(year, 5, 6);
            let certificate = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
            let expected = SystemTime::UNIX_EPOCH + Duration::from_secs(days as u64 * 86_400);
            assert_eq!(not_after(certificate.der()), Some(expected));
        }
    }

    #[test]
    fn bytes_that_are_no_certificate_have_no_end() {
        let certificate = rcgen::generate_simple_self_signed(vec!["a.example".into()]).unwrap().cert;
        for length in 0..certificate.der().len() {
            not_after(&certificate.der()[..length]);
        }
        assert_eq!(not_after(b"0\x84\xff\xff\xff\xff"), None);
        assert_eq!(not_after(b""), None);
    }
}
