//! TLS: certificates by server name, read again when their files change, and session tickets.

mod names;
mod once;
mod pair;
mod table;
pub mod tickets;
mod validity;

pub use pair::TlsError;
pub use table::{Certificates, Event};
pub use tickets::{TicketKeyError, TicketKeys};

use std::ops::Deref;
use std::sync::Arc;

use names::Resolver;

use crate::exchange::TlsInfo;

/// The TLS of one listener. Stays the same while its certificates change behind it.
#[derive(Debug)]
pub struct ListenerTls {
    pub(crate) config: Arc<rustls::ServerConfig>,
    /// Where HTTP/3 is offered.
    pub(crate) quic: Option<Arc<rustls::ServerConfig>>,
    resolver: Arc<Resolver>,
}

impl ListenerTls {
    /// Whether clients that come back over HTTP/3 may send requests before their handshake has ended.
    pub(crate) fn takes_early_data(&self) -> bool {
        self.quic.as_ref().is_some_and(|quic| quic.max_early_data_size > 0)
    }
}

impl Deref for ListenerTls {
    type Target = rustls::ServerConfig;

    fn deref(&self) -> &Self::Target {
        &self.config
    }
}

/// The certificates of the listener that a connection came by.
#[derive(Clone, Debug)]
pub(crate) struct ListenerCertificates(Arc<Resolver>);

impl ListenerCertificates {
    /// Whether one certificate answers to both names.
    pub(crate) fn share(&self, one: &str, other: &str) -> bool {
        self.0.share(one, other)
    }
}

impl PartialEq for ListenerCertificates {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ListenerCertificates {}

/// What a finished handshake has settled.
pub(crate) fn info(tls: &ListenerTls, connection: &rustls::ServerConnection) -> TlsInfo {
    TlsInfo {
        certificates: ListenerCertificates(tls.resolver.clone()),
        server_name: connection.server_name().map(Arc::from),
        version: match connection.protocol_version() {
            Some(rustls::ProtocolVersion::TLSv1_2) => "TLSv1.2",
            _ => "TLSv1.3",
        },
        alpn_h2: connection.alpn_protocol() == Some(ALPN_H2),
    }
}

/// What a finished QUIC handshake has settled.
pub(crate) fn quic_info(tls: &ListenerTls, server_name: Option<String>) -> TlsInfo {
    TlsInfo {
        certificates: ListenerCertificates(tls.resolver.clone()),
        server_name: server_name.map(Arc::from),
        // RFC 9001 §4.2
        version: "TLSv1.3",
        alpn_h2: false,
    }
}

const ALPN_H2: &[u8] = b"h2";
const ALPN_H3: &[u8] = b"h3";
const ALPN_HTTP1: &[u8] = b"http/1.1";
/// Some clients offer nothing else.
const ALPN_HTTP1_0: &[u8] = b"http/1.0";

#[cfg(test)]
pub(crate) use table::tests as testing;
