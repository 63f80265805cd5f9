//! Playhouse: a web server, reverse proxy and application server that keeps serving while its own parts are killed.
//!
//! As a library it is one child in the caller's own ractor supervision tree:
//!
//! ```no_run
//! # async fn start(me: ractor::ActorCell) -> Result<(), Box<dyn std::error::Error>> {
//! let site = playhouse::config::load("site.ron".as_ref())?;
//! let instance = playhouse::Instance::open(site, playhouse::Options::default())?;
//! let child = instance.spawn(Some(me)).await?; // its end is a `SupervisionEvent` at the caller
//! for (listener, address) in instance.addresses() {
//!     println!("{listener} at {address}");
//! }
//! # Ok(()) }
//! ```
//!
//! [`Instance`] holds everything that outlives an actor; when the child has ended, [`Instance::spawn`] starts it again
//! on the same sockets. `examples/embed.rs` is a whole program. The binary's commands are in `src/cli`, behind the
//! feature `cli` that is on by default; an embedding program turns it off.

#![forbid(unsafe_code)]

pub mod state_dir;

#[doc(hidden)]
pub mod control {
    //! For the binary: the life of an instance process, and how many descriptors it may have.
    pub use playhouse_actors::control::descriptors;
    pub use playhouse_actors::control::link::Link;
    pub use playhouse_actors::control::{HostError, Identity, run};
}

pub use playhouse_actors::apps;
pub use playhouse_actors::controller::{self, Controller};
pub use playhouse_actors::handler::AskActor;
pub use playhouse_actors::plan::{Plan, Planned};
pub use playhouse_actors::service_manager::{self, ServiceManager};
pub use playhouse_actors::supervision::{Event, EventKind, Fault, KillError, Node, SeatState, Tree};
pub use playhouse_actors::{Exit, Instance, Options, ReloadError, Reloaded, StartError};
pub use playhouse_config as config;
pub use playhouse_serve::handler::{Handler, from_fn};
pub use playhouse_serve::ledger::Totals;
pub use playhouse_serve::site::Handlers;
pub use playhouse_serve::tunnel::websocket;
pub use playhouse_serve::{Body, BodyError, Exchange, Outcome, RequestBody, RequestBodyError, Site};
