//! Version 2: a signature, what kind of addresses, how long all is, addresses, and then [`Tlvs`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::{BufMut, BytesMut};

use super::crc32c::crc32c;
use super::v1::same_family;
use super::{Header, HeaderError, Origin, Tlvs, Transport, Version, tlv};

/// The header, and how many bytes it has.
pub(super) fn read(input: &[u8], limit: usize) -> Result<Option<(Header, usize)>, HeaderError> {
    let Some((fixed, rest)) = input.split_first_chunk::<FIXED>() else { return Ok(None) };
    let [.., command, family, high, low] = *fixed;
    let local = match command {
        0x20 => true,
        0x21 => false,
        _ => return Err(HeaderError::Malformed("its version or command")),
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    if FIXED + length > limit {
        return Err(HeaderError::TooLarge);
    }
    let Some(rest) = rest.get(..length) else { return Ok(None) };
    let (origin, tlvs) = if local {
        // Whatever else it says is to be ignored.
        (Origin::Local, Tlvs::default())
    } else {
        let (origin, addresses) = origin(family, rest)?;
        let (tlvs, checksum) = Tlvs::read(&rest[addresses..])?;
        if let Some(at) = checksum {
            let (before, behind) = input[..FIXED + length].split_at(FIXED + addresses + at);
            // Split off above with just this length.
            let (sum, behind) = behind.split_first_chunk::<4>().ok_or(HeaderError::Checksum)?;
            if crc32c(&[before, &[0; 4], behind]) != u32::from_be_bytes(*sum) {
                return Err(HeaderError::Checksum);
            }
        }
        (origin, tlvs)
    };
    Ok(Some((Header { version: Version::V2, origin, tlvs }, FIXED + length)))
}

/// The addresses, and how many bytes they have.
fn origin(family: u8, input: &[u8]) -> Result<(Origin, usize), HeaderError> {
    let transport = match family & 0x0f {
        0 if family == 0 => return Ok((Origin::Unknown, 0)),
        1 => Transport::Stream,
        2 => Transport::Datagram,
        _ => return Err(HeaderError::Malformed("its transport")),
    };
    let cut_off = HeaderError::Malformed("its addresses are cut off");
    match family >> 4 {
        1 => {
            let (addresses, _) = input.split_first_chunk::<12>().ok_or(cut_off)?;
            let [a, b, c, d, e, f, g, h, ports @ ..] = *addresses;
            let (source, destination) = (Ipv4Addr::new(a, b, c, d), Ipv4Addr::new(e, f, g, h));
            Ok((inet(transport, source.into(), destination.into(), ports), 12))
        }
        2 => {
            let (source, rest) = input.split_first_chunk::<16>().ok_or(cut_off)?;
            let (destination, rest) = rest.split_first_chunk::<16>().ok_or(cut_off)?;
            let (ports, _) = rest.split_first_chunk::<4>().ok_or(cut_off)?;
            let (source, destination) = (Ipv6Addr::from(*source), Ipv6Addr::from(*destination));
            Ok((inet(transport, source.into(), destination.into(), *ports), 36))
        }
        3 => {
            let (source, rest) = input.split_first_chunk::<UNIX_PATH>().ok_or(cut_off)?;
            let (destination, _) = rest.split_first_chunk::<UNIX_PATH>().ok_or(cut_off)?;
            let origin =
                Origin::Unix { transport, source: unpadded(source), destination: unpadded(destination) };
            Ok((origin, 2 * UNIX_PATH))
        }
        _ => Err(HeaderError::Malformed("its address family")),
    }
}

fn inet(transport: Transport, source: IpAddr, destination: IpAddr, ports: [u8; 4]) -> Origin {
    let [a, b, c, d] = ports;
    Origin::Inet {
        transport,
        source: SocketAddr::new(source, u16::from_be_bytes([a, b])),
        destination: SocketAddr::new(destination, u16::from_be_bytes([c, d])),
    }
}

/// Without the NULs at the end; an abstract name begins with one.
fn unpadded(path: &[u8; UNIX_PATH]) -> Box<[u8]> {
    let length = path.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    path[..length].into()
}

/// Writes a header of version 2, with a checksum if that is wanted.
///
/// # Errors
/// [`HeaderError::TooLarge`] where a path or a part has no room; then `out` holds nothing of use.
pub fn write_v2(out: &mut BytesMut, origin: &Origin, tlvs: &Tlvs, checksum: bool) -> Result<(), HeaderError> {
    let begin = out.len();
    out.put_slice(SIGNATURE);
    out.put_u8(if *origin == Origin::Local { 0x20 } else { 0x21 });
    let family = out.len();
    out.put_slice(&[0; 3]);
    let transport_bits = |transport: &Transport| match transport {
        Transport::Stream => 1,
        Transport::Datagram => 2,
    };
    out[family] = match origin {
        Origin::Local | Origin::Unknown => 0,
        Origin::Inet { transport, source, destination } => {
            let (source_ip, destination_ip) = same_family(source.ip(), destination.ip());
            for address in [source_ip, destination_ip] {
                match address {
                    IpAddr::V4(address) => out.put_slice(&address.octets()),
                    IpAddr::V6(address) => out.put_slice(&address.octets()),
                }
            }
            out.put_u16(source.port());
            out.put_u16(destination.port());
            if source_ip.is_ipv4() {
                0x10 | transport_bits(transport)
            } else {
                0x20 | transport_bits(transport)
            }
        }
        Origin::Unix { transport, source, destination } => {
            for path in [source, destination] {
                let padding = UNIX_PATH.checked_sub(path.len()).ok_or(HeaderError::TooLarge)?;
                out.put_slice(path);
                out.put_bytes(0, padding);
            }
            0x30 | transport_bits(transport)
        }
    };
    let mut sum_at = None;
    if *origin != Origin::Local {
        tlvs.write(out)?;
        sum_at = checksum.then(|| tlv::put_checksum(out));
    }
    let length = u16::try_from(out.len() - begin - FIXED).map_err(|_| HeaderError::TooLarge)?;
    out[family + 1..family + 3].copy_from_slice(&length.to_be_bytes());
    if let Some(at) = sum_at {
        let sum = crc32c(&[&out[begin..]]);
        out[at..at + 4].copy_from_slice(&sum.to_be_bytes());
    }
    Ok(())
}

pub(super) const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Bytes of signature, command, family and length.
const FIXED: usize = 16;

const UNIX_PATH: usize = 108;
