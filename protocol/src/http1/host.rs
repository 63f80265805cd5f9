//! `Host` (RFC 9110 §7.2): `uri-host [ ":" port ]`.

/// Whether these are a host that is not empty and, behind a colon, a port of at most 65535 (an empty port is
/// allowed, RFC 3986 §3.2.3). No user information.
pub fn is_valid_host(host: &[u8]) -> bool {
    let port = match host {
        [b'[', literal @ ..] => {
            let Some(end) = memchr::memchr(b']', literal) else { return false };
            if !is_ip_literal(&literal[..end]) {
                return false;
            }
            &literal[end + 1..]
        }
        _ => match reg_name(host) {
            0 => return false,
            name => &host[name..],
        },
    };
    match port {
        [] => true,
        [b':', port @ ..] => is_port(port),
        _ => false,
    }
}

fn is_ip_literal(literal: &[u8]) -> bool {
    // IPvFuture (RFC 3986 §3.2.2) has never been given a meaning, zones are not for the wire (RFC 9110 §4.2.2).
    std::str::from_utf8(literal).is_ok_and(|text| text.parse::<std::net::Ipv6Addr>().is_ok())
}

/// Bytes at the front that are a `reg-name` (RFC 3986 §3.2.2).
fn reg_name(host: &[u8]) -> usize {
    let mut rest = host;
    loop {
        let plain = rest.iter().position(|byte| !REG_NAME[usize::from(*byte)]).unwrap_or(rest.len());
        rest = match &rest[plain..] {
            [b'%', a, b, rest @ ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit() => rest,
            rest => return host.len() - rest.len(),
        };
    }
}

/// What of a `reg-name` is no escape.
const REG_NAME: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = (byte as u8).is_ascii_alphanumeric()
            || matches!(byte as u8, b'-' | b'.' | b'_' | b'~')
            || matches!(
                byte as u8,
                b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'='
            );
        byte += 1;
    }
    table
};

fn is_port(port: &[u8]) -> bool {
    let mut number = 0;
    for byte in port {
        let digit = u32::from(byte.wrapping_sub(b'0'));
        number = number * 10 + digit;
        if digit > 9 || number > 65535 {
            return false;
        }
    }
    port.len() <= 5
}

#[cfg(test)]
mod tests {
    use super::is_valid_host;

    #[test]
    fn hosts_are_names_and_addresses_with_or_without_a_port() {
        for host in [
            "a",
            "a.example",
            "A.example:80",
            "a.example:",
            "127.0.0.1:65535",
            "[::1]",
            "[::1]:8080",
            "a_b",
            "%41",
        ] {
            assert!(is_valid_host(host.as_bytes()), "{host}");
        }
        for host in [
            "",
            ":80",
            "a:b",
            "a:65536",
            "a:000001",
            "a:80:80",
            "a b",
            "a/b",
            "u@a",
            "a\\b",
            "[::1",
            "[::1]a",
            "[]",
            "[fe80::1%25lo]",
            "::1",
            "a%4",
            "a%zz",
            "a\"",
            "a<",
            "a#",
            "a?b",
            "\u{e9}",
        ] {
            assert!(!is_valid_host(host.as_bytes()), "{host}");
        }
    }
}
