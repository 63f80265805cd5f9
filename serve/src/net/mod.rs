//! The network, only from here: [`Listener`] and [`Connector`], and the [`Stream`] that both give. A [`BoundSocket`] is
//! what a process holds that only passes listening sockets on.
//!
//! Nothing outside of this folder names a socket type of tokio's, so that a test or another transport has one place
//! to step in.

mod bound;
mod connector;
mod listener;
mod socket_file;
mod stream;

pub use bound::BoundSocket;
pub use connector::Connector;
pub use listener::{Listener, is_exhausted};
pub use stream::Stream;
