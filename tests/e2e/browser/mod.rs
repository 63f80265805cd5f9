//! What a browser makes of a site.

mod websockets;
