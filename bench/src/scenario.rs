//! What is measured: the traffic, and who takes part.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// One kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// A file of 1 KiB, HTTP/1.1, 64 kept connections
    #[value(name = "static-1k")]
    #[serde(rename = "static-1k")]
    Static1k,
    /// A file of 1 KiB, HTTP/1.1, a connection per request, 64 at a time
    #[value(name = "static-1k-new")]
    #[serde(rename = "static-1k-new")]
    Static1kNew,
    /// A file of 1 MiB, HTTP/1.1, 16 kept connections
    #[value(name = "static-1m")]
    #[serde(rename = "static-1m")]
    Static1m,
    /// A small JSON answer from an upstream, HTTP/1.1, 64 kept connections
    #[value(name = "proxied")]
    Proxied,
    /// A file of 1 KiB over TLS and HTTP/2, 8 connections with 32 streams each
    #[value(name = "h2-small")]
    H2Small,
    /// A small JSON answer from an upstream over TLS and HTTP/2, 8 connections with 32 streams each
    #[value(name = "h2-proxied")]
    H2Proxied,
    /// A file of 1 KiB over HTTP/3, 8 connections with 32 streams each
    #[value(name = "h3-small")]
    H3Small,
    /// Messages of 128 bytes to an upstream and back over 64 WebSockets, one at a time on each; a request is both ways
    #[value(name = "websocket")]
    Websocket,
    /// Resident memory of idle kept connections, after one request on each
    #[value(name = "idle")]
    Idle,
    /// Resident memory of idle kept connections over TLS 1.3, after one request on each
    #[value(name = "idle-tls")]
    IdleTls,
}

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Bare hyper, a task per connection, a fixed body: no file, no upstream. The yardstick.
    Hyper,
    /// Debian's nginx with its file cache and kept upstream connections.
    Nginx,
    /// Debian's HAProxy.
    Haproxy,
}

impl Peer {
    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Hyper => "hyper",
            Peer::Nginx => "nginx",
            Peer::Haproxy => "haproxy",
        }
    }
}

/// Who generates the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generator {
    /// wrk with so many connections.
    Wrk { connections: usize, close: bool },
    /// h2load with 8 connections of 32 streams.
    H2load,
    /// Our own, the same over HTTP/3.
    H3,
    /// Our own, with messages over WebSockets.
    Websocket,
    /// Our own, which holds idle connections.
    Idle,
}

impl Scenario {
    /// The peers that take part, beside Playhouse.
    pub fn peers(self) -> &'static [Peer] {
        match self {
            Scenario::Proxied | Scenario::H2Proxied => &[Peer::Hyper, Peer::Nginx, Peer::Haproxy],
            // No fixed body is an echo.
            Scenario::Websocket => &[Peer::Nginx, Peer::Haproxy],
            // hyper does not have it, nor does Debian's nginx.
            Scenario::H3Small => &[],
            _ => &[Peer::Hyper, Peer::Nginx],
        }
    }

    /// The load.
    pub fn generator(self) -> Generator {
        match self {
            Scenario::Static1k | Scenario::Proxied => Generator::Wrk { connections: 64, close: false },
            Scenario::Static1kNew => Generator::Wrk { connections: 64, close: true },
            Scenario::Static1m => Generator::Wrk { connections: 16, close: false },
            Scenario::H2Small | Scenario::H2Proxied => Generator::H2load,
            Scenario::H3Small => Generator::H3,
            Scenario::Websocket => Generator::Websocket,
            Scenario::Idle | Scenario::IdleTls => Generator::Idle,
        }
    }

    /// Over TLS.
    pub fn is_tls(self) -> bool {
        matches!(self, Scenario::H2Small | Scenario::H2Proxied | Scenario::H3Small | Scenario::IdleTls)
    }

    /// From an upstream.
    pub fn is_proxied(self) -> bool {
        matches!(self, Scenario::Proxied | Scenario::H2Proxied | Scenario::Websocket)
    }

    /// Bytes of the content.
    pub fn length(self) -> usize {
        match self {
            Scenario::Static1m => 1 << 20,
            Scenario::Proxied | Scenario::H2Proxied => JSON.len(),
            Scenario::Websocket => 128,
            _ => 1 << 10,
        }
    }

    /// The path that is asked for.
    pub fn path(self) -> &'static str {
        if self.is_proxied() { "/api/item" } else { "/file.txt" }
    }

    /// Its name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// What it is, in a line.
    pub fn describe(self) -> String {
        self.to_possible_value().and_then(|value| Some(value.get_help()?.to_string())).unwrap_or_default()
    }
}

/// What the upstream answers.
pub const JSON: &str = r#"{"id":4711,"name":"a small thing","tags":["one","two","three"],"price":{"amount":1250,"currency":"EUR"},"available":true}"#;
