//! Ownership of a table: one owner at a time, and no decision of an older one.

use std::sync::atomic::{AtomicU64, Ordering};

/// Who may change a table's policy. The table outlives its owners.
#[derive(Debug, Default)]
pub struct Owner(AtomicU64);

/// One claim of ownership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(u64);

/// The decision came from an owner that has been succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("refused: a newer owner has taken over")]
pub struct Stale;

impl Owner {
    /// Takes over; every earlier epoch is stale from here on.
    pub fn claim(&self) -> Epoch {
        Epoch(self.0.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// Whether a decision made under `epoch` may still be carried out. A table that must not be changed in between
    /// checks this under the lock that guards the change.
    pub fn check(&self, epoch: Epoch) -> Result<(), Stale> {
        if self.0.load(Ordering::Acquire) == epoch.0 { Ok(()) } else { Err(Stale) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_makes_every_earlier_epoch_stale() {
        let owner = Owner::default();
        let first = owner.claim();
        assert_eq!(owner.check(first), Ok(()));
        let second = owner.claim();
        assert_eq!(owner.check(first), Err(Stale));
        assert_eq!(owner.check(second), Ok(()));
    }
}
