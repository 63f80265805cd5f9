//! Active health checks: one request over a connection of its own.

use std::time::Duration;

use bytes::BytesMut;
use http::{Method, StatusCode};
use playhouse_config::model::{self, Health, UpstreamProtocol};
use playhouse_protocol::fastcgi::{Event, HeadError, HeadParser, Reader, RecordError, write};
use playhouse_protocol::http1::{HeadLimits, ResponseError, ResponseParser};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use super::{Server, Upstream, introduce};
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
        let status = timeout(health.timeout, ask(server, &snapshot.settings, health))
            .await
            .map_err(|_| ProbeFailure::Timeout)??;
        let (lowest, highest) = health.statuses;
        if !(lowest..=highest).contains(&status.as_u16()) {
            return Err(ProbeFailure::Status(status));
        }
        Ok(ProbeOk { status, duration: started.elapsed() })
    }
}

async fn ask(
    server: &Server,
    settings: &model::Upstream,
    health: &Health,
) -> Result<StatusCode, ProbeFailure> {
    if settings.protocol == UpstreamProtocol::FastCgi {
        return ask_fastcgi(server, health).await;
    }
    let mut stream = Connector::connect(server.address()).await.map_err(ProbeFailure::Connect)?;
    let host = health.host.as_deref().unwrap_or(server.host().to_str().unwrap_or_default());
    let request = format!(
        "GET {} HTTP/1.1\r\nhost: {host}\r\nuser-agent: playhouse-health\r\naccept: */*\r\nconnection: close\r\n\r\n",
        health.path
    );
    let mut bytes = BytesMut::new();
    if let Some(version) = settings.proxy_protocol {
        introduce(&mut bytes, version, None);
    }
    bytes.extend_from_slice(request.as_bytes());
    stream.write_all(&bytes).await.map_err(|_| ProbeFailure::Closed)?;
    head(&mut stream).await
}

/// As a request for a script by the path, which php-fpm answers itself where that is its `ping.path`.
async fn ask_fastcgi(server: &Server, health: &Health) -> Result<StatusCode, ProbeFailure> {
    let mut stream = Connector::connect(server.address()).await.map_err(ProbeFailure::Connect)?;
    let (path, query) = health.path.split_once('?').unwrap_or((&health.path, ""));
    let host = health.host.as_deref().unwrap_or("localhost");
    let mut pairs = BytesMut::new();
    for (name, value) in [
        ("SCRIPT_FILENAME", path),
        ("SCRIPT_NAME", path),
        ("REQUEST_URI", &health.path),
        ("QUERY_STRING", query),
        ("REQUEST_METHOD", "GET"),
        ("SERVER_PROTOCOL", "HTTP/1.1"),
        ("GATEWAY_INTERFACE", "CGI/1.1"),
        ("SERVER_SOFTWARE", "playhouse-health"),
        ("SERVER_NAME", host),
        ("REDIRECT_STATUS", "200"),
        ("HTTP_HOST", host),
    ] {
        write::param(&mut pairs, name.as_bytes(), value.as_bytes());
    }
    let mut request = BytesMut::new();
    write::begin(&mut request, false);
    write::params(&mut request, &pairs);
    write::content_end(&mut request);
    stream.write_all(&request).await.map_err(|_| ProbeFailure::Closed)?;
    let (mut reader, mut parser) = (Reader::default(), HeadParser::new(HEAD_LIMITS));
    let (mut input, mut output) = (BytesMut::with_capacity(1024), BytesMut::new());
    loop {
        match reader.next(&mut input).map_err(ProbeFailure::Records)? {
            Event::Output(piece) => {
                output.extend_from_slice(&piece);
                if let Some(head) = parser.parse(&mut output).map_err(ProbeFailure::Head)? {
                    return Ok(head.status);
                }
            }
            Event::Error(_) => {}
            Event::End { .. } => return Err(ProbeFailure::Closed),
            Event::NeedMore => {
                if stream.read_buf(&mut input).await.map_err(|_| ProbeFailure::Closed)? == 0 {
                    return Err(ProbeFailure::Closed);
                }
            }
        }
    }
}

async fn head(stream: &mut Stream) -> Result<StatusCode, ProbeFailure> {
    let mut parser = ResponseParser::new(HEAD_LIMITS);
    let mut input = BytesMut::with_capacity(1024);
    // Each turn takes what was read, and the parser's limit ends a head that does not; interim answers are few.
    let mut interim = 0;
    loop {
        match parser.parse(&mut input, &Method::GET).map_err(ProbeFailure::Malformed)? {
            Some(head) if head.status.is_informational() && interim < MOST_INTERIM => interim += 1,
            Some(head) => return Ok(head.status),
            None => {
                if stream.read_buf(&mut input).await.map_err(|_| ProbeFailure::Closed)? == 0 {
                    return Err(ProbeFailure::Closed);
                }
            }
        }
    }
}

const HEAD_LIMITS: HeadLimits = HeadLimits { bytes: 16 << 10, fields: 100 };

/// A flood of interim answers is taken for the answer, whose status is then out of range.
const MOST_INTERIM: usize = 8;
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
    Malformed(ResponseError),
    /// The answer is not FastCGI.
    #[error("malformed answer: {0}")]
    Records(RecordError),
    /// The head of a script's answer is malformed, or too large.
    #[error("malformed answer: {0}")]
    Head(HeadError),
    /// The status is outside of `health.statuses`.
    #[error("status {0}")]
    Status(StatusCode),
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use playhouse_config::model::{Address, Bind};
    use tokio::io::AsyncReadExt;

    use super::super::group::tests::{model, upstream};
    use super::*;
    use crate::net::Listener;

    /// What a probe makes of a server that reads the request, says this and closes.
    async fn probed(answer: &'static str) -> (Result<ProbeOk, ProbeFailure>, String) {
        let bind = Bind::Tcp { address: "127.0.0.1:0".parse().unwrap(), only_v6: false };
        let listener = Listener::bind(&bind, 4).unwrap();
        let mut model = model("api", &["127.0.0.1:1"]);
        model.servers[0].address = Address::Tcp(listener.local().unwrap());
        model.health = Some(Health {
            path: "/healthz?x".into(),
            host: Some("internal".into()),
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            healthy_after: NonZeroU32::MIN,
            unhealthy_after: NonZeroU32::MIN,
            statuses: (200, 299),
        });
        let upstream = upstream(&model);
        let server = upstream.snapshot().all[0].server.clone();
        let script = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                stream.read_buf(&mut request).await.unwrap();
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8(request).unwrap()
        };
        futures_util::future::join(upstream.probe(&server), script).await
    }

    #[tokio::test]
    async fn a_probe_asks_for_the_path_and_judges_by_the_status() {
        let (result, request) = probed("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n").await;
        assert_eq!(result.unwrap().status, StatusCode::NO_CONTENT);
        assert!(request.starts_with("GET /healthz?x HTTP/1.1\r\nhost: internal\r\n"), "{request}");
        let (result, _) = probed("HTTP/1.1 302 Found\r\n\r\n").await;
        assert!(matches!(result, Err(ProbeFailure::Status(StatusCode::FOUND))));
    }

    #[tokio::test]
    async fn a_probe_takes_nothing_but_an_http_answer() {
        assert!(matches!(probed("SSH-2.0-x\r\n").await.0, Err(ProbeFailure::Malformed(_))));
        assert!(matches!(probed("HTTP/1.1 200 OK\nx: y\n\n").await.0, Err(ProbeFailure::Malformed(_))));
        assert!(matches!(probed("HTTP/1.1 200 OK\r\nx: y").await.0, Err(ProbeFailure::Closed)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_is_not_answered_ends_at_its_deadline() {
        let bind = Bind::Tcp { address: "127.0.0.1:0".parse().unwrap(), only_v6: false };
        let listener = Listener::bind(&bind, 4).unwrap();
        let mut model = model("api", &["127.0.0.1:1"]);
        model.servers[0].address = Address::Tcp(listener.local().unwrap());
        model.health = Some(Health {
            path: "/".into(),
            host: None,
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            healthy_after: NonZeroU32::MIN,
            unhealthy_after: NonZeroU32::MIN,
            statuses: (200, 299),
        });
        let upstream = upstream(&model);
        let server = upstream.snapshot().all[0].server.clone();
        let started = Instant::now();
        assert!(matches!(upstream.probe(&server).await, Err(ProbeFailure::Timeout)));
        assert_eq!(started.elapsed().as_secs(), 2);
    }
}
