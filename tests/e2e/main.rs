//! End to end: the built binary, on sites of its own, with real clients and real upstream servers.
//!
//! One binary, so that it is linked once. What the tests stand on is in [`harness`]; each other module is one subject.

// The tests stand outside: they have real clocks and sockets of their own.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod harness;

mod access_log;
mod activation;
mod admin;
mod answers;
mod app_processes;
mod applications;
mod apps;
mod browser;
mod commands;
mod deadlines;
mod drain;
mod embedding;
mod embedding_websockets;
mod files;
mod forwarding;
mod frames;
mod framing;
mod http2;
mod http2_conformance;
mod http3;
mod http3_early;
mod init;
mod instance;
mod instances;
mod kills;
mod limits;
mod listeners;
mod malformed;
mod managed;
mod messages;
mod php;
mod plan;
mod pressure;
mod programs;
mod proxy_protocol;
mod reload;
mod routing;
mod service;
mod systemd;
mod tls;
mod tunnels;
mod upstreams;
