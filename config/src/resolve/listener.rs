//! Listeners: address, certificates, limits, deadlines.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

use super::address::not_a_socket_address;
use super::value::shown;
use super::{Resolver, collide};
use crate::error::At;
use crate::file::{self, Named};
use crate::model::{
    Bind, Certificate, ClientTimeouts, Limits, Listener, Network, ProxyProtocol, Rate, Sharing,
};

/// Most open connections of one listener.
const MAX_CONNECTIONS: u64 = 10_000_000;
/// Bytes of a head: less is refused by ordinary browsers' requests, more is an attack's memory.
const HEADER_BYTES: std::ops::RangeInclusive<u64> = 1 << 10..=16 << 20;
/// Fields of a head; `http::HeaderMap` holds no more than 32,768.
const MAX_HEADER_COUNT: u64 = 10_000;
/// Most concurrent streams of one HTTP/2 connection.
const MAX_STREAMS: u64 = 65_535;
/// Most open connections of one address that are counted.
const MAX_CONNECTIONS_PER_ADDRESS: u64 = 50_000;
/// Finest rate: an interval of a microsecond.
const MAX_PER_SECOND: u64 = 1_000_000;
/// Longest time in which a burst is made good.
const MAX_BURST_SECONDS: u64 = 3600;

impl Resolver<'_, '_> {
    pub(super) fn listeners(
        &mut self,
        raw: Option<&Named<file::Listener>>,
        admin: Option<SocketAddr>,
        drain: Duration,
        at: &At,
    ) -> Option<Vec<Listener>> {
        const MISSING: &str =
            "missing; a site has at least one, such as {\"http\": (bind: \"127.0.0.1:8080\")}";
        let raw = self.required(raw, at, MISSING)?;
        if raw.0.is_empty() && !self.report.failed(at) {
            self.report.error(at, MISSING);
        }
        self.unique_names(raw, at);
        let mut bound: Vec<(String, Bind)> = admin
            .map(|address| ("the admin interface".to_owned(), Bind::Tcp { address, only_v6: false }))
            .into_iter()
            .collect();
        let mut listeners = Vec::with_capacity(raw.0.len());
        for (name, raw) in &raw.0 {
            let at = at.key(name);
            let bind = self.bind(raw, &at);
            if let Some(bind) = &bind {
                if let Some((other, _)) = bound.iter().find(|(_, other)| collide(other, bind)) {
                    let message = format!("{other} has this address already; each needs its own");
                    self.report.error(&at.field("bind"), message);
                }
                bound.push((format!("listener {}", shown(name)), bind.clone()));
            }
            listeners.push(self.listener(name, bind, raw, drain, &at));
        }
        listeners.into_iter().collect()
    }

    /// `bind` is `None` if it has an error of its own; `drain` is the site's drain timeout.
    fn listener(
        &mut self,
        name: &str,
        bind: Option<Bind>,
        raw: &file::Listener,
        drain: Duration,
        at: &At,
    ) -> Option<Listener> {
        let valid = self.name(name, at);
        let tls = self.certificates(raw.tls.as_deref(), &at.field("tls"));
        let limits = self.limits(raw.limits.as_ref(), &at.field("limits"));
        let timeouts = self.client_timeouts(raw.timeouts.as_ref(), drain, &at.field("timeouts"));
        let proxy_protocol = match &raw.proxy_protocol {
            Some(raw) => self.proxy_protocol(raw, bind.as_ref(), &at.field("proxy_protocol")).map(Some),
            None => Some(None),
        };
        let sharing = raw.sharing.unwrap_or_default();
        if sharing == Sharing::ReusePort && matches!(bind, Some(Bind::Unix { .. })) {
            self.report.error(
                &at.field("sharing"),
                "ReusePort is for TCP addresses, and this is a Unix socket; leave it out",
            );
        }
        let http3 = raw.http3.unwrap_or(false);
        if http3 {
            self.check_http3(raw, bind.as_ref(), &at.field("http3"));
        }
        let early_data = raw.early_data.unwrap_or(false);
        if early_data && !http3 {
            self.report.error(
                &at.field("early_data"),
                "early data is taken over HTTP/3 alone; add http3: true, or leave it out",
            );
        }
        valid?;
        Some(Listener {
            name: name.into(),
            bind: bind?,
            tls: tls?,
            http2: raw.http2.unwrap_or(true),
            proxy_protocol: proxy_protocol?,
            http3,
            early_data,
            sharing,
            limits: limits?,
            timeouts: timeouts?,
        })
    }

    /// `bind` is `None` if it has an error of its own.
    fn proxy_protocol(
        &mut self,
        raw: &file::ProxyProtocol,
        bind: Option<&Bind>,
        at: &At,
    ) -> Option<ProxyProtocol> {
        let (required, trust) = match raw {
            file::ProxyProtocol::Required(trust) => (true, trust),
            file::ProxyProtocol::Optional(trust) => (false, trust),
        };
        let trusted_at = at.field("trusted");
        let trusted = match (&trust.trusted, bind) {
            (Some(_), Some(Bind::Unix { .. })) => self.refuse(
                &trusted_at,
                "is for TCP addresses, and this is a Unix socket, whose mode says who may connect; leave it out",
            ),
            (None, Some(Bind::Tcp { .. })) if !self.report.failed(&trusted_at) => self.refuse(
                &trusted_at,
                "missing; list the addresses of the proxies, such as trusted: [\"10.0.0.7\", \"10.1.0.0/16\"]",
            ),
            (Some(trusted), _) if trusted.is_empty() => {
                self.refuse(&trusted_at, "is empty, so nobody would be believed; list the addresses of the proxies")
            }
            (trusted, _) => {
                let networks: Vec<_> = (trusted.iter().flatten().enumerate())
                    .map(|(index, text)| self.network(text, &trusted_at.index(index)))
                    .collect();
                networks.into_iter().collect()
            }
        };
        Some(ProxyProtocol { required, trusted: trusted? })
    }

    /// An address, or a range of addresses.
    fn network(&mut self, text: &str, at: &At) -> Option<Network> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let digits = |prefix: &str| prefix.bytes().all(|byte| byte.is_ascii_digit());
        let parsed = address.parse::<IpAddr>().ok().and_then(|address| {
            let whole = if address.is_ipv4() { 32 } else { 128 };
            let prefix = match prefix {
                Some(prefix) => prefix.parse::<u8>().ok().filter(|_| digits(prefix))?,
                None => whole,
            };
            (prefix <= whole).then_some((address, prefix))
        });
        let Some((address, prefix)) = parsed else {
            let message = format!(
                "{} is no range of addresses; write it as \"10.0.0.7\", \"10.0.0.0/8\" or \"2001:db8::/32\"",
                shown(text)
            );
            return self.refuse(at, message);
        };
        Network::new(address, prefix).or_else(|| {
            let message = format!("{} has bits behind its prefix of {prefix}; make them zero", shown(text));
            self.refuse(at, message)
        })
    }

    /// HTTP/3 is where there are UDP and TLS.
    fn check_http3(&mut self, raw: &file::Listener, bind: Option<&Bind>, at: &At) {
        if matches!(bind, Some(Bind::Unix { .. })) {
            self.report.error(at, "HTTP/3 goes over UDP, and this is a Unix socket; leave it out");
        } else if raw.tls.is_none() {
            self.report.error(
                at,
                "HTTP/3 is never without TLS; add tls: [(cert: \"…\", key: \"…\")], or leave it out",
            );
        } else if raw.proxy_protocol.is_some() {
            self.report.error(
                at,
                "PROXY headers are read on TCP alone, so that HTTP/3 would come without; leave one of them out",
            );
        }
    }

    fn bind(&mut self, raw: &file::Listener, at: &At) -> Option<Bind> {
        let bind_at = at.field("bind");
        let text = self.required(
            raw.bind.as_deref(),
            &bind_at,
            "missing; write the address to listen on, such as \"0.0.0.0:8080\" or \"unix:/path\"",
        )?;
        if let Some(path) = text.strip_prefix("unix:") {
            let path = self.unix_path(path, &bind_at);
            let mode = match raw.mode.as_deref() {
                Some(mode) => self.mode(mode, &at.field("mode")).map(Some),
                None => Some(None),
            };
            if raw.only_v6.is_some() {
                self.report.error(
                    &at.field("only_v6"),
                    "is for IPv6 addresses, and this is a Unix socket; leave it out",
                );
            }
            return Some(Bind::Unix { path: path?, mode: mode? });
        }
        if raw.mode.is_some() {
            self.report
                .error(&at.field("mode"), "is for Unix sockets, and this is a TCP address; leave it out");
        }
        let address: SocketAddr = match text.parse() {
            Ok(address) => address,
            Err(_) if text.starts_with('/') => {
                return self
                    .refuse(&bind_at, format!("for a Unix socket write {:?}", format!("unix:{text}")));
            }
            Err(_) => return self.refuse(&bind_at, not_a_socket_address(text)),
        };
        if raw.only_v6.is_some() && address.is_ipv4() {
            self.report.error(&at.field("only_v6"), "is for IPv6 addresses, and this is IPv4; leave it out");
        }
        Some(Bind::Tcp { address, only_v6: raw.only_v6.unwrap_or(false) })
    }

    fn mode(&mut self, mode: &str, at: &At) -> Option<u32> {
        let digits = (3..=4).contains(&mode.len()) && mode.bytes().all(|b| (b'0'..=b'7').contains(&b));
        match u32::from_str_radix(mode, 8) {
            Ok(mode) if digits && mode <= 0o777 => Some(mode),
            _ => self.refuse(at, format!("{mode:?} is no mode; write three octal digits, such as \"0660\"")),
        }
    }

    fn certificates(&mut self, raw: Option<&[file::Certificate]>, at: &At) -> Option<Vec<Certificate>> {
        let Some(raw) = raw else { return Some(Vec::new()) };
        if raw.is_empty() {
            return self.refuse(
                at,
                "has no certificate; add (cert: \"…\", key: \"…\"), or leave tls out for cleartext",
            );
        }
        let mut seen = HashSet::new();
        let mut certificates = Vec::with_capacity(raw.len());
        for (index, raw) in raw.iter().enumerate() {
            let at = at.index(index);
            let mut file = |path: Option<&std::path::Path>, name: &str, missing: &str| {
                let at = at.field(name);
                let path = self.required(path, &at, missing)?;
                self.path(path, &at)
            };
            let cert =
                file(raw.cert.as_deref(), "cert", "missing; name the PEM file of the certificate chain");
            let key = file(raw.key.as_deref(), "key", "missing; name the PEM file of the private key");
            let certificate = cert.zip(key).map(|(cert, key)| Certificate { cert, key });
            if certificate.is_some() && !seen.insert(certificate.clone()) {
                self.report.error(&at, "this pair stands here twice; leave one out");
            }
            certificates.push(certificate);
        }
        certificates.into_iter().collect()
    }

    fn limits(&mut self, raw: Option<&file::Limits>, at: &At) -> Option<Limits> {
        let default = Limits::default();
        let Some(raw) = raw else { return Some(default) };
        let connections = self.count_or(
            raw.connections,
            default.connections,
            &at.field("connections"),
            1..=MAX_CONNECTIONS,
        );
        let header_bytes = self.count_or(
            raw.header_bytes.map(|size| size.0),
            default.header_bytes,
            &at.field("header_bytes"),
            HEADER_BYTES,
        );
        let header_count = self.count_or(
            raw.header_count,
            default.header_count,
            &at.field("header_count"),
            1..=MAX_HEADER_COUNT,
        );
        let streams = self.count_or(raw.streams, default.streams, &at.field("streams"), 1..=MAX_STREAMS);
        let connections_per_address = self.count(
            raw.connections_per_address,
            &at.field("connections_per_address"),
            1..=MAX_CONNECTIONS_PER_ADDRESS,
        );
        let rate = match &raw.rate {
            Some(rate) => self.rate(rate, &at.field("rate")).map(Some),
            None => Some(None),
        };
        Some(Limits {
            connections: connections?,
            header_bytes: header_bytes?,
            header_count: header_count?,
            body_bytes: raw.body_bytes.map_or(default.body_bytes, |size| size.0),
            streams: streams?,
            connections_per_address: connections_per_address?.and_then(non_zero),
            rate: rate?,
        })
    }

    fn rate(&mut self, raw: &file::Rate, at: &At) -> Option<Rate> {
        let field = at.field("per_second");
        let missing = "missing; write how many requests a second an address may make, such as per_second: 50";
        let per_second = self.required(raw.per_second, &field, missing)?;
        let per_second = self.count(Some(per_second), &field, 1..=MAX_PER_SECOND)??;
        let longest = MAX_BURST_SECONDS * per_second;
        let burst = self.count(raw.burst, &at.field("burst"), 1..=longest.min(u32::MAX.into()))?;
        Some(Rate { per_second: non_zero(per_second)?, burst: non_zero(burst.unwrap_or(per_second))? })
    }

    fn client_timeouts(
        &mut self,
        raw: Option<&file::ClientTimeouts>,
        drain: Duration,
        at: &At,
    ) -> Option<ClientTimeouts> {
        let mut default = ClientTimeouts::default();
        default.drain_idle = default.drain_idle.min(drain / 2);
        let Some(raw) = raw else { return Some(default) };
        let proxy_header = self.duration(raw.proxy_header, default.proxy_header, &at.field("proxy_header"));
        let tls = self.duration(raw.tls, default.tls, &at.field("tls"));
        let head = self.duration(raw.head, default.head, &at.field("head"));
        let body = self.duration(raw.body, default.body, &at.field("body"));
        let idle = self.duration(raw.idle, default.idle, &at.field("idle"));
        let write = self.duration(raw.write, default.write, &at.field("write"));
        let drain_at = at.field("drain_idle");
        let drain_idle = self.duration(raw.drain_idle, default.drain_idle, &drain_at);
        if drain_idle.is_some_and(|idle| idle > drain) {
            return self.refuse(&drain_at, "is longer than the site's drain_timeout, which ends everything");
        }
        Some(ClientTimeouts {
            proxy_header: proxy_header?,
            tls: tls?,
            head: head?,
            body: body?,
            idle: idle?,
            write: write?,
            drain_idle: drain_idle?,
        })
    }
}

/// `None` for what a range has refused already.
fn non_zero(value: u64) -> Option<NonZeroU32> {
    NonZeroU32::new(value.try_into().ok()?)
}
