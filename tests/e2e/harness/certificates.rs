//! A certificate authority of the test's own.

use std::path::Path;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256,
};

/// The kind of a server's key.
#[derive(Clone, Copy, Debug)]
pub enum Algorithm {
    Ecdsa,
    Rsa,
}

/// Signs server certificates that clients accept who trust it.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    pub fn new() -> Self {
        let mut parameters = CertificateParams::new(Vec::new()).expect("no names is fine");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.distinguished_name.push(rcgen::DnType::CommonName, "the tests' authority");
        let key = KeyPair::generate().expect("a key is made");
        let pem = parameters.self_signed(&key).expect("it signs itself").pem();
        Authority { issuer: Issuer::new(parameters, key), pem }
    }

    /// Certificate and key, both PEM.
    pub fn sign(&self, names: &[&str], algorithm: Algorithm) -> (String, String) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = match algorithm {
            Algorithm::Ecdsa => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
            Algorithm::Rsa => KeyPair::generate_for(&PKCS_RSA_SHA256),
        };
        let key = key.expect("a key is made");
        let mut parameters = CertificateParams::new(names.clone()).expect("names are DNS names or addresses");
        parameters.distinguished_name.push(rcgen::DnType::CommonName, names.join(" "));
        let certificate = parameters.signed_by(&key, &self.issuer).expect("the authority signs");
        (certificate.pem(), key.serialize_pem())
    }

    /// Writes `NAME.pem` and `NAME.key` into a folder.
    pub fn write(&self, folder: &Path, name: &str, names: &[&str], algorithm: Algorithm) {
        let (certificate, key) = self.sign(names, algorithm);
        std::fs::write(folder.join(format!("{name}.pem")), certificate).expect("a certificate is written");
        std::fs::write(folder.join(format!("{name}.key")), key).expect("a key is written");
    }

    /// What clients trust, PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A rustls client that trusts it and offers these protocols.
    pub fn client(&self, protocols: &[&[u8]]) -> Arc<rustls::ClientConfig> {
        use rustls::pki_types::{CertificateDer, pem::PemObject};
        let mut roots = rustls::RootCertStore::empty();
        let certificate = CertificateDer::from_pem_slice(self.pem.as_bytes()).expect("our own PEM");
        roots.add(certificate).expect("our own certificate");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut client = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has TLS 1.2 and 1.3")
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Arc::new(client)
    }
}

impl Default for Authority {
    fn default() -> Self {
        Authority::new()
    }
}
