//! The keys of a site's QUIC endpoints, and the connection IDs that they make.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::{hkdf, hmac, rand};
use playhouse_protocol::connection_id::{ConnectionIds, KEY_LENGTH, LENGTH};
use quinn::EndpointConfig;
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

use crate::shared::Place;

/// The keys of a site's endpoints: of stateless resets (RFC 9000 §10.3), of address validation tokens (§8.1), and of
/// connection IDs (§5.1). The same in all processes of a site, so that what one has given, each of the others understands.
pub struct QuicKeys {
    reset: Arc<hmac::Key>,
    token: Arc<hkdf::Prk>,
    ids: ConnectionIds,
}

/// Where the keys of a process are from.
#[derive(Clone, Debug, Default)]
pub enum KeySource {
    /// They are its own, and end with it.
    #[default]
    Process,
    /// This file, which it makes where it is not there: for the one process that has the state directory.
    Owned(PathBuf),
    /// This file, which another process has made.
    Given(PathBuf),
}

impl KeySource {
    /// The state directory that they are in.
    pub fn directory(&self) -> Option<&Path> {
        match self {
            KeySource::Process => None,
            KeySource::Owned(path) | KeySource::Given(path) => path.parent(),
        }
    }

    /// The keys.
    ///
    /// # Errors
    /// What the file system says, or the lack of randomness.
    pub fn keys(&self) -> io::Result<QuicKeys> {
        match self {
            KeySource::Process => QuicKeys::generate(),
            KeySource::Owned(path) => QuicKeys::open_or_create(path),
            KeySource::Given(path) => QuicKeys::open(path),
        }
    }
}

/// Whose connections an endpoint has: its slot among those of the site.
#[derive(Clone, Debug)]
pub struct Slot {
    number: u8,
    others: Others,
}

#[derive(Clone, Debug)]
enum Others {
    Nobody,
    /// It is seen here which of them there are.
    On(Place),
    Unknown,
}

impl QuicKeys {
    /// New ones.
    ///
    /// # Errors
    /// Where the operating system gives no randomness.
    pub fn generate() -> io::Result<Self> {
        Ok(Self::of(&secret()?))
    }

    /// Those in this file, which is made where it is not there, or is not what it should be. For one process at a time.
    ///
    /// # Errors
    /// What the file system says.
    pub fn open_or_create(path: &Path) -> io::Result<Self> {
        if let Ok(keys) = Self::open(path) {
            return Ok(keys);
        }
        let secret = secret()?;
        let new = path.with_extension("new");
        let _ = fs::remove_file(&new);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(&secret)?;
        fs::rename(&new, path)?;
        Ok(Self::of(&secret))
    }

    /// Those in this file.
    ///
    /// # Errors
    /// What the file system says; `InvalidData` where it is not as long as it should be.
    pub fn open(path: &Path) -> io::Result<Self> {
        let secret = fs::read(path)?;
        Ok(Self::of(&secret.try_into().map_err(|_| io::ErrorKind::InvalidData)?))
    }

    fn of(secret: &Secret) -> Self {
        let (reset, rest) = secret.split_at(32);
        let (token, rest) = rest.split_at(32);
        let mut ids = [0; KEY_LENGTH];
        ids.copy_from_slice(rest);
        QuicKeys {
            reset: Arc::new(hmac::Key::new(hmac::HMAC_SHA256, reset)),
            token: Arc::new(hkdf::Salt::new(hkdf::HKDF_SHA256, b"playhouse token 1").extract(token)),
            ids: ConnectionIds::new(ids),
        }
    }

    /// How connection IDs are made.
    pub fn ids(&self) -> ConnectionIds {
        self.ids
    }

    pub(super) fn token(&self) -> Arc<hkdf::Prk> {
        self.token.clone()
    }

    /// For an endpoint of this slot.
    pub(super) fn endpoint(&self, slot: Slot) -> EndpointConfig {
        let mut config = EndpointConfig::new(self.reset.clone());
        let ids = self.ids;
        config
            .cid_generator(move || Box::new(Generator { ids, slot: slot.clone() }))
            .min_reset_interval(RESET_INTERVAL);
        config
    }
}

impl fmt::Debug for QuicKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicKeys").finish_non_exhaustive()
    }
}

impl Slot {
    /// That of a site of one process.
    pub fn alone() -> Self {
        Slot { number: 1, others: Others::Nobody }
    }

    /// That of an instance with this number, which sees the others on its board. `None` for a number that does not go into
    /// connection IDs; no site has so many.
    pub fn among(number: u32, place: Option<Place>) -> Option<Self> {
        Some(Slot { number: number.try_into().ok()?, others: place.map_or(Others::Unknown, Others::On) })
    }

    /// Its number.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Where the others are seen.
    pub(super) fn place(&self) -> Option<&Place> {
        match &self.others {
            Others::On(place) => Some(place),
            Others::Nobody | Others::Unknown => None,
        }
    }

    /// Whether nobody else has the connections of this slot: they are ours, or of a process that is gone.
    fn answers_for(&self, slot: u8) -> bool {
        let is_others = match &self.others {
            Others::Nobody => false,
            Others::On(place) => place.board().is_present(slot.into()),
            Others::Unknown => true,
        };
        slot == self.number || !is_others
    }
}

/// Makes the connection IDs of one slot.
struct Generator {
    ids: ConnectionIds,
    slot: Slot,
}

impl ConnectionIdGenerator for Generator {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut random = [0; LENGTH - 4];
        // It fails only before the system has any randomness, long past by now.
        let _ = rand::fill(&mut random);
        ConnectionId::new(&self.ids.write(self.slot.number, random))
    }

    /// Whether a packet of no connection here may be answered with a stateless reset: what the kernel has brought to the
    /// wrong slot must not end the connection of another.
    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        match self.ids.slot(id) {
            Some(slot) if self.slot.answers_for(slot) => Ok(()),
            _ => Err(InvalidCid),
        }
    }

    fn cid_len(&self) -> usize {
        LENGTH
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

type Secret = [u8; 64 + KEY_LENGTH];

fn secret() -> io::Result<Secret> {
    let mut secret = [0; 64 + KEY_LENGTH];
    rand::fill(&mut secret).map_err(|_| io::Error::other("no randomness"))?;
    Ok(secret)
}

/// Between two stateless resets, each smaller than what it answers: the clients of a process that is gone are to learn it
/// at once, though there may be thousands.
const RESET_INTERVAL: Duration = Duration::from_micros(200);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::Board;

    fn generator(keys: &QuicKeys, slot: Slot) -> Generator {
        Generator { ids: keys.ids(), slot }
    }

    #[test]
    fn ids_are_of_their_slot_and_never_the_same() {
        let keys = QuicKeys::generate().unwrap();
        let mut generator = generator(&keys, Slot::alone());
        let ids: Vec<_> = (0..100).map(|_| generator.generate_cid()).collect();
        assert!(ids.iter().all(|id| keys.ids().slot(id) == Some(1) && generator.validate(id).is_ok()));
        assert!(ids.iter().enumerate().all(|(index, id)| !ids[..index].contains(id)));
    }

    #[test]
    fn only_those_of_the_dead_are_answered_for_beside_ones_own() {
        let board = Board::anonymous().unwrap();
        let keys = QuicKeys::generate().unwrap();
        let [one, two] = [1, 2].map(|slot| Slot::among(slot, board.mine(slot)).unwrap());
        let id = generator(&keys, two.clone()).generate_cid();
        assert!(generator(&keys, one.clone()).validate(&id).is_err());
        assert!(generator(&keys, two.clone()).validate(&id).is_ok());
        board.clear(2);
        assert!(generator(&keys, one.clone()).validate(&id).is_ok());
        let foreign = generator(&QuicKeys::generate().unwrap(), two).generate_cid();
        assert!(generator(&keys, one).validate(&foreign).is_err());
    }

    #[test]
    fn keys_outlive_the_process_that_has_made_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("quic");
        assert!(QuicKeys::open(&path).is_err());
        let keys = QuicKeys::open_or_create(&path).unwrap();
        let same = |other: &QuicKeys| other.ids() == keys.ids();
        assert!(same(&QuicKeys::open_or_create(&path).unwrap()) && same(&QuicKeys::open(&path).unwrap()));
        fs::write(&path, b"short").unwrap();
        assert!(!same(&QuicKeys::open_or_create(&path).unwrap()));
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
