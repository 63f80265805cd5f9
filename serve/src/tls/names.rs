//! Which certificate answers to a server name.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use aws_lc_rs::digest;
use rustls::SignatureScheme;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::pair::Pair;

/// Chooses by the names that are published at the moment of a handshake.
#[derive(Debug, Default)]
pub(super) struct Resolver(ArcSwap<Names>);

/// The certificates of one listener by the names in them.
#[derive(Debug, Default)]
pub(super) struct Names {
    exact: HashMap<Box<str>, Certified>,
    /// By what follows the `*`: `.example.org`.
    wildcard: HashMap<Box<str>, Certified>,
    default: Certified,
    digest: NamesDigest,
}

/// SHA-256 over all names of a listener's certificates, in the order of the site file.
pub(super) type NamesDigest = [u8; 32];

/// In the order of the site file.
type Certified = Vec<Arc<CertifiedKey>>;

impl Resolver {
    pub(super) fn publish(&self, names: Names) {
        self.0.store(Arc::new(names));
    }
}

impl Resolver {
    /// Tells whether two listeners, or one at two times, are for the same names.
    pub(super) fn digest(&self) -> NamesDigest {
        self.0.load().digest
    }

    /// Whether one certificate answers to both names.
    pub(super) fn share(&self, one: &str, other: &str) -> bool {
        let names = self.0.load();
        let others: Vec<_> = names.of(other).collect();
        names.of(one).any(|certified| others.iter().any(|other| Arc::ptr_eq(certified, other)))
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load().choose(hello.server_name(), hello.signature_schemes())
    }
}

impl Names {
    /// In the order of the site file: the first is the default, with those that have the very same names (ECDSA and RSA
    /// side by side).
    pub(super) fn new(pairs: &[Arc<Pair>]) -> Self {
        let mut names = Names { digest: digest_of(pairs), ..Names::default() };
        for pair in pairs {
            for name in &pair.names {
                let (map, name) = match name.strip_prefix('*') {
                    Some(suffix) => (&mut names.wildcard, suffix),
                    None => (&mut names.exact, &**name),
                };
                map.entry(name.into()).or_default().push(pair.certified.clone());
            }
            if same_names(pair, &pairs[0]) {
                names.default.push(pair.certified.clone());
            }
        }
        names
    }

    /// Exact name, then the wildcard over its first label (RFC 6125 §6.4.3), then the default; among the certificates of
    /// a name the first that can sign what the client can verify.
    fn choose(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let (exact, wildcard) = name.map(|name| self.named(name)).unwrap_or_default();
        let candidates = exact.into_iter().chain(wildcard).chain([&self.default]);
        let mut first = None;
        for certified in candidates.flatten() {
            if certified.key.choose_scheme(schemes).is_some() {
                return Some(certified.clone());
            }
            first = first.or(Some(certified));
        }
        first.cloned()
    }

    /// The certificates that a client may get who asks for this name.
    fn of(&self, name: &str) -> impl Iterator<Item = &Arc<CertifiedKey>> {
        let (exact, wildcard) = self.named(name);
        exact.or(wildcard).unwrap_or(&self.default).iter()
    }

    fn named(&self, name: &str) -> (Option<&Certified>, Option<&Certified>) {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let wildcard = name.find('.').and_then(|dot| self.wildcard.get(&name[dot..]));
        (self.exact.get(&*name), wildcard)
    }
}

/// Each list and each name with its length before it, so that no two are the same bytes. Within a certificate the order
/// says nothing; that of certificates decides which is the default.
fn digest_of(pairs: &[Arc<Pair>]) -> NamesDigest {
    let mut context = digest::Context::new(&digest::SHA256);
    let number = |context: &mut digest::Context, number: usize| {
        context.update(&(number as u64).to_be_bytes());
    };
    number(&mut context, pairs.len());
    for pair in pairs {
        let mut names: Vec<&str> = pair.names.iter().map(|name| &**name).collect();
        names.sort_unstable();
        number(&mut context, names.len());
        for name in names {
            number(&mut context, name.len());
            context.update(name.as_bytes());
        }
    }
    let mut digest = NamesDigest::default();
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

fn same_names(one: &Pair, other: &Pair) -> bool {
    one.names.len() == other.names.len() && one.names.iter().all(|name| other.names.contains(name))
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::{Files, key_pair};
    use super::*;

    const ECDSA: SignatureScheme = SignatureScheme::ECDSA_NISTP256_SHA256;
    const RSA: SignatureScheme = SignatureScheme::RSA_PSS_SHA256;

    fn pairs(files: &Files, names: &[&[&str]]) -> Vec<Arc<Pair>> {
        let read = |(number, names): (usize, &&[&str])| {
            let files = files.write(&number.to_string(), names, &key_pair());
            Arc::new(Pair::read(&files, &rustls::crypto::aws_lc_rs::default_provider()).unwrap())
        };
        names.iter().enumerate().map(read).collect()
    }

    #[test]
    fn a_name_gets_its_own_certificate_then_the_wildcard_then_the_default() {
        let files = Files::default();
        let pairs = pairs(&files, &[&["a.example"], &["*.b.example", "b.example"], &["X.b.example"]]);
        let names = Names::new(&pairs);
        let chosen = |name| {
            let chosen = names.choose(name, &[ECDSA]).unwrap();
            pairs.iter().position(|pair| Arc::ptr_eq(&pair.certified, &chosen)).unwrap()
        };
        assert_eq!(chosen(Some("a.example")), 0);
        assert_eq!(chosen(Some("b.example")), 1);
        assert_eq!(chosen(Some("y.b.example")), 1);
        assert_eq!(chosen(Some("x.B.example.")), 2);
        assert_eq!(chosen(Some("z.y.b.example")), 0);
        assert_eq!(chosen(Some("other")), 0);
        assert_eq!(chosen(None), 0);
    }

    #[test]
    fn names_of_one_certificate_share_a_connection_and_others_do_not() {
        let files = Files::default();
        let pairs = pairs(&files, &[&["a.example"], &["*.b.example", "b.example"], &["x.b.example"]]);
        let resolver = Resolver::default();
        resolver.publish(Names::new(&pairs));
        for (one, other) in
            [("b.example", "Y.b.example."), ("y.b.example", "z.b.example"), ("a.example", "other")]
        {
            assert!(resolver.share(one, other) && resolver.share(other, one), "{one} {other}");
        }
        for (one, other) in
            [("a.example", "b.example"), ("x.b.example", "y.b.example"), ("other", "b.example")]
        {
            assert!(!resolver.share(one, other) && !resolver.share(other, one), "{one} {other}");
        }
    }

    #[test]
    fn the_digest_is_that_of_the_names_and_their_place_alone() {
        let files = Files::default();
        let of = |names: &[&[&str]]| Names::new(&pairs(&files, names)).digest;
        let one = of(&[&["a.example", "b.example"], &["c.example"]]);
        assert_eq!(one, of(&[&["b.example", "A.example"], &["c.example"]]), "a renewed certificate");
        for other in [
            &[&["a.example"][..], &["b.example", "c.example"]][..],
            &[&["c.example"], &["a.example", "b.example"]],
            &[&["a.example", "b.example", "c.example"]],
            &[&["a.example", "b.example"], &["c.examplf"]],
            &[&["a.example", "b.example"]],
            &[],
        ] {
            assert_ne!(one, of(other), "{other:?}");
        }
    }

    #[test]
    fn of_two_certificates_for_a_name_the_client_gets_what_it_can_verify() {
        let files = Files::default();
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let rsa = rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
        let pairs: Vec<_> = [("ecdsa", key_pair()), ("rsa", rsa)]
            .into_iter()
            .map(|(file, key)| {
                let files = files.write(file, &["a.example"], &key);
                Arc::new(Pair::read(&files, &provider).unwrap())
            })
            .collect();
        let names = Names::new(&pairs);
        for name in [Some("a.example"), None] {
            let chosen = |schemes: &[_]| names.choose(name, schemes).unwrap();
            assert!(Arc::ptr_eq(&chosen(&[RSA, ECDSA]), &pairs[0].certified));
            assert!(Arc::ptr_eq(&chosen(&[RSA]), &pairs[1].certified));
        }
    }
}
