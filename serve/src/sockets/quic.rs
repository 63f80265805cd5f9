//! The UDP sockets beside the TCP ones.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use playhouse_config::model::{self, Bind};

use super::given::Given;
use super::prepare::BindErrorKind;
use super::{Socket, Sockets};
use crate::net::{KeySource, Listener, QuicConfig, QuicEndpoint, QuicGroup, QuicKeys, Slot};
use crate::shared::Place;
use crate::tls::ListenerTls;

/// All endpoints that somebody still holds. An address cannot be bound a second time as long as connections on it last,
/// so that whoever wants it goes on with the endpoint that is there.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    source: OnceLock<(KeySource, Option<Place>)>,
    /// The same as long as the site lives, so that what an earlier endpoint has given is understood by a later one.
    keys: OnceLock<QuicKeys>,
    open: Mutex<Vec<Weak<QuicEndpoint>>>,
}

impl Endpoints {
    pub(super) fn take_keys_from(&self, source: KeySource, place: Option<Place>) {
        let _ = self.source.set((source, place));
    }

    fn keys(&self) -> io::Result<&QuicKeys> {
        match self.keys.get() {
            Some(keys) => Ok(keys),
            None => {
                let keys = self.source.get().map_or_else(QuicKeys::generate, |(source, _)| source.keys())?;
                Ok(self.keys.get_or_init(|| keys))
            }
        }
    }

    fn at(&self, address: SocketAddr, only_v6: bool) -> io::Result<Arc<QuicEndpoint>> {
        self.find_or_make(
            |endpoint| endpoint.group().is_none() && endpoint.is_at(address, only_v6),
            |keys| QuicEndpoint::bind(address, only_v6, keys),
        )
    }

    fn in_group(&self, group: QuicGroup, slot: u32) -> io::Result<Arc<QuicEndpoint>> {
        let place = self.source.get().and_then(|(_, place)| place.clone());
        let slot = Slot::among(slot, place).ok_or(io::ErrorKind::InvalidInput)?;
        let group = Arc::new(group);
        self.find_or_make(
            |endpoint| endpoint.group().is_some_and(|other| other.is_same(&group)),
            |keys| {
                let directory = self.source.get().and_then(|(source, _)| source.directory());
                QuicEndpoint::in_group(group.clone(), slot, keys, directory)
            },
        )
    }

    fn find_or_make(
        &self,
        is_it: impl Fn(&QuicEndpoint) -> bool,
        make: impl FnOnce(&QuicKeys) -> io::Result<QuicEndpoint>,
    ) -> io::Result<Arc<QuicEndpoint>> {
        let mut open = self.open.lock();
        open.retain(|endpoint| endpoint.strong_count() > 0);
        if let Some(endpoint) = open.iter().filter_map(Weak::upgrade).find(|endpoint| is_it(endpoint)) {
            return Ok(endpoint);
        }
        let endpoint = Arc::new(make(self.keys()?)?);
        open.push(Arc::downgrade(&endpoint));
        Ok(endpoint)
    }
}

impl Sockets {
    /// The endpoint for a listener's HTTP/3: on the sockets that were given for it, or at the address that its TCP socket
    /// has, which is `opened` or that of `running`. `None` where HTTP/3 is not wanted, or whoever gives the sockets has none
    /// for it.
    pub(super) fn endpoint(
        &self,
        listener: &model::Listener,
        opened: &Result<Option<Arc<Listener>>, BindErrorKind>,
        running: Option<&Socket>,
        given: &mut Given,
    ) -> io::Result<Option<Arc<QuicEndpoint>>> {
        let (true, Bind::Tcp { only_v6, .. }) = (listener.http3, &listener.bind) else { return Ok(None) };
        let slot = given.own_slot();
        if slot > 0 {
            let Some(group) = given_group(listener, given)? else { return Ok(None) };
            return self.endpoints.in_group(group, slot).map(Some);
        }
        let tcp = match opened {
            Ok(Some(opened)) => Some(opened.clone()),
            Ok(None) => running.and_then(Socket::listener),
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

/// The UDP sockets that were given for a listener.
pub(super) fn given_group(listener: &model::Listener, given: &mut Given) -> io::Result<Option<QuicGroup>> {
    for steered in [true, false] {
        let sockets: Vec<OwnedFd> = given.take_slots(&quic_name(&listener.name, steered));
        if !sockets.is_empty() {
            return QuicGroup::from_descriptors(sockets, &listener.bind, steered).map(Some);
        }
    }
    Ok(None)
}

/// What the UDP sockets of a listener are called where they are passed on, whether the kernel steers them or not. No
/// listener's name has a colon.
pub(super) fn quic_name(listener: &str, steered: bool) -> String {
    format!("{listener}:{}", if steered { "h3" } else { "h3-sorted" })
}
