//! One server of an upstream, and what is known of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;
use http::HeaderValue;
use parking_lot::Mutex;
use playhouse_config::model::Address;
use tokio::time::Instant;

use super::Upstream;
use super::pool::IdlePool;
use crate::metrics::{Failure, Metrics, ServerMetrics};

/// One server of an upstream. Lives as long as the site file has its address, and beyond for the requests in flight.
#[derive(Debug)]
pub struct Server {
    address: Address,
    name: Arc<str>,
    host: HeaderValue,
    metrics: Arc<ServerMetrics>,
    in_flight: CachePadded<AtomicUsize>,
    /// Requests on new connections that nobody may have accepted yet.
    newcomers: AtomicUsize,
    requests: AtomicU64,
    failures: AtomicU64,
    /// Failed requests since the last good one.
    failures_in_row: AtomicU32,
    pub(crate) idle: IdlePool,
    verdict: Mutex<Verdict>,
    /// `verdict`, for readers of snapshots.
    healthy: AtomicBool,
    ejected: AtomicBool,
}

/// What has been decided about a server.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) ejected_until: Option<Instant>,
    /// Whether another instance has ejected it, not this one.
    pub(super) heard: bool,
    /// Probes in a row that ended the same way, against the present state.
    pub(super) contrary_probes: u32,
}

impl Server {
    pub(super) fn new(upstream: &str, address: Address, metrics: &Metrics) -> Self {
        let name = address.to_string();
        Self::called(upstream, address, &name, metrics)
    }

    /// A server that is known by another name than its address, which may be another each time that it is started.
    pub fn named(upstream: &str, address: Address, name: &str, metrics: &Metrics) -> Arc<Self> {
        Arc::new(Self::called(upstream, address, name, metrics))
    }

    fn called(upstream: &str, address: Address, name: &str, metrics: &Metrics) -> Self {
        // A Unix socket has no authority; RFC 9112 §3.2 wants a Host all the same.
        let host = match &address {
            Address::Unix(_) => HeaderValue::from_static("localhost"),
            _ => HeaderValue::from_str(&address.to_string()).unwrap_or(HeaderValue::from_static("localhost")),
        };
        Server {
            metrics: metrics.server(upstream, name),
            address,
            name: name.into(),
            host,
            in_flight: CachePadded::default(),
            newcomers: AtomicUsize::new(0),
            requests: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            failures_in_row: AtomicU32::new(0),
            idle: IdlePool::default(),
            verdict: Mutex::default(),
            healthy: AtomicBool::new(true),
            ejected: AtomicBool::new(false),
        }
    }

    /// Counts a request as in flight until the lease is dropped.
    pub fn lease(self: &Arc<Self>) -> Lease {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.metrics.requested();
        Lease { server: self.clone() }
    }

    /// Counts a request on a new connection until the first byte of an answer shows that it was accepted.
    pub(crate) fn newcomer(self: &Arc<Self>) -> Newcomer {
        self.newcomers.fetch_add(1, Ordering::Relaxed);
        Newcomer { server: self.clone() }
    }

    /// Whether a request may wait for somebody to accept its connection.
    pub(crate) fn has_newcomers(&self) -> bool {
        self.newcomers.load(Ordering::Relaxed) > 0
    }

    /// A request has failed through this server's fault: connect, first byte, or a broken answer.
    pub(crate) fn failed(&self, upstream: &Upstream, failure: Failure) {
        self.metrics.failed(failure);
        self.failures.fetch_add(1, Ordering::Relaxed);
        let in_row = self.failures_in_row.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let limit = upstream.snapshot().settings.ejection.as_ref().map(|ejection| ejection.failures.get());
        if limit.is_some_and(|limit| in_row >= limit) {
            upstream.wake();
        }
    }

    /// A request has been answered.
    pub(crate) fn succeeded(&self) {
        // Read first: the line is written only after a failure.
        if self.failures_in_row.load(Ordering::Relaxed) != 0 {
            self.failures_in_row.store(0, Ordering::Relaxed);
        }
    }

    /// The site file no longer has it: its idle connections are closed, and no more are kept.
    pub(super) fn retire(&self) {
        self.idle.retire();
    }

    /// Nothing checks it any more.
    pub(super) fn forget_health(&self) {
        self.verdict.lock().contrary_probes = 0;
        self.healthy.store(true, Ordering::Release);
    }

    pub(super) fn verdict(&self) -> &Mutex<Verdict> {
        &self.verdict
    }

    /// Somebody else checks it, and says this.
    pub fn is_told(&self, healthy: bool) {
        self.healthy.store(healthy, Ordering::Release);
    }

    pub(super) fn set_healthy(&self, healthy: bool) {
        self.healthy.store(healthy, Ordering::Release);
    }

    /// For the holder of the verdict's lock.
    pub(super) fn set_ejected(&self, verdict: &mut Verdict, until: Option<Instant>) {
        verdict.ejected_until = until;
        verdict.heard = false;
        self.ejected.store(until.is_some(), Ordering::Release);
        self.failures_in_row.store(0, Ordering::Relaxed);
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Its address as in the site file, or another name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Its address as a `Host`; `localhost` for a Unix socket.
    pub fn host(&self) -> &HeaderValue {
        &self.host
    }

    /// Its metric handles.
    pub fn metrics(&self) -> &Arc<ServerMetrics> {
        &self.metrics
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Requests so far, tries of one request counted each.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Failed requests so far.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Failed requests since the last good one.
    pub fn failures_in_row(&self) -> u32 {
        self.failures_in_row.load(Ordering::Relaxed)
    }

    /// Idle connections.
    pub fn idle(&self) -> usize {
        self.idle.len()
    }

    /// What active checks say; true without any.
    pub fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Acquire)
    }

    /// Whether it is left out because requests to it failed.
    pub fn is_ejected(&self) -> bool {
        self.ejected.load(Ordering::Acquire)
    }

    /// Healthy and not ejected.
    pub fn is_eligible(&self) -> bool {
        self.is_healthy() && !self.is_ejected()
    }

    /// Whether the site file no longer has it.
    pub fn is_retired(&self) -> bool {
        self.idle.is_retired()
    }
}

/// A request whose connection may not have been accepted yet.
#[derive(Debug)]
pub(crate) struct Newcomer {
    server: Arc<Server>,
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        self.server.newcomers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request in flight on a server.
#[derive(Debug)]
pub struct Lease {
    server: Arc<Server>,
}

impl Lease {
    /// The server.
    pub fn server(&self) -> &Arc<Server> {
        &self.server
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.server.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
