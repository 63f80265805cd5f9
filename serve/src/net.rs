//! The network, only from here: [`Listener`] and [`Connector`], and the [`Stream`] that both give.
/// A connected byte stream.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Tcp(tokio::net::TcpStream),
    /// A Unix stream socket.
    Unix(tokio::net::UnixStream),
}
