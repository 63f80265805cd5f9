//! The control side: what runs, who restarts it, who decides.
//!
//! [`supervision`] is the frame; every other file is one actor over a table of `playhouse_serve`.

#![forbid(unsafe_code)]

pub mod supervision;
