//! FastCGI 1.0, from the side of the web server: one request of the responder role at a time on a connection.
//!
//! [`write`] writes what goes to the application; [`Reader`] takes apart what comes from it, piece by piece, so that an
//! answer can be passed on before all of it has come; [`HeadParser`] reads the head that stands before an answer's content
//! (RFC 3875 §6). Multiplexing is not spoken: each connection has one request, whose number is 1.

mod head;
mod reader;
#[cfg(test)]
mod tests;
pub mod write;

pub use head::{AnswerHead, HeadError, HeadParser};
pub use reader::{Event, ProtocolStatus, Reader, RecordError};

/// The number of the one request of a connection.
const REQUEST: u16 = 1;

/// The version of every record.
const VERSION: u8 = 1;

/// Bytes of a record before its content.
const HEADER: usize = 8;

const BEGIN_REQUEST: u8 = 1;
const END_REQUEST: u8 = 3;
const PARAMS: u8 = 4;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;
const STDERR: u8 = 7;
