//! How starting instances goes: what has failed, and when it is tried again.

use std::collections::BTreeMap;

use playhouse_protocol::control::State;
use tokio::time::Instant;

use super::Fleet;
use crate::controller::capacity;
use crate::supervision::EventKind;

/// How starting went lately.
#[derive(Debug, Default)]
pub(super) struct Starts {
    pub(super) begun: u64,
    failed_in_a_row: u32,
    pub(super) not_before: Option<Instant>,
    last_failure: Option<String>,
    pub(super) refused: Option<String>,
    pub(super) adopted: u64,
    failures: BTreeMap<&'static str, u64>,
}

/// How starting instances goes, for status and metrics.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct StartReport {
    /// Processes started by this controller.
    pub started: u64,
    /// Processes taken over from a controller before it.
    pub adopted: u64,
    /// Starts that have failed since the last that went well.
    pub failed_in_a_row: u32,
    /// Why the last one failed, while none has gone well since.
    pub last_failure: Option<String>,
    /// Why none is started just now, if so.
    pub refused: Option<String>,
    /// Ends that nobody asked for, by cause.
    pub failures: BTreeMap<&'static str, u64>,
}

impl Fleet {
    /// No start while this is said: there is no memory for another process.
    pub(super) fn refuse_starts(&self, why: Option<String>) {
        let mut starts = self.starts.lock();
        if starts.refused != why {
            starts.refused = why;
            drop(starts);
            self.notify();
        }
    }

    /// How starting goes.
    pub fn start_report(&self) -> StartReport {
        let starts = self.starts.lock();
        StartReport {
            started: starts.begun,
            adopted: starts.adopted,
            failed_in_a_row: starts.failed_in_a_row,
            last_failure: starts.last_failure.clone(),
            refused: starts.refused.clone(),
            failures: starts.failures.clone(),
        }
    }

    /// An instance serves: the series of failures is over.
    pub(in crate::controller) fn note_active(&self) {
        let mut starts = self.starts.lock();
        starts.failed_in_a_row = 0;
        starts.not_before = None;
        starts.last_failure = None;
        drop(starts);
        self.notify();
    }

    /// A start has failed.
    pub(in crate::controller) fn note_failed_start(&self, cause: String) {
        let mut starts = self.starts.lock();
        starts.failed_in_a_row = starts.failed_in_a_row.saturating_add(1);
        *starts.failures.entry("start").or_default() += 1;
        let delay = capacity::backoff(starts.failed_in_a_row, self.tree.jitter());
        starts.not_before = Some(Instant::now() + delay);
        let failures = starts.failed_in_a_row;
        starts.last_failure = Some(cause.clone());
        drop(starts);
        let rest = if self.views().iter().any(|view| view.state == State::Active) {
            "; those that serve go on as they are"
        } else {
            ""
        };
        let next = if delay.is_zero() { "at once".to_owned() } else { format!("in {delay:.1?}") };
        self.emit(
            EventKind::Ended,
            format!("an instance did not start ({failures} in a row): {cause}; again {next}{rest}"),
        );
        self.notify();
    }

    /// An instance that served has ended without having been asked to.
    pub(in crate::controller) fn note_death(&self, cause: &'static str) {
        *self.starts.lock().failures.entry(cause).or_default() += 1;
    }
}
