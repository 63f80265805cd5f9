//! The network, only from here: [`Listener`] and [`Connector`], and the [`Stream`] that both give. A [`BoundSocket`] is
//! what a process holds that only passes listening sockets on; [`PacketListener`] and [`PacketSocket`] are between the
//! processes of a site; a [`QuicEndpoint`] is a UDP socket with the QUIC connections on it.
//!
//! Nothing outside of this folder names a socket type of tokio's, so that a test or another transport has one place
//! to step in.

mod bound;
mod connector;
mod listener;
mod packet;
mod quic;
mod quic_forwarding;
mod quic_group;
mod quic_keys;
mod quic_steering;
#[cfg(test)]
mod quic_tests;
mod reuse_port;
mod socket_file;
mod stream;

pub use bound::BoundSocket;
pub use connector::Connector;
pub use listener::{Listener, is_exhausted};
pub use packet::{Packet, PacketListener, PacketSocket, PeerCred, ReceiveError};
pub use quic::{Handshake as QuicHandshake, QuicConfig, QuicEndpoint, QuicIncoming};
pub use quic_group::QuicGroup;
pub use quic_keys::{KeySource, QuicKeys, Slot};
pub use quic_steering::Buckets;
pub use reuse_port::{ReusePortGroup, Weighted};
pub use stream::Stream;

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Has the runtime watch a descriptor. Must be called within one.
///
/// # Errors
/// What the kernel says.
// Deprecated because a type whose descriptor changes could be passed; an `OwnedFd` keeps its own until it is dropped.
#[allow(deprecated)]
pub fn watch(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(descriptor, interest)
}
