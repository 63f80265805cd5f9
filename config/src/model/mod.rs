//! What a valid site is. Every value of these types is complete and checked: names resolve, durations are positive,
//! relative paths have been joined to the directory of the site file.

mod app;
mod listener;
mod route;
mod upstream;

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

pub use app::*;
pub use listener::*;
pub use route::*;
pub use upstream::*;

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
    /// Names are unique.
    pub apps: Vec<App>,
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
