//! The servers that a site asks.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A group of servers that answer the same requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Upstream {
    /// Its name in the site file, in metrics and in the actor tree.
    pub name: Arc<str>,
    /// At least one; addresses are unique.
    pub servers: Vec<Server>,
    /// What its servers speak, by the routes that name it.
    pub protocol: UpstreamProtocol,
    /// Says to the servers who the client is, by a PROXY header at the beginning of each connection; `None` does not.
    pub proxy_protocol: Option<ProxyVersion>,
    /// How a server is chosen.
    pub balance: Balance,
    /// Active checks; `None` is none.
    pub health: Option<Health>,
    /// Passive ejection; `None` is off. Default on.
    pub ejection: Option<Ejection>,
    /// How long a server may take.
    pub timeouts: UpstreamTimeouts,
    /// Idle connections that are kept.
    pub keep_alive: KeepAlive,
    /// Further tries of a request that is provably unsent (another server first). Default 2.
    pub retries: u32,
}

/// One server of an upstream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    /// Where it listens.
    pub address: Address,
    /// Its share under either balance. Default 1.
    pub weight: NonZeroU32,
}

/// Where a server listens. Displays as in the site file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// A literal address and port.
    Tcp(SocketAddr),
    /// A host name and port, resolved at each connect.
    Name(Arc<str>, u16),
    /// A Unix stream socket, `unix:/path`.
    Unix(PathBuf),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Name(host, port) => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// What the servers of an upstream speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpstreamProtocol {
    /// HTTP/1.1.
    #[default]
    Http,
    /// FastCGI, the responder role.
    FastCgi,
}

/// The version of a PROXY header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyVersion {
    /// A line of text: addresses alone.
    V1,
    /// Binary: addresses, and what is known of the client's TLS.
    V2,
}

/// How a server is chosen among the eligible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// Smooth weighted round robin.
    #[default]
    RoundRobin,
    /// Fewest requests in flight per weight.
    LeastConnections,
}

/// Active health checks: `GET path` over a connection of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Origin-form target, begins with `/`.
    pub path: String,
    /// `Host` of the check; `None` is the server's address.
    pub host: Option<String>,
    /// Between two checks of one server. Default 5 s.
    pub interval: Duration,
    /// For one check. Default 2 s.
    pub timeout: Duration,
    /// Successes in a row that make a server healthy. Default 1.
    pub healthy_after: NonZeroU32,
    /// Failures in a row that make a server unhealthy. Default 2.
    pub unhealthy_after: NonZeroU32,
    /// Inclusive range of statuses that count as success. Default 200 to 399.
    pub statuses: (u16, u16),
}

/// Passive ejection: a server that fails this often in a row is left out for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// Failures in a row (connect, first byte, broken answer). Default 5.
    pub failures: NonZeroU32,
    /// How long it is left out; never all servers of an upstream at once. Default 10 s.
    pub duration: Duration,
}

impl Default for Ejection {
    fn default() -> Self {
        Ejection {
            failures: NonZeroU32::new(5).unwrap_or(NonZeroU32::MIN),
            duration: Duration::from_secs(10),
        }
    }
}

/// How long a server may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamTimeouts {
    /// To connect. Default 3 s; 504 when no other server is left.
    pub connect: Duration,
    /// From the sent request to the first byte of the answer. Default 60 s; answered with 504.
    pub first_byte: Duration,
    /// Between two reads or writes of a body that made progress. Default 60 s; the answer is cut.
    pub idle: Duration,
}

impl Default for UpstreamTimeouts {
    fn default() -> Self {
        UpstreamTimeouts {
            connect: Duration::from_secs(3),
            first_byte: Duration::from_secs(60),
            idle: Duration::from_secs(60),
        }
    }
}

/// Idle connections to each server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Kept per server and instance; 0 closes after each answer. Default 64, and 0 for FastCGI: behind each idle connection a
    /// process waits that serves nobody else. For FastCGI a site says how many all of its instances keep, and this is the
    /// share of one.
    pub max_idle: usize,
    /// An idle connection is closed after this. Default 60 s.
    pub timeout: Duration,
}

impl Default for KeepAlive {
    fn default() -> Self {
        KeepAlive { max_idle: 64, timeout: Duration::from_secs(60) }
    }
}
