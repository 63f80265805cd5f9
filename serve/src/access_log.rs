//! The access log.
/// What the log says of a request.
#[derive(Debug)]
pub struct Entry;
