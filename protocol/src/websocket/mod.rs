//! WebSocket frames (RFC 6455 §5), as someone sees them who stands between two endpoints: where one frame ends and the
//! next begins, what a header says, and the control frames that may be put between two others.
//!
//! [`Tracker`] follows the bytes of one direction, copies no payload and knows at every byte whether it stands between
//! two frames. [`Header`] is read and written, [`control`] makes Close, Ping and Pong, [`mask`] is RFC 6455 §5.3. Nothing
//! here understands a message.

pub mod control;
mod header;
pub mod mask;
mod tracker;

#[cfg(test)]
mod properties;

pub use header::{Header, MAX_HEADER, Opcode};
pub use tracker::{Counts, FrameError, Sender, Step, Tracker};
