//! Waiting for what can be observed.

use std::time::{Duration, Instant};

/// How long a test waits for something that should happen at once, on a machine that may be very busy.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Returns when `condition` holds; panics with `what` when it does not within [`PATIENCE`].
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    eventually_some(what, || condition().then_some(()));
}

/// Returns the first `Some`; panics with `what` when there is none within [`PATIENCE`].
#[track_caller]
pub fn eventually_some<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(begun.elapsed() < PATIENCE, "{PATIENCE:?} have passed and not yet: {what}");
        std::thread::sleep(BETWEEN_LOOKS);
    }
}

const BETWEEN_LOOKS: Duration = Duration::from_millis(10);
