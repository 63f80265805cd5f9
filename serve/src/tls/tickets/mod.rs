//! Session tickets (RFC 5077, RFC 8446 §4.6.1) under keys that come from outside, so that a session resumes on every
//! instance of a site and after an upgrade. rustls' own ticketer makes its keys itself and gives them to nobody.
//!
//! A ticket is worth something only at the listener that has given it, and only while that listener's certificates are
//! for the same names: both are in the key that a ticket is encrypted with. That it is presented for the server name
//! that it was given for is checked by rustls (RFC 6066 §3).

mod rotation;
#[cfg(test)]
mod tests;

pub use rotation::{KEPT, LIFETIME, ROTATION, Rotation, due_in, make, rotate};

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::{ArcSwap, ArcSwapOption};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf;
use parking_lot::Mutex;
use playhouse_protocol::control::TicketKey;
use rustls::server::ProducesTickets;

use super::names::{NamesDigest, Resolver};
use crate::epoch::Stale;

/// The keys of a site's tickets, newest first. Empty at first: then no tickets are given, and every handshake is a full
/// one.
#[derive(Debug, Default)]
pub struct TicketKeys {
    set: ArcSwap<KeySet>,
    /// Whether the keys come from outside. Held while keys are replaced, so that one's own never follow those.
    given: Mutex<bool>,
}

/// Why keys were not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TicketKeyError {
    /// There is none.
    #[error("no ticket key")]
    Empty,
    /// More than [`TicketKeys::MOST`].
    #[error("{0} ticket keys are too many")]
    TooMany(usize),
    /// The name of the key in this place, from 0, is not 16 bytes in hexadecimal.
    #[error("the name of ticket key {0} is not 16 bytes in hexadecimal")]
    Name(usize),
    /// The secret of the key in this place, from 0, is not 32 bytes in hexadecimal.
    #[error("the secret of ticket key {0} is not 32 bytes in hexadecimal")]
    Secret(usize),
    /// The key in this place, from 0, has the name or the secret of one before it.
    #[error("ticket key {0} repeats one before it")]
    Duplicate(usize),
    /// The operating system gives no randomness to make a key of.
    #[error("no randomness for a ticket key")]
    Randomness,
    /// Whoever rotates them has been succeeded.
    #[error(transparent)]
    Stale(#[from] Stale),
}

impl TicketKeys {
    /// How many keys are taken at most. Far more than [`KEPT`]: a controller of another build may keep more.
    pub const MOST: usize = 16;

    /// Replaces all keys by those that somebody else has made, newest first: new tickets are made with the first, and
    /// those of all are accepted, each while it is younger than [`LIFETIME`]. From then on [`TicketKeys::rotate`] leaves
    /// the keys alone.
    ///
    /// # Errors
    /// See [`TicketKeyError`]; nothing has changed then.
    pub fn replace(&self, keys: Vec<TicketKey>) -> Result<(), TicketKeyError> {
        let set = KeySet::new(keys)?;
        let mut given = self.given.lock();
        *given = true;
        self.set.store(Arc::new(set));
        Ok(())
    }

    /// Makes a new key where it is time for one: for the only process of a site, which has nobody to give it keys.
    /// Whether there is a new key.
    ///
    /// # Errors
    /// [`TicketKeyError::Randomness`]; nothing has changed then.
    pub fn rotate(&self, rotation: &mut Rotation, now: SystemTime) -> Result<bool, TicketKeyError> {
        let given = self.given.lock();
        if *given {
            return Ok(false);
        }
        let Some(keys) = rotation.next(&self.set.load().texts(), now)? else { return Ok(false) };
        self.set.store(Arc::new(KeySet::new(keys)?));
        Ok(true)
    }

    /// The keys, newest first, as they were given.
    pub fn current(&self) -> Vec<TicketKey> {
        self.set.load().texts()
    }
}

/// Keys that were checked.
#[derive(Debug, Default)]
struct KeySet(Vec<Key>);

struct Key {
    name: [u8; NAME_LEN],
    secret: hkdf::Prk,
    made: SystemTime,
    text: TicketKey,
}

impl KeySet {
    fn new(texts: Vec<TicketKey>) -> Result<Self, TicketKeyError> {
        match texts.len() {
            0 => return Err(TicketKeyError::Empty),
            count if count > TicketKeys::MOST => return Err(TicketKeyError::TooMany(count)),
            _ => {}
        }
        let (mut names, mut secrets) = (HashSet::new(), HashSet::new());
        let mut keys = Vec::with_capacity(texts.len());
        for (place, text) in texts.into_iter().enumerate() {
            let name: [u8; NAME_LEN] = bytes(&text.name).ok_or(TicketKeyError::Name(place))?;
            let secret: [u8; SECRET_LEN] = bytes(&text.secret).ok_or(TicketKeyError::Secret(place))?;
            if !names.insert(name) || !secrets.insert(secret) {
                return Err(TicketKeyError::Duplicate(place));
            }
            keys.push(Key {
                name,
                secret: hkdf::Salt::new(hkdf::HKDF_SHA256, SALT).extract(&secret),
                made: made(&text),
                text,
            });
        }
        Ok(KeySet(keys))
    }

    fn texts(&self) -> Vec<TicketKey> {
        self.0.iter().map(|key| key.text.clone()).collect()
    }
}

impl Key {
    /// A key whose time of making is still to come counts as new: clocks are set back.
    fn is_alive(&self, now: SystemTime) -> bool {
        age(self.made, now) < LIFETIME
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

/// Makes and reads the tickets of one listener. A ticket is the key's name, a nonce, and the session encrypted under a
/// key derived for the listener (RFC 5077 §4, with an AEAD in place of its CBC and HMAC); the name is authenticated too.
pub(super) struct Ticketer {
    keys: Arc<TicketKeys>,
    listener: Arc<str>,
    /// Whose names the listener's certificates have now.
    resolver: Arc<Resolver>,
    derived: ArcSwapOption<Derived>,
}

/// The keys of one listener: made of those of the site when they, or the names in its certificates, change.
struct Derived {
    from: Arc<KeySet>,
    names: NamesDigest,
    /// In the order of `from`.
    keys: Vec<LessSafeKey>,
}

impl Ticketer {
    pub(super) fn new(keys: Arc<TicketKeys>, listener: Arc<str>, resolver: Arc<Resolver>) -> Self {
        Ticketer { keys, listener, resolver, derived: ArcSwapOption::empty() }
    }

    fn derived(&self) -> Option<Arc<Derived>> {
        let from = self.keys.set.load_full();
        let names = self.resolver.digest();
        if let Some(derived) = &*self.derived.load()
            && Arc::ptr_eq(&derived.from, &from)
            && derived.names == names
        {
            return Some(derived.clone());
        }
        let keys = from.0.iter().map(|key| self.derive(key, &names)).collect::<Option<_>>()?;
        let derived = Arc::new(Derived { from, names, keys });
        self.derived.store(Some(derived.clone()));
        Some(derived)
    }

    /// HKDF (RFC 5869): what a listener encrypts, no other can read. Both fields of the context have a length that is
    /// fixed or said, so that no two contexts are the same bytes.
    fn derive(&self, key: &Key, names: &NamesDigest) -> Option<LessSafeKey> {
        let length = (self.listener.len() as u64).to_be_bytes();
        let context = [&length[..], self.listener.as_bytes(), names];
        let key = key.secret.expand(&context, &AES_256_GCM).ok()?;
        Some(LessSafeKey::new(UnboundKey::from(key)))
    }

    fn encrypt_at(&self, session: &[u8], now: SystemTime) -> Option<Vec<u8>> {
        let derived = self.derived()?;
        let (newest, key) = (derived.from.0.first()?, derived.keys.first()?);
        if !newest.is_alive(now) {
            return None;
        }
        let mut nonce = [0; NONCE_LEN];
        aws_lc_rs::rand::fill(&mut nonce).ok()?;
        let mut ticket = Vec::with_capacity(HEAD_LEN + session.len() + AES_256_GCM.tag_len());
        ticket.extend(newest.name);
        ticket.extend(nonce);
        ticket.extend(session);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag =
            key.seal_in_place_separate_tag(nonce, Aad::from(newest.name), &mut ticket[HEAD_LEN..]).ok()?;
        ticket.extend(tag.as_ref());
        Some(ticket)
    }

    fn decrypt_at(&self, ticket: &[u8], now: SystemTime) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_first_chunk::<NAME_LEN>()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let derived = self.derived()?;
        let mut keys = derived.from.0.iter().zip(&derived.keys);
        // The name is no secret: it stands in every ticket.
        let (_, key) = keys.find(|(key, _)| key.name == *name && key.is_alive(now))?;
        let mut session = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let length = key.open_in_place(nonce, Aad::from(name), &mut session).ok()?.len();
        session.truncate(length);
        Some(session)
    }
}

impl ProducesTickets for Ticketer {
    /// Even while there is no key: what is said of sessions does not change on the way.
    fn enabled(&self) -> bool {
        true
    }

    /// What a client is told. Every ticket is accepted for that long at least.
    fn lifetime(&self) -> u32 {
        HINT.as_secs() as u32
    }

    fn encrypt(&self, session: &[u8]) -> Option<Vec<u8>> {
        self.encrypt_at(session, SystemTime::now())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.decrypt_at(ticket, SystemTime::now())
    }
}

impl fmt::Debug for Ticketer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticketer").field("listener", &self.listener).finish_non_exhaustive()
    }
}

fn made(key: &TicketKey) -> SystemTime {
    // The clock holds far more milliseconds than the number does.
    UNIX_EPOCH.checked_add(Duration::from_millis(key.made_unix_ms)).unwrap_or(UNIX_EPOCH)
}

fn age(made: SystemTime, now: SystemTime) -> Duration {
    now.duration_since(made).unwrap_or_default()
}

/// The bytes of exactly `N` pairs of hexadecimal digits.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let digit = |digit: u8| (digit as char).to_digit(16);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(bytes)
}

fn hexadecimal(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |digit: u8| DIGITS[usize::from(digit)] as char;
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]).collect()
}

const NAME_LEN: usize = 16;
const SECRET_LEN: usize = 32;
/// What stands before the encrypted session.
const HEAD_LEN: usize = NAME_LEN + NONCE_LEN;

/// Another layout of tickets, or of the context that they are bound to, has another.
const SALT: &[u8] = b"playhouse session ticket 1";

/// The life that clients are told of: that of a ticket made with a key just before the next one.
const HINT: Duration = LIFETIME.saturating_sub(ROTATION);
