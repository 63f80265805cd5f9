//! What an upstream looks like from outside.

use std::sync::Arc;

use super::Member;

/// What is known of an upstream.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct UpstreamStatus {
    /// Its name.
    pub name: Arc<str>,
    /// Servers that requests go to.
    pub eligible: usize,
    /// Whether requests go to all servers because none is eligible.
    pub panic: bool,
    /// In the site file's order.
    pub servers: Vec<ServerStatus>,
}

/// What is known of a server.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ServerStatus {
    /// As in the site file.
    pub address: String,
    /// Its share.
    pub weight: u32,
    /// What active checks say; true without any.
    pub healthy: bool,
    /// Left out for a while because requests to it failed.
    pub ejected: bool,
    /// Requests in flight.
    pub in_flight: usize,
    /// Idle connections.
    pub idle: usize,
    /// Requests so far, tries of one request counted each.
    pub requests: u64,
    /// Failed requests so far.
    pub failures: u64,
}

impl ServerStatus {
    pub(super) fn of(member: &Member) -> Self {
        let server = &member.server;
        ServerStatus {
            address: server.name().to_string(),
            weight: member.weight,
            healthy: server.is_healthy(),
            ejected: server.is_ejected(),
            in_flight: server.in_flight(),
            idle: server.idle(),
            requests: server.requests(),
            failures: server.failures(),
        }
    }
}
