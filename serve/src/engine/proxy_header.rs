//! The PROXY header, by which a proxy says who its client is.

use std::time::Duration;

use bytes::BytesMut;
use playhouse_protocol::proxy_protocol::{Header, HeaderError, Origin, Reader};
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, timeout_at};

use super::drain::waiting;
use super::{Drain, Settings, opening};
use crate::exchange::Peer;
use crate::net::Stream;
use crate::{ConnectionInfo, Proxied};

/// Why a connection is closed before anything of it was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoHeader {
    /// The peer has closed without a word, as health checks do, or there was nothing of it when the site began to drain.
    #[error("nothing was sent")]
    Silent,
    /// A header is required, and the peer is nobody who is believed.
    #[error("the address is not one of `trusted`")]
    Untrusted,
    /// The header was not complete in time.
    #[error("the header was not complete in time")]
    TooSlow,
    /// The peer has closed within its header.
    #[error("closed within its header")]
    CutOff,
    /// There is none, or it is malformed.
    #[error("{0}")]
    Refused(#[from] HeaderError),
}

/// Reads the header at the beginning of a stream, where the listener has that and the peer is believed, and enters what it
/// says in `info`. What was read behind it is given back: the first bytes of the client.
///
/// Whether `info.proxied` is filled says whether the client is another than the peer.
///
/// # Errors
/// Where the connection is to be closed; there is nothing to answer to somebody who does not speak the protocol.
pub async fn proxy_header(
    stream: &mut Stream,
    info: &mut ConnectionInfo,
    settings: &Settings,
    drain: &mut Drain<impl Future<Output = ()> + Unpin>,
) -> Result<BytesMut, NoHeader> {
    let Some(proxies) = &settings.proxy_protocol else { return Ok(BytesMut::new()) };
    if !settings.is_proxy(&info.peer) {
        // What may look like a header is a malformed request.
        return if proxies.required { Err(NoHeader::Untrusted) } else { Ok(BytesMut::new()) };
    }
    let timeouts = &settings.timeouts;
    let now = Instant::now();
    // One that need not send a header need not send anything sooner than other clients.
    let first = match proxies.required {
        true => timeouts.proxy_header,
        false if settings.tls.is_some() => timeouts.tls,
        false => timeouts.idle,
    };
    let read = read(stream, proxies.required, now + first, timeouts.proxy_header);
    let (header, rest) =
        drain.grace(waiting(timeouts.drain_idle), read).await.unwrap_or(Err(NoHeader::Silent))?;
    if let Some(header) = header {
        name_client(info, header);
    }
    Ok(rest)
}

/// The header, if there is one, and what came behind it. `first` is the deadline of the first byte, `patience` how long all
/// of it may take from then on.
async fn read(
    stream: &mut Stream,
    required: bool,
    first: Instant,
    patience: Duration,
) -> Result<(Option<Header>, BytesMut), NoHeader> {
    let reader = Reader::new(LARGEST);
    let mut input = opening::first_bytes(stream, first).await.ok_or(NoHeader::Silent)?;
    let deadline = Instant::now() + patience;
    loop {
        match reader.read(&mut input) {
            Ok(Some(header)) => return Ok((Some(header), input)),
            Ok(None) => {}
            Err(HeaderError::Missing) if !required => return Ok((None, input)),
            Err(error) => return Err(error.into()),
        }
        match timeout_at(deadline, stream.read_buf(&mut input)).await {
            Ok(Ok(1..)) => {}
            Ok(Ok(0) | Err(_)) => return Err(NoHeader::CutOff),
            Err(_) => return Err(NoHeader::TooSlow),
        }
    }
}

/// Enters the client that a proxy has named. One that speaks for itself, or does not say, is the client.
fn name_client(info: &mut ConnectionInfo, header: Header) {
    let said = header.tlvs.authority.is_some() || header.tlvs.tls.is_some();
    let (peer, local) = match header.origin {
        Origin::Local => return,
        // What it says beside the address holds all the same: a proxy whose client has come over a Unix socket, say.
        Origin::Unknown if said => (info.peer, info.local),
        Origin::Unknown => return,
        Origin::Inet { source, destination, .. } => (Peer::Tcp(source), Some(destination)),
        Origin::Unix { .. } => (Peer::Unix, None),
    };
    let tls = header.tlvs.tls.filter(|tls| tls.used);
    info.proxied = Some(Box::new(Proxied {
        by: std::mem::replace(&mut info.peer, peer),
        tls: tls.is_some(),
        tls_version: tls.and_then(|tls| tls.version),
        server_name: header.tlvs.authority,
    }));
    info.local = local;
}

/// The largest header, as nginx has it; usual ones have less than a tenth.
const LARGEST: usize = 4096;
