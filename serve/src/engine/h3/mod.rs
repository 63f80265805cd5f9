//! HTTP/3 (RFC 9114), on the `quinn` crate's connections and streams, and our own frames.
//!
//! One future serves a connection and all its streams: [`driver`] accepts streams and keeps the connection's deadlines,
//! [`early`] knows of those that come before the handshake has ended; [`stream`] is a request, which [`reader`] takes apart and [`sender`] answers, with [`content`]; [`tunnel`] is what a
//! WebSocket makes of it, [`critical`] what else a client opens. Dropped, it drops them all.

mod body;
mod content;
mod critical;
mod driver;
mod early;
mod head;
mod in_flight;
mod interim;
mod reader;
mod sender;
mod stream;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::client_config;
mod tunnel;

pub use body::BodyReader;
pub(crate) use driver::serve;
pub use interim::InformationalSender;

use playhouse_protocol::http3::Code;
use quinn::VarInt;

/// The code as QUIC sends it.
fn code(code: Code) -> VarInt {
    VarInt::from_u64(code.value()).unwrap_or(VarInt::MAX)
}
