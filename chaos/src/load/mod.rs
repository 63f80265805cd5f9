//! The load generator: streams of requests and of WebSockets against a target, and the account of what became of each.

mod account;
mod answer;
mod clients;
mod exchange;
mod histogram;
mod http1;
mod http2;
mod http3;
mod multiplexed;
mod report;
mod running;
mod stream;
mod target;
mod tunnel;
mod worker;

pub use account::Counts;
pub use exchange::{Body, Exchange, Expect, ExpectBody};
pub use histogram::Histogram;
pub use report::{Class, Failure, Report, Sent, StreamReport, Window};
pub use running::{NotReached, Running};
pub use stream::{Load, Protocol, Stream};
pub use target::{Target, Tls};
pub use tunnel::Messages;
