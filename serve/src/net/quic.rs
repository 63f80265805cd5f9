//! QUIC (RFC 9000): a UDP socket with the connections on it.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use playhouse_config::model::{ClientTimeouts, Limits};
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Runtime, ServerConfig, TokioRuntime, TransportConfig, VarInt};

use super::quic_forwarding::Forwarding;
use super::quic_group::bind_udp;
use super::{QuicGroup, QuicKeys, Slot};

/// A UDP socket, non-blocking and close-on-exec, and the connections on it. It goes on as long as somebody holds it, or a
/// connection on it has not ended.
pub struct QuicEndpoint {
    endpoint: quinn::Endpoint,
    place: Place,
    local: SocketAddr,
    /// Handshakes whose client has not yet shown that it is where it says.
    unvalidated: Arc<AtomicUsize>,
}

/// Where an endpoint's socket is from.
#[derive(Debug)]
enum Place {
    Bound {
        address: SocketAddr,
        only_v6: bool,
    },
    /// Held as a whole, so that the order of its sockets stays.
    InGroup(Arc<QuicGroup>),
}

/// What a listener demands of QUIC connections.
#[derive(Clone)]
pub struct QuicConfig(ServerConfig);

/// A client that has sent its first packet, and has no answer yet. Dropped, it is refused.
#[derive(Debug)]
pub struct QuicIncoming {
    incoming: quinn::Incoming,
    handshake: Handshake,
}

/// Counts a handshake that was begun without a validated address, until it is dropped.
#[derive(Debug)]
pub struct Handshake(Option<Arc<AtomicUsize>>);

impl QuicConfig {
    /// For connections with this TLS, these limits and these deadlines. 0-RTT is what `tls` allows. `None` where `tls` lacks
    /// the cipher of Initial packets, which all of ours have.
    pub fn new(
        tls: &Arc<rustls::ServerConfig>,
        limits: &Limits,
        timeouts: &ClientTimeouts,
        keys: &QuicKeys,
    ) -> Option<Self> {
        let crypto = QuicServerConfig::try_from(tls.clone()).ok()?;
        let mut config = ServerConfig::new(Arc::new(crypto), keys.token());
        config
            .transport_config(Arc::new(transport(limits, timeouts)))
            .max_incoming(MAX_INCOMING)
            .incoming_buffer_size(INCOMING_BUFFER)
            .incoming_buffer_size_total(INCOMING_BUFFERS)
            .migration(true);
        Some(QuicConfig(config))
    }
}

impl fmt::Debug for QuicConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicConfig").finish_non_exhaustive()
    }
}

fn transport(limits: &Limits, timeouts: &ClientTimeouts) -> TransportConfig {
    let mut transport = TransportConfig::default();
    // Our own deadlines come first; this is for clients that have vanished.
    let silence = timeouts.idle.max(timeouts.tls).max(LEAST_SILENCE) + Duration::from_secs(5);
    transport
        .max_concurrent_bidi_streams(limits.streams.into())
        .max_concurrent_uni_streams(UNI_STREAMS.into())
        .stream_receive_window(STREAM_WINDOW.into())
        .receive_window(CONNECTION_WINDOW.into())
        .send_window(SEND_WINDOW)
        .datagram_receive_buffer_size(None)
        .max_idle_timeout(Some(silence.try_into().unwrap_or_else(|_| VarInt::MAX.into())));
    transport
}

impl QuicEndpoint {
    /// Binds a UDP socket; nobody is let in before [`QuicEndpoint::open`]. Must be called within a runtime, whose driver
    /// the socket joins.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn bind(address: SocketAddr, only_v6: bool, keys: &QuicKeys) -> io::Result<Self> {
        let socket = bind_udp(address, only_v6, false)?;
        Self::on(socket, Place::Bound { address, only_v6 }, keys, Slot::alone())
    }

    /// On the socket of a slot of a group, which is held. The same runtime is needed. Where the kernel does not steer, the
    /// processes of the site meet in `directory`.
    ///
    /// # Errors
    /// `InvalidInput` where the group does not have the slot, or has to be sorted and it is not known among whom; else what
    /// the kernel says.
    pub fn in_group(
        group: Arc<QuicGroup>,
        slot: Slot,
        keys: &QuicKeys,
        directory: Option<&Path>,
    ) -> io::Result<Self> {
        if !group.is_steered() {
            return Self::sorting(group, slot, keys, directory);
        }
        let no_slot = || io::Error::new(io::ErrorKind::InvalidInput, "it has no socket for this slot");
        let socket = group.socket(slot.number().into()).ok_or_else(no_slot)?.try_clone()?;
        Self::on(socket, Place::InGroup(group), keys, slot)
    }

    fn sorting(
        group: Arc<QuicGroup>,
        slot: Slot,
        keys: &QuicKeys,
        directory: Option<&Path>,
    ) -> io::Result<Self> {
        let (Some(place), Some(directory)) = (slot.place(), directory) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "there is no board of the site's processes",
            ));
        };
        let wrap = |(_, socket): (u32, &OwnedFd)| TokioRuntime.wrap_udp_socket(socket.try_clone()?.into());
        let sockets = group.sockets().map(wrap).collect::<io::Result<_>>()?;
        let socket = Forwarding::new(sockets, keys.ids(), place.clone(), directory, group.number()?)?;
        let (config, runtime) = (keys.endpoint(slot), Arc::new(TokioRuntime));
        let endpoint = quinn::Endpoint::new_with_abstract_socket(config, None, Arc::new(socket), runtime)?;
        let local = endpoint.local_addr()?;
        Ok(QuicEndpoint { endpoint, place: Place::InGroup(group), local, unvalidated: Arc::default() })
    }

    fn on(socket: OwnedFd, place: Place, keys: &QuicKeys, slot: Slot) -> io::Result<Self> {
        let config = keys.endpoint(slot);
        let endpoint = quinn::Endpoint::new(config, None, socket.into(), Arc::new(TokioRuntime))?;
        let local = endpoint.local_addr()?;
        Ok(QuicEndpoint { endpoint, place, local, unvalidated: Arc::default() })
    }

    /// Lets clients in, or lets those to come in under another configuration.
    pub fn open(&self, config: &QuicConfig) {
        self.endpoint.set_server_config(Some(config.0.clone()));
    }

    /// Lets nobody new in. Connections go on, and those who wait may be accepted still.
    pub fn shut(&self) {
        self.endpoint.set_server_config(None);
    }

    /// Accepts whoever comes next. Cancel-safe: a future that is dropped has accepted nobody. Waits for ever where
    /// nobody comes.
    pub async fn accept(&self) -> QuicIncoming {
        loop {
            match self.endpoint.accept().await {
                Some(incoming) => return self.begin(incoming),
                // Only an endpoint that was closed as a whole ends, which this one never is.
                None => std::future::pending().await,
            }
        }
    }

    /// Accepts whoever waits already.
    pub fn accept_now(&self) -> Option<QuicIncoming> {
        self.endpoint.accept().now_or_never().flatten().map(|incoming| self.begin(incoming))
    }

    fn begin(&self, incoming: quinn::Incoming) -> QuicIncoming {
        let unvalidated = (!incoming.remote_address_validated()).then(|| self.unvalidated.clone());
        if let Some(unvalidated) = &unvalidated {
            unvalidated.fetch_add(1, Ordering::Relaxed);
        }
        QuicIncoming { incoming, handshake: Handshake(unvalidated) }
    }

    /// Has a client show that it is where it says (a Retry packet, RFC 9000 §8.1.2), where it has not, and where
    /// `always` or there are many of its kind. `None`: it may come back with a token.
    pub fn validated(&self, incoming: QuicIncoming, always: bool) -> Option<QuicIncoming> {
        let many = self.unvalidated.load(Ordering::Relaxed) > MAX_UNVALIDATED;
        if incoming.handshake.0.is_none() || !(always || many) || !incoming.incoming.may_retry() {
            return Some(incoming);
        }
        // Cannot fail: it may.
        let _ = incoming.incoming.retry();
        None
    }

    /// The address as bound, a port 0 resolved.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Whether it is bound to this address, in this way.
    pub fn is_at(&self, address: SocketAddr, only_v6: bool) -> bool {
        match &self.place {
            Place::Bound { address: bound, only_v6: only } => (*bound, *only) == (address, only_v6),
            Place::InGroup(group) => group.is_at(address, only_v6),
        }
    }

    /// The group that its socket is of.
    pub fn group(&self) -> Option<&Arc<QuicGroup>> {
        match &self.place {
            Place::Bound { .. } => None,
            Place::InGroup(group) => Some(group),
        }
    }
}

impl fmt::Debug for QuicEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicEndpoint").field("local", &self.local).finish_non_exhaustive()
    }
}

impl QuicIncoming {
    /// The client, as it says.
    pub fn peer(&self) -> SocketAddr {
        self.incoming.remote_address()
    }

    /// Where it has reached us; `None` where the kernel does not tell.
    pub fn local_ip(&self) -> Option<IpAddr> {
        self.incoming.local_ip()
    }

    /// Whether the client has shown that it is where it says.
    pub fn is_validated(&self) -> bool {
        self.handshake.0.is_none()
    }

    /// Begins the handshake. The guard is to be kept as long as that lasts.
    ///
    /// # Errors
    /// Where the client's first packet is invalid.
    pub fn accept(self) -> Result<(quinn::Connecting, Handshake), quinn::ConnectionError> {
        Ok((self.incoming.accept()?, self.handshake))
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        if let Some(unvalidated) = &self.0 {
            unvalidated.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Clients that wait to be accepted; more are ignored, and try again.
const MAX_INCOMING: usize = 1024;
/// What each of them may have sent by then, and all of them.
const INCOMING_BUFFER: u64 = 64 << 10;
const INCOMING_BUFFERS: u64 = 8 << 20;
/// Handshakes at a time with clients that may not be where they say, before all have to show it.
pub(super) const MAX_UNVALIDATED: usize = 256;
/// Three are needed (RFC 9114 §6.2), and clients open others to keep servers used to it.
const UNI_STREAMS: u32 = 8;
/// What a client may send of one body before it is read.
const STREAM_WINDOW: u32 = 256 << 10;
/// What it may send of all.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// What we keep for a client until it has acknowledged it.
const SEND_WINDOW: u64 = 2 << 20;
const LEAST_SILENCE: Duration = Duration::from_secs(60);
