//! respond
