//! Managed applications: programs that the site starts, watches and forwards requests to.

use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{Balance, Ejection, Health, KeepAlive, Proxy, Upstream, UpstreamProtocol, UpstreamTimeouts};

/// A program that the site starts in as many processes as are wanted. To requests it is an upstream whose servers are
/// those of its processes that are ready.
#[derive(Clone, Debug, PartialEq)]
pub struct App {
    /// Its name in the site file, in the log and in the actor tree.
    pub name: Arc<str>,
    /// The program and its arguments, at least the program.
    pub command: Vec<Template>,
    /// Where it is started. Default: the directory of the site file.
    pub dir: PathBuf,
    /// Variables beside those that are inherited; names are unique.
    pub env: Vec<(String, Template)>,
    /// What its processes speak: FastCGI where `FastCgi` routes name it.
    pub protocol: UpstreamProtocol,
    /// What each process is to listen on. Default `Socket` where command or environment name `{socket}`, else `Port`.
    pub listen: Listen,
    /// How many processes. Default 1.
    pub processes: Processes,
    /// Requests in flight for each process from which there is to be another, where `processes` is a range. Default 8.
    pub busy_at: NonZeroU32,
    /// The user that it runs as, a name or a number; only where the site runs as root.
    pub user: Option<String>,
    /// The group that it runs as, a name or a number; the user's own where only that is set.
    pub group: Option<String>,
    /// From a process's start to its being ready, and how long a request waits for one that is. Default 30 s.
    pub ready_timeout: Duration,
    /// How long a process that is to end may take for the requests in flight, and again from TERM to KILL. Default 10 s.
    pub stop_timeout: Duration,
    /// What a process must answer to be ready, and go on answering; `None` is that it can be connected to.
    pub health: Option<Health>,
    /// Resident bytes of a process and its children beyond which it is replaced.
    pub max_memory: Option<NonZeroU64>,
    /// Requests after which a process is replaced.
    pub max_requests: Option<NonZeroU64>,
    /// All processes end after so long without a request; the next request starts one.
    pub idle_stop: Option<Duration>,
    /// What the kernel lets each process have.
    pub limits: ProcessLimits,
    /// How long a process may take to answer.
    pub timeouts: UpstreamTimeouts,
    /// Idle connections that are kept.
    pub keep_alive: KeepAlive,
}

/// What each process of an app is to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A Unix socket in the state directory: `PLAYHOUSE_SOCKET`, `{socket}`.
    Socket,
    /// A port of 127.0.0.1 that is free: `PORT` and `HOST`, `{port}`.
    Port,
}

/// How many processes of an app there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processes {
    /// Never fewer, unless it is stopped for being idle.
    pub min: NonZeroU32,
    /// Never more, but for one that is to take another's place. At least `min`, at most 64.
    pub max: NonZeroU32,
}

/// What the kernel lets a process have (setrlimit(2)); `None` is what the site itself may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessLimits {
    /// Open descriptors (`RLIMIT_NOFILE`).
    pub open_files: Option<u64>,
    /// Bytes of address space (`RLIMIT_AS`).
    pub address_space: Option<u64>,
    /// Processes and threads of its user (`RLIMIT_NPROC`).
    pub processes: Option<u64>,
    /// Bytes of a core dump (`RLIMIT_CORE`).
    pub core: Option<u64>,
}

/// Requests forwarded to an app.
#[derive(Clone, Debug, PartialEq)]
pub struct ToApp {
    /// The name of an app that exists.
    pub app: Arc<str>,
    /// Take the route's prefix off the path (leaving a `/`). Default false.
    pub strip_prefix: bool,
    /// Send the client's `Host`; false sends the process's address. Default true.
    pub preserve_host: bool,
}

impl App {
    /// The upstream that it is to requests, without servers: those are its processes. No upstream of a site file has such a
    /// name.
    pub fn upstream(&self) -> Upstream {
        Upstream {
            name: format!("app:{}", self.name).into(),
            servers: Vec::new(),
            protocol: self.protocol,
            proxy_protocol: None,
            balance: Balance::LeastConnections,
            health: self.health.clone(),
            ejection: Some(Ejection::default()),
            timeouts: self.timeouts.clone(),
            keep_alive: self.keep_alive.clone(),
            retries: 2,
        }
    }

    /// Whether a process that was started by these settings is as one started by those.
    pub fn same_process(&self, other: &App) -> bool {
        let process = |app: &App| {
            let App { command, dir, env, listen, user, group, limits, .. } = app.clone();
            (command, dir, env, listen, user, group, limits)
        };
        process(self) == process(other)
    }
}

impl ToApp {
    /// The same towards the app's upstream.
    pub fn proxy(&self) -> Proxy {
        Proxy {
            upstream: self.app.clone(),
            strip_prefix: self.strip_prefix,
            preserve_host: self.preserve_host,
        }
    }
}

/// Text with variables: `{socket}`, `{port}`, `{name}` and `{place}`. Any other brace is itself, so that JSON and shell can
/// be written as they are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Template(String);

/// What is known of a process before it is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Values<'a> {
    /// The Unix socket's path; empty with a port.
    pub socket: &'a str,
    /// The port; `None` with a Unix socket.
    pub port: Option<u16>,
    /// The app's name.
    pub name: &'a str,
    /// The process's place among those of its app, from 1.
    pub place: u32,
}

impl Template {
    /// Names of variables.
    pub const VARIABLES: [&'static str; 4] = ["socket", "port", "name", "place"];

    /// A template with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Template(text.into())
    }

    /// As written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it names the variable.
    pub fn names(&self, variable: &str) -> bool {
        self.0.contains(&format!("{{{variable}}}"))
    }

    /// The text with each variable's value in its place. A value is not looked into again.
    pub fn fill(&self, values: &Values<'_>) -> String {
        let mut filled = String::with_capacity(self.0.len());
        let mut rest = &*self.0;
        while let Some(begin) = rest.find('{') {
            filled.push_str(&rest[..begin]);
            rest = &rest[begin..];
            let named = |variable: &&&str| {
                rest[1..].strip_prefix(**variable).is_some_and(|after| after.starts_with('}'))
            };
            match Self::VARIABLES.iter().find(named) {
                Some(variable) => {
                    match *variable {
                        "socket" => filled.push_str(values.socket),
                        "port" => filled.extend(values.port.map(|port| port.to_string())),
                        "name" => filled.push_str(values.name),
                        _ => filled.push_str(&values.place.to_string()),
                    }
                    rest = &rest[variable.len() + 2..];
                }
                None => {
                    filled.push('{');
                    rest = &rest[1..];
                }
            }
        }
        filled.push_str(rest);
        filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_filled_in_once_and_other_braces_are_left_alone() {
        let values = Values { socket: "/run/{port}.sock", port: Some(80), name: "blog", place: 2 };
        let filled = |text: &str| Template::new(text).fill(&values);
        assert_eq!(filled("unix:{socket}"), "unix:/run/{port}.sock");
        assert_eq!(filled("{name}-{place}:{port}{port}"), "blog-2:8080");
        for text in ["", "{", "}", "{}", "{{", "${HOME}", "{\"a\": {\"b\": 1}}", "{ports}", "{ port}"] {
            assert_eq!(filled(text), text);
        }
        assert_eq!(filled("{{port}}"), "{80}");
    }
}
