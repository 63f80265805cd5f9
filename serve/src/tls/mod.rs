//! TLS: certificates by server name, read again when their files change.

mod names;
mod pair;
mod table;
mod validity;

pub use pair::TlsError;
pub use table::{Certificates, Event};

use std::sync::Arc;

use crate::exchange::TlsInfo;

/// What a finished handshake has settled.
pub(crate) fn info(connection: &rustls::ServerConnection) -> TlsInfo {
    TlsInfo {
        server_name: connection.server_name().map(Arc::from),
        version: match connection.protocol_version() {
            Some(rustls::ProtocolVersion::TLSv1_2) => "TLSv1.2",
            _ => "TLSv1.3",
        },
        alpn_h2: connection.alpn_protocol() == Some(ALPN_H2),
    }
}

const ALPN_H2: &[u8] = b"h2";
const ALPN_HTTP1: &[u8] = b"http/1.1";

#[cfg(test)]
pub(crate) use table::tests as testing;
