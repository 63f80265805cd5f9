//! What is counted of an upstream's servers.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::counter::{Counter, Sharded};
use super::histogram::{Histogram, Snapshot};
use super::route::{CLASSES, class};
use super::scrape::Page;

/// The handles of one upstream server.
#[derive(Debug)]
pub struct ServerMetrics {
    address: Arc<str>,
    shards: Sharded<Shard>,
}

/// Why a try at a server failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// Refused, unreachable, not resolvable.
    Connect,
    /// No connection within the deadline.
    ConnectTimeout,
    /// Closed or reset before the head of an answer was complete.
    Closed,
    /// No head of an answer within the deadline.
    FirstByteTimeout,
    /// It has said that it is overloaded, in the words of its protocol (FastCGI 1.0 §5.5).
    Overloaded,
    /// What was sent is no HTTP answer.
    Malformed,
    /// Closed, reset or malformed within the content.
    Body,
    /// No progress of the content within the deadline.
    BodyTimeout,
}

const FAILURES: [Failure; 8] = [
    Failure::Connect,
    Failure::ConnectTimeout,
    Failure::Closed,
    Failure::FirstByteTimeout,
    Failure::Overloaded,
    Failure::Malformed,
    Failure::Body,
    Failure::BodyTimeout,
];

impl Failure {
    /// Its name in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Failure::Connect => "connect",
            Failure::ConnectTimeout => "connect_timeout",
            Failure::Closed => "closed",
            Failure::FirstByteTimeout => "first_byte_timeout",
            Failure::Overloaded => "overloaded",
            Failure::Malformed => "malformed",
            Failure::Body => "body",
            Failure::BodyTimeout => "body_timeout",
        }
    }
}

#[derive(Debug, Default)]
struct Shard {
    requests: Counter,
    responses: [Counter; CLASSES.len()],
    failures: [Counter; FAILURES.len()],
    retries: Counter,
    opened: Counter,
    reused: Counter,
    first_byte: Histogram,
}

impl ServerMetrics {
    pub(super) fn new(address: Arc<str>) -> Self {
        ServerMetrics { address, shards: Sharded::default() }
    }

    /// The server's address, as in the site file.
    pub fn address(&self) -> &Arc<str> {
        &self.address
    }

    /// Counts a try: a request for which this server was chosen.
    #[inline]
    pub fn requested(&self) {
        self.shards.mine().requests.add(1);
    }

    /// Counts an answer's final head, and the time from the request's last byte (or the try's beginning) to it.
    #[inline]
    pub fn answered(&self, status: StatusCode, first_byte: Duration) {
        let shard = self.shards.mine();
        shard.responses[class(Some(status))].add(1);
        shard.first_byte.record(first_byte);
    }

    /// Counts a failed try.
    pub fn failed(&self, failure: Failure) {
        self.shards.mine().failures[failure as usize].add(1);
    }

    /// Counts a request that is tried again after this server has failed it.
    pub fn retried(&self) {
        self.shards.mine().retries.add(1);
    }

    /// Counts a new connection.
    #[inline]
    pub fn connected(&self) {
        self.shards.mine().opened.add(1);
    }

    /// Counts a request that was sent on an idle connection.
    #[inline]
    pub fn reused(&self) {
        self.shards.mine().reused.add(1);
    }

    pub(super) fn render(&self, page: &mut Page, upstream: &str) {
        let server = &*self.address;
        let sum = |counter: fn(&Shard) -> &Counter| -> u64 {
            self.shards.all().map(|shard| counter(shard).value()).sum()
        };
        let labels = [upstream, server];
        page.sample("playhouse_upstream_requests_total", &labels, sum(|shard| &shard.requests));
        page.sample("playhouse_upstream_retries_total", &labels, sum(|shard| &shard.retries));
        page.sample("playhouse_upstream_connections_opened_total", &labels, sum(|shard| &shard.opened));
        page.sample("playhouse_upstream_connections_reused_total", &labels, sum(|shard| &shard.reused));
        for (index, status) in CLASSES.into_iter().enumerate() {
            let sum: u64 = self.shards.all().map(|shard| shard.responses[index].value()).sum();
            if sum > 0 || status == "2xx" {
                page.sample("playhouse_upstream_responses_total", &[upstream, server, status], sum);
            }
        }
        for failure in FAILURES {
            let sum = self.shards.all().map(|shard| shard.failures[failure as usize].value()).sum::<u64>();
            page.sample("playhouse_upstream_failures_total", &[upstream, server, failure.as_str()], sum);
        }
        let mut first_byte = Snapshot::default();
        self.shards.all().for_each(|shard| first_byte.add(&shard.first_byte));
        page.histogram("playhouse_upstream_first_byte_seconds", &labels, &first_byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_in_the_order_of_their_counters() {
        for (index, failure) in FAILURES.into_iter().enumerate() {
            assert_eq!(failure as usize, index);
        }
    }
}
