//! The network, only from here: [`Listener`] and [`Connector`], and the [`Stream`] that both give.
//!
//! Nothing outside of this folder names a socket type of tokio's, so that a test or another transport has one place
//! to step in.

mod connector;
mod listener;
mod stream;

pub use connector::Connector;
pub use listener::{Listener, is_exhausted};
pub use stream::Stream;
