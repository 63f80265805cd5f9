//! What a ledger adds up to.

use std::iter::Sum;
use std::ops::{Add, AddAssign};

use super::Outcome;

/// The counters' sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Totals {
    /// Requests whose first byte was read.
    pub accepted: u64,
    /// Accepted, without an outcome yet.
    pub in_flight: u64,
    /// See [`Outcome::Answered`].
    pub answered: u64,
    /// See [`Outcome::Rejected`].
    pub rejected: u64,
    /// See [`Outcome::Shed`].
    pub shed: u64,
    /// See [`Outcome::ClientGone`].
    pub client_gone: u64,
    /// See [`Outcome::UpstreamFailed`].
    pub upstream_failed: u64,
    /// See [`Outcome::Killed`].
    pub killed: u64,
}

impl Totals {
    /// How many have ended in this outcome.
    pub fn ended_as(&self, outcome: Outcome) -> u64 {
        match outcome {
            Outcome::Answered => self.answered,
            Outcome::Rejected => self.rejected,
            Outcome::Shed => self.shed,
            Outcome::ClientGone => self.client_gone,
            Outcome::UpstreamFailed => self.upstream_failed,
            Outcome::Killed => self.killed,
        }
    }

    /// The totals of a process that is no more: what was in flight has ended as [`Outcome::Killed`].
    pub fn closed(mut self) -> Self {
        self.killed = self.killed.saturating_add(std::mem::take(&mut self.in_flight));
        self
    }

    /// The sum of all outcomes.
    pub fn ended(&self) -> u64 {
        [self.rejected, self.shed, self.client_gone, self.upstream_failed, self.killed]
            .into_iter()
            .fold(self.answered, u64::saturating_add)
    }
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.accepted = self.accepted.saturating_add(other.accepted);
        self.in_flight = self.in_flight.saturating_add(other.in_flight);
        self.answered = self.answered.saturating_add(other.answered);
        self.rejected = self.rejected.saturating_add(other.rejected);
        self.shed = self.shed.saturating_add(other.shed);
        self.client_gone = self.client_gone.saturating_add(other.client_gone);
        self.upstream_failed = self.upstream_failed.saturating_add(other.upstream_failed);
        self.killed = self.killed.saturating_add(other.killed);
    }
}

impl Add for Totals {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl Sum for Totals {
    fn sum<I: Iterator<Item = Self>>(totals: I) -> Self {
        totals.fold(Totals::default(), Add::add)
    }
}
