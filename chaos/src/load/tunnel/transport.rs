//! The bytes of a tunnel both ways, over HTTP/1.1 or on a stream of HTTP/2.

use bytes::{Bytes, BytesMut};
use h2::{RecvStream, SendStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};

use super::super::http2;
use super::super::report::{Class, Sent};
use super::super::target::Socket;

/// From the server.
pub(in super::super) enum From {
    /// With what was read already.
    Http1(ReadHalf<Socket>, BytesMut),
    Http2(RecvStream),
}

/// To the server.
pub(in super::super) enum To {
    Http1(WriteHalf<Socket>),
    Http2(SendStream<Bytes>),
}

impl From {
    /// Reads what there is, at least a byte; how much, where nothing is the end.
    pub(super) async fn read(&mut self, buffer: &mut BytesMut) -> Result<usize, (Class, String)> {
        match self {
            From::Http1(_, read) if !read.is_empty() => {
                let read = read.split();
                buffer.extend_from_slice(&read);
                Ok(read.len())
            }
            From::Http1(socket, _) => {
                buffer.reserve(16 << 10);
                socket.read_buf(buffer).await.map_err(|error| (Class::InFlight, error.to_string()))
            }
            From::Http2(stream) => loop {
                match stream.data().await {
                    None => return Ok(0),
                    Some(Ok(data)) if data.is_empty() => {}
                    Some(Ok(data)) => {
                        let _ = stream.flow_control().release_capacity(data.len());
                        buffer.extend_from_slice(&data);
                        return Ok(data.len());
                    }
                    Some(Err(error)) => {
                        // It was answered before: no refusal makes it unsent any more.
                        let (class, _) = http2::classify(&error, Sent::All);
                        let class = if class == Class::Unsent { Class::InFlight } else { class };
                        return Err((class, error.to_string()));
                    }
                }
            },
        }
    }
}

impl To {
    pub(super) async fn write(&mut self, mut data: Bytes) -> Result<(), String> {
        match self {
            To::Http1(socket) => {
                socket.write_all(&data).await.map_err(|error| error.to_string())?;
                socket.flush().await.map_err(|error| error.to_string())
            }
            To::Http2(stream) => {
                while !data.is_empty() {
                    let part = data.split_to(http2::capacity(stream, data.len()).await?);
                    stream.send_data(part, false).map_err(|error| error.to_string())?;
                }
                Ok(())
            }
        }
    }

    /// Ends this direction (RFC 8441 §5). Over HTTP/1.1 the server ends first (RFC 6455 §7.1.1), and has.
    pub(super) fn end(&mut self) {
        if let To::Http2(stream) = self {
            let _ = stream.send_data(Bytes::new(), true);
        }
    }
}
