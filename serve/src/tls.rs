//! TLS: certificates by server name, read again when their files change.
use std::sync::Arc;

use playhouse_config::model;

/// The certificates of all listeners.
#[derive(Debug, Default)]
pub struct Certificates {}

impl Certificates {
    /// `None` for a cleartext listener.
    pub fn load(&self, listener: &model::Listener) -> Result<Option<Arc<rustls::ServerConfig>>, TlsError> {
        if listener.tls.is_empty() { Ok(None) } else { Err(TlsError) }
    }
}

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("tls")]
pub struct TlsError;
