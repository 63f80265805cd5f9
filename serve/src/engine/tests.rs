//! Connections over loopback sockets: TLS, ALPN, and what is spoken in the clear.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response};
use playhouse_config::model::{Address, Bind, ClientTimeouts, Limits};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinHandle;

use super::test_application::TestApplication;
use super::{Drain, Settings, serve};
use crate::exchange::Peer;
use crate::net::{Connector, Listener, Stream};
use crate::tls::Certificates;
use crate::tls::testing::{Files, key_pair, listener};
use crate::{Body, ConnectionInfo, Exchange};

/// Answers with what the handshake has settled.
fn application() -> Arc<TestApplication> {
    TestApplication::new(|exchange: &mut Exchange| {
        let tls = exchange.connection.tls.clone();
        let said = match tls {
            Some(tls) => format!("{} {}", tls.server_name.as_deref().unwrap_or("-"), tls.version),
            None => format!("clear {:?}", exchange.request.version()),
        };
        async move { Response::new(Body::from(said)) }.boxed()
    })
}

fn settings(tls: Option<Arc<crate::tls::ListenerTls>>) -> Settings {
    Settings {
        limits: Limits::default(),
        timeouts: ClientTimeouts::default(),
        http2: true,
        proxy_protocol: None,
        tls,
        quic: None,
    }
}

/// A client's stream, whose other end is served.
async fn connect(settings: Settings, application: &Arc<TestApplication>) -> (Stream, JoinHandle<()>) {
    let bind = Bind::Tcp { address: "127.0.0.1:0".parse().unwrap(), only_v6: false };
    let listener = Listener::bind(&bind, 16).unwrap();
    let client = Connector::connect(&Address::Tcp(listener.local().unwrap())).await.unwrap();
    let (stream, peer) = listener.accept().await.unwrap();
    assert!(matches!(peer, Peer::Tcp(_)));
    let info = ConnectionInfo {
        id: 1,
        listener: "test".into(),
        listener_index: 0,
        peer,
        local: listener.local(),
        proxied: None,
        tls: None,
        rate: None,
        alternative: None,
    };
    let connection = serve(
        stream,
        bytes::BytesMut::new(),
        info,
        Arc::new(settings),
        application.clone(),
        Drain::new(std::future::pending()),
    );
    (client, tokio::spawn(connection))
}

async fn ask_h1(mut io: impl AsyncRead + AsyncWrite + Unpin) -> String {
    io.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    io.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    answer.split("\r\n\r\n").nth(1).unwrap().to_owned()
}

async fn ask_h2(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> String {
    let (client, connection) = h2::client::Builder::new().handshake::<_, Bytes>(io).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let request = Request::builder().uri("https://a.example/").body(()).unwrap();
    let mut body = client.send_request(request, true).unwrap().0.await.unwrap().into_body();
    let content = body.data().await.unwrap().unwrap();
    drop((client, body));
    connection.await.unwrap().unwrap();
    String::from_utf8(content.to_vec()).unwrap()
}

#[tokio::test]
async fn tls_serves_both_versions_of_both_protocols_under_the_right_name() {
    let files = Files::default();
    let one = files.write("one", &["one.example"], &key_pair());
    let two = files.write("two", &["*.two.example"], &key_pair());
    let mut roots = RootCertStore::empty();
    for files in [&one, &two] {
        use rustls::pki_types::{CertificateDer, pem::PemObject};
        roots.add(CertificateDer::from_pem_file(&files.cert).unwrap()).unwrap();
    }
    let certificates = Certificates::default();
    let config = certificates.load(&listener(&[one, two])).unwrap();
    let versions: [&'static SupportedProtocolVersion; 2] = [&rustls::version::TLS12, &rustls::version::TLS13];
    for version in versions {
        for (alpn, name) in [("h2", "one.example"), ("http/1.1", "x.two.example"), ("", "one.example")] {
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let mut client_config = ClientConfig::builder_with_provider(provider)
                .with_protocol_versions(&[version])
                .unwrap()
                .with_root_certificates(roots.clone())
                .with_no_client_auth();
            if !alpn.is_empty() {
                client_config.alpn_protocols = vec![alpn.into()];
            }
            let application = application();
            let (client, connection) = connect(settings(config.clone()), &application).await;
            let connector = tokio_rustls::TlsConnector::from(Arc::new(client_config));
            let tls = connector.connect(ServerName::try_from(name).unwrap(), client).await.unwrap();
            let said = if alpn == "h2" { ask_h2(tls).await } else { ask_h1(tls).await };
            let version =
                if version.version == rustls::ProtocolVersion::TLSv1_2 { "TLSv1.2" } else { "TLSv1.3" };
            assert_eq!(said, format!("{name} {version}"));
            connection.await.unwrap();
            assert_eq!(application.totals().answered, 1);
        }
    }
}

#[tokio::test]
async fn a_plain_request_to_a_tls_port_is_told_so() {
    let files = Files::default();
    let config = Certificates::default().load(&listener(&[files.write("a", &["a.example"], &key_pair())]));
    let application = application();
    let (mut client, connection) = connect(settings(config.unwrap()), &application).await;
    client.write_all(b"GET / HTTP/1.1\r\nhost: a.example\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "));
    drop(client);
    connection.await.unwrap();
    assert_eq!(application.totals().rejected, 1);
}

#[tokio::test]
async fn a_cleartext_port_speaks_http1_and_h2_by_prior_knowledge() {
    let application = application();
    let (client, connection) = connect(settings(None), &application).await;
    assert_eq!(ask_h1(client).await, "clear HTTP/1.1");
    connection.await.unwrap();
    let (client, connection) = connect(settings(None), &application).await;
    assert_eq!(ask_h2(client).await, "clear HTTP/2.0");
    connection.await.unwrap();
}

#[tokio::test]
async fn a_preface_may_come_byte_by_byte_and_may_turn_out_to_be_none() {
    let application = application();
    let (mut client, _connection) = connect(settings(None), &application).await;
    for byte in b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0" {
        client.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    let mut frame = [0; 9];
    client.read_exact(&mut frame).await.unwrap();
    assert_eq!(frame[3], 4, "SETTINGS");

    let (mut client, connection) = connect(settings(None), &application).await;
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nXX").await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 4") || answer.starts_with("HTTP/1.1 5"), "{answer}");
    drop(client);
    connection.await.unwrap();
}

#[tokio::test]
async fn without_http2_the_preface_is_a_bad_request() {
    let (mut client, _connection) =
        connect(Settings { http2: false, ..settings(None) }, &application()).await;
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_never_comes_meets_its_deadline() {
    let files = Files::default();
    let config = Certificates::default().load(&listener(&[files.write("a", &["a.example"], &key_pair())]));
    let config = config.unwrap();
    for bytes in [&b""[..], b"\x16\x03\x01\x02\x00"] {
        let started = tokio::time::Instant::now();
        let (mut client, connection) = connect(settings(config.clone()), &application()).await;
        client.write_all(bytes).await.unwrap();
        connection.await.unwrap();
        assert_eq!(started.elapsed().as_secs(), 10);
    }
}
