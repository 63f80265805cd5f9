//! When keys follow each other: a new one every [`ROTATION`], the last [`KEPT`] of them in use.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use playhouse_protocol::control::TicketKey;
use tokio::time::Instant;

use super::{NAME_LEN, SECRET_LEN, TicketKeyError, age, hexadecimal, made};

/// For how long tickets are made with one key.
pub const ROTATION: Duration = Duration::from_secs(6 * 60 * 60);

/// How many keys are kept.
pub const KEPT: usize = 3;

/// How old a key may become. One that is older is of no use to anybody, even where nothing replaces it.
pub const LIFETIME: Duration = ROTATION.saturating_mul(KEPT as u32);

/// A new key, of the operating system's randomness: the site's own can be seeded, and keys must never be foreseeable.
///
/// # Errors
/// [`TicketKeyError::Randomness`].
pub fn make(now: SystemTime) -> Result<TicketKey, TicketKeyError> {
    let (mut name, mut secret) = ([0; NAME_LEN], [0; SECRET_LEN]);
    for bytes in [&mut name[..], &mut secret[..]] {
        aws_lc_rs::rand::fill(bytes).map_err(|_| TicketKeyError::Randomness)?;
    }
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(TicketKey {
        name: hexadecimal(&name),
        secret: hexadecimal(&secret),
        made_unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
    })
}

/// A new key, and behind it those before that are kept.
///
/// # Errors
/// [`TicketKeyError::Randomness`].
pub fn rotate(keys: &[TicketKey], now: SystemTime) -> Result<Vec<TicketKey>, TicketKeyError> {
    let alive = keys.iter().filter(|key| age(made(key), now) < LIFETIME);
    let mut rotated = vec![make(now)?];
    rotated.extend(alive.take(KEPT - 1).cloned());
    Ok(rotated)
}

/// After what time `keys` want a new one: zero for none at all.
pub fn due_in(keys: &[TicketKey], now: SystemTime) -> Duration {
    keys.first().map_or(Duration::ZERO, |newest| ROTATION.saturating_sub(age(made(newest), now)))
}

/// The schedule of whoever rotates keys. It goes by the monotonic clock and by the keys' own time: the one stands still
/// while the machine sleeps, the other is set.
#[derive(Debug, Default)]
pub struct Rotation {
    /// The newest key's name, and when it is to be replaced.
    next: Option<(String, Instant)>,
}

impl Rotation {
    /// What is to replace `keys`; `None` until it is time. To be asked again and again.
    ///
    /// # Errors
    /// [`TicketKeyError::Randomness`].
    pub fn next(
        &mut self,
        keys: &[TicketKey],
        now: SystemTime,
    ) -> Result<Option<Vec<TicketKey>>, TicketKeyError> {
        let (Some(newest), due) = (keys.first(), due_in(keys, now)) else {
            return rotate(keys, now).map(Some);
        };
        let at = match &self.next {
            Some((name, at)) if *name == newest.name => *at,
            _ => {
                let at = Instant::now() + due;
                self.next = Some((newest.name.clone(), at));
                at
            }
        };
        if due.is_zero() || at <= Instant::now() { rotate(keys, now).map(Some) } else { Ok(None) }
    }
}
