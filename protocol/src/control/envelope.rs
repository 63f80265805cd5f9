//! What stands in a datagram for a message that is too long for one.

use super::{DecodeError, MAX_PAYLOAD};

/// The datagram that stands for a message of `length` bytes, which is the whole of the memfd that is the datagram's first
/// descriptor. The message's own descriptors follow it, and are numbered without it.
pub fn envelope(length: usize) -> Vec<u8> {
    format!("{PREFIX}{length}}}").into_bytes()
}

/// How long the message in the memfd is, from a datagram that [`envelope`] has made; `None` where the datagram is the
/// message itself. Exactly those bytes, with no space between them: every message begins otherwise, with its type.
///
/// # Errors
/// [`DecodeError::Envelope`] where it begins as one and is none, [`DecodeError::TooLong`] beyond [`MAX_PAYLOAD`].
pub fn enveloped(datagram: &[u8]) -> Result<Option<usize>, DecodeError> {
    let Some(rest) = datagram.strip_prefix(PREFIX.as_bytes()) else { return Ok(None) };
    let digits = rest.strip_suffix(b"}").ok_or(DecodeError::Envelope)?;
    let canonical = matches!(digits, [b'1'..=b'9', rest @ ..] if rest.iter().all(u8::is_ascii_digit));
    if !canonical {
        return Err(DecodeError::Envelope);
    }
    let digits = std::str::from_utf8(digits).map_err(|_| DecodeError::Envelope)?;
    match digits.parse() {
        Ok(length) if length <= MAX_PAYLOAD => Ok(Some(length)),
        Ok(length) => Err(DecodeError::TooLong(length)),
        Err(_) => Err(DecodeError::TooLong(usize::MAX)),
    }
}

const PREFIX: &str = r#"{"memfd":"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envelope_says_its_length() {
        for length in [1, 65_537, MAX_PAYLOAD] {
            assert_eq!(enveloped(&envelope(length)).unwrap(), Some(length));
        }
        assert_eq!(envelope(70_000), br#"{"memfd":70000}"#);
        assert_eq!(enveloped(br#"{"type":"activate"}"#).unwrap(), None);
        assert_eq!(enveloped(b"").unwrap(), None);
    }

    #[test]
    fn only_the_exact_form_is_one() {
        for form in ["", "}", "0}", "01}", "-1}", "+1}", "1 }", "1.0}", "1", "1}}", "1,\"a\":2}", "\u{661}}"]
        {
            let datagram = format!("{PREFIX}{form}");
            assert!(matches!(enveloped(datagram.as_bytes()), Err(DecodeError::Envelope)), "{datagram}");
        }
        for length in [(MAX_PAYLOAD + 1).to_string(), "9".repeat(40)] {
            let datagram = format!("{PREFIX}{length}}}");
            assert!(matches!(enveloped(datagram.as_bytes()), Err(DecodeError::TooLong(_))), "{datagram}");
        }
    }
}
