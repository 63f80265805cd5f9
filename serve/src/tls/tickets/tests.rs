//! Sessions that are resumed, and those that must not be.

use parking_lot::Mutex;
use rustls::client::{ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, NamedGroup, ServerConfig, ServerConnection,
    SupportedProtocolVersion,
};

use super::*;
use crate::tls::testing::{Files, certificate, key_pair, listener};
use crate::tls::{Certificates, ListenerTls};

fn key(name: u8, now: SystemTime) -> TicketKey {
    TicketKey { name: hexadecimal(&[name; NAME_LEN]), ..make(now).unwrap() }
}

fn names(keys: &[TicketKey]) -> Vec<&str> {
    keys.iter().map(|key| &*key.name).collect()
}

fn ticketer(keys: &Arc<TicketKeys>, listener: &str) -> Ticketer {
    Ticketer::new(keys.clone(), listener.into(), Arc::default())
}

fn shared(keys: Vec<TicketKey>) -> Arc<TicketKeys> {
    let table = TicketKeys::default();
    table.replace(keys).unwrap();
    Arc::new(table)
}

#[test]
fn keys_that_cannot_be_right_change_nothing() {
    let now = SystemTime::now();
    let (one, other) = (key(1, now), key(2, now));
    let table = shared(vec![one.clone()]);
    let with = |change: &dyn Fn(&mut TicketKey)| {
        let mut key = other.clone();
        change(&mut key);
        vec![one.clone(), key]
    };
    let cases = [
        (vec![], TicketKeyError::Empty),
        ((0..17).map(|name| key(name, now)).collect(), TicketKeyError::TooMany(17)),
        (with(&|key| key.name.truncate(30)), TicketKeyError::Name(1)),
        (with(&|key| key.name.push('0')), TicketKeyError::Name(1)),
        (with(&|key| key.name.replace_range(..1, "g")), TicketKeyError::Name(1)),
        (with(&|key| key.name.replace_range(..2, "+1")), TicketKeyError::Name(1)),
        (with(&|key| key.name.replace_range(..2, "é")), TicketKeyError::Name(1)),
        (with(&|key| key.secret.clear()), TicketKeyError::Secret(1)),
        (with(&|key| key.secret.push_str("00")), TicketKeyError::Secret(1)),
        (with(&|key| key.secret.replace_range(..2, " 1")), TicketKeyError::Secret(1)),
        (with(&|key| key.name = one.name.clone()), TicketKeyError::Duplicate(1)),
        (with(&|key| key.secret = one.secret.to_uppercase()), TicketKeyError::Duplicate(1)),
    ];
    for (keys, error) in cases {
        assert_eq!(table.replace(keys), Err(error));
        assert_eq!(table.current(), std::slice::from_ref(&one));
    }
    table.replace(vec![other.clone(), one.clone()]).unwrap();
    assert_eq!(table.current(), [other, one]);
}

#[test]
fn a_secret_is_never_printed() {
    let table = shared(vec![key(1, SystemTime::now())]);
    let secret = table.current()[0].secret.clone();
    assert!(!format!("{table:?} {:?}", ticketer(&table, "https")).contains(&secret));
}

#[test]
fn a_ticket_is_read_under_the_key_that_it_names_and_begins_with_it() {
    let now = SystemTime::now();
    let (old, new) = (key(1, now), key(2, now));
    let keys = shared(vec![old.clone()]);
    let (here, there) =
        (ticketer(&keys, "https"), ticketer(&shared(vec![new.clone(), old.clone()]), "https"));
    let ticket = here.encrypt_at(b"session", now).unwrap();
    assert_eq!(ticket[..NAME_LEN], [1; NAME_LEN]);
    assert_eq!(ticket.len(), HEAD_LEN + b"session".len() + 16);
    assert_ne!(ticket, here.encrypt_at(b"session", now).unwrap(), "no two are the same");
    assert_eq!(there.decrypt_at(&ticket, now).unwrap(), b"session");
    let newer = there.encrypt_at(b"session", now).unwrap();
    assert_eq!(newer[..NAME_LEN], [2; NAME_LEN]);
    assert_eq!(here.decrypt_at(&newer, now), None);
    keys.replace(vec![new]).unwrap();
    assert_eq!(here.decrypt_at(&newer, now).unwrap(), b"session");
    assert_eq!(here.decrypt_at(&ticket, now), None);
}

#[test]
fn a_ticket_with_any_other_byte_or_length_is_refused() {
    let now = SystemTime::now();
    let ticketer = ticketer(&shared(vec![key(1, now), key(2, now)]), "https");
    let ticket = ticketer.encrypt_at(b"session", now).unwrap();
    for place in 0..ticket.len() {
        let mut other = ticket.clone();
        other[place] ^= 1;
        assert_eq!(ticketer.decrypt_at(&other, now), None, "byte {place}");
        assert_eq!(ticketer.decrypt_at(&ticket[..place], now), None, "{place} bytes");
    }
    let longer = [&ticket[..], &[0]].concat();
    assert_eq!(ticketer.decrypt_at(&longer, now), None);
    // The name is part of what is authenticated.
    let renamed = [&[2; NAME_LEN], &ticket[NAME_LEN..]].concat();
    assert_eq!(ticketer.decrypt_at(&renamed, now), None);
}

#[test]
fn a_listener_reads_no_ticket_of_another() {
    let now = SystemTime::now();
    let keys = shared(vec![key(1, now)]);
    let ticket = ticketer(&keys, "https").encrypt_at(b"session", now).unwrap();
    assert!(ticketer(&keys, "https").decrypt_at(&ticket, now).is_some());
    for other in ["http", "https2", "HTTPS", ""] {
        assert_eq!(ticketer(&keys, other).decrypt_at(&ticket, now), None, "{other}");
    }
}

#[test]
fn a_key_beyond_its_life_neither_makes_nor_opens_tickets() {
    let made = SystemTime::now();
    let ticketer = ticketer(&shared(vec![key(1, made)]), "https");
    let ticket = ticketer.encrypt_at(b"session", made).unwrap();
    let last = made + LIFETIME - Duration::from_millis(2);
    assert!(ticketer.decrypt_at(&ticket, last).is_some());
    assert!(ticketer.encrypt_at(b"session", last).is_some());
    let beyond = made + LIFETIME;
    assert_eq!(ticketer.decrypt_at(&ticket, beyond), None);
    assert_eq!(ticketer.encrypt_at(b"session", beyond), None);
    // A clock that was set back does no harm.
    assert!(ticketer.decrypt_at(&ticket, made - LIFETIME).is_some());
}

#[test]
fn without_keys_there_are_no_tickets_and_that_is_all() {
    let ticketer = ticketer(&Arc::default(), "https");
    assert!(ticketer.enabled());
    assert_eq!(ticketer.encrypt(b"session"), None);
    assert_eq!(ticketer.decrypt(&[0; 64]), None);
}

#[test]
fn three_keys_are_kept_so_that_every_ticket_lives_for_what_clients_are_told() {
    let start = SystemTime::now();
    let mut keys = Vec::new();
    for round in 0..5 {
        let now = start + ROTATION * round;
        assert_eq!(due_in(&keys, now), Duration::ZERO);
        let before = keys.clone();
        keys = rotate(&keys, now).unwrap();
        assert_eq!(keys.len(), KEPT.min(round as usize + 1));
        assert_eq!(keys[1..], before[..keys.len() - 1]);
        assert!(ROTATION - due_in(&keys, now) < Duration::from_millis(1));
        let table = shared(keys.clone());
        let ticket = ticketer(&table, "https").encrypt_at(b"session", now + ROTATION).unwrap();
        let later = shared((0..2).try_fold(keys.clone(), |keys, _| rotate(&keys, now + ROTATION)).unwrap());
        let end = now + ROTATION + HINT - Duration::from_millis(2);
        assert!(ticketer(&later, "https").decrypt_at(&ticket, end).is_some());
    }
    assert_eq!(rotate(&keys, start + ROTATION * 40).unwrap().len(), 1, "what is too old is dropped");
    assert_eq!(HINT, Duration::from_secs(12 * 60 * 60));
}

#[tokio::test(start_paused = true)]
async fn a_schedule_goes_by_the_clock_that_comes_first() {
    let start = SystemTime::now();
    let mut rotation = Rotation::default();
    let first = rotation.next(&[], start).unwrap().unwrap();
    assert_eq!(rotation.next(&first, start), Ok(None));
    tokio::time::advance(ROTATION - Duration::from_secs(1)).await;
    assert_eq!(rotation.next(&first, start), Ok(None));
    tokio::time::advance(Duration::from_secs(1)).await;
    let second = rotation.next(&first, start).unwrap().unwrap();
    assert_eq!(names(&second)[1..], names(&first));
    assert_eq!(rotation.next(&second, start), Ok(None));
    // The machine has slept.
    let third = rotation.next(&second, start + ROTATION).unwrap().unwrap();
    assert_eq!(names(&third)[1..], names(&second));
    // Another incarnation takes up the time of the keys, not its own.
    let mut rotation = Rotation::default();
    let hour = Duration::from_secs(3600);
    assert_eq!(rotation.next(&third, start + ROTATION + hour * 4), Ok(None));
    tokio::time::advance(hour).await;
    assert_eq!(rotation.next(&third, start), Ok(None));
    tokio::time::advance(hour).await;
    assert!(rotation.next(&third, start).unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn own_keys_are_rotated_until_somebody_gives_others() {
    let (table, mut rotation, now) = (TicketKeys::default(), Rotation::default(), SystemTime::now());
    assert_eq!(table.rotate(&mut rotation, now), Ok(true));
    assert_eq!(table.rotate(&mut rotation, now), Ok(false));
    let own = table.current();
    tokio::time::advance(ROTATION).await;
    assert_eq!(table.rotate(&mut rotation, now), Ok(true));
    assert_eq!(names(&table.current())[1..], names(&own));
    let given = vec![key(1, now)];
    table.replace(given.clone()).unwrap();
    tokio::time::advance(ROTATION * 9).await;
    assert_eq!(table.rotate(&mut rotation, now), Ok(false));
    assert_eq!(table.current(), given);
}

#[tokio::test]
async fn an_owner_that_was_succeeded_rotates_nothing() {
    let certificates = Certificates::default();
    let old = certificates.claim();
    let new = certificates.claim();
    let refused = certificates.rotate_ticket_keys(old, &mut Rotation::default());
    assert_eq!(refused, Err(TicketKeyError::Stale(Stale)));
    assert_eq!(certificates.ticket_keys().current(), []);
    assert_eq!(certificates.rotate_ticket_keys(new, &mut Rotation::default()), Ok(true));
}

/// Two names, one certificate each.
struct World {
    files: Files,
    certificates: Vec<playhouse_config::model::Certificate>,
    roots: Mutex<rustls::RootCertStore>,
}

impl World {
    fn new() -> Self {
        let world = World {
            files: Files::default(),
            certificates: Vec::new(),
            roots: rustls::RootCertStore::empty().into(),
        };
        let certificates = [ONE, OTHER].map(|name| world.issue(name, &[name])).to_vec();
        World { certificates, ..world }
    }

    fn issue(&self, file: &str, names: &[&str]) -> playhouse_config::model::Certificate {
        let key = key_pair();
        let files = self.files.write(file, names, &key);
        let certificate = certificate(names, &key);
        std::fs::write(&files.cert, certificate.pem()).unwrap();
        self.roots.lock().add(certificate.der().clone()).unwrap();
        files
    }

    /// The listener `name` of an instance that uses these keys.
    fn instance(&self, name: &str, keys: &[TicketKey]) -> (Certificates, Arc<ListenerTls>) {
        let certificates = Certificates::default();
        certificates.ticket_keys().replace(keys.to_vec()).unwrap();
        let mut listener = listener(&self.certificates);
        listener.name = name.into();
        let tls = certificates.load(&listener).unwrap().unwrap();
        (certificates, tls)
    }

    /// A client that offers the last session it had with anybody, whatever the name.
    fn client(&self, version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(self.roots.lock().clone())
            .with_no_client_auth();
        config.resumption = Resumption::store(Arc::new(Reckless::default()));
        Arc::new(config)
    }
}

#[derive(Debug, Default)]
struct Reckless(Mutex<(Option<Tls12ClientSessionValue>, Option<Tls13ClientSessionValue>)>);

impl ClientSessionStore for Reckless {
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _: ServerName<'static>, session: Tls12ClientSessionValue) {
        self.0.lock().0 = Some(session);
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.0.lock().0.clone()
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.0.lock().0 = None;
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, session: Tls13ClientSessionValue) {
        self.0.lock().1 = Some(session);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.0.lock().1.take()
    }
}

const ONE: &str = "one.example";
const OTHER: &str = "other.example";
const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

/// A handshake, and whether both sides have resumed a session.
fn resumes(client: &Arc<ClientConfig>, server: &ServerConfig, name: &'static str) -> bool {
    let mut client = ClientConnection::new(client.clone(), ServerName::try_from(name).unwrap()).unwrap();
    let mut server = ServerConnection::new(Arc::new(server.clone())).unwrap();
    while client.is_handshaking() || server.is_handshaking() || server.wants_write() {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        server.read_tls(&mut &bytes[..]).unwrap();
        server.process_new_packets().unwrap();
        bytes.clear();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        client.read_tls(&mut &bytes[..]).unwrap();
        client.process_new_packets().unwrap();
    }
    assert_eq!(client.handshake_kind(), server.handshake_kind());
    match server.handshake_kind() {
        Some(HandshakeKind::Resumed) => true,
        Some(HandshakeKind::Full) => false,
        kind => panic!("{kind:?}"),
    }
}

#[test]
fn a_session_resumes_on_every_instance_that_has_the_keys_and_on_no_other() {
    let (world, now) = (World::new(), SystemTime::now());
    let keys = [key(1, now), key(2, now)];
    for version in VERSIONS {
        let (_, here) = world.instance("https", &keys);
        let (there_table, there) = world.instance("https", &keys);
        let (_, stranger) = world.instance("https", &[key(1, now)]);
        let client = world.client(version);
        assert!(!resumes(&client, &here, ONE));
        assert!(resumes(&client, &there, ONE), "{version:?}");
        assert!(resumes(&client, &here, ONE), "a resumed session has a ticket too");
        // A key that is no longer the newest is still good.
        there_table.ticket_keys().replace(vec![key(3, now), keys[0].clone()]).unwrap();
        assert!(resumes(&client, &there, ONE), "{version:?}");
        // Tickets made from here on are of the third key, which only that instance has.
        assert!(!resumes(&client, &here, ONE));
        assert!(!resumes(&client, &stranger, ONE), "the same name, another secret");
        there_table.ticket_keys().replace(vec![key(4, now)]).unwrap();
        assert!(!resumes(&client, &there, ONE));
        assert!(resumes(&client, &there, ONE));
    }
}

#[test]
fn a_session_resumes_neither_at_another_listener_nor_under_another_name() {
    let (world, now) = (World::new(), SystemTime::now());
    let keys = [key(1, now)];
    for version in VERSIONS {
        let (_, https) = world.instance("https", &keys);
        let (_, inner) = world.instance("inner", &keys);
        let client = world.client(version);
        assert!(!resumes(&client, &https, ONE));
        assert!(!resumes(&client, &https, OTHER), "{version:?}");
        assert!(resumes(&client, &https, OTHER));
        assert!(!resumes(&client, &inner, OTHER), "{version:?}");
    }
}

#[test]
fn a_session_outlives_a_renewed_certificate_but_not_one_for_other_names() {
    for version in VERSIONS {
        let world = World::new();
        let keys = [key(1, SystemTime::now())];
        let (table, tls) = world.instance("https", &keys);
        let epoch = table.claim();
        world.issue(ONE, &[ONE]);
        let renewed = table.refresh(epoch).unwrap();
        assert_eq!(renewed.len(), 1);
        let client = world.client(version);
        assert!(!resumes(&client, &tls, ONE));
        world.issue(OTHER, &[OTHER]);
        assert_eq!(table.refresh(epoch).unwrap().len(), 1);
        assert!(resumes(&client, &tls, ONE), "{version:?}");
        world.issue(OTHER, &[OTHER, "third.example"]);
        assert_eq!(table.refresh(epoch).unwrap().len(), 1);
        assert!(!resumes(&client, &tls, ONE), "{version:?}");
    }
}

/// Gives tickets with one wrong bit.
#[derive(Debug)]
struct Damaging(Arc<dyn ProducesTickets>);

impl ProducesTickets for Damaging {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        self.0.lifetime()
    }

    fn encrypt(&self, session: &[u8]) -> Option<Vec<u8>> {
        let mut ticket = self.0.encrypt(session)?;
        ticket[HEAD_LEN + 3] ^= 1;
        Some(ticket)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.0.decrypt(ticket)
    }
}

#[test]
fn a_ticket_that_was_tampered_with_costs_a_full_handshake_and_no_more() {
    let world = World::new();
    let (_, tls) = world.instance("https", &[key(1, SystemTime::now())]);
    let mut damaging = ServerConfig::clone(&tls);
    damaging.ticketer = Arc::new(Damaging(tls.ticketer.clone()));
    for version in VERSIONS {
        let client = world.client(version);
        assert!(!resumes(&client, &damaging, ONE));
        assert!(!resumes(&client, &tls, ONE), "{version:?}");
        assert!(resumes(&client, &tls, ONE), "{version:?}");
    }
}
