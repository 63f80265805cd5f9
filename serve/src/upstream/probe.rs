//! Active health checks: one request over a connection of its own.

use std::time::Duration;

use bytes::BytesMut;
use http::StatusCode;
use playhouse_config::model::Health;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use super::{Server, Upstream};
use crate::net::{Connector, Stream};

impl Upstream {
    /// Asks a server for its health, within `health.timeout` and over a connection of its own. Only the head of the
    /// answer is read. Succeeds at once where the upstream has no `health` (any more).
    pub async fn probe(&self, server: &Server) -> Result<ProbeOk, ProbeFailure> {
        let snapshot = self.snapshot();
        let started = Instant::now();
        let Some(health) = &snapshot.settings.health else {
            return Ok(ProbeOk { status: StatusCode::OK, duration: Duration::ZERO });
        };
        let status =
            timeout(health.timeout, ask(server, health)).await.map_err(|_| ProbeFailure::Timeout)??;
        let (lowest, highest) = health.statuses;
        if !(lowest..=highest).contains(&status.as_u16()) {
            return Err(ProbeFailure::Status(status));
        }
        Ok(ProbeOk { status, duration: started.elapsed() })
    }
}

async fn ask(server: &Server, health: &Health) -> Result<StatusCode, ProbeFailure> {
    let mut stream = Connector::connect(server.address()).await.map_err(ProbeFailure::Connect)?;
    let host = health.host.as_deref().unwrap_or(server.host().to_str().unwrap_or_default());
    let request = format!(
        "GET {} HTTP/1.1\r\nhost: {host}\r\nuser-agent: playhouse-health\r\naccept: */*\r\nconnection: close\r\n\r\n",
        health.path
    );
    stream.write_all(request.as_bytes()).await.map_err(|_| ProbeFailure::Closed)?;
    head(&mut stream).await
}

async fn head(stream: &mut Stream) -> Result<StatusCode, ProbeFailure> {
    let mut input = BytesMut::with_capacity(1024);
    loop {
        if stream.read_buf(&mut input).await.map_err(|_| ProbeFailure::Closed)? == 0 {
            return Err(ProbeFailure::Closed);
        }
        if memchr::memmem::find(&input, b"\r\n\r\n").is_some() {
            let code = input.strip_prefix(b"HTTP/1.1 ").or(input.strip_prefix(b"HTTP/1.0 "));
            let code = code.and_then(|rest| StatusCode::from_bytes(rest.get(..3)?).ok());
            return code.ok_or_else(|| ProbeFailure::Malformed("the status line".to_owned()));
        }
        if input.len() > LARGEST_HEAD {
            return Err(ProbeFailure::Malformed("the head is too large".to_owned()));
        }
    }
}

/// No health check needs more.
const LARGEST_HEAD: usize = 16 << 10;

/// A probe that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeOk {
    /// What the server answered.
    pub status: StatusCode,
    /// From the connect to the end of the answer's head.
    pub duration: Duration,
}

/// Why a probe failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeFailure {
    /// The connection was refused, or the name is not known.
    #[error("cannot connect: {0}")]
    Connect(std::io::Error),
    /// The answer's head had not come within `health.timeout`.
    #[error("no answer in time")]
    Timeout,
    /// The server closed before its answer's head was complete.
    #[error("closed before it had answered")]
    Closed,
    /// The answer is not HTTP/1.1, or its head is too large.
    #[error("malformed answer: {0}")]
    Malformed(String),
    /// The status is outside of `health.statuses`.
    #[error("status {0}")]
    Status(StatusCode),
}
