//! A load generator for HTTP/3, by the `h3` crate on quinn: there is none in distributions.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::{Buf, Bytes};
use h3::client::SendRequest;
use h3_quinn::OpenStreams;
use http::Request;
use quinn::crypto::rustls::QuicClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio::task::LocalSet;

/// What is sent.
#[derive(clap::Args)]
pub struct Args {
    /// The server
    address: SocketAddr,
    /// What is asked for
    path: String,
    /// Its certificate, which is for `localhost`
    #[arg(long)]
    cert: PathBuf,
    /// For how long
    #[arg(long)]
    seconds: u64,
    /// Connections
    #[arg(long, default_value_t = 8)]
    connections: usize,
    /// Requests at a time on each of them
    #[arg(long, default_value_t = 32)]
    streams: usize,
}

#[derive(Default)]
struct Counts {
    answered: Cell<u64>,
    failed: Cell<u64>,
}

/// Asks as long as it is told to, and says how many answers there were.
pub fn run(args: Args) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let counts = Rc::new(Counts::default());
    LocalSet::new().block_on(&runtime, load(args, counts.clone()))?;
    println!("requests: {} answered, {} failed", counts.answered.get(), counts.failed.get());
    Ok(())
}

async fn load(args: Args, counts: Rc<Counts>) -> Result<()> {
    let mut endpoint = quinn::Endpoint::client((Ipv4Addr::UNSPECIFIED, 0).into())?;
    endpoint.set_default_client_config(client_config(&args.cert)?);
    let until = Instant::now() + Duration::from_secs(args.seconds);
    let uri = format!("https://localhost{}", args.path);
    let (mut drivers, mut streams) = (Vec::new(), Vec::new());
    for number in 0..args.connections {
        let connecting = endpoint.connect(args.address, "localhost")?;
        let connection = connecting.await.with_context(|| format!("connection {number}"))?;
        let (mut driver, send) = h3::client::new(h3_quinn::Connection::new(connection)).await?;
        drivers.push(tokio::task::spawn_local(async move {
            std::future::poll_fn(|cx| driver.poll_close(cx)).await;
        }));
        for _ in 0..args.streams {
            let (send, uri, counts) = (send.clone(), uri.clone(), counts.clone());
            streams.push(tokio::task::spawn_local(async move {
                let mut send = send;
                while Instant::now() < until {
                    let count = match ask(&mut send, &uri).await {
                        Ok(()) => &counts.answered,
                        Err(_) => &counts.failed,
                    };
                    count.set(count.get() + 1);
                }
            }));
        }
    }
    for stream in streams {
        stream.await?;
    }
    drivers.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(())
}

async fn ask(send: &mut SendRequest<OpenStreams, Bytes>, uri: &str) -> Result<()> {
    let mut stream = send.send_request(Request::get(uri).body(())?).await?;
    stream.finish().await?;
    let head = stream.recv_response().await?;
    while let Some(mut data) = stream.recv_data().await? {
        data.advance(data.remaining());
    }
    anyhow::ensure!(head.status().is_success(), "{}", head.status());
    Ok(())
}

fn client_config(cert: &Path) -> Result<quinn::ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(cert)?)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h3".to_vec()];
    Ok(quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(config)?)))
}
