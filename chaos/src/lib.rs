//! Load with accounting, for sites under test: a generator that checks every byte of every answer and says for each
//! failure whether the request was unsent, in flight, wrong or lost, and an upstream that misbehaves when told to.
//!
//! ```no_run
//! # async fn example(address: std::net::SocketAddr) -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use playhouse_chaos::{Expect, Load, Protocol, Stream, Target};
//!
//! let running = Load::new(Target::Tcp(address))
//!     .stream(Stream::get(Protocol::Http1KeepAlive, "/hello", Expect::body("hello\n")).concurrency(8))
//!     .stream(Stream::get(Protocol::Http2 { streams: 32 }, "/hello", Expect::body("hello\n")))
//!     .start()?;
//! running.answers(1_000, Duration::from_secs(10)).await?;
//! let killed = running.elapsed();
//! // … kill something …
//! let back_after = running.recovery(killed, Duration::from_secs(10)).await?;
//! assert!(back_after < Duration::from_millis(500));
//! let report = running.stop().await;
//! assert!(report.is_clean(), "{report}");
//! # Ok(()) }
//! ```
//!
//! Nothing here uses the crates under test: what hides a byte in the server must not hide it in the client.
#![forbid(unsafe_code)]
// It stands outside of the server: it opens its own sockets, and is no part of what paused time or seeds reproduce.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod load;
pub mod pattern;
pub mod upstream;

pub use load::{
    Body, Class, Counts, Exchange, Expect, ExpectBody, Failure, Load, Messages, NotReached, Protocol, Report,
    Running, Sent, Stream, Target, Tls,
};
pub use upstream::{Mode, Upstream};
