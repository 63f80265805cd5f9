//! Which request is answered by what.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode};

use super::ToApp;

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

/// What a route lets become a tunnel (RFC 9110 §7.8, RFC 8441), and for how long. Only for [`Target::Proxy`],
/// [`Target::App`] and [`Target::Handler`].
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
    /// Requests forwarded to an app.
    App(ToApp),
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
    /// The directory; nothing outside of it is ever opened, but for what `follow` allows.
    pub root: PathBuf,
    /// Directories that symbolic links beneath the root may lead into, absolute ones too. Default none.
    pub follow: Vec<PathBuf>,
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

/// Who runs scripts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptServers {
    /// Those of an upstream that exists and speaks FastCGI, by its name.
    Upstream(Arc<str>),
    /// Processes of an app that exists and speaks FastCGI, by its name.
    App(Arc<str>),
}

/// Scripts beneath a root, run by an upstream or an app, and the files beside them. A prefix route's own path is taken off first.
#[derive(Clone, Debug, PartialEq)]
pub struct FastCgi {
    /// Who runs them.
    pub servers: ScriptServers,
    /// The directory; nothing outside of it is run or opened, but for what `follow` allows.
    pub root: PathBuf,
    /// Directories that symbolic links beneath the root may lead into, absolute ones too. Default none.
    pub follow: Vec<PathBuf>,
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
