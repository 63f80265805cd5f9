//! Where the load goes, and the byte stream to it.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Over TCP.
    Tcp(SocketAddr),
    /// On a Unix stream socket.
    Unix(PathBuf),
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Target {
        Target::Tcp(address)
    }
}

impl Target {
    /// What stands in `Host` and `:authority` unless a request says otherwise.
    pub(super) fn authority(&self) -> String {
        match self {
            Target::Tcp(address) => address.to_string(),
            Target::Unix(_) => "localhost".into(),
        }
    }

    /// Connects the socket, without TLS.
    pub(super) async fn connect(&self) -> io::Result<(Socket, Arc<Wire>)> {
        let wire = Arc::new(Wire::default());
        let socket = match self {
            Target::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Box::new(Counted { inner: stream, wire: wire.clone() }) as Socket
            }
            Target::Unix(path) => {
                Box::new(Counted { inner: UnixStream::connect(path).await?, wire: wire.clone() })
            }
        };
        Ok((socket, wire))
    }
}

/// How a TLS server is spoken to and whom it must prove to be.
#[derive(Clone)]
pub struct Tls {
    name: ServerName<'static>,
    config: ClientConfig,
}

impl Tls {
    /// Sends `name` as SNI and requires a certificate for it that one of `roots` signed (or is).
    ///
    /// # Errors
    /// A name that is no DNS name or IP address, a root that is not a certificate.
    pub fn trusting(
        name: &str,
        roots: impl IntoIterator<Item = CertificateDer<'static>>,
    ) -> Result<Tls, rustls::Error> {
        let mut store = RootCertStore::empty();
        for root in roots {
            store.add(root)?;
        }
        let config = builder()?.with_root_certificates(store).with_no_client_auth();
        Tls::with(name, config)
    }

    /// Sends `name` as SNI and accepts any certificate.
    ///
    /// # Errors
    /// A name that is no DNS name or IP address.
    pub fn accepting_any(name: &str) -> Result<Tls, rustls::Error> {
        let verifier = Arc::new(AcceptAny(Arc::new(aws_lc_rs::default_provider())));
        let config = builder()?.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        Tls::with(name, config)
    }

    /// Uses a configuration of the caller's; ALPN is set by the stream's protocol.
    ///
    /// # Errors
    /// A name that is no DNS name or IP address.
    pub fn with(name: &str, config: ClientConfig) -> Result<Tls, rustls::Error> {
        let name = ServerName::try_from(name.to_owned())
            .map_err(|e: InvalidDnsNameError| rustls::Error::General(e.to_string()))?;
        Ok(Tls { name, config })
    }

    pub(super) fn connector(&self, alpn: &[u8]) -> TlsConnector {
        let mut config = self.config.clone();
        config.alpn_protocols = vec![alpn.to_vec()];
        TlsConnector::from(Arc::new(config))
    }

    /// For HTTP/3.
    pub(super) fn quic(&self) -> Result<quinn::ClientConfig, quinn::crypto::rustls::NoInitialCipherSuite> {
        let mut config = self.config.clone();
        config.alpn_protocols = vec![b"h3".to_vec()];
        let config = quinn::crypto::rustls::QuicClientConfig::try_from(config)?;
        let mut transport = quinn::TransportConfig::default();
        // What ends a connection is one packet, which may be lost: who only waits for an answer asks whether anybody is there.
        transport.keep_alive_interval(Some(QUIC_PING));
        let mut config = quinn::ClientConfig::new(Arc::new(config));
        config.transport_config(Arc::new(transport));
        Ok(config)
    }

    pub(super) fn name(&self) -> &ServerName<'static> {
        &self.name
    }
}

fn builder() -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, rustls::Error> {
    ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
}

const QUIC_PING: Duration = Duration::from_millis(500);

/// A byte stream to the server, with or without TLS.
pub(super) type Socket = Box<dyn Stream>;

/// What a [`Socket`] can do.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {
    /// Asks the kernel, without waiting, what there is to read. The runtime's readiness would not do: it is as old as the
    /// last look at epoll.
    fn peek(&self) -> Peek;
}

/// What the kernel holds for a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peek {
    Nothing,
    /// Bytes of an application.
    Data,
    /// TLS records, which may be of an application or not.
    Records,
    /// The end, or an error.
    End,
}

impl<S: AsyncRead + AsyncWrite + AsFd + Send + Unpin> Stream for Counted<S> {
    fn peek(&self) -> Peek {
        match SockRef::from(&self.inner).peek(&mut [MaybeUninit::uninit()]) {
            Ok(0) => Peek::End,
            Ok(_) => Peek::Data,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Peek::Nothing,
            Err(_) => Peek::End,
        }
    }
}

impl Stream for TlsStream<Socket> {
    fn peek(&self) -> Peek {
        match self.get_ref().0.peek() {
            Peek::Data => Peek::Records,
            peek => peek,
        }
    }
}

/// What crossed between this process and the kernel on one connection.
#[derive(Debug, Default)]
pub(super) struct Wire {
    written: AtomicU64,
}

impl Wire {
    /// Bytes that the kernel took.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }
}

/// Counts what the kernel takes, beneath TLS and HTTP/2, so that "no byte was sent" is known and not guessed.
struct Counted<S> {
    inner: S,
    wire: Arc<Wire>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.inner).poll_write(cx, buf))?;
        self.wire.written.fetch_add(written as u64, Ordering::Release);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.inner).poll_write_vectored(cx, bufs))?;
        self.wire.written.fetch_add(written as u64, Ordering::Release);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Accepts every certificate, but still checks that the server holds its key.
#[derive(Debug)]
struct AcceptAny(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
