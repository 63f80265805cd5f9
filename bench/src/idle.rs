//! Idle connections, held by a process of their own so that both sides have descriptors enough.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, Stream};

use crate::scenario::Scenario;

/// What holds connections.
#[derive(clap::Args)]
pub struct Args {
    /// The server
    address: SocketAddr,
    /// How many
    connections: usize,
    /// Over TLS, with a server that has this certificate for `localhost`
    #[arg(long)]
    cert: Option<std::path::PathBuf>,
}

/// Opens connections, has one request answered on each, says `ready`, and holds them until the standard input ends.
pub fn client(Args { address, connections, cert }: Args) -> Result<()> {
    crate::process::raise_file_limit();
    let tls = cert.as_deref().map(config).transpose()?;
    let request = format!("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", Scenario::Idle.path());
    let mut held = Vec::with_capacity(connections);
    for n in 0..connections {
        let mut stream = TcpStream::connect(address).with_context(|| format!("connection {n}"))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        match &tls {
            None => ask(&mut stream, &request),
            Some(config) => {
                let mut session = ClientConnection::new(config.clone(), ServerName::try_from("localhost")?)?;
                ask(&mut Stream::new(&mut session, &mut stream), &request)
            }
        }
        .with_context(|| format!("connection {n}"))?;
        held.push(stream);
    }
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    for (n, stream) in held.iter().enumerate() {
        stream.set_nonblocking(true)?;
        // An idle connection that the server has closed would be measured as a cheap one.
        let open = stream.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        ensure!(open, "connection {n} of {connections} was closed while idle");
    }
    Ok(())
}

fn config(cert: &Path) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(cert)?)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.resumption = rustls::client::Resumption::disabled();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn ask(stream: &mut (impl Read + Write), request: &str) -> Result<()> {
    stream.write_all(request.as_bytes())?;
    answer(stream, Scenario::Idle.length())
}

/// Reads an answer whose content has `length` bytes.
fn answer(stream: &mut impl Read, length: usize) -> Result<()> {
    let mut read = Vec::with_capacity(2048);
    let mut piece = [0; 16 << 10];
    loop {
        match stream.read(&mut piece)? {
            0 => bail!("closed after {} bytes of an answer", read.len()),
            n => read.extend_from_slice(&piece[..n]),
        }
        if let Some(head) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            let status = read.get(9..12).unwrap_or_default();
            ensure!(status == b"200", "answered with {}", String::from_utf8_lossy(status));
            if read.len() >= head + 4 + length {
                ensure!(read.len() == head + 4 + length, "{} bytes too many", read.len() - head - 4 - length);
                return Ok(());
            }
        }
    }
}
