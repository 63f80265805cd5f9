//! The table of certificates, which outlives the actor that watches their files.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use parking_lot::Mutex;
use playhouse_config::model;
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs};

use super::names::{Names, Resolver};
use super::once::OnceSessions;
use super::pair::{Pair, Stamp, TlsError};
use super::tickets::{Rotation, Ticketer};
use super::{ALPN_H2, ALPN_H3, ALPN_HTTP1, ALPN_HTTP1_0, ListenerTls, TicketKeyError, TicketKeys};
use crate::epoch::{Epoch, Owner, Stale};

/// The certificates of all listeners. A configuration stays the same while its certificates change behind it.
pub struct Certificates {
    provider: Arc<CryptoProvider>,
    owner: Owner,
    state: Mutex<State>,
    ticket_keys: Arc<TicketKeys>,
}

#[derive(Default)]
struct State {
    pairs: HashMap<model::Certificate, Loaded>,
    listeners: Vec<Listener>,
}

/// A pair in use.
struct Loaded {
    pair: Arc<Pair>,
    /// Of the files at the last attempt to read them, whether it went well or not.
    stamp: [Option<Stamp>; 2],
}

/// A configuration in use, or one that was.
struct Listener {
    name: Arc<str>,
    certificates: Vec<model::Certificate>,
    http2: bool,
    http3: bool,
    /// Where early data is taken: what clients of an earlier session may send before they hear of another limit (RFC 9000
    /// §7.4.1, RFC 9114 §7.2.4.2). None of it may shrink while sessions are good.
    early_data: Option<model::Limits>,
    tls: Weak<ListenerTls>,
}

/// What became of changed files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Handshakes from now on use the new certificate.
    Replaced {
        /// Its files.
        files: model::Certificate,
        /// When it ends.
        not_after: Option<SystemTime>,
    },
    /// The new files cannot be used, the old certificate stays in use.
    Kept {
        /// The files.
        files: model::Certificate,
        /// What is wrong with them.
        error: String,
    },
}

impl Certificates {
    /// The TLS configuration of a listener; `None` for cleartext. The same one as before while neither the listener's
    /// name, its certificates, `http2` nor `http3` have changed, nor `early_data` (and where it is set, the limits). Reads files: blocking.
    ///
    /// # Errors
    /// A certificate that was never read cannot be. One that is in use is kept when its files have broken since.
    pub fn load(&self, listener: &model::Listener) -> Result<Option<Arc<ListenerTls>>, TlsError> {
        if listener.tls.is_empty() {
            return Ok(None);
        }
        let mut state = self.state.lock();
        // What a failed attempt has left behind is read anew.
        state.prune();
        for files in &listener.tls {
            if !state.pairs.contains_key(files) {
                let stamp = Stamp::of(files);
                let pair = Arc::new(Pair::read(files, &self.provider)?);
                warn_of_end(files, &pair);
                state.pairs.insert(files.clone(), Loaded { pair, stamp });
            }
        }
        if let Some(tls) = state.tls(listener) {
            return Ok(Some(tls));
        }
        let resolver = Arc::new(Resolver::default());
        resolver.publish(state.names(&listener.tls));
        let config = Arc::new(self.configuration(listener, resolver.clone())?);
        let quic = listener.http3.then(|| self.quic_configuration(listener, resolver.clone())).transpose()?;
        let tls = Arc::new(ListenerTls { config, quic: quic.map(Arc::new), resolver });
        state.listeners.push(Listener {
            name: listener.name.clone(),
            certificates: listener.tls.clone(),
            http2: listener.http2,
            http3: listener.http3,
            early_data: early_limits(listener),
            tls: Arc::downgrade(&tls),
        });
        Ok(Some(tls))
    }

    /// Takes the table over: the next [`Certificates::refresh`] must come with this epoch.
    pub fn claim(&self) -> Epoch {
        self.owner.claim()
    }

    /// Reads again the files that have changed since the last attempt. A certificate whose files cannot be used, or do
    /// not fit together (yet, when one was written before the other), stays as it was. Reads files: blocking.
    ///
    /// # Errors
    /// [`Stale`] where another owner has taken over; nothing is changed then.
    pub fn refresh(&self, epoch: Epoch) -> Result<Vec<Event>, Stale> {
        let mut state = self.state.lock();
        self.owner.check(epoch)?;
        state.prune();
        let mut events = Vec::new();
        for (files, loaded) in &mut state.pairs {
            let stamp = Stamp::of(files);
            if stamp == loaded.stamp {
                continue;
            }
            loaded.stamp = stamp;
            events.push(match Pair::read(files, &self.provider) {
                Ok(pair) => {
                    warn_of_end(files, &pair);
                    loaded.pair = Arc::new(pair);
                    Event::Replaced { files: files.clone(), not_after: loaded.pair.not_after }
                }
                Err(error) => Event::Kept { files: files.clone(), error: error.to_string() },
            });
        }
        if events.iter().any(|event| matches!(event, Event::Replaced { .. })) {
            state.publish();
        }
        Ok(events)
    }

    /// The keys of session tickets. They are the same whatever becomes of certificates and listeners.
    pub fn ticket_keys(&self) -> &TicketKeys {
        &self.ticket_keys
    }

    /// Makes a new ticket key where it is time for one and nobody else gives them: see [`TicketKeys::rotate`]. Whether
    /// there is a new one.
    ///
    /// # Errors
    /// [`TicketKeyError::Stale`] where another owner has taken over, [`TicketKeyError::Randomness`]; nothing is changed
    /// then.
    pub fn rotate_ticket_keys(&self, epoch: Epoch, rotation: &mut Rotation) -> Result<bool, TicketKeyError> {
        let _state = self.state.lock();
        self.owner.check(epoch)?;
        self.ticket_keys.rotate(rotation, SystemTime::now())
    }

    /// The files in use. A watcher should watch their directories, since files are often replaced by renaming.
    pub fn files(&self) -> Vec<PathBuf> {
        let state = self.state.lock();
        let mut files: Vec<_> =
            state.pairs.keys().flat_map(|files| [files.cert.clone(), files.key.clone()]).collect();
        files.sort();
        files.dedup();
        files
    }

    /// When each certificate in use ends.
    pub fn ends(&self) -> Vec<(model::Certificate, Option<SystemTime>)> {
        let state = self.state.lock();
        state.pairs.iter().map(|(files, loaded)| (files.clone(), loaded.pair.not_after)).collect()
    }

    fn configuration(
        &self,
        listener: &model::Listener,
        resolver: Arc<Resolver>,
    ) -> Result<ServerConfig, TlsError> {
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(TlsError::Configuration)?
            .with_no_client_auth()
            .with_cert_resolver(resolver.clone());
        // A client that offers nothing of these is refused with an alert (RFC 7301 §3.2).
        let protocols = if listener.http2 { &ALPN[..] } else { &ALPN[1..] };
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let keys = self.ticket_keys.clone();
        config.ticketer = Arc::new(Ticketer::new(keys, listener.name.clone(), resolver));
        // Of its own for each listener, so that a session is worth nothing elsewhere.
        config.session_storage = rustls::server::ServerSessionMemoryCache::new(SESSIONS);
        Ok(config)
    }

    /// For QUIC, which has TLS 1.3 alone (RFC 9001 §4.2).
    fn quic_configuration(
        &self,
        listener: &model::Listener,
        resolver: Arc<Resolver>,
    ) -> Result<ServerConfig, TlsError> {
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(TlsError::Configuration)?
            .with_no_client_auth()
            .with_cert_resolver(resolver.clone());
        config.alpn_protocols = vec![ALPN_H3.to_vec()];
        if listener.early_data {
            // RFC 9001 §4.6.1: this, or none.
            config.max_early_data_size = u32::MAX;
            config.session_storage = Arc::new(OnceSessions::new(resolver));
            return Ok(config);
        }
        config.max_early_data_size = 0;
        // No listener's name has a space: tickets of TCP are worth nothing here, and the other way round.
        let name = format!("{} QUIC", listener.name).into();
        config.ticketer = Arc::new(Ticketer::new(self.ticket_keys.clone(), name, resolver));
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        Ok(config)
    }
}

/// In our order of preference.
const ALPN: [&[u8]; 3] = [ALPN_H2, ALPN_HTTP1, ALPN_HTTP1_0];

/// Sessions kept per listener for TLS 1.2 clients without tickets. They resume on this instance alone: such clients are
/// few, and what holds their sessions elsewhere would be a store that all instances ask.
const SESSIONS: usize = 1024;

impl Default for Certificates {
    fn default() -> Self {
        // Named here, never the process's default: a host program may have set its own.
        let provider = Arc::new(aws_lc_rs::default_provider());
        Certificates {
            provider,
            owner: Owner::default(),
            state: Mutex::default(),
            ticket_keys: Arc::default(),
        }
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").field("files", &self.files()).finish_non_exhaustive()
    }
}

impl State {
    fn tls(&self, wanted: &model::Listener) -> Option<Arc<ListenerTls>> {
        let same = |listener: &&Listener| {
            listener.name == wanted.name
                && listener.certificates == wanted.tls
                && listener.http2 == wanted.http2
                && listener.http3 == wanted.http3
                && listener.early_data == early_limits(wanted)
        };
        self.listeners.iter().filter(same).find_map(|listener| listener.tls.upgrade())
    }

    fn names(&self, certificates: &[model::Certificate]) -> Names {
        let pairs: Vec<_> = certificates
            .iter()
            .filter_map(|files| self.pairs.get(files))
            .map(|loaded| loaded.pair.clone())
            .collect();
        Names::new(&pairs)
    }

    fn publish(&self) {
        for listener in &self.listeners {
            if let Some(tls) = listener.tls.upgrade() {
                tls.resolver.publish(self.names(&listener.certificates));
            }
        }
    }

    /// Forgets configurations that nobody holds, and pairs that no configuration needs.
    fn prune(&mut self) {
        self.listeners.retain(|listener| listener.tls.strong_count() > 0);
        let listeners = &self.listeners;
        self.pairs.retain(|files, _| listeners.iter().any(|listener| listener.certificates.contains(files)));
    }
}

/// The limits that sessions with early data are bound to; `None` where there are no such sessions.
fn early_limits(listener: &model::Listener) -> Option<model::Limits> {
    (listener.http3 && listener.early_data).then(|| listener.limits.clone())
}

fn warn_of_end(files: &model::Certificate, pair: &Pair) {
    if pair.not_after.is_some_and(|end| end < SystemTime::now()) {
        tracing::warn!(cert = %files.cert.display(), "certificate has expired");
    }
    if pair.names.is_empty() {
        tracing::warn!(
            cert = %files.cert.display(),
            "certificate names no host in its subjectAltName: it serves only as a listener's default"
        );
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A directory of certificates.
    pub(crate) struct Files(tempfile::TempDir);

    impl Default for Files {
        fn default() -> Self {
            Files(tempfile::tempdir().unwrap())
        }
    }

    impl Files {
        pub(crate) fn write(&self, file: &str, names: &[&str], key: &rcgen::KeyPair) -> model::Certificate {
            let files = model::Certificate {
                cert: self.0.path().join(format!("{file}.pem")),
                key: self.0.path().join(format!("{file}.key")),
            };
            std::fs::write(&files.cert, certificate(names, key).pem()).unwrap();
            std::fs::write(&files.key, key.serialize_pem()).unwrap();
            files
        }
    }

    pub(crate) fn key_pair() -> rcgen::KeyPair {
        rcgen::KeyPair::generate().unwrap()
    }

    pub(crate) fn certificate(names: &[&str], key: &rcgen::KeyPair) -> rcgen::Certificate {
        let names: Vec<_> = names.iter().map(|name| name.to_string()).collect();
        rcgen::CertificateParams::new(names).unwrap().self_signed(key).unwrap()
    }

    pub(crate) fn listener(certificates: &[model::Certificate]) -> model::Listener {
        model::Listener {
            name: "https".into(),
            bind: model::Bind::Tcp { address: "127.0.0.1:0".parse().unwrap(), only_v6: false },
            tls: certificates.to_vec(),
            http2: true,
            proxy_protocol: None,
            http3: false,
            early_data: false,
            sharing: Default::default(),
            limits: model::Limits::default(),
            timeouts: model::ClientTimeouts::default(),
        }
    }

    /// The leaf that the table serves for these files now.
    fn served(certificates: &Certificates, files: &model::Certificate) -> Vec<u8> {
        certificates.state.lock().pairs[files].pair.certified.cert[0].to_vec()
    }

    #[test]
    fn every_error_names_the_file_and_what_is_wrong() {
        let files = Files::default();
        let good = files.write("good", &["a.example"], &key_pair());
        let other = files.write("other", &["a.example"], &key_pair());
        let dir = files.0.path();
        std::fs::write(dir.join("text"), "nothing here").unwrap();
        let damaged = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
        std::fs::write(dir.join("damaged"), damaged).unwrap();
        let cases = [
            (dir.join("absent"), good.key.clone(), "absent: No such file"),
            (dir.join("text"), good.key.clone(), "text: no certificate"),
            (dir.join("damaged"), good.key.clone(), "damaged: the first certificate is unusable"),
            (good.cert.clone(), dir.join("text"), "text: no private key"),
            (good.cert.clone(), other.key.clone(), "other.key is not the key"),
        ];
        for (cert, key, expected) in cases {
            let listener = listener(&[model::Certificate { cert, key }]);
            let error = Certificates::default().load(&listener).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_configuration_is_the_same_until_the_listener_changes() {
        let files = Files::default();
        let pair = files.write("a", &["a.example"], &key_pair());
        let certificates = Certificates::default();
        let mut listener = listener(&[pair]);
        let first = certificates.load(&listener).unwrap().unwrap();
        assert!(Arc::ptr_eq(&first, &certificates.load(&listener).unwrap().unwrap()));
        assert_eq!(first.alpn_protocols, ALPN);
        listener.http2 = false;
        let second = certificates.load(&listener).unwrap().unwrap();
        assert_eq!(second.alpn_protocols, ALPN[1..]);
        drop((first, second));
        certificates.refresh(certificates.claim()).unwrap();
        assert!(certificates.files().is_empty());
    }

    #[test]
    fn sessions_with_early_data_are_forgotten_when_limits_change() {
        let files = Files::default();
        let pair = files.write("a", &["a.example"], &key_pair());
        let certificates = Certificates::default();
        let mut listener = model::Listener { http3: true, ..listener(&[pair]) };
        let load = |listener: &model::Listener| certificates.load(listener).unwrap().unwrap();
        let without = load(&listener);
        assert_eq!(without.quic.as_ref().unwrap().max_early_data_size, 0);
        assert!(!without.takes_early_data());
        listener.limits.streams = 10;
        assert!(Arc::ptr_eq(&without, &load(&listener)));

        listener.early_data = true;
        let with = load(&listener);
        assert!(with.takes_early_data());
        // Over TCP there is none.
        assert_eq!(with.max_early_data_size, 0);
        assert!(Arc::ptr_eq(&with, &load(&listener)));
        listener.limits.streams = 5;
        assert!(!Arc::ptr_eq(&with, &load(&listener)));
    }

    #[test]
    fn a_changed_certificate_is_served_once_its_key_has_followed() {
        let files = Files::default();
        let pair = files.write("a", &["a.example"], &key_pair());
        let certificates = Certificates::default();
        let config = certificates.load(&listener(std::slice::from_ref(&pair))).unwrap().unwrap();
        let old = served(&certificates, &pair);
        let epoch = certificates.claim();
        assert_eq!(certificates.refresh(epoch).unwrap(), []);

        let key = key_pair();
        let new = certificate(&["a.example"], &key);
        std::fs::write(&pair.cert, new.pem()).unwrap();
        let events = certificates.refresh(epoch).unwrap();
        assert!(matches!(&events[..], [Event::Kept { error, .. }] if error.contains("is not the key")));
        assert_eq!(certificates.refresh(epoch).unwrap(), []);
        assert_eq!(served(&certificates, &pair), old);

        std::fs::write(&pair.key, key.serialize_pem()).unwrap();
        assert!(matches!(&certificates.refresh(epoch).unwrap()[..], [Event::Replaced { .. }]));
        assert_eq!(served(&certificates, &pair), new.der().to_vec());
        drop(config);
    }

    #[test]
    fn a_certificate_that_breaks_or_goes_stays_in_use() {
        let files = Files::default();
        let pair = files.write("a", &["a.example"], &key_pair());
        let certificates = Certificates::default();
        let listener = listener(std::slice::from_ref(&pair));
        let config = certificates.load(&listener).unwrap().unwrap();
        let old = served(&certificates, &pair);
        let epoch = certificates.claim();
        std::fs::remove_file(&pair.cert).unwrap();
        assert!(matches!(&certificates.refresh(epoch).unwrap()[..], [Event::Kept { .. }]));
        std::fs::write(&pair.cert, "").unwrap();
        assert!(matches!(&certificates.refresh(epoch).unwrap()[..], [Event::Kept { .. }]));
        assert!(Arc::ptr_eq(&config, &certificates.load(&listener).unwrap().unwrap()));
        assert_eq!(served(&certificates, &pair), old);
    }

    #[test]
    fn a_refresh_by_an_older_owner_is_refused() {
        let certificates = Certificates::default();
        let old = certificates.claim();
        certificates.claim();
        assert_eq!(certificates.refresh(old), Err(Stale));
    }
}
