//! A listener's other door: clients that come by QUIC, for HTTP/3.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{AcceptError, Socket};
use crate::alternative::Alternative;
use crate::exchange::Peer;
use crate::net::{QuicEndpoint, QuicIncoming};
use crate::sockets::{Accepted, TicketId, Transport};

impl Socket {
    /// As [`Socket::accept`], by QUIC. `Closed` also where HTTP/3 is not offered.
    ///
    /// # Errors
    /// See [`AcceptError`]; only `Closed` is final.
    pub async fn accept_quic(&self) -> Result<TicketId, AcceptError> {
        loop {
            tokio::select! {
                biased;
                () = self.gate.opened() => {}
                () = self.stopped() => return Err(AcceptError::Closed),
            }
            self.room().await;
            tokio::task::coop::consume_budget().await;
            let Some(quic) = self.quic() else { return Err(AcceptError::Closed) };
            let incoming = tokio::select! {
                biased;
                () = self.stopped() => None,
                incoming = quic.accept() => Some(incoming),
            };
            // From the accept to the push there must be no await.
            let incoming = match incoming {
                Some(incoming) => incoming,
                None => self.last_quic(&quic).await.ok_or(AcceptError::Closed)?,
            };
            if let Some(ticket) = self.push_quic(&quic, incoming) {
                return Ok(ticket);
            }
        }
    }

    /// Who still comes by QUIC to an acceptor that is to stop.
    async fn last_quic(&self, quic: &QuicEndpoint) -> Option<QuicIncoming> {
        if let Some(until) = self.handshakes.get().filter(|_| quic.group().is_some())
            && let Ok(incoming) = tokio::time::timeout_at(*until, quic.accept()).await
        {
            return Some(incoming);
        }
        self.shut_quic();
        // Who has been told nothing yet is not to be turned away.
        quic.accept_now()
    }

    /// The same as [`Socket::push`]; `None` also for a client that has to show its address first. Addresses that are
    /// limited are always shown: others could use up what one may have.
    fn push_quic(&self, quic: &Arc<QuicEndpoint>, incoming: QuicIncoming) -> Option<TicketId> {
        let limit = self.settings.load().limits.connections_per_address;
        let Some(incoming) = quic.validated(incoming, limit.is_some()) else {
            self.retries.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let peer = Peer::Tcp(incoming.peer());
        let Ok(address) = self.connections.admit(&self.name, &peer, limit) else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        self.http3.fetch_add(1, Ordering::Relaxed);
        self.accepted.fetch_add(1, Ordering::Relaxed);
        let local = incoming.local_ip().map(|ip| SocketAddr::new(ip, quic.local().port()));
        let local = local.or(Some(quic.local()));
        let lease = self.connections.lease(address);
        let transport = Transport::Quic(Box::new(incoming), quic.clone());
        Some(self.handoff.push(Accepted { transport, peer, local, lease }))
    }

    /// Where it speaks HTTP/3 too.
    pub fn quic(&self) -> Option<Arc<QuicEndpoint>> {
        self.quic.load_full()
    }

    /// What answers over TCP say of HTTP/3; `None` without TLS.
    pub fn alternative(&self) -> Option<Arc<Alternative>> {
        self.settings.load().tls.is_some().then(|| self.alternative.clone())
    }

    /// Begins or ends to let clients in by QUIC, under the settings in force.
    pub(in crate::sockets) fn set_quic(&self, endpoint: Option<Arc<QuicEndpoint>>) {
        match (&endpoint, &self.settings.load().quic) {
            (Some(endpoint), Some(config)) => {
                endpoint.open(config);
                self.alternative.set(endpoint.local().port());
            }
            _ => self.shut_quic(),
        }
        self.quic.store(endpoint);
    }

    /// Lets nobody in by QUIC any more, and says so to those who come by TCP.
    pub(super) fn shut_quic(&self) {
        self.alternative.clear();
        if let Some(quic) = &*self.quic.load() {
            quic.shut();
        }
    }

    /// Whether there is a UDP socket that is this instance's alone.
    pub(super) fn has_own_quic(&self) -> bool {
        self.quic.load().as_ref().is_some_and(|quic| quic.group().is_some())
    }
}
