//! What is asked of the generator.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::exchange::{Exchange, Expect};
use super::running::Running;
use super::target::{Target, Tls};
use super::tunnel::{self, Messages};

/// A load: streams of requests against one target.
pub struct Load {
    pub(super) target: Target,
    pub(super) streams: Vec<Stream>,
    pub(super) threads: usize,
}

impl Load {
    /// A load against `target`, without streams yet.
    pub fn new(target: impl Into<Target>) -> Load {
        Load { target: target.into(), streams: Vec::new(), threads: 1 }
    }

    /// Adds a stream.
    pub fn stream(mut self, stream: Stream) -> Load {
        self.streams.push(stream);
        self
    }

    /// Uses this many threads of its own, at least one. Default 1.
    pub fn threads(mut self, threads: usize) -> Load {
        self.threads = threads.max(1);
        self
    }

    /// Begins, on threads of its own, so that a caller may block without holding the load up.
    ///
    /// # Errors
    /// The threads cannot be made.
    pub fn start(self) -> io::Result<Running> {
        Running::start(self)
    }
}

/// How requests of a stream travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1, one request at a time on each of `concurrency` connections.
    Http1KeepAlive,
    /// HTTP/1.1, a connection per request, asked for with `Connection: close`. For WebSockets both are the same.
    Http1NewConnection,
    /// HTTP/2: by ALPN over TLS, by prior knowledge without.
    Http2 {
        /// Requests at a time on each of `concurrency` connections.
        streams: usize,
    },
    /// HTTP/3, over TLS alone, at the UDP port of the target's number. WebSockets do not travel so here.
    Http3 {
        /// Requests at a time on each of `concurrency` connections.
        streams: usize,
    },
}

/// Requests of one kind, sent by a fixed number of clients, each of which waits for its answer before it goes on.
#[derive(Clone)]
pub struct Stream {
    pub(super) name: String,
    pub(super) protocol: Protocol,
    pub(super) target: Option<Target>,
    pub(super) tls: Option<Tls>,
    pub(super) concurrency: usize,
    pub(super) rate: Option<f64>,
    pub(super) requests: u64,
    pub(super) duration: Option<Duration>,
    pub(super) deadline: Duration,
    pub(super) generator: Generator,
    /// What is sent over WebSockets, where each request is the handshake of one.
    pub(super) messages: Option<Messages>,
}

pub(super) type Generator = Arc<dyn Fn(u64) -> Exchange + Send + Sync>;

impl Stream {
    /// Requests made by a function of their number (from 0), which may differ in everything.
    pub fn generate(
        protocol: Protocol,
        generator: impl Fn(u64) -> Exchange + Send + Sync + 'static,
    ) -> Stream {
        Stream {
            name: format!("{protocol:?}"),
            protocol,
            target: None,
            tls: None,
            concurrency: 1,
            rate: None,
            requests: u64::MAX,
            duration: None,
            deadline: Duration::from_secs(10),
            generator: Arc::new(generator),
            messages: None,
        }
    }

    /// The same request again and again.
    pub fn repeat(protocol: Protocol, exchange: Exchange) -> Stream {
        let name = format!("{protocol:?} {}", exchange.path);
        Stream::generate(protocol, move |_| exchange.clone()).name(name)
    }

    /// The same `GET` again and again.
    pub fn get(protocol: Protocol, path: &str, expect: Expect) -> Stream {
        Stream::repeat(protocol, Exchange::get(path, expect))
    }

    /// A `GET` of `prefix` followed by the request's number, answered with just that number: an answer that belongs to
    /// another request is seen. [`Upstream`](crate::Upstream) answers so beneath `/id/`.
    pub fn echo_id(protocol: Protocol, prefix: &str) -> Stream {
        let prefix = prefix.to_owned();
        let name = format!("{protocol:?} {prefix}ID");
        Stream::generate(protocol, move |id| {
            Exchange::get(format!("{prefix}{id}"), Expect::body(id.to_string()))
        })
        .name(name)
    }

    /// WebSockets to a server that sends every message back. One counts as a request: answered where it was closed in order,
    /// by us or by the server with 1001, after which the client opens another; failed where it ended otherwise, or where
    /// anything else came than just the messages. Over HTTP/1.1 each has a connection, over HTTP/2 it is a stream
    /// (RFC 8441). The deadline is for the handshake, for each message to come back, and for the end after a Close.
    pub fn websockets(protocol: Protocol, path: &str, messages: Messages) -> Stream {
        let exchange = tunnel::handshake(path, matches!(protocol, Protocol::Http2 { .. }));
        let stream = Stream::repeat(protocol, exchange).name(format!("{protocol:?} WebSockets {path}"));
        Stream { messages: Some(messages), ..stream }
    }

    /// How it is named in the report.
    pub fn name(mut self, name: impl Into<String>) -> Stream {
        self.name = name.into();
        self
    }

    /// Goes to another target than the load's.
    pub fn target(mut self, target: impl Into<Target>) -> Stream {
        self.target = Some(target.into());
        self
    }

    /// Over TLS.
    pub fn tls(mut self, tls: Tls) -> Stream {
        self.tls = Some(tls);
        self
    }

    /// This many connections at a time, at least one. Default 1.
    pub fn concurrency(mut self, concurrency: usize) -> Stream {
        self.concurrency = concurrency.max(1);
        self
    }

    /// At most this many requests a second over the whole stream. Default: as fast as answers come.
    pub fn rate(mut self, per_second: f64) -> Stream {
        self.rate = Some(per_second);
        self
    }

    /// Ends after this many requests. Default: never.
    pub fn requests(mut self, requests: u64) -> Stream {
        self.requests = requests;
        self
    }

    /// Begins no request after this time. Default: never.
    pub fn duration(mut self, duration: Duration) -> Stream {
        self.duration = Some(duration);
        self
    }

    /// From a request's begin to the end of its answer, after which it counts as lost. Default 10 s.
    pub fn deadline(mut self, deadline: Duration) -> Stream {
        self.deadline = deadline;
        self
    }
}
