//! The site file, parsed into a model that cannot be invalid.
//!
//! [`model`] is what a valid site is; `file` is how it is written in RON; [`parse`] leads from one to the other and
//! gives every error at once. Nothing here opens a socket or reads anything but the site file itself.

#![forbid(unsafe_code)]

pub mod model;

pub use model::Site;
