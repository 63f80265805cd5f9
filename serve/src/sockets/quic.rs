//! The UDP sockets beside the TCP ones.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use playhouse_config::model::{self, Bind};

use super::Sockets;
use super::prepare::BindErrorKind;
use crate::net::{Listener, QuicConfig, QuicEndpoint, QuicKeys};
use crate::tls::ListenerTls;

/// All endpoints that somebody still holds. An address cannot be bound a second time as long as connections on it last,
/// so that whoever wants it goes on with the endpoint that is there.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    /// The same as long as the site lives, so that what an earlier endpoint has given is understood by a later one.
    keys: OnceLock<QuicKeys>,
    open: Mutex<Vec<Weak<QuicEndpoint>>>,
}

impl Endpoints {
    fn keys(&self) -> io::Result<&QuicKeys> {
        match self.keys.get() {
            Some(keys) => Ok(keys),
            None => {
                let keys = QuicKeys::generate()?;
                Ok(self.keys.get_or_init(|| keys))
            }
        }
    }

    fn at(&self, address: SocketAddr, only_v6: bool) -> io::Result<Arc<QuicEndpoint>> {
        let mut open = self.open.lock();
        open.retain(|endpoint| endpoint.strong_count() > 0);
        let mut held = open.iter().filter_map(Weak::upgrade);
        if let Some(endpoint) = held.find(|endpoint| endpoint.is_at(address, only_v6)) {
            return Ok(endpoint);
        }
        let endpoint = Arc::new(QuicEndpoint::bind(address, only_v6, self.keys()?)?);
        open.push(Arc::downgrade(&endpoint));
        Ok(endpoint)
    }
}

impl Sockets {
    /// The endpoint for a listener's HTTP/3: at the address that its TCP socket has, which is `opened` or `running`.
    pub(super) fn endpoint(
        &self,
        listener: &model::Listener,
        opened: &Result<Option<Arc<Listener>>, BindErrorKind>,
        running: &Option<Arc<Listener>>,
    ) -> io::Result<Option<Arc<QuicEndpoint>>> {
        let (true, Bind::Tcp { only_v6, .. }) = (listener.http3, &listener.bind) else { return Ok(None) };
        let tcp = match opened {
            Ok(Some(opened)) => Some(opened),
            Ok(None) => running.as_ref(),
            // That is what will be said.
            Err(_) => None,
        };
        let Some(local) = tcp.and_then(|tcp| tcp.local()) else { return Ok(None) };
        self.endpoints.at(local, *only_v6).map(Some)
    }

    pub(super) fn quic_config(
        &self,
        listener: &model::Listener,
        tls: Option<&ListenerTls>,
    ) -> Option<QuicConfig> {
        let tls = tls?.quic.as_ref()?;
        QuicConfig::new(tls, &listener.limits, &listener.timeouts, self.endpoints.keys().ok()?)
    }
}
