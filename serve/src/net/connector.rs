//! Connections to servers.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use playhouse_config::model::Address;

use super::Stream;

/// Connects to servers. Has no deadline of its own; dropping the future gives up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Connector;

impl Connector {
    /// Connects to `address`, however long it takes until a listener has room for one more. A name is resolved anew; its addresses are tried in the resolver's order with the
    /// families alternating, the next one beside the earlier ones after [`STAGGER`] or at their failure (RFC 8305 §5).
    ///
    /// # Errors
    /// That of the last address tried.
    pub async fn connect(address: &Address) -> io::Result<Stream> {
        match address {
            Address::Tcp(address) => connect_tcp(*address).await,
            Address::Name(host, port) => {
                let resolved = tokio::net::lookup_host((&**host, *port)).await?.collect();
                connect_any(alternate_families(resolved)).await
            }
            Address::Unix(path) => connect_unix(path).await,
        }
    }
}

/// How long one address is given before the next is tried beside it; what RFC 8305 §5 recommends.
const STAGGER: Duration = Duration::from_millis(250);

/// Between two tries at a Unix socket whose queue is full.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

#[allow(clippy::disallowed_methods)]
async fn connect_tcp(address: SocketAddr) -> io::Result<Stream> {
    let stream = tokio::net::TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(Stream::Tcp(stream))
}

#[allow(clippy::disallowed_methods)]
async fn connect_unix(path: &std::path::Path) -> io::Result<Stream> {
    let mut pause = SHORTEST_PAUSE;
    loop {
        match tokio::net::UnixStream::connect(path).await {
            Ok(stream) => return Ok(Stream::Unix(stream)),
            // The listener's queue is full. Over TCP the kernel would try again by itself.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
}

async fn connect_any(addresses: Vec<SocketAddr>) -> io::Result<Stream> {
    let mut left = addresses.into_iter();
    let mut attempts = FuturesUnordered::new();
    let mut error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        match left.next() {
            Some(address) => attempts.push(connect_tcp(address)),
            None if attempts.is_empty() => return Err(error),
            None => {}
        }
        let stagger = async {
            if left.len() == 0 {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(STAGGER).await;
        };
        tokio::select! {
            biased;
            Some(attempt) = attempts.next() => match attempt {
                Ok(stream) => return Ok(stream),
                Err(failed) => error = failed,
            },
            () = stagger => {}
        }
    }
}

/// The order kept within each family, the families taken in turn, beginning with that of the first.
fn alternate_families(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let total = addresses.len();
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == first_is_v6);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut ordered = Vec::with_capacity(total);
    while ordered.len() < total {
        ordered.extend(first.next());
        ordered.extend(second.next());
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Listener;
    use playhouse_config::model::Bind;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_families_take_turns() {
        let ordered =
            alternate_families(["[::1]:1", "[::2]:1", "[::3]:1", "127.0.0.1:1"].map(address).to_vec());
        assert_eq!(ordered, ["[::1]:1", "127.0.0.1:1", "[::2]:1", "[::3]:1"].map(address));
    }

    #[tokio::test]
    async fn an_address_that_refuses_is_followed_by_the_next() {
        let refusing = {
            let bound = Listener::bind(&Bind::Tcp { address: address("127.0.0.1:0"), only_v6: false }, 1);
            bound.unwrap().local().unwrap()
        };
        let listener =
            Listener::bind(&Bind::Tcp { address: address("127.0.0.1:0"), only_v6: false }, 1).unwrap();
        let stream = connect_any(vec![refusing, listener.local().unwrap()]).await.unwrap();
        assert!(matches!(stream, Stream::Tcp(ref stream) if stream.nodelay().unwrap()));
        let error = connect_any(vec![refusing]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn a_name_is_resolved() {
        let listener =
            Listener::bind(&Bind::Tcp { address: address("127.0.0.1:0"), only_v6: false }, 1).unwrap();
        let port = listener.local().unwrap().port();
        Connector::connect(&Address::Name("localhost".into(), port)).await.unwrap();
    }

    #[tokio::test]
    async fn a_closed_peer_is_seen_without_waiting() {
        let listener =
            Listener::bind(&Bind::Tcp { address: address("127.0.0.1:0"), only_v6: false }, 1).unwrap();
        let stream = Connector::connect(&Address::Tcp(listener.local().unwrap())).await.unwrap();
        let (peer, _) = listener.accept().await.unwrap();
        assert!(!stream.peer_closed());
        drop(peer);
        std::future::poll_fn(|cx| stream.poll_readable(cx)).await.unwrap();
        assert!(stream.peer_closed());
    }
}
