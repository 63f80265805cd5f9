//! The data path: what is answered, and how. The tables, and the code that a request runs through.
//!
//! A request goes downwards: [`engine`] (bytes to an [`Exchange`]) → [`Site`] (route) → one of [`respond`], [`files`],
//! [`proxy`] or [`fastcgi`] (through [`upstream`]) or a [`handler`] → [`ledger`], [`metrics`], [`access_log`].
//! Nothing here knows that actors exist: they hold these tables by `Arc`, and decide.

#![forbid(unsafe_code)]

pub mod access_log;
pub mod alternative;
pub mod application;
pub mod apps;
pub mod body;
pub mod engine;
pub mod epoch;
pub mod exchange;
pub mod fastcgi;
pub mod files;
pub mod handler;
pub mod ledger;
pub mod metrics;
pub mod net;
pub mod proxy;
pub mod published;
pub mod random;
pub mod respond;
pub mod router;
pub mod shared;
pub mod site;
pub mod sockets;
pub mod tls;
pub mod tunnel;
pub mod upstream;

pub use application::Application;
pub use body::{Body, BodyError, CachedAnswer, RequestBody, RequestBodyError};
pub use exchange::{ConnectionInfo, Exchange, Proxied};
pub use ledger::{Ledger, Outcome};
pub use site::Site;
