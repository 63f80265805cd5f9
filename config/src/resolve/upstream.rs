//! Upstreams: servers, balance, health, ejection, deadlines.

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::time::Duration;

use http::uri::{Authority, PathAndQuery};

use super::Resolver;
use super::value::shown;
use crate::error::At;
use crate::file::{self, Named};
use crate::model::{Ejection, Health, KeepAlive, Server, Upstream, UpstreamProtocol, UpstreamTimeouts};

/// Heaviest weight of a server.
const MAX_WEIGHT: u64 = 65_535;
/// Most further tries of a request.
const MAX_RETRIES: u64 = 10;
/// Default of `retries`.
const RETRIES: u32 = 2;
/// Most results in a row that a check or an ejection may wait for.
const MAX_IN_A_ROW: u64 = 1_000;
/// Most idle connections per server.
const MAX_IDLE: u64 = 65_535;

const NO_SERVERS: &str = "missing; an upstream has at least one, such as servers: [\"127.0.0.1:9000\"]";

impl Resolver<'_, '_> {
    pub(super) fn upstreams(
        &mut self,
        raw: Option<&Named<file::Upstream>>,
        routes: Option<&[file::Route]>,
        instances: usize,
        at: &At,
    ) -> Option<Vec<Upstream>> {
        let Some(raw) = raw else { return Some(Vec::new()) };
        self.unique_names(raw, at);
        let upstreams: Vec<Option<Upstream>> = raw
            .0
            .iter()
            .map(|(name, raw)| self.upstream(name, raw, routes, instances, &at.key(name)))
            .collect();
        upstreams.into_iter().collect()
    }

    fn upstream(
        &mut self,
        name: &str,
        raw: &file::Upstream,
        routes: Option<&[file::Route]>,
        instances: usize,
        at: &At,
    ) -> Option<Upstream> {
        let valid = self.name(name, at);
        let protocol = self.upstream_protocol(name, routes, at);
        if protocol == Some(UpstreamProtocol::FastCgi) && raw.proxy_protocol.is_some() {
            self.report.error(
                &at.field("proxy_protocol"),
                "is for HTTP, and these servers speak FastCGI, which tells them who the client is; leave it out",
            );
        }
        let servers = self.servers(raw.servers.as_deref(), &at.field("servers"));
        let health = match &raw.health {
            Some(health) => self.health(health, &at.field("health")).map(Some),
            None => Some(None),
        };
        let ejection = self.ejection(raw.ejection.as_ref(), &at.field("ejection"));
        let timeouts = self.upstream_timeouts(raw.timeouts.as_ref(), &at.field("timeouts"));
        let keep_alive_at = at.field("keep_alive");
        let keep_alive = self.keep_alive(raw.keep_alive.as_ref(), protocol, instances, &keep_alive_at);
        let retries = self.count_or(raw.retries, RETRIES, &at.field("retries"), 0..=MAX_RETRIES);
        valid?;
        Some(Upstream {
            name: name.into(),
            servers: servers?,
            protocol: protocol?,
            proxy_protocol: raw.proxy_protocol,
            balance: raw.balance.unwrap_or_default(),
            health: health?,
            ejection: ejection?,
            timeouts: timeouts?,
            keep_alive: keep_alive?,
            retries: retries?,
        })
    }

    fn servers(&mut self, raw: Option<&[file::Server]>, at: &At) -> Option<Vec<Server>> {
        let raw = self.required(raw, at, NO_SERVERS)?;
        if raw.is_empty() {
            return self.refuse(at, NO_SERVERS);
        }
        let mut seen = HashSet::new();
        let mut servers = Vec::with_capacity(raw.len());
        for (index, raw) in raw.iter().enumerate() {
            let at = at.index(index);
            let address_at = at.field("address");
            let address = match self.required(
                raw.address.as_deref(),
                &address_at,
                "missing; write host:port or unix:/path",
            ) {
                Some(address) => self.server_address(address, &at),
                None => None,
            };
            if let Some(address) = &address
                && !seen.insert(address.clone())
            {
                let message = format!(
                    "{} stands here twice; for a larger share write (\"{address}\", 2)",
                    shown(&address.to_string())
                );
                self.report.error(&at, message);
            }
            let weight = self.count_or(raw.weight, 1u32, &at.field("weight"), 1..=MAX_WEIGHT);
            servers.push(
                address
                    .zip(weight.and_then(NonZeroU32::new))
                    .map(|(address, weight)| Server { address, weight }),
            );
        }
        servers.into_iter().collect()
    }

    pub(super) fn health(&mut self, raw: &file::Health, at: &At) -> Option<Health> {
        let path_at = at.field("path");
        let path = match self.required(
            raw.path.as_deref(),
            &path_at,
            "missing; write what is fetched, such as \"/healthz\"",
        ) {
            Some(path)
                if path.starts_with('/') && path.parse::<PathAndQuery>().is_ok() && !path.contains('#') =>
            {
                Some(path.to_owned())
            }
            Some(path) => {
                let message = format!(
                    "{} is no target; it begins with / and is written as in a request, with spaces and the like percent-encoded",
                    shown(path)
                );
                self.refuse(&path_at, message)
            }
            None => None,
        };
        let host = match raw.host.as_deref() {
            Some(host) if host.parse::<Authority>().is_ok() && !host.contains('@') => {
                Some(Some(host.to_owned()))
            }
            Some(host) => {
                let message = format!("{} is no host, or host:port", shown(host));
                self.refuse(&at.field("host"), message)
            }
            None => Some(None),
        };
        let interval = self.duration(raw.interval, Duration::from_secs(5), &at.field("interval"));
        let timeout = self.duration(raw.timeout, Duration::from_secs(2), &at.field("timeout"));
        let healthy_after = self.in_a_row(raw.healthy_after, 1, &at.field("healthy_after"));
        let unhealthy_after = self.in_a_row(raw.unhealthy_after, 2, &at.field("unhealthy_after"));
        let statuses = raw.statuses.unwrap_or((200, 399));
        let statuses = if statuses.0 < 200 || statuses.1 > 599 || statuses.0 > statuses.1 {
            let message = format!(
                "({}, {}) is no range of final statuses; write the first and the last, within 200 to 599",
                statuses.0, statuses.1
            );
            self.refuse(&at.field("statuses"), message)
        } else {
            Some(statuses)
        };
        Some(Health {
            path: path?,
            host: host?,
            interval: interval?,
            timeout: timeout?,
            healthy_after: healthy_after?,
            unhealthy_after: unhealthy_after?,
            statuses: statuses?,
        })
    }

    fn ejection(&mut self, raw: Option<&file::Ejection>, at: &At) -> Option<Option<Ejection>> {
        let default = Ejection::default();
        let raw = match raw {
            Some(file::Ejection::On(raw)) => raw,
            Some(file::Ejection::Off) => return Some(None),
            None => return Some(Some(default)),
        };
        let failures = self.in_a_row(raw.failures, default.failures.get(), &at.field("failures"));
        let duration = self.duration(raw.duration, default.duration, &at.field("duration"));
        Some(Some(Ejection { failures: failures?, duration: duration? }))
    }

    fn in_a_row(&mut self, value: Option<u64>, default: u32, at: &At) -> Option<NonZeroU32> {
        self.count_or(value, default, at, 1..=MAX_IN_A_ROW).and_then(NonZeroU32::new)
    }

    pub(super) fn upstream_timeouts(
        &mut self,
        raw: Option<&file::UpstreamTimeouts>,
        at: &At,
    ) -> Option<UpstreamTimeouts> {
        let default = UpstreamTimeouts::default();
        let Some(raw) = raw else { return Some(default) };
        let connect = self.duration(raw.connect, default.connect, &at.field("connect"));
        let first_byte = self.duration(raw.first_byte, default.first_byte, &at.field("first_byte"));
        let idle = self.duration(raw.idle, default.idle, &at.field("idle"));
        Some(UpstreamTimeouts { connect: connect?, first_byte: first_byte?, idle: idle? })
    }

    pub(super) fn keep_alive(
        &mut self,
        raw: Option<&file::KeepAlive>,
        protocol: Option<UpstreamProtocol>,
        instances: usize,
        at: &At,
    ) -> Option<KeepAlive> {
        let mut default = KeepAlive::default();
        if protocol == Some(UpstreamProtocol::FastCgi) {
            default.max_idle = 0;
        }
        let Some(raw) = raw else { return Some(default) };
        let max_at = at.field("max_idle");
        let max_idle = match self.count_or(raw.max_idle, default.max_idle, &max_at, 0..=MAX_IDLE) {
            // The processes behind are the site's: what all instances keep together is what was asked for.
            Some(count) if protocol == Some(UpstreamProtocol::FastCgi) => match count / instances {
                0 if count > 0 => {
                    let message = format!(
                        "{count} is too few to be shared by {instances} instances; write at least {instances}, or 0"
                    );
                    self.refuse(&max_at, message)
                }
                share => Some(share),
            },
            count => count,
        };
        let timeout = self.duration(raw.timeout, default.timeout, &at.field("timeout"));
        Some(KeepAlive { max_idle: max_idle?, timeout: timeout? })
    }
}
