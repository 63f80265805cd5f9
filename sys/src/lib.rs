//! System calls that no crate wraps safely, wrapped. The only crate of the workspace with `unsafe` code: each block says
//! why it is sound, and what leaves here is safe to use in any way.

#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

mod accept_queue;
pub mod exec;
pub mod page;
mod receive;
pub mod reuseport;

pub use accept_queue::accept_queue;
pub use page::SharedPage;
pub use receive::receive;
pub use reuseport::{Instruction, attach_reuseport_cbpf};
