//! The upstream table: servers, their state, their idle connections.
