//! HTTP/2 (RFC 9113), on the `h2` crate's frames and streams.
//!
//! One future serves a connection and all its streams: [`driver`] turns between the connection, the set of stream futures
//! ([`stream`]) and the [`wire`], which gathers what is written until all have had their turn, and shows every byte
//! that is read to [`flood`]. Dropped, it drops them all.

mod body;
mod driver;
mod flood;
pub(in crate::engine) mod head;
mod in_flight;
mod leftover;
mod stream;
#[cfg(test)]
mod tests;
mod tunnel;
mod wire;

pub use body::BodyReader;
pub(crate) use driver::serve;
pub use stream::InformationalSender;
pub(in crate::engine) use stream::unswitched;
