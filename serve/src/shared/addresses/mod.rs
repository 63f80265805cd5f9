//! What each client address has of a listener: open connections and a rate of requests, over all processes of a site.
//!
//! An address is an IPv4 address, or the first 64 bits of an IPv6 address: what one client usually has. The table is of a
//! fixed size, and takes no lock: a limit costs a request one compare-and-swap. An address that finds no room is let
//! through, and counted.

mod rate;
mod table;
#[cfg(test)]
mod tests;

use std::hash::Hasher;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use playhouse_config::model;
use siphasher::sip::SipHasher13;
use tokio::time::Instant;

use self::rate::{Clock, Rate};
use self::table::Table;
use crate::random::Random;

/// The table, as one process has it open.
#[derive(Debug)]
pub struct Addresses {
    table: Table,
    clock: Clock,
    overflowed: AtomicU64,
}

impl Addresses {
    /// Opens the table of a site with slots 1 to `slots`, or makes it; its hash is keyed from `random`, so that nobody can
    /// choose addresses that crowd each other out. For the controller, which leases nothing itself.
    pub fn open_or_create(path: &Path, slots: u32, random: &Random) -> io::Result<Self> {
        let addresses = Self::over(Table::open_or_create(path)?).keyed(random);
        addresses.reserve(slots)?;
        Ok(addresses)
    }

    /// Makes room for slots up to `slots`, beside those that have it: 23 at first, then 32 more for every 4 MiB. Instances
    /// see at their next look what is leased there. For the controller, before a slot is used that there was none of.
    ///
    /// # Errors
    /// What the file system says; `InvalidInput` for more than 279.
    pub fn reserve(&self, slots: u32) -> io::Result<()> {
        self.table.reserve(slots)
    }

    /// Opens the table that the controller has made, for the instance in `slot`. `InvalidData` where it has no such slot.
    pub fn open(path: &Path, slot: u32) -> io::Result<Self> {
        Ok(Self::over(Table::open(path, slot)?))
    }

    /// Removes the files of a table that no process needs any more.
    ///
    /// # Errors
    /// What the file system says.
    pub fn remove(path: &Path) -> io::Result<()> {
        table::remove(path)
    }

    /// The table of a site in one process.
    pub fn anonymous(random: &Random) -> io::Result<Self> {
        Ok(Self::over(Table::anonymous()?).keyed(random))
    }

    fn over(table: Table) -> Self {
        Addresses { table, clock: Clock::new(), overflowed: AtomicU64::new(0) }
    }

    fn keyed(self, random: &Random) -> Self {
        let [first, second] = self.table.secret();
        if first.load(Ordering::Acquire) == 0 {
            second.store(random.below(u64::MAX), Ordering::Release);
            first.store(1 + random.below(u64::MAX), Ordering::Release);
        }
        self
    }

    /// Leases one of the `limit` connections that an address may have on a listener. `None` where it has them all.
    pub fn lease(self: &Arc<Self>, listener: &str, address: IpAddr, limit: u32) -> Option<AddressLease> {
        let key = self.key(listener, address);
        for _ in 0..TRIES {
            let Some(entry) = self.table.entry(key, self.clock.now()) else { break };
            if !self.table.add(entry) {
                return None;
            }
            if self.table.is(entry, key) {
                let lease = AddressLease { addresses: self.clone(), entry: Some(entry) };
                return (self.table.leases(entry) <= limit.into()).then_some(lease);
            }
            // The entry was given to another address meanwhile.
            self.table.subtract(entry);
        }
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        Some(AddressLease { addresses: self.clone(), entry: None })
    }

    /// What counts the requests that an address makes on a listener.
    pub fn meter(
        self: &Arc<Self>,
        listener: &str,
        address: IpAddr,
        rate: model::Rate,
        limited: Arc<AtomicU64>,
    ) -> Meter {
        let (addresses, key) = (self.clone(), self.key(listener, address));
        Meter { addresses, key, entry: AtomicUsize::new(0), rate: Rate::new(rate), limited }
    }

    /// Gives back what the process in `slot` had leased. For the controller, when the process is gone and before the slot
    /// is used again.
    pub fn release_slot(&self, slot: u32) {
        self.table.release_slot(slot);
    }

    /// How often a connection or a request was let through because there was no room to count it.
    pub fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }

    fn key(&self, listener: &str, address: IpAddr) -> u64 {
        let [first, second] = self.table.secret().map(|half| half.load(Ordering::Acquire));
        let mut hasher = SipHasher13::new_with_keys(first, second);
        match address.to_canonical() {
            IpAddr::V4(address) => hasher.write(&address.octets()),
            IpAddr::V6(address) => hasher.write(&address.octets()[..8]),
        }
        hasher.write(listener.as_bytes());
        hasher.finish()
    }

    /// Takes a request of the address `key`, whose place was at `hint`.
    fn take(&self, key: u64, hint: &AtomicUsize, rate: &Rate, at: Instant) -> Result<(), Duration> {
        let now = self.clock.at(at);
        let mut entry = hint.load(Ordering::Relaxed);
        for _ in 0..TRIES {
            if !self.table.is(entry, key) {
                let Some(found) = self.table.entry(key, now) else { break };
                hint.store(found, Ordering::Relaxed);
                entry = found;
            }
            let taken = self.table.update_time(entry, |time| rate.take(time, now));
            // Between the two looks it may have been given to another address, which has lost a request by it at most.
            if self.table.is(entry, key) {
                return taken.map_err(Duration::from_nanos);
            }
        }
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// One connection of an address, given back when dropped.
#[derive(Debug)]
#[must_use = "dropping a lease gives the place to another connection"]
pub struct AddressLease {
    addresses: Arc<Addresses>,
    /// `None` where it is not counted.
    entry: Option<usize>,
}

impl Drop for AddressLease {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            self.addresses.table.subtract(entry);
        }
    }
}

/// Counts the requests of one connection's address against its rate.
#[derive(Debug)]
pub struct Meter {
    addresses: Arc<Addresses>,
    key: u64,
    /// Where the address was found last.
    entry: AtomicUsize,
    rate: Rate,
    limited: Arc<AtomicU64>,
}

impl Meter {
    /// Takes a request that began at `at`, or says how long to wait for the next one that will be taken.
    pub fn take(&self, at: Instant) -> Result<(), Duration> {
        let taken = self.addresses.take(self.key, &self.entry, &self.rate, at);
        if taken.is_err() {
            self.limited.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }
}

/// How often an entry may be given away beneath one that looks for it. More than once needs a table that is full, and
/// another process in the same few nanoseconds.
const TRIES: usize = 4;
