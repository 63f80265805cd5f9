//! What a valid site is. Every value of these types is complete and checked: names resolve, durations are positive,
//! relative paths have been joined to the directory of the site file.

use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode};

/// One site: everything one `playhouse run` serves.
#[derive(Clone, Debug, PartialEq)]
pub struct Site {
    /// Letters, digits, `-`, `_` and `.`, at most 64 bytes; part of the default state directory's path.
    pub name: String,
    /// Runtime threads of a process; `None` is one per CPU, and a single one with `instances`.
    pub threads: Option<NonZeroUsize>,
    /// How many instance processes a controller keeps; `None` is one process without a controller.
    pub instances: Option<Instances>,
    /// Where the admin socket, the lock and the ledger's pages live; `None` is the default for the name.
    pub state_dir: Option<PathBuf>,
    /// How long a drain waits for requests in flight before it ends what is left. Default 30 s.
    pub drain_timeout: Duration,
    /// The admin interface over TCP. `admin.sock` in the state directory exists in any case.
    pub admin: Admin,
    /// `None` writes no access log.
    pub access_log: Option<AccessLog>,
    /// At least one; names are unique.
    pub listeners: Vec<Listener>,
    /// Names are unique.
    pub upstreams: Vec<Upstream>,
    /// In the file's order; the router orders them by how specific they are.
    pub routes: Vec<Route>,
}

/// How many instance processes there are, and who is one too many or too slow.
#[derive(Clone, Debug, PartialEq)]
pub struct Instances {
    /// Never fewer. Default 1.
    pub min: NonZeroU32,
    /// Never more, but for those that are being replaced. At least `min`, at most 64.
    pub max: NonZeroU32,
    /// From the start of an instance's process to its being ready; over it, the process is killed. Default 10 s.
    pub ready_timeout: Duration,
    /// An instance that has not been heard from for so long is replaced. At least 1 s; default 5 s.
    pub heartbeat_timeout: Duration,
    /// Bytes that must stay free when an instance is started beyond `min`; 0 does not look. Default 64 MiB.
    pub min_free_memory: u64,
    /// When there are more or fewer, between `min` and `max`.
    pub scaling: Scaling,
}

impl Instances {
    /// Places for instances, numbered from 1: each of `max` may have a successor beside it, and two are spare for those
    /// that drain.
    pub fn slots(&self) -> u32 {
        2 * self.max.get() + 2
    }
}

/// When instances are added and taken away. A load is a share of the CPU time that an instance's threads could use.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaling {
    /// One more from this mean load on, 0.05 to 1. Default 0.75.
    pub up_at: f64,
    /// One fewer below this mean load, 0 (never) to less than `up_at`. Default 0.3.
    pub down_at: f64,
    /// How long it must be too much. Default 3 s.
    pub up_after: Duration,
    /// How long it must be too little. Default 60 s.
    pub down_after: Duration,
    /// From a change that has come into effect to the next. Default 10 s.
    pub cooldown: Duration,
}

impl Default for Scaling {
    fn default() -> Self {
        Scaling {
            up_at: 0.75,
            down_at: 0.3,
            up_after: Duration::from_secs(3),
            down_after: Duration::from_secs(60),
            cooldown: Duration::from_secs(10),
        }
    }
}

/// The admin interface.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Admin {
    /// Its TCP address; `None` is only the Unix socket.
    pub bind: Option<SocketAddr>,
    /// A file whose trimmed content is the bearer token.
    pub token_file: Option<PathBuf>,
    /// Values of `Host` that are accepted beside `localhost` and IP literals of the bind: lower case, without a port or a
    /// final dot, IPv6 in brackets.
    pub hosts: Vec<String>,
}

/// Where and how finished requests are logged.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessLog {
    /// The destination.
    pub to: LogDestination,
    /// The line format.
    pub format: LogFormat,
}

/// Where log lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogDestination {
    /// Standard output.
    Stdout,
    /// Appended to a file, which is opened again at a reload.
    File(PathBuf),
}

/// The access log's line format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// Apache's "combined" format.
    Combined,
}

/// One listening socket.
#[derive(Clone, Debug, PartialEq)]
pub struct Listener {
    /// Its name in the site file, in metrics and in the actor tree.
    pub name: Arc<str>,
    /// The address.
    pub bind: Bind,
    /// Certificates; empty is cleartext. The first is the default for clients without a matching SNI name.
    pub tls: Vec<Certificate>,
    /// Offer HTTP/2: by ALPN over TLS, by prior knowledge on cleartext. Default true.
    pub http2: bool,
    /// Whether proxies say who their clients are, by a PROXY header before everything else; `None` is never.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// How the instances of a site share the listener.
    pub sharing: Sharing,
    /// What a client may send.
    pub limits: Limits,
    /// How long a client may take.
    pub timeouts: ClientTimeouts,
}

/// Whom a listener believes a PROXY header (HAProxy's PROXY protocol, version 1 or 2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyProtocol {
    /// Whether a connection without one is closed. Where it is not required, those that are trusted may send one, and
    /// that of others is taken for a malformed request.
    pub required: bool,
    /// Who is believed; of no meaning on a Unix socket, where whoever can connect is.
    pub trusted: Vec<Network>,
}

impl ProxyProtocol {
    /// Whether the peer is believed; `None` is the peer of a Unix socket.
    pub fn trusts(&self, peer: Option<IpAddr>) -> bool {
        peer.is_none_or(|peer| self.trusted.iter().any(|network| network.contains(peer)))
    }
}

/// A range of addresses, `10.0.0.0/8`. One of IPv4 has the IPv4-mapped IPv6 addresses too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    address: IpAddr,
    /// At most 32 or 128.
    prefix: u8,
}

impl Network {
    /// All addresses that begin with the first `prefix` bits of `address`; `None` where it has fewer bits, or others of
    /// them are set.
    pub fn new(address: IpAddr, prefix: u8) -> Option<Self> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let network = Network { address, prefix };
        (prefix <= bits && network.masked(address) == bits_of(address)).then_some(network)
    }

    /// Whether the address lies in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = if self.address.is_ipv4() { address.to_canonical() } else { address };
        address.is_ipv4() == self.address.is_ipv4() && self.masked(address) == self.masked(self.address)
    }

    /// The bits of an address of the same family that the network decides by, in the upper ones.
    fn masked(&self, address: IpAddr) -> u128 {
        bits_of(address) & u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0)
    }
}

/// All bits of an address, in the upper ones.
fn bits_of(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
        IpAddr::V6(address) => u128::from(address),
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// How the instances of a site share a listener. A site of one process has one socket in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// All accept from one socket, and take turns.
    #[default]
    Inherited,
    /// Each has a socket of its own (`SO_REUSEPORT`), and the kernel chooses among them. TCP only.
    ReusePort,
}

/// Where a listener listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Bind {
    /// TCP; an IPv6 wildcard takes IPv4 too unless `only_v6`. Port 0 lets the kernel choose.
    Tcp {
        /// Address and port.
        address: SocketAddr,
        /// Refuse IPv4-mapped addresses on an IPv6 socket.
        only_v6: bool,
    },
    /// A Unix stream socket.
    Unix {
        /// The socket file. A stale one is replaced, a live one is an error.
        path: PathBuf,
        /// Permission bits of the socket file; `None` leaves the umask's.
        mode: Option<u32>,
    },
}

/// A certificate chain and its key, both PEM. The names it answers to are read from the certificate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Certificate {
    /// PEM, leaf first.
    pub cert: PathBuf,
    /// PEM: PKCS#8, SEC1 or PKCS#1.
    pub key: PathBuf,
}

/// What a client may send to a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Open connections; more wait in the kernel's queue. Default 20,000.
    pub connections: usize,
    /// Bytes of a request's head: request line and fields. Default 32 KiB; answered with 431, or 414 for the target.
    pub header_bytes: usize,
    /// Fields of a request. Default 100; answered with 431.
    pub header_count: usize,
    /// Bytes of a request body. Default 1 GiB; answered with 413.
    pub body_bytes: u64,
    /// Concurrent streams of an HTTP/2 connection. Default 128.
    pub streams: u32,
    /// Open connections of one client address (an IPv4 address, or the first 64 bits of an IPv6 address), over all
    /// instances; more are closed at once. At most 50,000; `None` limits only all together.
    pub connections_per_address: Option<NonZeroU32>,
    /// Requests of one client address, over all instances and connections; more are answered with 429.
    pub rate: Option<Rate>,
}

/// How many requests a client address may make: `burst` at once, and `per_second` in the long run. A full burst is made
/// good within an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// At most 1,000,000.
    pub per_second: NonZeroU32,
    /// Default `per_second`.
    pub burst: NonZeroU32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 20_000,
            header_bytes: 32 << 10,
            header_count: 100,
            body_bytes: 1 << 30,
            streams: 128,
            connections_per_address: None,
            rate: None,
        }
    }
}

/// How long a client may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTimeouts {
    /// The whole PROXY header. Default 10 s; closed silently.
    pub proxy_header: Duration,
    /// The TLS handshake. Default 10 s.
    pub tls: Duration,
    /// From the first byte of a head to its last. Default 10 s; answered with 408.
    pub head: Duration,
    /// Between two reads of a body that made progress. Default 30 s; answered with 408.
    pub body: Duration,
    /// Between requests on a kept-alive connection, and before the first. Default 75 s; closed silently.
    pub idle: Duration,
    /// Between two writes that made progress. Default 30 s; the connection or stream is reset.
    pub write: Duration,
    /// From the beginning of a drain to the end of a connection without a request. The next one may be on its way already:
    /// for three quarters of the time it is waited for, and answered. Default 1 s, or half of the site's drain timeout where that is less.
    pub drain_idle: Duration,
}

impl Default for ClientTimeouts {
    fn default() -> Self {
        ClientTimeouts {
            proxy_header: Duration::from_secs(10),
            tls: Duration::from_secs(10),
            head: Duration::from_secs(10),
            body: Duration::from_secs(30),
            idle: Duration::from_secs(75),
            write: Duration::from_secs(30),
            drain_idle: Duration::from_secs(1),
        }
    }
}

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
    /// Kept per server; 0 closes after each answer. Default 64, and 0 for FastCGI: behind each idle connection a process
    /// waits that serves nobody else.
    pub max_idle: usize,
    /// An idle connection is closed after this. Default 60 s.
    pub timeout: Duration,
}

impl Default for KeepAlive {
    fn default() -> Self {
        KeepAlive { max_idle: 64, timeout: Duration::from_secs(60) }
    }
}

/// One route. The most specific wins: a listener's own routes before those of all, then exact host over wildcard over
/// none, then an exact path over a prefix, then the longest prefix.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Only requests of these listeners; empty is all.
    pub listeners: Vec<Arc<str>>,
    /// Only requests to this host.
    pub host: Option<HostPattern>,
    /// Only requests to this path.
    pub path: PathPattern,
    /// What answers.
    pub to: Target,
    /// Bytes of a request body, in place of the listener's limit.
    pub max_body: Option<u64>,
    /// Fields set on every answer of this route.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// What may become a tunnel, and for how long.
    pub tunnel: Tunnel,
}

impl Route {
    /// How the route is named in metrics, logs and events: host and path as in the site file, `*` for any host.
    pub fn label(&self) -> String {
        match &self.host {
            Some(host) => format!("{host}{}", self.path),
            None => self.path.to_string(),
        }
    }
}

/// What a route lets become a tunnel (RFC 9110 §7.8, RFC 8441), and for how long. Only for [`Target::Proxy`] and
/// [`Target::Handler`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Upgrade tokens in lower case, `websocket` or `spdy/3.1`; never another version of HTTP, or TLS. Default
    /// `websocket` alone.
    pub protocols: Vec<String>,
    /// A tunnel without a byte in either direction is closed after this. Default 1 h.
    pub idle: Duration,
    /// A tunnel is closed after this, whatever goes by. Default none.
    pub life: Option<Duration>,
    /// A WebSocket's client is sent a Ping after so much silence, and closed when it does not answer for as long again.
    /// Default none; else at most `idle`.
    pub ping: Option<Duration>,
    /// What becomes of it when a reload changes its route.
    pub on_reload: OnReload,
}

impl Default for Tunnel {
    fn default() -> Self {
        Tunnel {
            protocols: vec!["websocket".to_owned()],
            idle: Duration::from_secs(60 * 60),
            life: None,
            ping: None,
            on_reload: OnReload::default(),
        }
    }
}

/// What becomes of a tunnel when a reload changes its route or the route's upstream, or takes it away. A reload that does
/// neither touches no tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnReload {
    /// It stays.
    #[default]
    Keep,
    /// As at a drain: a WebSocket is sent Close 1001 and has the site's drain timeout, another tunnel has that.
    Drain,
    /// A WebSocket is sent Close 1001 and has a few seconds, another tunnel is closed at once.
    Close,
}

/// A host to match, lower case, without a port or a final dot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// This name or IP literal, IPv6 in brackets.
    Exact(String),
    /// `*.example.org`: any name with at least one label before `.example.org`; holds `.example.org`.
    Wildcard(String),
}

impl std::fmt::Display for HostPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HostPattern::Exact(name) => f.write_str(name),
            HostPattern::Wildcard(suffix) => write!(f, "*{suffix}"),
        }
    }
}

/// A path to match against the decoded, normalised path. Both begin with `/`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PathPattern {
    /// Written without a final `/`: this path alone.
    Exact(String),
    /// Written with a final `/`: this path and all beneath it.
    Prefix(String),
}

impl std::fmt::Display for PathPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PathPattern::Exact(path) | PathPattern::Prefix(path) => f.write_str(path),
        }
    }
}

/// What answers the requests of a route.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// A fixed answer.
    Respond(Respond),
    /// A redirect.
    Redirect(Redirect),
    /// Files.
    Static(Static),
    /// Requests forwarded to an upstream.
    Proxy(Proxy),
    /// Scripts of a FastCGI program such as php-fpm, and the files beside them.
    FastCgi(FastCgi),
    /// A handler that the embedding program has registered by this name.
    Handler(Arc<str>),
}

/// A fixed answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Respond {
    /// A final status, 200 to 599.
    pub status: StatusCode,
    /// The content; `text/plain; charset=utf-8` unless the route's headers say otherwise.
    pub body: String,
}

/// A redirect.
#[derive(Clone, Debug, PartialEq)]
pub struct Redirect {
    /// 301, 302, 303, 307 or 308.
    pub status: StatusCode,
    /// The `Location`, with variables.
    pub location: Vec<Segment>,
}

/// A piece of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Literal text.
    Text(String),
    /// A value of the request.
    Variable(Variable),
}

/// A value of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variable {
    /// `{uri}`: path and query, normalised, never beginning with `//`.
    Uri,
    /// `{path}`: the path alone.
    Path,
    /// `{query}`: the query without `?`, empty where there is none.
    Query,
    /// `{host}`: the request's host without a port.
    Host,
}

/// Files beneath a root. A prefix route's own path is taken off first: with `path: "/docs/"`, `/docs/a` is `root/a`.
#[derive(Clone, Debug, PartialEq)]
pub struct Static {
    /// The directory; nothing outside of it is ever opened.
    pub root: PathBuf,
    /// Served for a directory, the first that exists. Default `["index.html"]`.
    pub index: Vec<String>,
    /// Siblings tried in the client's order of preference, this order where it has none.
    pub precompressed: Vec<Encoding>,
    /// `Cache-Control` of files, if any.
    pub cache_control: Option<HeaderValue>,
}

/// A content coding with the file suffix of its precompressed sibling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// `br`, `.br`
    Br,
    /// `zstd`, `.zst`
    Zstd,
    /// `gzip`, `.gz`
    Gzip,
}

/// Requests forwarded to an upstream.
#[derive(Clone, Debug, PartialEq)]
pub struct Proxy {
    /// The name of an upstream that exists.
    pub upstream: Arc<str>,
    /// Take the route's prefix off the path (leaving a `/`). Default false.
    pub strip_prefix: bool,
    /// Send the client's `Host`; false sends the server's address. Default true.
    pub preserve_host: bool,
}

/// Scripts beneath a root, run by an upstream, and the files beside them. A prefix route's own path is taken off first.
#[derive(Clone, Debug, PartialEq)]
pub struct FastCgi {
    /// The name of an upstream that exists and speaks FastCGI.
    pub upstream: Arc<str>,
    /// The directory; nothing outside of it is run or opened.
    pub root: PathBuf,
    /// The same directory as the servers see it. Default `root`.
    pub script_root: PathBuf,
    /// What answers for a directory, the first that exists. Default `index.php`, `index.html`.
    pub index: Vec<String>,
    /// What names of scripts end with, each beginning with a dot. Default `.php`.
    pub split: Vec<String>,
    /// Whether the first script among `index`, at the root, answers for what does not exist. Default true.
    pub front_controller: bool,
    /// Further variables for the scripts; they replace what is told under the same name.
    pub params: Vec<(String, String)>,
    /// Bytes of content without a length that are held until all of it has come; more is answered with 411. Default 1 MiB.
    pub buffer: u64,
    /// A directory whose files scripts may have sent by `X-Accel-Redirect` or `X-Sendfile`; `None` is none.
    pub sendfile: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(address: &str, prefix: u8) -> Option<Network> {
        Network::new(address.parse().unwrap(), prefix)
    }

    #[test]
    fn a_network_has_the_addresses_that_begin_like_it() {
        let contains = |network: Network, address: &str| network.contains(address.parse().unwrap());
        let ten = network("10.0.0.0", 8).unwrap();
        assert!(contains(ten, "10.255.0.1") && contains(ten, "::ffff:10.1.2.3"));
        assert!(!contains(ten, "11.0.0.0") && !contains(ten, "a00::"));
        let all = network("0.0.0.0", 0).unwrap();
        assert!(contains(all, "255.1.2.3") && !contains(all, "::1"));
        let one = network("192.0.2.7", 32).unwrap();
        assert!(contains(one, "192.0.2.7") && !contains(one, "192.0.2.6"));
        let six = network("2001:db8::", 32).unwrap();
        assert!(contains(six, "2001:db8:1::2") && !contains(six, "2001:db9::"));
        let odd = network("192.0.2.64", 26).unwrap();
        assert!(contains(odd, "192.0.2.127") && !contains(odd, "192.0.2.128"));
        assert_eq!(odd.to_string(), "192.0.2.64/26");
    }

    #[test]
    fn a_network_with_bits_behind_its_prefix_is_none() {
        assert_eq!((network("10.0.0.1", 8), network("10.0.0.0", 33)), (None, None));
        assert_eq!((network("2001:db8::1", 64), network("::", 129)), (None, None));
        assert!(network("::1", 128).is_some());
    }
}
