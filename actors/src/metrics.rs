//! The metrics actor: samples what only time shows. Counters and scrapes go on without it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::supervision::{Actor, Context, Failure};

/// What the actor has sampled last; outlives it.
#[derive(Debug, Default)]
pub struct Samples {
    lag_nanos: AtomicU64,
    worst_lag_nanos: AtomicU64,
}

impl Samples {
    /// How much later than asked for the runtime woke a sleeper up: the last sample.
    pub fn event_loop_lag(&self) -> Duration {
        Duration::from_nanos(self.lag_nanos.load(Ordering::Relaxed))
    }

    /// The worst of the samples since it was last taken.
    pub(crate) fn take_worst_lag(&self) -> Duration {
        Duration::from_nanos(self.worst_lag_nanos.swap(0, Ordering::Relaxed))
    }
}

/// Samples the runtime's lag.
pub struct Metrics {
    samples: Arc<Samples>,
}

impl Metrics {
    /// The actor that fills these samples.
    pub fn new(samples: Arc<Samples>) -> Self {
        Metrics { samples }
    }
}

impl Actor for Metrics {
    type Message = std::convert::Infallible;

    const KIND: &'static str = "metrics";

    async fn run(&mut self, context: &Context) -> Result<(), Failure> {
        loop {
            let due = Instant::now() + INTERVAL;
            tokio::time::sleep_until(due).await;
            let lag = due.elapsed().as_nanos() as u64;
            self.samples.lag_nanos.store(lag, Ordering::Relaxed);
            self.samples.worst_lag_nanos.fetch_max(lag, Ordering::Relaxed);
            context.progress();
        }
    }

    async fn handle(&mut self, message: Self::Message, _: &Context) -> Result<(), Failure> {
        match message {}
    }
}

const INTERVAL: Duration = Duration::from_millis(250);
