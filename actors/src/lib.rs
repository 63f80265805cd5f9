//! The control side: what runs, who restarts it, who decides.
//!
//! [`supervision`] is the frame, [`instance`] the whole of one site; every other file is one actor over a table of
//! `playhouse_serve`, and the only one that decides about it. A request sends none of them a message.

#![forbid(unsafe_code)]

mod acceptor;
mod access_log;
pub mod admin;
pub mod apps;
mod certificates;
mod connection;
pub mod control;
pub mod controller;
pub mod handler;
mod health;
pub mod instance;
mod metrics;
pub mod plan;
mod pool;
pub mod reload;
pub mod service_manager;
mod shard;
pub mod state_dir;
pub mod supervision;
mod upstreams;

pub use instance::{Exit, Instance, Options, StartError};
pub use reload::{ReloadError, Reloaded};
