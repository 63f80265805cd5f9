//! What is counted of requests, per listener and route.

use std::sync::{Arc, OnceLock};

use http::StatusCode;

use super::counter::{Counter, Sharded};
use super::histogram::{Histogram, Snapshot};
use super::scrape::Page;
use super::tunnel::TunnelMetrics;
use crate::application::End;
use crate::ledger::OUTCOMES;

/// The handles of one route, a set per listener.
#[derive(Debug)]
pub struct RouteMetrics {
    label: Arc<str>,
    by_listener: Box<[Option<Arc<Requests>>]>,
}

impl RouteMetrics {
    pub(super) fn new(label: Arc<str>, by_listener: Vec<Option<Arc<Requests>>>) -> Self {
        RouteMetrics { label, by_listener: by_listener.into() }
    }

    /// The route's label, as in the site file.
    pub fn label(&self) -> &Arc<str> {
        &self.label
    }

    /// Counts a request that has ended. One of a listener that the route was not built with is not counted.
    #[inline]
    pub fn observe(&self, listener_index: usize, end: &End) {
        let Some(Some(requests)) = self.by_listener.get(listener_index) else { return };
        let shard = requests.ended.mine();
        shard.ended[class(end.status)][end.outcome as usize].add(1);
        shard.bytes.add(end.bytes_sent);
        shard.duration.record(end.duration);
    }
}

impl RouteMetrics {
    /// The handles of the route's tunnels.
    pub(crate) fn tunnels(&self, listener_index: usize) -> Option<&TunnelMetrics> {
        let requests = self.by_listener.get(listener_index)?.as_ref()?;
        Some(requests.tunnels.get_or_init(TunnelMetrics::default))
    }
}

/// The counters of one route on one listener.
#[derive(Debug, Default)]
pub(super) struct Requests {
    ended: Sharded<RequestShard>,
    /// Once there was a tunnel.
    tunnels: OnceLock<TunnelMetrics>,
}

#[derive(Debug, Default)]
struct RequestShard {
    /// By class of status, then outcome.
    ended: [[Counter; OUTCOMES.len()]; CLASSES.len()],
    bytes: Counter,
    duration: Histogram,
}

impl Requests {
    pub(super) fn render(&self, page: &mut Page, listener: &str, route: &str) {
        let mut ended = [[0; OUTCOMES.len()]; CLASSES.len()];
        let mut bytes = 0;
        let mut duration = Snapshot::default();
        for shard in self.ended.all() {
            for (sums, counters) in ended.iter_mut().zip(&shard.ended) {
                sums.iter_mut().zip(counters).for_each(|(sum, counter)| *sum += counter.value());
            }
            bytes += shard.bytes.value();
            duration.add(&shard.duration);
        }
        for (sums, status) in ended.iter().zip(CLASSES) {
            for (&sum, outcome) in sums.iter().zip(OUTCOMES) {
                // The usual one is there from the start, so that a rate over it exists; others once they have occurred.
                if sum > 0 || (status == "2xx" && outcome == OUTCOMES[0]) {
                    let labels = [listener, route, status, outcome.as_str()];
                    page.sample("playhouse_requests_total", &labels, sum);
                }
            }
        }
        page.sample("playhouse_response_content_bytes_total", &[listener, route], bytes);
        page.histogram("playhouse_request_duration_seconds", &[listener, route], &duration);
        if let Some(tunnels) = self.tunnels.get() {
            tunnels.render(page, listener, route);
        }
    }
}

/// The handles of one listener: what happens before there is a route.
#[derive(Debug, Default)]
pub struct ListenerMetrics {
    refused: [Counter; CLASSES.len()],
    panics: Counter,
    early: Counter,
    too_early: Counter,
}

impl ListenerMetrics {
    /// Counts a request whose head never was complete and valid, with the status that was sent, if any.
    pub fn refused(&self, status: Option<StatusCode>) {
        self.refused[class(status)].add(1);
    }

    /// Counts a panic in a handler or a body.
    pub fn panicked(&self) {
        self.panics.add(1);
    }

    /// Counts a request that was handled before the handshake had ended.
    pub(crate) fn early(&self) {
        self.early.add(1);
    }

    /// Counts an answer with 425.
    pub(crate) fn too_early(&self) {
        self.too_early.add(1);
    }

    pub(super) fn render(&self, page: &mut Page, listener: &str) {
        for (counter, status) in self.refused.iter().zip(CLASSES) {
            // The same rule as for routes: 4xx is what a refusal usually is.
            if counter.value() > 0 || status == "4xx" {
                page.sample("playhouse_requests_refused_total", &[listener, status], counter.value());
            }
        }
        page.sample("playhouse_panics_total", &[listener], self.panics.value());
        page.sample("playhouse_early_requests_total", &[listener], self.early.value());
        page.sample("playhouse_too_early_total", &[listener], self.too_early.value());
    }
}

/// The classes of status, in the order of their counters.
pub(super) const CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

pub(super) fn class(status: Option<StatusCode>) -> usize {
    // Statuses go to 999; what is over 599 is an error of the sender.
    status.map_or(0, |status| usize::from(status.as_u16() / 100).min(5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_a_class() {
        assert_eq!(CLASSES[class(None)], "none");
        for (status, name) in
            [(101, "1xx"), (200, "2xx"), (304, "3xx"), (499, "4xx"), (500, "5xx"), (999, "5xx")]
        {
            assert_eq!(CLASSES[class(StatusCode::from_u16(status).ok())], name);
        }
    }
}
