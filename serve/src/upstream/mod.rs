//! The upstream table: groups of servers, what is known of each, and their idle connections.
//!
//! The table outlives whoever decides about it. Requests read the published [`Snapshot`] and go on without any pool actor
//! or health checker; what those decide carries an epoch, and is refused once a newer incarnation has claimed the table.
//! How a request is forwarded over one of these connections is in [`crate::proxy`].

mod balance;
mod connection;
mod group;
mod introduction;
mod policy;
mod pool;
mod probe;
mod server;
mod shared;
mod status;
mod table;
mod timer;

pub use balance::{Member, Snapshot};
pub(crate) use connection::{Connection, Owner};
pub use group::Upstream;
pub(crate) use introduction::introduce;
pub use policy::{Change, Decisions, Event};
pub use probe::{ProbeFailure, ProbeOk};
pub(crate) use server::Newcomer;
pub use server::{Lease, Server};
pub use status::{ServerStatus, UpstreamStatus};
pub use table::Upstreams;
pub(crate) use timer::Timer;

#[cfg(test)]
pub(crate) use group::tests::model as tests_model;
