//! One request on its way to an answer, and the connection that it came by.

use std::net::SocketAddr;
use std::sync::Arc;

use http::{HeaderMap, Request, StatusCode};
use tokio::time::Instant;

use crate::alternative::Alternative;
use crate::engine::{h1, h2, h3};
use crate::metrics::{RouteMetrics, ServerMetrics};
use crate::published::Snapshot;
use crate::router::{Route, Router};
use crate::shared::addresses::Meter;
use crate::tls::ListenerCertificates;
use crate::{Outcome, RequestBody};

/// One request: what the engine read, and what is noted about it on its way.
#[derive(Debug)]
pub struct Exchange {
    /// Head and body. The URI is as received (origin-form, absolute-form, or from h2's pseudo-header fields).
    pub request: Request<RequestBody>,
    /// The connection it came by.
    pub connection: Arc<ConnectionInfo>,
    /// Sends interim answers, where the engine can.
    pub informational: Informational,
    /// What ledger, metrics and log need to know.
    pub record: Record,
}

/// What is noted about a request on its way.
#[derive(Debug)]
pub struct Record {
    /// When the first byte of the head was read.
    pub started: Instant,
    /// The outcome, where it is not [`Outcome::Answered`] even though an answer is sent in full: a handler sets
    /// `UpstreamFailed` with its 502 or 504, `Shed` with its 503, `Rejected` with a 4xx for a bad request or limit.
    pub outcome: Option<Outcome>,
    /// The route that was taken; its handles count the request when it has ended.
    pub route: Option<Arc<RouteMetrics>>,
    /// The upstream server that answered last.
    pub server: Option<Arc<ServerMetrics>>,
    /// It came in early data (0-RTT), and is handled although its connection's handshake has not ended: somebody may be
    /// repeating what the client has sent once. Only GET, HEAD and OPTIONS without content come so, and their heads say
    /// `Early-Data: 1` (RFC 8470 §5.1).
    pub early: bool,
    /// What went by, where the request has become a tunnel.
    pub tunnel: Option<Box<crate::tunnel::Summary>>,
    /// What the access log says of the request; filled only where there is a log.
    pub log: Option<Arc<crate::access_log::Entry>>,
    /// For the next request of the connection.
    pub(crate) kept: Kept,
}

/// What requests of a connection that follow one another mostly have in common, so that it is not fetched for each.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// The routes that the last one was looked up in.
    pub(crate) routes: Option<Snapshot<Router<Arc<Route>>>>,
    /// The handles of the route that the last one took.
    route: Option<Arc<RouteMetrics>>,
}

impl Record {
    /// A record of a request whose first byte was read at `started`.
    pub fn new(started: Instant) -> Self {
        Record {
            started,
            outcome: None,
            route: None,
            server: None,
            early: false,
            tunnel: None,
            log: None,
            kept: Kept::default(),
        }
    }

    /// Makes this the record of the connection's next request.
    pub(crate) fn renew(&mut self, started: Instant) {
        let kept = Kept { routes: self.kept.routes.take(), route: self.route.take() };
        *self = Record { kept, ..Record::new(started) };
    }

    /// Notes the route that was taken.
    pub(crate) fn take_route(&mut self, route: &Arc<RouteMetrics>) {
        let kept = self.kept.route.take().filter(|kept| Arc::ptr_eq(kept, route));
        self.route = Some(kept.unwrap_or_else(|| route.clone()));
    }
}

/// A connection's unchanging facts.
#[derive(Debug)]
pub struct ConnectionInfo {
    /// Unique in the process.
    pub id: u64,
    /// The listener's name.
    pub listener: Arc<str>,
    /// The listener's number: small, dense, stable for its name while the process lives. Indexes metric handles.
    pub listener_index: usize,
    /// The client: whoever has connected, or whom a proxy that is believed has named by a PROXY header.
    pub peer: Peer,
    /// Where the client has connected to, on a proxy or here; `None` on a Unix socket.
    pub local: Option<SocketAddr>,
    /// What a proxy has said by a PROXY header that names a client; `None` without one.
    pub proxied: Option<Box<Proxied>>,
    /// `Some` over TLS that ends here.
    pub tls: Option<TlsInfo>,
    /// Counts the requests of the client's address, where the listener has a rate.
    pub rate: Option<Meter>,
    /// Where the same is offered over HTTP/3, if it is.
    pub alternative: Option<Arc<Alternative>>,
}

impl ConnectionInfo {
    /// `https` where the client has connected over TLS, here or to a proxy that says so; else `http`.
    pub fn scheme(&self) -> &'static str {
        let proxied = || self.proxied.as_ref().is_some_and(|proxied| proxied.tls);
        if self.tls.is_some() || proxied() { "https" } else { "http" }
    }

    /// The version of TLS that the client speaks, as [`TlsInfo::version`] has it.
    pub fn tls_version(&self) -> Option<&str> {
        match &self.tls {
            Some(tls) => Some(tls.version),
            None => self.proxied.as_ref()?.tls_version.as_deref(),
        }
    }

    /// The server name that the client has asked for by TLS.
    pub fn server_name(&self) -> Option<&str> {
        match &self.tls {
            Some(tls) => tls.server_name.as_deref(),
            None => self.proxied.as_ref()?.server_name.as_deref(),
        }
    }
}

/// What a proxy has said of its client's connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxied {
    /// The proxy.
    pub by: Peer,
    /// Whether the client has connected to it over TLS.
    pub tls: bool,
    /// As the proxy writes it, `TLSv1.3`.
    pub tls_version: Option<Box<str>>,
    /// The server name that the client has asked for.
    pub server_name: Option<Box<str>>,
}

/// What the TLS handshake has settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsInfo {
    /// The server name the client asked for.
    pub server_name: Option<Arc<str>>,
    /// `TLSv1.2` or `TLSv1.3`.
    pub version: &'static str,
    /// Whether h2 was chosen.
    pub alpn_h2: bool,
    pub(crate) certificates: ListenerCertificates,
}

impl TlsInfo {
    /// Whether the connection may carry requests for `host`: the client has asked for no name, for this one, or for one
    /// that the same certificate answers to (RFC 9110 §7.4). What was agreed for one name is not used for another.
    pub fn is_for(&self, host: &str) -> bool {
        let asked = self.server_name.as_deref();
        asked.is_none_or(|name| name.eq_ignore_ascii_case(host) || self.certificates.share(name, host))
    }
}

/// A client's address. Displays as the IP address (IPv4-mapped ones as IPv4), or `unix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A TCP or UDP peer.
    Tcp(SocketAddr),
    /// A Unix socket's peer.
    Unix,
}

impl Peer {
    /// Its address; `None` of a Unix socket's peer.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Peer::Tcp(address) => Some(*address),
            Peer::Unix => None,
        }
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Peer::Tcp(address) => address.ip().to_canonical().fmt(f),
            Peer::Unix => f.write_str("unix"),
        }
    }
}

/// Sends 1xx answers before the final one.
#[derive(Clone, Debug)]
pub enum Informational {
    /// The engine or the protocol version has none (HTTP/1.0).
    Unsupported,
    /// HTTP/1.1.
    H1(h1::InformationalSender),
    /// HTTP/2.
    H2(h2::InformationalSender),
    /// HTTP/3.
    H3(h3::InformationalSender),
}

impl Informational {
    /// Queues an interim answer (100 to 199 but 101). Ignored where unsupported or once the final answer has begun.
    pub fn send(&self, status: StatusCode, headers: HeaderMap) {
        match self {
            Informational::Unsupported => {}
            Informational::H1(sender) => sender.send(status, headers),
            Informational::H2(sender) => sender.send(status, headers),
            Informational::H3(sender) => sender.send(status, headers),
        }
    }
}
