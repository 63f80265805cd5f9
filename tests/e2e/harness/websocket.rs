//! One WebSocket, scripted frame by frame, on either side; it shares nothing with the server's.

use std::io;
use std::net::SocketAddr;

use super::wire::{Request, Response, Wire};

/// A WebSocket, its handshake done.
pub struct WebSocket {
    pub wire: Wire,
    client: bool,
}

/// A frame: its first byte, and its payload without a mask.
pub type Frame = (u8, Vec<u8>);

/// First bytes of whole frames.
pub const TEXT: u8 = 0x81;
pub const BINARY: u8 = 0x82;
pub const CLOSE: u8 = 0x88;
pub const PING: u8 = 0x89;
pub const PONG: u8 = 0x8a;

/// A handshake's fields, all but its request line.
pub const HANDSHAKE: &str = "Host: site.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// The answer to [`HANDSHAKE`], without its empty line.
pub const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n";

impl WebSocket {
    /// A client's, by [`HANDSHAKE`].
    #[track_caller]
    pub fn open(address: SocketAddr, path: &str) -> Self {
        let (wire, response) = WebSocket::ask(address, path);
        assert_eq!(response.status, 101, "{response:?}");
        assert_eq!(response.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        WebSocket { wire, client: true }
    }

    /// What a handshake is answered with; its content, where it has any, is left on the wire.
    #[track_caller]
    pub fn ask(address: SocketAddr, path: &str) -> (Wire, Response) {
        let mut wire = Wire::connect(address);
        wire.send(format!("GET {path} HTTP/1.1\r\n{HANDSHAKE}"));
        let response = wire.response_head().expect("an answer to the handshake");
        (wire, response)
    }

    /// On a connection that has switched already.
    pub fn of_client(wire: Wire) -> Self {
        WebSocket { wire, client: true }
    }

    /// The same, of the server's side.
    pub fn of_server(wire: Wire) -> Self {
        WebSocket { wire, client: false }
    }

    /// A server's: answers the handshake that is next on the wire.
    pub fn accept(mut wire: Wire) -> Option<(Self, Request)> {
        let request = wire.request().ok()??;
        wire.try_send(format!("{SWITCHED}\r\n")).ok()?;
        Some((WebSocket { wire, client: false }, request))
    }

    /// A frame as this side sends it.
    pub fn frame(&self, first: u8, payload: &[u8]) -> Vec<u8> {
        frame(first, payload, self.client)
    }

    #[track_caller]
    pub fn send(&mut self, first: u8, payload: impl AsRef<[u8]>) -> &mut Self {
        let frame = self.frame(first, payload.as_ref());
        self.wire.send(frame);
        self
    }

    /// The next frame.
    pub fn try_read(&mut self) -> io::Result<Frame> {
        let head = self.wire.take(2)?;
        let masked = head[1] & 0x80 != 0;
        assert_eq!(masked, !self.client, "masked by the wrong side: {head:?}");
        let length = match head[1] & 0x7f {
            126 => self.wire.take(2)?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)),
            127 => self.wire.take(8)?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)),
            length => usize::from(length),
        };
        let key = if masked { self.wire.take(4)? } else { vec![0; 4] };
        let mut payload = self.wire.take(length)?;
        payload.iter_mut().zip(key.iter().cycle()).for_each(|(byte, key)| *byte ^= key);
        Ok((head[0], payload))
    }

    #[track_caller]
    pub fn read(&mut self) -> Frame {
        self.try_read().expect("a frame")
    }

    /// The code of the Close that is the next frame.
    #[track_caller]
    pub fn read_close(&mut self) -> u16 {
        let (first, payload) = self.read();
        assert_eq!(first, CLOSE, "{payload:?}");
        u16::from_be_bytes([payload[0], payload[1]])
    }

    #[track_caller]
    pub fn close(&mut self, code: u16) -> &mut Self {
        self.send(CLOSE, code.to_be_bytes())
    }
}

/// A frame with this first byte.
pub fn frame(first: u8, payload: &[u8], masked: bool) -> Vec<u8> {
    let mask = u8::from(masked) << 7;
    let mut frame = vec![first];
    match payload.len() {
        length @ 0..=125 => frame.push(mask | length as u8),
        length @ 126..=0xffff => {
            frame.push(mask | 126);
            frame.extend((length as u16).to_be_bytes());
        }
        length => {
            frame.push(mask | 127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    let key = if masked { [0xa5, 0x5a, 0x3c, 0xc3] } else { [0; 4] };
    if masked {
        frame.extend(key);
    }
    frame.extend(payload.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key));
    frame
}
