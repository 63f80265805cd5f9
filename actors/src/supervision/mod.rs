//! Supervision: who is alive, who restarts it, and what it is called.
//!
//! A [`Seat`] is a place in the tree that outlives its occupants; an [`Actor`] is what sits there, wrapped so that every
//! one has fault points, a progress stamp and a counted mailbox; a [`Supervisor`] fills its seats anew by OTP's rules
//! ([`Strategy`], [`Restart`], [`Intensity`]). The [`Tree`] is what all seats of one site share. Built on ractor's links
//! and signals alone: nothing here is registered in a place that is global to the process.

mod actor;
mod child;
mod events;
mod fault;
mod progress;
mod restarts;
mod root;
mod seat;
mod signals;
mod supervisor;
#[cfg(test)]
mod tests;
mod tree;
mod watchdog;

pub use actor::{Actor, Context, Ended, Failure, spawn};
pub use child::{ChildSpec, Restart, Shutdown};
pub use events::{Event, EventKind, Events};
pub use fault::Fault;
pub use restarts::{Backoff, Intensity};
pub use root::RootEnd;
pub use seat::{AskError, Drained, Seat, SeatState, Unavailable};
pub use supervisor::{Command, Strategy, Supervisor};
pub(crate) use tree::CONNECTION;
pub use tree::{KillError, Node, Tree};
pub use watchdog::Watchdog;
