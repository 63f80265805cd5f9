//! Against a scripted program over loopback.

mod answers;
mod requests;
mod scripts;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, header};
use http_body_util::BodyExt;
use playhouse_config::model::{self, Address, Bind, KeepAlive, PathPattern};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::*;
use crate::exchange::{ConnectionInfo, Informational, Peer, Record};
use crate::metrics::Metrics;
use crate::net::{Listener, Stream};
use crate::{BodyError, Outcome, RequestBody};

/// A program that is scripted record by record.
struct Program {
    listener: Listener,
}

impl Program {
    fn new() -> Self {
        let address = "127.0.0.1:0".parse().unwrap();
        Program { listener: Listener::bind(&Bind::Tcp { address, only_v6: false }, 64).unwrap() }
    }

    fn address(&self) -> SocketAddr {
        self.listener.local().unwrap()
    }

    async fn accept(&self) -> Peered {
        Peered { stream: self.listener.accept().await.unwrap().0 }
    }

    /// Accepts, reads one request to its end and answers it with these bytes.
    async fn answer(&self, bytes: &[u8]) -> (Asked, Peered) {
        let mut peered = self.accept().await;
        let asked = peered.request().await;
        peered.send(bytes).await;
        (asked, peered)
    }
}

/// A request as a program gets it.
#[derive(Debug, Default)]
struct Asked {
    keep: bool,
    params: BTreeMap<String, String>,
    content: Vec<u8>,
}

/// The program's end of a connection.
struct Peered {
    stream: Stream,
}

impl Peered {
    /// Type and content of the next record.
    async fn record(&mut self) -> (u8, Vec<u8>) {
        let mut header = [0; 8];
        self.stream.read_exact(&mut header).await.unwrap();
        let [version, kind, 0, 1, high, low, padding, _] = header else { panic!("{header:?}") };
        assert_eq!(version, 1);
        let mut content = vec![0; usize::from(u16::from_be_bytes([high, low])) + usize::from(padding)];
        self.stream.read_exact(&mut content).await.unwrap();
        content.truncate(content.len() - usize::from(padding));
        (kind, content)
    }

    async fn request(&mut self) -> Asked {
        let (kind, begin) = self.record().await;
        assert_eq!((kind, &begin[..2]), (1, &[0, 1][..]));
        let mut asked = Asked { keep: begin[2] & 1 == 1, ..Asked::default() };
        let mut pairs = Vec::new();
        loop {
            match self.record().await {
                (4, piece) if piece.is_empty() => break,
                (4, piece) => pairs.extend(piece),
                other => panic!("{other:?}"),
            }
        }
        let mut rest = &pairs[..];
        let length = |rest: &mut &[u8]| {
            let (length, taken) = match rest[0] {
                short @ ..0x80 => (usize::from(short), 1),
                _ => (u32::from_be_bytes([rest[0] & 0x7f, rest[1], rest[2], rest[3]]) as usize, 4),
            };
            *rest = &rest[taken..];
            length
        };
        while !rest.is_empty() {
            let (name, value) = (length(&mut rest), length(&mut rest));
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let pair = (text(&rest[..name]), text(&rest[name..name + value]));
            rest = &rest[name + value..];
            asked.params.insert(pair.0, pair.1);
        }
        loop {
            match self.record().await {
                (5, piece) if piece.is_empty() => return asked,
                (5, piece) => asked.content.extend(piece),
                other => panic!("{other:?}"),
            }
        }
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Completes when the other side has closed.
    async fn closed(mut self) {
        let mut rest = Vec::new();
        // A reset is an end, too.
        let _ = self.stream.read_to_end(&mut rest).await;
    }
}

fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![1, kind, 0, 1];
    bytes.extend(u16::try_from(content.len()).unwrap().to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(content);
    bytes
}

fn stdout(text: &str) -> Vec<u8> {
    record(6, text.as_bytes())
}

fn end(status: u8) -> Vec<u8> {
    record(3, &[0, 0, 0, 0, status, 0, 0, 0])
}

/// A whole answer.
fn says(text: &str) -> Vec<u8> {
    [stdout(&format!("Content-Type: text/plain\r\n\r\n{text}")), end(0)].concat()
}

/// A root with these files.
fn root(files: &[&str]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for file in files {
        let path = root.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, *file).unwrap();
    }
    root
}

fn config(root: &Path) -> model::FastCgi {
    model::FastCgi {
        servers: model::ScriptServers::Upstream("php".into()),
        root: root.to_owned(),
        script_root: root.to_owned(),
        index: vec!["index.php".into(), "index.html".into()],
        split: vec![".php".into()],
        front_controller: true,
        params: Vec::new(),
        buffer: 1000,
        follow: Vec::new(),
        sendfile: None,
    }
}

fn settings(programs: &[&Program]) -> model::Upstream {
    let server = |program: &&Program| model::Server {
        address: Address::Tcp(program.address()),
        weight: std::num::NonZeroU32::MIN,
    };
    model::Upstream {
        name: "php".into(),
        servers: programs.iter().map(server).collect(),
        protocol: model::UpstreamProtocol::FastCgi,
        proxy_protocol: None,
        balance: model::Balance::RoundRobin,
        health: None,
        ejection: Some(model::Ejection::default()),
        timeouts: model::UpstreamTimeouts::default(),
        keep_alive: KeepAlive { max_idle: 4, ..KeepAlive::default() },
        retries: 2,
    }
}

fn target_of(config: &model::FastCgi, path: &str, settings: &model::Upstream) -> FastCgiTarget {
    let upstream = Upstream::new(settings, &Metrics::default());
    let path = PathPattern::Prefix(path.to_owned());
    FastCgiTarget::new(config, &"/".into(), &path, upstream, &Arc::default())
}

/// A root whose `index.php` these programs answer for.
fn target(programs: &[&Program]) -> (FastCgiTarget, tempfile::TempDir) {
    let root = root(&["index.php"]);
    (target_of(&config(root.path()), "/", &settings(programs)), root)
}

fn request(
    method: Method,
    uri: &str,
    fields: &[(&'static str, &'static str)],
    body: RequestBody,
) -> Exchange {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = uri.parse().unwrap();
    request.headers_mut().insert(header::HOST, HeaderValue::from_static("Shop.test:8080"));
    for (name, value) in fields {
        request.headers_mut().append(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    Exchange {
        request,
        connection: Arc::new(ConnectionInfo {
            id: 1,
            listener: "http".into(),
            listener_index: 0,
            peer: Peer::Tcp("[::ffff:192.0.2.7]:4000".parse().unwrap()),
            local: Some("198.51.100.7:8080".parse().unwrap()),
            proxied: None,
            tls: None,
            rate: None,
            alternative: None,
        }),
        informational: Informational::Unsupported,
        record: Record::new(Instant::now()),
    }
}

fn get(uri: &str) -> Exchange {
    request(Method::GET, uri, &[], RequestBody::Empty)
}

fn post(content: &'static [u8]) -> Exchange {
    request(Method::POST, "/", &[], RequestBody::Bytes(Bytes::from_static(content)))
}

/// An answer, read to its end.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: HeaderMap,
    content: Vec<u8>,
    error: Option<BodyError>,
    outcome: Option<Outcome>,
}

impl Answer {
    fn text(&self) -> String {
        String::from_utf8(self.content.clone()).unwrap()
    }
}

async fn call(target: &FastCgiTarget, mut exchange: Exchange) -> Answer {
    let path = NormalisedPath::parse(exchange.request.uri().path()).unwrap();
    path.rewrite(exchange.request.uri_mut()).unwrap();
    let response = fastcgi(target, &mut exchange, &path).await;
    let mut answer = read(response).await;
    answer.outcome = exchange.record.outcome;
    answer
}

async fn read(mut response: Response<Body>) -> Answer {
    crate::CachedAnswer::spread(&mut response);
    let (head, mut body) = response.into_parts();
    let mut answer = Answer {
        status: head.status.as_u16(),
        headers: head.headers,
        content: Vec::new(),
        error: None,
        outcome: None,
    };
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => answer.content.extend(frame.into_data().unwrap()),
            Err(error) => {
                answer.error = Some(error);
                break;
            }
        }
    }
    answer
}
