//! The health checker of an upstream.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use playhouse_serve::upstream::Upstream;
use tokio::time::Instant;

use crate::supervision::{Actor, Context, EventKind, Failure};

/// Probes every server of one upstream, all at once, in each interval.
pub struct HealthChecker {
    upstream: Arc<Upstream>,
}

impl HealthChecker {
    /// The checker of this upstream's servers.
    pub fn new(upstream: Arc<Upstream>) -> Self {
        HealthChecker { upstream }
    }
}

impl Actor for HealthChecker {
    type Message = std::convert::Infallible;

    const KIND: &'static str = "health checker";

    async fn run(&mut self, context: &Context) -> Result<(), Failure> {
        let epoch = self.upstream.claim_checker();
        loop {
            let round = Instant::now();
            let snapshot = self.upstream.snapshot();
            let Some(interval) = snapshot.settings.health.as_ref().map(|health| health.interval) else {
                return Ok(());
            };
            let upstream = &self.upstream;
            let mut probes: FuturesUnordered<_> = snapshot
                .all
                .iter()
                .map(|member| async move { (&member.server, upstream.probe(&member.server).await) })
                .collect();
            loop {
                tokio::select! {
                    probed = probes.next() => {
                        let Some((server, result)) = probed else { break };
                        if let Some(event) = self.upstream.record_probe(epoch, server, &result)? {
                            context.emit(EventKind::Upstream, context.seat().path(), event.to_string());
                        }
                    }
                    () = tokio::time::sleep(ALIVE) => {}
                }
                context.progress();
            }
            while round.elapsed() < interval {
                tokio::time::sleep(ALIVE.min(interval - round.elapsed().min(interval))).await;
                context.progress();
            }
        }
    }

    async fn handle(&mut self, message: Self::Message, _: &Context) -> Result<(), Failure> {
        match message {}
    }
}

/// Shows at least this often that it is alive.
const ALIVE: Duration = Duration::from_millis(500);
