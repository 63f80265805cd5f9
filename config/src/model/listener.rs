//! Where a site listens, and what it demands of its clients.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// One listening socket.
#[derive(Clone, Debug, PartialEq)]
pub struct Listener {
    /// Its name in the site file, in metrics and in the actor tree.
    pub name: Arc<str>,
    /// The address.
    pub bind: Bind,
    /// Certificates; empty is cleartext. The first is the default for clients without a matching SNI name.
    pub tls: Vec<Certificate>,
    /// Offer HTTP/2: by ALPN over TLS, by prior knowledge on cleartext. Default true.
    pub http2: bool,
    /// Offer HTTP/3 too: QUIC over UDP, at the same address and port. Only with TLS, and on an IP address.
    /// Default false.
    pub http3: bool,
    /// Over HTTP/3, answer safe requests of clients that come back before their handshake has ended (0-RTT, RFC 8470).
    /// Default false.
    pub early_data: bool,
    /// Whether proxies say who their clients are, by a PROXY header before everything else; `None` is never.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// How the instances of a site share the listener.
    pub sharing: Sharing,
    /// What a client may send.
    pub limits: Limits,
    /// How long a client may take.
    pub timeouts: ClientTimeouts,
}

/// Whom a listener believes a PROXY header (HAProxy's PROXY protocol, version 1 or 2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyProtocol {
    /// Whether a connection without one is closed. Where it is not required, those that are trusted may send one, and
    /// that of others is taken for a malformed request.
    pub required: bool,
    /// Who is believed; of no meaning on a Unix socket, where whoever can connect is.
    pub trusted: Vec<Network>,
}

impl ProxyProtocol {
    /// Whether the peer is believed; `None` is the peer of a Unix socket.
    pub fn trusts(&self, peer: Option<IpAddr>) -> bool {
        peer.is_none_or(|peer| self.trusted.iter().any(|network| network.contains(peer)))
    }
}

/// A range of addresses, `10.0.0.0/8`. One of IPv4 has the IPv4-mapped IPv6 addresses too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    address: IpAddr,
    /// At most 32 or 128.
    prefix: u8,
}

impl Network {
    /// All addresses that begin with the first `prefix` bits of `address`; `None` where it has fewer bits, or others of
    /// them are set.
    pub fn new(address: IpAddr, prefix: u8) -> Option<Self> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let network = Network { address, prefix };
        (prefix <= bits && network.masked(address) == bits_of(address)).then_some(network)
    }

    /// Whether the address lies in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = if self.address.is_ipv4() { address.to_canonical() } else { address };
        address.is_ipv4() == self.address.is_ipv4() && self.masked(address) == self.masked(self.address)
    }

    /// The bits of an address of the same family that the network decides by, in the upper ones.
    fn masked(&self, address: IpAddr) -> u128 {
        bits_of(address) & u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0)
    }
}

/// All bits of an address, in the upper ones.
fn bits_of(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
        IpAddr::V6(address) => u128::from(address),
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// How the instances of a site share a listener. A site of one process has one socket in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// All accept from one socket, and take turns.
    #[default]
    Inherited,
    /// Each has a socket of its own (`SO_REUSEPORT`), and the kernel chooses among them. TCP only.
    ReusePort,
}

/// Where a listener listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Bind {
    /// TCP; an IPv6 wildcard takes IPv4 too unless `only_v6`. Port 0 lets the kernel choose.
    Tcp {
        /// Address and port.
        address: SocketAddr,
        /// Refuse IPv4-mapped addresses on an IPv6 socket.
        only_v6: bool,
    },
    /// A Unix stream socket.
    Unix {
        /// The socket file. A stale one is replaced, a live one is an error.
        path: PathBuf,
        /// Permission bits of the socket file; `None` leaves the umask's.
        mode: Option<u32>,
    },
}

/// A certificate chain and its key, both PEM. The names it answers to are read from the certificate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Certificate {
    /// PEM, leaf first.
    pub cert: PathBuf,
    /// PEM: PKCS#8, SEC1 or PKCS#1.
    pub key: PathBuf,
}

/// What a client may send to a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Open connections, those of HTTP/3 among them; more wait in the kernel's queue. Default 20,000.
    pub connections: usize,
    /// Bytes of a request's head: request line and fields. Default 32 KiB; answered with 431, or 414 for the target.
    pub header_bytes: usize,
    /// Fields of a request. Default 100; answered with 431.
    pub header_count: usize,
    /// Bytes of a request body. Default 1 GiB; answered with 413.
    pub body_bytes: u64,
    /// Concurrent streams of an HTTP/2 or HTTP/3 connection. Default 128.
    pub streams: u32,
    /// Open connections of one client address (an IPv4 address, or the first 64 bits of an IPv6 address), over all
    /// instances; more are closed at once. At most 50,000; `None` limits only all together.
    pub connections_per_address: Option<NonZeroU32>,
    /// Requests of one client address, over all instances and connections; more are answered with 429.
    pub rate: Option<Rate>,
}

/// How many requests a client address may make: `burst` at once, and `per_second` in the long run. A full burst is made
/// good within an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// At most 1,000,000.
    pub per_second: NonZeroU32,
    /// Default `per_second`.
    pub burst: NonZeroU32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 20_000,
            header_bytes: 32 << 10,
            header_count: 100,
            body_bytes: 1 << 30,
            streams: 128,
            connections_per_address: None,
            rate: None,
        }
    }
}

/// How long a client may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTimeouts {
    /// The whole PROXY header. Default 10 s; closed silently.
    pub proxy_header: Duration,
    /// The TLS handshake. Default 10 s.
    pub tls: Duration,
    /// From the first byte of a head to its last. Default 10 s; answered with 408.
    pub head: Duration,
    /// Between two reads of a body that made progress. Default 30 s; answered with 408.
    pub body: Duration,
    /// Between requests on a kept-alive connection, and before the first. Default 75 s; closed silently.
    pub idle: Duration,
    /// Between two writes that made progress. Default 30 s; the connection or stream is reset.
    pub write: Duration,
    /// From the beginning of a drain to the end of a connection without a request. The next one may be on its way already:
    /// for three quarters of the time it is waited for, and answered. Default 1 s, or half of the site's drain timeout where that is less.
    pub drain_idle: Duration,
}

impl Default for ClientTimeouts {
    fn default() -> Self {
        ClientTimeouts {
            proxy_header: Duration::from_secs(10),
            tls: Duration::from_secs(10),
            head: Duration::from_secs(10),
            body: Duration::from_secs(30),
            idle: Duration::from_secs(75),
            write: Duration::from_secs(30),
            drain_idle: Duration::from_secs(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(address: &str, prefix: u8) -> Option<Network> {
        Network::new(address.parse().unwrap(), prefix)
    }

    #[test]
    fn a_network_has_the_addresses_that_begin_like_it() {
        let contains = |network: Network, address: &str| network.contains(address.parse().unwrap());
        let ten = network("10.0.0.0", 8).unwrap();
        assert!(contains(ten, "10.255.0.1") && contains(ten, "::ffff:10.1.2.3"));
        assert!(!contains(ten, "11.0.0.0") && !contains(ten, "a00::"));
        let all = network("0.0.0.0", 0).unwrap();
        assert!(contains(all, "255.1.2.3") && !contains(all, "::1"));
        let one = network("192.0.2.7", 32).unwrap();
        assert!(contains(one, "192.0.2.7") && !contains(one, "192.0.2.6"));
        let six = network("2001:db8::", 32).unwrap();
        assert!(contains(six, "2001:db8:1::2") && !contains(six, "2001:db9::"));
        let odd = network("192.0.2.64", 26).unwrap();
        assert!(contains(odd, "192.0.2.127") && !contains(odd, "192.0.2.128"));
        assert_eq!(odd.to_string(), "192.0.2.64/26");
    }

    #[test]
    fn a_network_with_bits_behind_its_prefix_is_none() {
        assert_eq!((network("10.0.0.1", 8), network("10.0.0.0", 33)), (None, None));
        assert_eq!((network("2001:db8::1", 64), network("::", 129)), (None, None));
        assert!(network("::1", 128).is_some());
    }
}
