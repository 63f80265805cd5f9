//! RFC 9113 and RFC 7541 section by section, as raw frames: each row is what a client sends and what the server owes it.
//! Every row runs over cleartext (prior knowledge) and over TLS (ALPN).

mod client;
mod compression;
mod connections;
mod frame_types;
mod requests;
mod streams;
mod wire;

use std::net::TcpStream;

use self::client::Client;
use self::wire::*;
use crate::harness::{Algorithm, Authority, Running, Scripted, Site, Wire, pattern};

/// What the server owes.
#[derive(Clone, Debug)]
enum Owed {
    /// GOAWAY with one of these codes, then the end of the connection.
    Connection(&'static [u32]),
    /// The end of the stream by RST_STREAM with one of these codes or, what is stricter, the end of the connection.
    StreamOrConnection(u32, &'static [u32]),
    /// RST_STREAM, or an answer of 4xx, on a connection that goes on: a malformed request (§8.1.1).
    Malformed(u32),
    /// The same, or the end of the connection, where `h2` cannot go on: what a field's name or value may not contain it
    /// takes for damage of the whole header block.
    MalformedOrConnection(u32),
    /// A whole answer with this status on this stream, on a connection that goes on.
    Answer(u32, u16),
    /// Nothing special: the connection goes on.
    Nothing,
    /// The end, with or without a GOAWAY.
    End,
}

/// What a client does.
#[derive(Clone, Debug)]
enum Step {
    Send(Vec<u8>),
    /// Waits for the end of the answer on a stream.
    Answered(u32),
}

struct Case {
    section: &'static str,
    what: &'static str,
    /// Without the preface and SETTINGS before it.
    raw: bool,
    steps: Vec<Step>,
    owed: Owed,
}

fn case(section: &'static str, what: &'static str, frames: impl Script, owed: Owed) -> Case {
    Case { section, what, raw: false, steps: frames.steps(), owed }
}

fn raw(section: &'static str, what: &'static str, bytes: impl Script, owed: Owed) -> Case {
    Case { section, what, raw: true, steps: bytes.steps(), owed }
}

trait Script {
    fn steps(self) -> Vec<Step>;
}

impl Script for Vec<u8> {
    fn steps(self) -> Vec<Step> {
        vec![Step::Send(self)]
    }
}

impl<const N: usize> Script for [Vec<u8>; N] {
    fn steps(self) -> Vec<Step> {
        vec![Step::Send(self.concat())]
    }
}

impl Script for Vec<Step> {
    fn steps(self) -> Vec<Step> {
        self
    }
}

#[test]
fn connections_and_frames_follow_rfc_9113() {
    Bench::start().judge(connections::cases());
}

#[test]
fn stream_states_follow_rfc_9113() {
    Bench::start().judge(streams::cases());
}

#[test]
fn every_frame_type_follows_rfc_9113() {
    Bench::start().judge(frame_types::cases());
}

#[test]
fn requests_follow_rfc_9113() {
    Bench::start().judge(requests::cases());
}

#[test]
fn field_compression_follows_rfc_7541() {
    Bench::start().judge(compression::cases());
}

/// A site with what the rows need, on a cleartext and on a TLS listener.
struct Bench {
    site: Running,
    authority: Authority,
    upstream: Scripted,
}

impl Bench {
    fn start() -> Self {
        let authority = Authority::new();
        // Answers when it has the whole of a request; never where the path says so.
        let upstream = Scripted::start(|mut connection| {
            while let Some(request) = connection.request() {
                if request.target.starts_with("/echo/wait") {
                    while matches!(connection.wire.fill(), Ok(1..)) {}
                    return;
                }
                connection.send(crate::harness::ok("taken\n"));
            }
        });
        let site = Site::new()
            .listener("http", r#"(bind: "127.0.0.1:0")"#)
            .listener("https", r#"(bind: "127.0.0.1:0", tls: [(cert: "x.pem", key: "x.key")])"#)
            .file("public/big", pattern(1 << 20))
            .server("up", upstream.address)
            .route(r#"(path: "/", to: Respond(status: 200, body: "hello\n"))"#)
            .route(r#"(path: "/big", to: Static(root: "public"))"#)
            .route(r#"(path: "/echo/", to: Proxy("up"))"#);
        authority.write(&site.path("."), "x", &[HOST], Algorithm::Ecdsa);
        Bench { site: site.start(), authority, upstream }
    }

    /// Runs all cases; says all that went wrong at once.
    fn judge(&self, cases: Vec<Case>) {
        let mut faults = Vec::new();
        for case in &cases {
            for transport in ["cleartext", "TLS"] {
                if let Err(fault) = self.run(case, transport) {
                    faults.push(format!("§{} {} ({transport}): {fault}", case.section, case.what));
                }
            }
        }
        assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
        let ledger = self.site.admin.settled_ledger();
        assert_eq!(ledger.killed, 0, "{ledger:?}");
        assert!(!self.site.process.output().contains("panicked"), "{}", self.site.process.output());
    }

    fn run(&self, case: &Case, transport: &str) -> Result<(), String> {
        let mut client = self.client(transport);
        if !case.raw {
            client.send(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat());
            client.until(|frame| (frame.kind == SETTINGS && frame.flags == 0).then_some(()))?;
            client.send(&frame(SETTINGS, ACK, 0, &[]));
            // A window for the whole of the connection, so that only what a row says is short.
            client.send(&frame(WINDOW_UPDATE, 0, 0, &(8_u32 << 20).to_be_bytes()));
        }
        for step in &case.steps {
            match step {
                Step::Send(bytes) => client.send(bytes),
                Step::Answered(stream) => {
                    client.answer(*stream)?;
                }
            }
        }
        client.owes(&case.owed)
    }

    fn client(&self, transport: &str) -> Client {
        if transport == "cleartext" {
            return Client { wire: self.site.wire(), status: Vec::new() };
        }
        let stream = TcpStream::connect(self.site.address("https")).unwrap();
        stream.set_nodelay(true).unwrap();
        let name = rustls::pki_types::ServerName::try_from(HOST).unwrap();
        let session = rustls::ClientConnection::new(self.authority.client(&[b"h2"]), name).unwrap();
        Client { wire: Wire::over(rustls::StreamOwned::new(session, stream)), status: Vec::new() }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // Nothing malformed may have come through.
        for request in self.upstream.requests() {
            assert!(request.target.starts_with("/echo/"), "{request:?}");
        }
    }
}
