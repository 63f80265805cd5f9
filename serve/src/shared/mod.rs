//! What the processes of one site share, in pages of its state directory; a site of one process has the same in memory of
//! its own.

pub mod addresses;
pub mod board;

pub use addresses::Addresses;
pub use board::{Board, Place};

use std::sync::Arc;

use crate::Ledger;
use crate::net::KeySource;

/// What a process of a site shares with the others. The default is that of a site of one process.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    /// Every request's outcome.
    pub ledger: Arc<Ledger>,
    /// This process's place among those that accept from the same sockets; `None` where there are no others.
    pub place: Option<Place>,
    /// What each client address has; `None` is a table of this process alone.
    pub addresses: Option<Arc<Addresses>>,
    /// Where the keys of QUIC endpoints are from.
    pub quic: KeySource,
}
