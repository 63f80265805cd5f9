//! The engine over QUIC on the loopback, driven frame by frame.

mod breaches;
mod early;
mod ends;
mod requests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use playhouse_config::model;
use playhouse_protocol::http3::{Event, RequestDecoder, qpack};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::ConnectionInfo;
use crate::engine::test_application::TestApplication;
use crate::engine::{Drain, Settings, serve_quic};
use crate::exchange::Peer;
use crate::net::{QuicConfig, QuicEndpoint, QuicKeys};
use crate::tls::{Certificates, testing};

/// A client's connection to the engine, which serves it in a task.
struct Client {
    connection: quinn::Connection,
    application: Arc<TestApplication>,
    drain: Option<oneshot::Sender<()>>,
    engine: JoinHandle<()>,
    _endpoints: (quinn::Endpoint, QuicEndpoint),
}

/// An answer, as its stream has it.
#[derive(Debug, Default)]
struct Answer {
    /// Heads, interim ones first, and trailers: name and value.
    sections: Vec<Vec<(String, String)>>,
    content: Vec<u8>,
}

impl Answer {
    fn status(&self) -> &str {
        self.field(":status").unwrap()
    }

    fn take(&mut self, decoder: &mut RequestDecoder, mut input: Bytes) {
        while let Some(event) = decoder.next(&mut input).unwrap() {
            match event {
                Event::Headers(section) => {
                    let limits = qpack::Limits { size: 1 << 20, fields: 1000 };
                    let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
                    let fields = qpack::decode(section, limits).unwrap();
                    let texts = fields.into_iter().map(|(name, value)| (text(name), text(value)));
                    self.sections.push(texts.collect());
                }
                Event::Data(data) => self.content.extend_from_slice(&data),
            }
        }
    }

    /// Of the final head, where there are no interim ones and no trailers.
    fn field(&self, name: &str) -> Option<&str> {
        self.sections[0].iter().find(|(field, _)| field == name).map(|(_, value)| &**value)
    }
}

async fn connect(application: Arc<TestApplication>) -> Client {
    connect_with(application, |_| ()).await
}

async fn connect_with(
    application: Arc<TestApplication>,
    change: impl FnOnce(&mut model::Listener),
) -> Client {
    let files = testing::Files::default();
    let certificate = files.write("site", &["a.example"], &testing::key_pair());
    let mut listener = testing::listener(std::slice::from_ref(&certificate));
    listener.http3 = true;
    change(&mut listener);
    let tls = Certificates::default().load(&listener).unwrap().unwrap();
    let keys = QuicKeys::generate().unwrap();
    let (limits, timeouts) = (listener.limits, listener.timeouts);
    let quic = QuicConfig::new(tls.quic.as_ref().unwrap(), &limits, &timeouts, &keys).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let server = QuicEndpoint::bind(any, false, &keys).unwrap();
    server.open(&quic);
    let settings = Arc::new(Settings {
        limits,
        timeouts,
        http2: true,
        proxy_protocol: None,
        tls: Some(tls),
        quic: Some(quic),
    });

    let mut endpoint = quinn::Endpoint::client(any).unwrap();
    endpoint.set_default_client_config(client_config(&certificate));
    let connecting = endpoint.connect(server.local(), "a.example").unwrap();
    let incoming = server.accept().await;
    let info = ConnectionInfo {
        id: 1,
        listener: "test".into(),
        listener_index: 0,
        peer: Peer::Tcp(incoming.peer()),
        local: None,
        proxied: None,
        tls: None,
        rate: None,
        alternative: None,
    };
    let (drain, drained) = oneshot::channel();
    let drained = Box::pin(async {
        if drained.await.is_err() {
            std::future::pending().await
        }
    });
    let engine = tokio::spawn(serve_quic(incoming, info, settings, application.clone(), Drain::new(drained)));
    let connection = connecting.await.unwrap();
    Client { connection, application, drain: Some(drain), engine, _endpoints: (endpoint, server) }
}

pub(crate) fn client_config(certificate: &model::Certificate) -> quinn::ClientConfig {
    let config = quinn::crypto::rustls::QuicClientConfig::try_from(tls_client_config(certificate)).unwrap();
    quinn::ClientConfig::new(Arc::new(config))
}

fn tls_client_config(certificate: &model::Certificate) -> rustls::ClientConfig {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&certificate.cert).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h3".to_vec()];
    config
}

impl Client {
    /// Sends a whole stream and reads the whole answer.
    async fn send(&self, stream: &[u8]) -> Result<Answer, quinn::ReadError> {
        let (mut send, recv) = self.connection.open_bi().await.unwrap();
        send.write_all(stream).await.unwrap();
        send.finish().unwrap();
        read(recv).await
    }

    async fn get(&self, path: &str) -> Result<Answer, quinn::ReadError> {
        self.send(&head(&[(":path", path)])).await
    }

    /// Waits until the engine has let go.
    async fn ended(&mut self) {
        (&mut self.engine).await.unwrap();
    }

    fn drain(&mut self) {
        self.drain.take().unwrap().send(()).unwrap();
    }

    /// Waits until nothing is in flight.
    async fn settled(&self) -> crate::ledger::Totals {
        while self.application.totals().in_flight > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.application.totals()
    }

    /// The code with which we are turned away.
    async fn closed(&self) -> u64 {
        match self.connection.closed().await {
            quinn::ConnectionError::ApplicationClosed(close) => close.error_code.into_inner(),
            other => panic!("{other}"),
        }
    }
}

/// Reads an answer to its end.
async fn read(mut stream: quinn::RecvStream) -> Result<Answer, quinn::ReadError> {
    let mut decoder = RequestDecoder::new(1 << 20);
    let mut answer = Answer::default();
    while let Some(chunk) = stream.read_chunk(usize::MAX, true).await? {
        answer.take(&mut decoder, chunk.bytes);
    }
    decoder.finish().unwrap();
    Ok(answer)
}

/// A HEADERS frame: `GET https://a.example/`, some of it in another way, and more behind it.
fn head(fields: &[(&str, &str)]) -> Vec<u8> {
    let usual = [(":method", "GET"), (":scheme", "https"), (":authority", "a.example"), (":path", "/")];
    let mut all = Vec::new();
    for (name, value) in usual {
        let other = fields.iter().find(|(field, _)| *field == name);
        all.push(other.copied().unwrap_or((name, value)));
    }
    all.extend(fields.iter().filter(|(name, _)| !usual.iter().any(|(usual, _)| usual == name)));
    section(&all)
}

/// A HEADERS frame of just these fields.
fn section(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut section = BytesMut::from(&[0, 0][..]);
    for (name, value) in fields {
        literal(&mut section, 0x20, 3, name);
        literal(&mut section, 0, 7, value);
    }
    frame(1, &section)
}

/// A string behind a length with a prefix of so many bits.
fn literal(out: &mut BytesMut, before: u8, prefix: u32, text: &str) {
    let mask = (1_usize << prefix) - 1;
    if text.len() < mask {
        out.put_u8(before | text.len() as u8);
    } else {
        out.put_u8(before | mask as u8);
        let mut rest = text.len() - mask;
        while rest >= 0x80 {
            out.put_u8(rest as u8 | 0x80);
            rest >>= 7;
        }
        out.put_u8(rest as u8);
    }
    out.put_slice(text.as_bytes());
}

/// Any frame, with four bytes of length.
fn frame(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut frame = vec![kind];
    frame.extend((content.len() as u32 | 0x8000_0000).to_be_bytes());
    frame.extend(content);
    frame
}
