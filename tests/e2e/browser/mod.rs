//! What a browser makes of a site.

mod http3;
mod websockets;
