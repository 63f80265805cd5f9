//! Counters that threads do not fight over.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use crate::ledger;

/// A `T` per thread, as far as there are CPUs; made when a thread first counts in it, so that what is never used costs a
/// word per CPU.
#[derive(Debug)]
pub(super) struct Sharded<T> {
    shards: Box<[OnceLock<Box<CachePadded<T>>>]>,
}

impl<T: Default> Default for Sharded<T> {
    fn default() -> Self {
        Sharded { shards: (0..shards()).map(|_| OnceLock::new()).collect() }
    }
}

impl<T: Default> Sharded<T> {
    /// This thread's own.
    #[inline]
    pub(super) fn mine(&self) -> &T {
        self.shards[ledger::thread_number() % self.shards.len()].get_or_init(Box::default)
    }

    /// All that have been used.
    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        self.shards.iter().filter_map(|shard| shard.get().map(|padded| &***padded))
    }
}

/// A counter that only grows.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(super) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(super) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One per CPU, rounded up to a power of two, at most 16: as many as can collide.
fn shards() -> usize {
    static SHARDS: OnceLock<usize> = OnceLock::new();
    *SHARDS.get_or_init(|| {
        std::thread::available_parallelism().map_or(1, |cpus| cpus.get().next_power_of_two().min(16))
    })
}
