//! The site as it is written: typed, but not yet checked, records. [`crate::parse`] reads them from RON and
//! [`crate::Site::builder`] collects them in code; one resolver turns either into the model.
//!
//! `None` is a field that is not written. Durations and sizes are parsed, names and addresses are text.

mod app;
mod convert;
mod decode;
mod scalar;

use std::path::PathBuf;
use std::time::Duration;

pub use app::{App, Listen, ProcessLimits, Processes, ToApp};
pub(crate) use decode::Decode;
use decode::record;
pub use scalar::Size;

/// Entries of a map in the order of the file. A name that stands twice is an error of the site.
#[derive(Clone, Debug, PartialEq)]
pub struct Named<T>(pub Vec<(String, T)>);

impl<T> Default for Named<T> {
    fn default() -> Self {
        Named(Vec::new())
    }
}

record! {
    /// A whole site.
    Site {
        /// Required. See [`crate::model::Site::name`].
        name: String,
        /// Runtime threads of a process, 1 to 1024.
        threads: u64,
        /// Instance processes under a controller.
        instances: Instances,
        /// Relative to the file's directory.
        state_dir: PathBuf,
        /// How long a drain waits.
        drain_timeout: Duration,
        /// The admin interface.
        admin: Admin,
        /// The access log.
        access_log: AccessLog,
        /// Required, at least one.
        listeners: Named<Listener>,
        /// What `Proxy` may name.
        upstreams: Named<Upstream>,
        /// What `App` may name.
        apps: Named<App>,
        /// In any order; the most specific wins.
        routes: Vec<Route>,
    }
    later: caches
}

record! {
    /// How many instance processes there are.
    Instances {
        /// Never fewer, 1 to 64.
        min: u64,
        /// Never more, up to 64. Required.
        max: u64,
        /// From an instance's start to its being ready.
        ready_timeout: Duration,
        /// How long an instance may be silent, at least a second.
        heartbeat_timeout: Duration,
        /// What must stay free when an instance is added.
        min_free_memory: Size,
        /// When there are more or fewer.
        scaling: Scaling,
    }
}

record! {
    /// When instances are added and taken away.
    Scaling {
        /// A share of the CPU time of its threads, 0.05 to 1.
        up_at: f64,
        /// Such a share, less than `up_at`.
        down_at: f64,
        /// How long it must be too much.
        up_after: Duration,
        /// How long it must be too little.
        down_after: Duration,
        /// From a change to the next.
        cooldown: Duration,
    }
}

record! {
    /// The admin interface.
    Admin {
        /// `"127.0.0.1:9900"`
        bind: String,
        /// Relative to the file's directory.
        token_file: PathBuf,
        /// Further accepted values of `Host`.
        hosts: Vec<String>,
    }
    short: bind
}

record! {
    /// The access log.
    AccessLog {
        /// `"-"` is standard output, else a path. Required.
        to: String,
        /// Default `Json`.
        format: LogFormat,
    }
    short: to
}

/// The access log's line format.
pub type LogFormat = crate::model::LogFormat;

record! {
    /// A listening socket.
    Listener {
        /// `"0.0.0.0:8080"`, `"[::]:8080"` or `"unix:/path"`. Required.
        bind: String,
        /// Refuse IPv4-mapped addresses on an IPv6 socket.
        only_v6: bool,
        /// Permission bits of a Unix socket in octal, `"0660"`.
        mode: String,
        /// Certificates; the first is the default.
        tls: Vec<Certificate>,
        /// Offer HTTP/2.
        http2: bool,
        /// Whether PROXY headers are read.
        proxy_protocol: ProxyProtocol,
        /// Offer HTTP/3, over UDP at the same address.
        http3: bool,
        /// Answer safe requests over HTTP/3 before the handshake has ended.
        early_data: bool,
        /// How instances share it.
        sharing: Sharing,
        /// What a client may send.
        limits: Limits,
        /// How long a client may take.
        timeouts: ClientTimeouts,
    }
    short: bind
}

/// `Required`, `Optional`, or either with `(trusted: […])`.
#[derive(Clone, Debug, PartialEq)]
pub enum ProxyProtocol {
    /// A connection without a header is closed.
    Required(Trust),
    /// A connection may begin with a header.
    Optional(Trust),
}

record! {
    /// Whose PROXY headers are believed.
    Trust {
        /// `"10.0.0.0/8"` or `"10.0.0.7"`. Required on TCP.
        trusted: Vec<String>,
    }
}

record! {
    /// A certificate chain and its key.
    Certificate {
        /// PEM, leaf first. Required.
        cert: PathBuf,
        /// PEM. Required.
        key: PathBuf,
    }
}

record! {
    /// What a client may send.
    Limits {
        /// Open connections.
        connections: u64,
        /// Of a request's head.
        header_bytes: Size,
        /// Fields of a request.
        header_count: u64,
        /// Of a request body.
        body_bytes: Size,
        /// Concurrent streams of an HTTP/2 or HTTP/3 connection.
        streams: u64,
        /// Open connections of one client address.
        connections_per_address: u64,
        /// Requests of one client address.
        rate: Rate,
    }
}

record! {
    /// How many requests a client address may make.
    Rate {
        /// In the long run, 1 to 1,000,000. Required.
        per_second: u64,
        /// At once; default `per_second`.
        burst: u64,
    }
}

record! {
    /// How long a client may take.
    ClientTimeouts {
        /// The PROXY header.
        proxy_header: Duration,
        /// The TLS handshake.
        tls: Duration,
        /// A request's head.
        head: Duration,
        /// Between two reads of a body.
        body: Duration,
        /// Between two requests.
        idle: Duration,
        /// Between two writes.
        write: Duration,
        /// For the next request, once a drain has begun.
        drain_idle: Duration,
    }
}

record! {
    /// A group of servers.
    Upstream {
        /// Required, at least one.
        servers: Vec<Server>,
        /// Say by PROXY headers who the client is.
        proxy_protocol: ProxyVersion,
        /// How a server is chosen.
        balance: Balance,
        /// Active checks.
        health: Health,
        /// Passive ejection.
        ejection: Ejection,
        /// How long a server may take.
        timeouts: UpstreamTimeouts,
        /// Idle connections.
        keep_alive: KeepAlive,
        /// Further tries of what is provably unsent, at most 10.
        retries: u64,
    }
}

/// How a server is chosen.
pub type Balance = crate::model::Balance;

/// The version of a PROXY header.
pub type ProxyVersion = crate::model::ProxyVersion;

/// See [`crate::model::Sharing`].
pub type Sharing = crate::model::Sharing;

record! {
    /// One server: `"10.0.0.1:9000"`, `("10.0.0.1:9000", 3)` or a record.
    Server {
        /// `"10.0.0.1:9000"`, `"[::1]:9000"`, `"api.internal:9000"` or `"unix:/path"`. Required.
        address: String,
        /// Its share, 1 to 65535.
        weight: u64,
    }
    short: address
    tuple: address weight
}

record! {
    /// Active health checks.
    Health {
        /// Required.
        path: String,
        /// `Host` of the check.
        host: String,
        /// Between two checks.
        interval: Duration,
        /// For one check.
        timeout: Duration,
        /// Successes in a row.
        healthy_after: u64,
        /// Failures in a row.
        unhealthy_after: u64,
        /// First and last status that count as success.
        statuses: (u16, u16),
    }
    short: path
}

/// Passive ejection.
#[derive(Clone, Debug, PartialEq)]
pub enum Ejection {
    /// Never eject.
    Off,
    /// Eject, with these settings.
    On(EjectionSettings),
}

record! {
    /// When and for how long a server is ejected.
    EjectionSettings {
        /// Failures in a row.
        failures: u64,
        /// How long it is left out.
        duration: Duration,
    }
}

record! {
    /// How long a server may take.
    UpstreamTimeouts {
        /// To connect.
        connect: Duration,
        /// To the first byte of the answer.
        first_byte: Duration,
        /// Between two reads or writes.
        idle: Duration,
    }
}

record! {
    /// Idle connections to each server.
    KeepAlive {
        /// Kept per server; 0 keeps none.
        max_idle: u64,
        /// Closed after this.
        timeout: Duration,
    }
}

record! {
    /// A route.
    Route {
        /// Names of listeners; not written is all.
        listeners: Vec<String>,
        /// `"example.org"` or `"*.example.org"`.
        host: String,
        /// `"/"` where it is not written; a final `/` makes it a prefix.
        path: String,
        /// What answers. Required.
        to: Target,
        /// Bytes of a request body, in place of the listener's.
        max_body: Size,
        /// Fields set on every answer.
        headers: Named<String>,
        /// WebSocket and other tunnels, on routes to `Proxy` and `Handler`.
        tunnel: Tunnel,
    }
    later: cache
}

record! {
    /// What may become a tunnel, and for how long.
    Tunnel {
        /// Default `["websocket"]`; empty allows none.
        protocols: Vec<String>,
        /// Without a byte in either direction.
        idle: Duration,
        /// In all.
        life: Duration,
        /// After so much silence the client is sent a Ping.
        ping: Duration,
        /// What becomes of it when a reload changes its route.
        on_reload: OnReload,
    }
}

/// See [`crate::model::OnReload`].
pub type OnReload = crate::model::OnReload;

/// What answers the requests of a route.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// A fixed answer.
    Respond(Respond),
    /// A redirect.
    Redirect(Redirect),
    /// Files.
    Static(Static),
    /// An upstream.
    Proxy(Proxy),
    /// Scripts, and the files beside them.
    FastCgi(FastCgi),
    /// An app.
    App(ToApp),
    /// A handler of the embedding program.
    Handler(Handler),
}

record! {
    /// `Respond("text")` or `Respond(status: 200, body: "text")`.
    Respond {
        /// Default 200.
        status: u16,
        /// Default empty.
        body: String,
    }
    short: body
}

record! {
    /// `Redirect("/new")` or `Redirect(status: 308, location: "/new")`.
    Redirect {
        /// Default 307.
        status: u16,
        /// A template. Required.
        location: String,
    }
    short: location
}

record! {
    /// `Static("public")` or `Static(root: "public", …)`.
    Static {
        /// Required.
        root: PathBuf,
        /// Where symbolic links may lead besides.
        follow: Vec<PathBuf>,
        /// Default `["index.html"]`.
        index: Vec<String>,
        /// Codings of precompressed siblings.
        precompressed: Vec<Encoding>,
        /// `Cache-Control` of files.
        cache_control: String,
    }
    short: root
}

/// A content coding.
pub type Encoding = crate::model::Encoding;

record! {
    /// `Proxy("api")` or `Proxy(upstream: "api", …)`.
    Proxy {
        /// Required.
        upstream: String,
        /// Take the route's prefix off.
        strip_prefix: bool,
        /// Send the client's `Host`.
        preserve_host: bool,
    }
    short: upstream
}

record! {
    /// `FastCgi(upstream: "php", root: "public", …)`.
    FastCgi {
        /// Required, unless `app` is there.
        upstream: String,
        /// In place of `upstream`: an app of the site.
        app: String,
        /// Required.
        root: PathBuf,
        /// Where symbolic links may lead besides.
        follow: Vec<PathBuf>,
        /// `root` as the servers see it; absolute.
        script_root: PathBuf,
        /// Default `["index.php", "index.html"]`.
        index: Names,
        /// Default `".php"`.
        split: Names,
        /// Whether the index script at the root answers for what is missing.
        front_controller: bool,
        /// Further variables.
        params: Named<String>,
        /// Bytes of content without a length that are held.
        buffer: Size,
        /// Whose files scripts may have sent.
        sendfile: PathBuf,
    }
}

/// `"name"` or `["name", …]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Names(pub Vec<String>);

record! {
    /// `Handler("name")`.
    Handler {
        /// Required.
        name: String,
    }
    short: name
}
