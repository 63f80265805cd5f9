//! What the tests stand on: the built binary on a site of its own, real clients and real upstream servers.
//!
//! Nothing here waits by sleeping: [`eventually`] polls something that can be observed. Every process started here is
//! ended and reaped when its value is dropped. All ports are chosen by the kernel.

mod admin;
mod applications;
mod browser;
mod builds;
mod certificates;
mod clock;
mod curl;
mod fpm;
mod generators;
mod haproxy;
mod mariadb;
mod openssl;
mod process;
mod real;
mod scripted;
mod site;
pub mod stage;
mod wait;
pub mod websocket;
mod wire;

pub use admin::Admin;
pub use applications::{install, libraries};
pub use browser::Browser;
pub use builds::{build_of, called, program_of, relabelled, script, with_crash_at};
pub use certificates::{Algorithm, Authority};
pub use clock::Ahead;
pub use curl::{Answer, curl};
pub use fpm::{Fpm, program as fpm_program};
pub use generators::{H2load, Wrk};
pub use haproxy::Haproxy;
pub use mariadb::Mariadb;
pub use openssl::resumes;
pub use process::{Process, tool};
pub use real::{Real, javascript, python};
pub use scripted::{Connection, Scripted, ok};
pub use site::{BINARY, InstanceView, Running, Site, exists, playhouse, through};
pub use wait::{PATIENCE, eventually, eventually_some};
pub use websocket::WebSocket;
pub use wire::Wire;

/// Bytes that differ at every offset, so that a piece that is lost, doubled or moved is seen.
pub fn pattern(length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    while bytes.len() < length {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Whether the long runs are asked for (`scripts/test --full`).
pub fn full() -> bool {
    std::env::var_os("PLAYHOUSE_TEST_FULL").is_some_and(|value| value == "1")
}
