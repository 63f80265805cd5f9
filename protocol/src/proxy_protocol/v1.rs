//! Version 1: `PROXY TCP4 192.0.2.1 198.51.100.7 56324 443\r\n`.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::{BufMut, BytesMut};

use super::{Header, HeaderError, Origin, Tlvs, Transport, Version};

/// The header, and how many bytes it has.
pub(super) fn read(input: &[u8], limit: usize) -> Result<Option<(Header, usize)>, HeaderError> {
    let longest = LONGEST.min(limit);
    let within = &input[..input.len().min(longest)];
    let Some(end) = within.windows(2).position(|pair| pair == b"\r\n") else {
        return if input.len() < longest { Ok(None) } else { Err(HeaderError::TooLarge) };
    };
    let origin = origin(&within[BEGIN.len()..end])?;
    Ok(Some((Header { version: Version::V1, origin, tlvs: Tlvs::default() }, end + 2)))
}

/// What stands between `PROXY ` and the end of the line.
fn origin(text: &[u8]) -> Result<Origin, HeaderError> {
    let malformed = HeaderError::Malformed("its line");
    // What follows `UNKNOWN` is to be ignored.
    if text == b"UNKNOWN" || text.starts_with(b"UNKNOWN ") {
        return Ok(Origin::Unknown);
    }
    let text = std::str::from_utf8(text).map_err(|_| malformed)?;
    let mut words = text.split(' ');
    let family = words.next();
    let mut address = || -> Option<IpAddr> {
        match family {
            Some("TCP4") => words.next()?.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
            Some("TCP6") => words.next()?.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
            _ => None,
        }
    };
    let (source, destination) = (address().ok_or(malformed)?, address().ok_or(malformed)?);
    let mut port = || words.next().and_then(port).ok_or(malformed);
    let (source_port, destination_port) = (port()?, port()?);
    if words.next().is_some() {
        return Err(malformed);
    }
    Ok(Origin::Inet {
        transport: Transport::Stream,
        source: SocketAddr::new(source, source_port),
        destination: SocketAddr::new(destination, destination_port),
    })
}

/// Digits alone, without leading zeros.
fn port(text: &str) -> Option<u16> {
    let canonical = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| canonical)
}

/// Writes a header of version 1. It has no word for the proxy itself and for what is not TCP: they are `UNKNOWN`.
pub fn write_v1(out: &mut BytesMut, origin: &Origin) {
    let Origin::Inet { transport: Transport::Stream, source, destination } = origin else {
        return out.put_slice(b"PROXY UNKNOWN\r\n");
    };
    let (source_ip, destination_ip) = same_family(source.ip(), destination.ip());
    let family = if source_ip.is_ipv4() { "TCP4" } else { "TCP6" };
    let (source_port, destination_port) = (source.port(), destination.port());
    // Into memory: cannot fail.
    let _ = write!(
        out.writer(),
        "PROXY {family} {source_ip} {destination_ip} {source_port} {destination_port}\r\n"
    );
}

/// Both as IPv4 where they are or are mapped, else both as IPv6.
pub(super) fn same_family(one: IpAddr, other: IpAddr) -> (IpAddr, IpAddr) {
    let v6 = |address| match address {
        IpAddr::V4(address) => IpAddr::V6(address.to_ipv6_mapped()),
        v6 => v6,
    };
    match (one.to_canonical(), other.to_canonical()) {
        (one @ IpAddr::V4(_), other @ IpAddr::V4(_)) => (one, other),
        (one, other) => (v6(one), v6(other)),
    }
}

pub(super) const BEGIN: &[u8] = b"PROXY ";

/// The longest line that the specification has, CRLF included.
const LONGEST: usize = 107;
