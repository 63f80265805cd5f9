//! Randomness, only from here: one seeded generator per site, so that a run can be repeated.

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// A seeded generator, shared.
#[derive(Debug)]
pub struct Random {
    seed: u64,
    generator: Mutex<StdRng>,
}

impl Random {
    /// The same seed gives the same sequence.
    pub fn seeded(seed: u64) -> Self {
        Random { seed, generator: Mutex::new(StdRng::seed_from_u64(seed)) }
    }

    /// Seeded by the operating system.
    #[allow(clippy::disallowed_methods)]
    #[allow(clippy::disallowed_methods, reason = "this is the seam that everything else goes through")]
    pub fn from_os() -> Self {
        Self::seeded(StdRng::from_os_rng().random())
    }

    /// What it was seeded with.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// A number in `0.0..1.0`.
    pub fn unit(&self) -> f64 {
        self.generator.lock().random()
    }

    /// A number in `0..bound`; 0 for a bound of 0.
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.generator.lock().random_range(0..bound) }
    }
}
