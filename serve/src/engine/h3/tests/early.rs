//! Requests before the end of the handshake. Between client and server stands one that holds back what the server says.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::{mpsc, watch};

use super::*;
use crate::{Body, Exchange};

/// A server, and a way to it that can be closed in one direction.
struct Stage {
    application: Arc<TestApplication>,
    /// Method and `early-data` of what is handled, as it comes.
    handled: mpsc::UnboundedReceiver<(String, String, bool)>,
    /// Whether the client hears the server.
    heard: watch::Sender<bool>,
    way: SocketAddr,
    client: quinn::Endpoint,
    _server: JoinHandle<()>,
}

impl Stage {
    async fn start() -> Self {
        let files = testing::Files::default();
        let certificate = files.write("site", &["a.example"], &testing::key_pair());
        let listener = model::Listener {
            http3: true,
            early_data: true,
            timeouts: model::ClientTimeouts { tls: Duration::from_secs(5), ..Default::default() },
            ..testing::listener(std::slice::from_ref(&certificate))
        };
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
        let (tell, handled) = mpsc::unbounded_channel();
        let application = TestApplication::new(move |exchange: &mut Exchange| {
            let field = exchange.request.headers().get("early-data");
            let field = field.map_or("", |value| value.to_str().unwrap()).to_owned();
            let _ = tell.send((exchange.request.method().to_string(), field, exchange.record.early));
            Box::pin(async { http::Response::new(Body::Empty) })
        });
        let (local, answering) = (server.local(), application.clone());
        let accepting = tokio::spawn(async move {
            loop {
                let incoming = server.accept().await;
                let info = ConnectionInfo {
                    peer: Peer::Tcp(incoming.peer()),
                    ..crate::engine::test_application::info(1)
                };
                let drain = Drain::new(Box::pin(std::future::pending()));
                tokio::spawn(serve_quic(incoming, info, settings.clone(), answering.clone(), drain));
            }
        });
        let (heard, hears) = watch::channel(true);
        let way = relay(local, hears).await;
        let mut client = quinn::Endpoint::client(any).unwrap();
        client.set_default_client_config(early_client(&certificate));
        Stage { application, handled, heard, way, client, _server: accepting }
    }

    /// A connection that leaves its sessions behind.
    async fn visit(&mut self) {
        let connection = self.client.connect(self.way, "a.example").unwrap().await.unwrap();
        let (mut send, recv) = connection.open_bi().await.unwrap();
        send.write_all(&head(&[])).await.unwrap();
        send.finish().unwrap();
        read(recv).await.unwrap();
        assert_eq!(self.next().await, ("GET".into(), String::new(), false));
        connection.close(0_u32.into(), b"");
        self.until_in_flight(0).await;
    }

    async fn until_in_flight(&self, count: u64) {
        while self.application.totals().in_flight != count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// A connection that begins with a session, and hears nothing for now.
    fn begin(&self) -> quinn::Connection {
        self.heard.send_replace(false);
        let connecting = self.client.connect(self.way, "a.example").unwrap();
        connecting.into_0rtt().unwrap_or_else(|_| panic!("there is a session")).0
    }

    async fn next(&mut self) -> (String, String, bool) {
        self.handled.recv().await.unwrap()
    }
}

/// A client that asks before the end of its handshake.
fn early_client(certificate: &model::Certificate) -> quinn::ClientConfig {
    let mut config = tls_client_config(certificate);
    config.enable_early_data = true;
    let config = quinn::crypto::rustls::QuicClientConfig::try_from(config).unwrap();
    quinn::ClientConfig::new(Arc::new(config))
}

/// Passes everything on to the server, and the server's answers while they are to be heard.
async fn relay(server: SocketAddr, mut heard: watch::Receiver<bool>) -> SocketAddr {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let (near, far) = (UdpSocket::bind(any).await.unwrap(), UdpSocket::bind(any).await.unwrap());
    far.connect(server).await.unwrap();
    let way = near.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut out, mut back) = (vec![0; 65536], vec![0; 65536]);
        let mut client = None;
        loop {
            let hears = *heard.borrow();
            tokio::select! {
                Ok((length, from)) = near.recv_from(&mut out) => {
                    client = Some(from);
                    let _ = far.send(&out[..length]).await;
                }
                Ok(length) = far.recv(&mut back), if hears => {
                    if let Some(client) = client {
                        let _ = near.send_to(&back[..length], client).await;
                    }
                }
                Ok(()) = heard.changed() => {}
            }
        }
    });
    way
}

async fn ask(connection: &quinn::Connection, fields: &[(&str, &str)], rest: &[u8]) -> quinn::RecvStream {
    let (mut send, recv) = connection.open_bi().await.unwrap();
    send.write_all(&[&head(fields)[..], rest].concat()).await.unwrap();
    send.finish().unwrap();
    recv
}

fn said(method: &str, early: bool) -> (String, String, bool) {
    (method.into(), if early { "1" } else { "" }.into(), early)
}

#[tokio::test]
async fn what_is_safe_is_handled_early_and_the_rest_when_the_handshake_has_ended() {
    let mut stage = Stage::start().await;
    stage.visit().await;
    let connection = stage.begin();
    let post = ask(&connection, &[(":method", "POST")], b"").await;
    // Its content makes a request wait even where its method is safe.
    let content = ask(&connection, &[(":method", "OPTIONS")], &frame(0, b"content")).await;
    let mut others = Vec::new();
    for method in ["GET", "HEAD"] {
        others.push(ask(&connection, &[(":method", method), ("early-data", "0")], b"").await);
        assert_eq!(stage.next().await, said(method, true));
    }
    assert!(stage.handled.try_recv().is_err());
    assert_eq!(stage.application.totals().in_flight, 4);
    stage.heard.send_replace(true);
    let mut rest = [stage.next().await, stage.next().await];
    rest.sort();
    assert_eq!(rest, [said("OPTIONS", false), said("POST", false)]);
    others.extend([post, content]);
    for answer in others {
        assert_eq!(read(answer).await.unwrap().status(), "200");
    }
    // Once it has ended nothing is early.
    read(ask(&connection, &[], b"").await).await.unwrap();
    assert_eq!(stage.next().await, said("GET", false));
}

#[tokio::test]
async fn what_waits_ends_with_its_client() {
    let mut stage = Stage::start().await;
    stage.visit().await;
    let connection = stage.begin();
    let _waits = ask(&connection, &[(":method", "POST")], b"").await;
    stage.until_in_flight(1).await;
    connection.close(0_u32.into(), b"");
    // The server understands a close in early data, or it waits no longer than for a handshake.
    stage.until_in_flight(0).await;
    let totals = stage.application.totals();
    assert_eq!((totals.client_gone, totals.killed), (1, 0), "{totals:?}");
    assert!(stage.handled.try_recv().is_err());
}
