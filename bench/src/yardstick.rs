//! Bare hyper: what a task per connection costs with nothing to decide. Also the upstream of proxied scenarios.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::scenario::JSON;

/// How it serves.
#[derive(clap::Args)]
pub struct Args {
    /// Where it listens
    address: SocketAddr,
    /// Bytes of the answer's content
    #[arg(long, default_value_t = 1024)]
    length: usize,
    /// Answers a small JSON document instead
    #[arg(long)]
    json: bool,
    /// Speaks TLS with this certificate, and HTTP/2 to who offers it
    #[arg(long, requires = "key")]
    cert: Option<PathBuf>,
    /// The certificate's key
    #[arg(long)]
    key: Option<PathBuf>,
}

/// Serves on one thread until it is killed.
pub fn serve(args: Args) -> Result<()> {
    let body =
        if args.json { Bytes::from_static(JSON.as_bytes()) } else { Bytes::from(vec![b'x'; args.length]) };
    let kind = HeaderValue::from_static(if args.json { "application/json" } else { "text/plain" });
    let tls = match (&args.cert, &args.key) {
        (Some(cert), Some(key)) => Some(acceptor(cert, key)?),
        _ => None,
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async move {
        let listener = TcpListener::bind(args.address).await.context("listening")?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let (body, kind) = (body.clone(), kind.clone());
            let service = service_fn(move |_: Request<Incoming>| {
                let mut response = Response::new(Full::new(body.clone()));
                response.headers_mut().insert(CONTENT_TYPE, kind.clone());
                std::future::ready(Ok::<_, Infallible>(response))
            });
            // A connection's error is the load generator's business, which counts it.
            match &tls {
                None => {
                    tokio::spawn(async move {
                        let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                    });
                }
                Some(tls) => {
                    let accept = tls.accept(stream);
                    tokio::spawn(async move {
                        let Ok(stream) = accept.await else { return };
                        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                            let _ = http2::Builder::new(TokioExecutor::new())
                                .serve_connection(TokioIo::new(stream), service)
                                .await;
                        } else {
                            let _ =
                                http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                        }
                    });
                }
            }
        }
    })
}

fn acceptor(cert: &PathBuf, key: &PathBuf) -> Result<TlsAcceptor> {
    let chain = CertificateDer::pem_file_iter(cert)?.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(key)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
