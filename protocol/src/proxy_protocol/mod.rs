//! The PROXY protocol, versions 1 and 2, by HAProxy's specification: what a proxy says of its client before the first byte
//! of the connection that it forwards.
//!
//! [`Reader`] takes a header off a buffer as its bytes arrive, [`write_v1`] and [`write_v2`] write one. What the
//! specification leaves to the receiver is read strictly: one who may speak for others has no licence to be unclear.

mod crc32c;
#[cfg(test)]
mod tests;
mod tlv;
mod v1;
mod v2;

use std::net::SocketAddr;

use bytes::{Buf, BytesMut};

pub use tlv::{Tls, Tlvs};
pub use v1::write_v1;
pub use v2::write_v2;

/// What a proxy says of its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// How it was said.
    pub version: Version,
    /// Who the client is.
    pub origin: Origin,
    /// What else is known of the connection; nothing in version 1, nor where the proxy speaks for itself.
    pub tlvs: Tlvs,
}

/// The version of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// Between whom the connection is that a proxy forwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The proxy speaks for itself, as in a health check: `LOCAL`.
    Local,
    /// The proxy does not say: `UNKNOWN`, or an unspecified family.
    Unknown,
    /// TCP or UDP over IPv4 or IPv6.
    Inet {
        /// How the client speaks with the proxy.
        transport: Transport,
        /// The client.
        source: SocketAddr,
        /// Where the client has connected to.
        destination: SocketAddr,
    },
    /// Unix sockets. Paths as bytes, at most 108, empty for an unnamed socket.
    Unix {
        /// How the client speaks with the proxy.
        transport: Transport,
        /// The client's.
        source: Box<[u8]>,
        /// The proxy's.
        destination: Box<[u8]>,
    },
}

/// How a client speaks with its proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP, or a Unix stream socket.
    Stream,
    /// UDP, or a Unix datagram socket.
    Datagram,
}

/// Why a header is refused. The connection cannot go on after any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// What was sent is something else.
    #[error("no PROXY header")]
    Missing,
    /// Breaks the grammar.
    #[error("malformed PROXY header: {0}")]
    Malformed(&'static str),
    /// Over 107 bytes in version 1, or over the reader's limit.
    #[error("the PROXY header is too large")]
    TooLarge,
    /// The bytes are not the ones that the sender has counted over.
    #[error("the PROXY header's checksum is wrong")]
    Checksum,
}

/// Reads one header.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    limit: usize,
}

impl Reader {
    /// A reader of headers of up to `limit` bytes in all; of version 1 never more than 107.
    pub fn new(limit: usize) -> Self {
        Reader { limit }
    }

    /// Takes the header off the buffer, `None` until all of it is there. Until then the buffer is left as it is, and it
    /// need never hold more than the limit.
    ///
    /// # Errors
    /// As soon as the bytes can no longer become a header.
    pub fn read(&self, input: &mut BytesMut) -> Result<Option<Header>, HeaderError> {
        let read = match begins(input) {
            None => return Ok(None),
            Some(None) => return Err(HeaderError::Missing),
            Some(Some(Version::V1)) => v1::read(input, self.limit)?,
            Some(Some(Version::V2)) => v2::read(input, self.limit)?,
        };
        Ok(read.map(|(header, length)| {
            input.advance(length);
            header
        }))
    }
}

/// Which header these bytes begin, `Some(None)` where it is something else; `None` until that is clear. No request of
/// HTTP and no TLS record begins like a header.
pub fn begins(input: &[u8]) -> Option<Option<Version>> {
    for (begin, version) in [(v1::BEGIN, Version::V1), (v2::SIGNATURE, Version::V2)] {
        let compared = input.len().min(begin.len());
        if input[..compared] == begin[..compared] {
            return (compared == begin.len()).then_some(Some(version));
        }
    }
    Some(None)
}
