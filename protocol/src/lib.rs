//! What crosses a wire or a process boundary, without I/O: bytes go in, values come out, and the other way round.
//!
//! [`http1`] reads and writes HTTP/1.1 messages, for the server engine and for the upstream client, [`http3`] what is on
//! HTTP/3's streams, and [`connection_id`] whose a QUIC packet is. Nothing here knows sockets, timers or tasks; all input is hostile. [`fastcgi`] is how PHP is asked,
//! [`proxy_protocol`] what proxies say of their clients, [`websocket`] the frames of tunnels, [`control`] what controllers
//! and instances say to each other.

#![forbid(unsafe_code)]

pub mod connection_id;
pub mod control;
pub mod fastcgi;
pub mod http1;
pub mod http3;
pub mod proxy_protocol;
pub mod websocket;
