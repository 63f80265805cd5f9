//! Metrics of a site: its own recorder, handles made when a route or upstream is built.
use std::sync::Arc;
/// A site's recorder.
#[derive(Debug, Default)]
pub struct Metrics {}
impl Metrics {
    /// Handles of a route.
    pub fn route(&self, _label: &str, _listeners: &[(usize, Arc<str>)]) -> Arc<RouteMetrics> {
        Arc::new(RouteMetrics)
    }
}
/// The handles of one route, a set per listener.
#[derive(Debug)]
pub struct RouteMetrics;
/// The handles of one upstream server.
#[derive(Debug)]
pub struct ServerMetrics;

impl Metrics {
    /// The handles of one server of an upstream; `address` as it is displayed in the site file.
    pub fn server(&self, _upstream: &str, _address: impl std::fmt::Display) -> std::sync::Arc<ServerMetrics> {
        std::sync::Arc::new(ServerMetrics)
    }
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
    /// What was sent is no HTTP answer.
    Malformed,
    /// Closed, reset or malformed within the content.
    Body,
    /// No progress of the content within the deadline.
    BodyTimeout,
}

impl ServerMetrics {
    /// Counts a try: a request for which this server was chosen.
    pub fn requested(&self) {}
    /// Counts an answer's final head, and the time from the request's last byte (or the try's beginning) to it.
    pub fn answered(&self, _status: http::StatusCode, _first_byte: std::time::Duration) {}
    /// Counts a failed try.
    pub fn failed(&self, _failure: Failure) {}
    /// Counts a request that is tried again after this server has failed it.
    pub fn retried(&self) {}
    /// Counts a new connection.
    pub fn connected(&self) {}
    /// Counts a request that was sent on an idle connection.
    pub fn reused(&self) {}
}
