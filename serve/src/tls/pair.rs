//! One certificate chain with its key, as read from two files.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use playhouse_config::model;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::validity;

/// A chain and its key that fit together.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) certified: Arc<CertifiedKey>,
    /// The DNS names of the leaf's subjectAltName, lower case; wildcards as `*.example.org`.
    pub(super) names: Vec<Box<str>>,
    /// When the leaf ends.
    pub(super) not_after: Option<SystemTime>,
}

/// Why a certificate or its key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// A file is not PEM.
    #[error("{}: not PEM: {error}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: pem::Error,
    },
    /// There is no certificate in the file.
    #[error("{}: no certificate in the file (expected a PEM section CERTIFICATE)", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// There is no key in the file.
    #[error(
        "{}: no private key in the file (expected a PEM section PRIVATE KEY, EC PRIVATE KEY or RSA PRIVATE KEY)",
        path.display()
    )]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// The leaf is not a certificate that can be used.
    #[error("{}: the first certificate is unusable: {error}", path.display())]
    BadCertificate {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: String,
    },
    /// The key is of a kind that is not supported, or damaged.
    #[error("{}: the private key is unusable: {error}", path.display())]
    BadKey {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: rustls::Error,
    },
    /// The key is that of another certificate.
    #[error("{} is not the key of the first certificate in {}", key.display(), cert.display())]
    Mismatch {
        /// The file with the certificate.
        cert: PathBuf,
        /// The file with the key.
        key: PathBuf,
    },
    /// The TLS library refuses the configuration.
    #[error("TLS configuration: {0}")]
    Configuration(rustls::Error),
}

impl Pair {
    /// Reads both files (blocking) and checks that they belong together.
    pub(super) fn read(files: &model::Certificate, provider: &CryptoProvider) -> Result<Self, TlsError> {
        let (cert, key) = (&files.cert, &files.key);
        let chain = CertificateDer::pem_slice_iter(&read(cert)?)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| TlsError::Pem { path: cert.clone(), error })?;
        let leaf = chain.first().ok_or_else(|| TlsError::NoCertificate { path: cert.clone() })?;
        let (names, not_after) = {
            let parsed = webpki::EndEntityCert::try_from(leaf)
                .map_err(|error| TlsError::BadCertificate { path: cert.clone(), error: error.to_string() })?;
            let names = parsed.valid_dns_names().map(|name| name.to_ascii_lowercase().into()).collect();
            (names, validity::not_after(leaf))
        };
        let private = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| match error {
            pem::Error::NoItemsFound => TlsError::NoKey { path: key.clone() },
            error => TlsError::Pem { path: key.clone(), error },
        })?;
        let private = provider
            .key_provider
            .load_private_key(private)
            .map_err(|error| TlsError::BadKey { path: key.clone(), error })?;
        let certified = CertifiedKey::new(chain, private);
        match certified.keys_match() {
            // `Unknown`: the key cannot tell its public half, so that nothing speaks against it.
            Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
            Err(_) => return Err(TlsError::Mismatch { cert: cert.clone(), key: key.clone() }),
        }
        Ok(Pair { certified: Arc::new(certified), names, not_after })
    }
}

/// What tells that a file has changed; `None` where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    modified: (i64, i64),
    changed: (i64, i64),
    size: u64,
    file: (u64, u64),
}

impl Stamp {
    /// The stamps of certificate and key. Taken before the files are read, so that a later write shows.
    pub(super) fn of(files: &model::Certificate) -> [Option<Self>; 2] {
        [&files.cert, &files.key].map(|path| {
            let metadata = std::fs::metadata(path).ok()?;
            Some(Stamp {
                modified: (metadata.mtime(), metadata.mtime_nsec()),
                changed: (metadata.ctime(), metadata.ctime_nsec()),
                size: metadata.size(),
                file: (metadata.dev(), metadata.ino()),
            })
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|error| TlsError::Read { path: path.to_owned(), error })
}
