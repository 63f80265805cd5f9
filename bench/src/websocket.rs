//! WebSockets: an echo, which is the upstream, and a load generator, since there is none in distributions.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::task::LocalSet;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

/// The key that every handshake has here, and what is to be said to it (both from RFC 6455 §1.3).
const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// What is sent.
#[derive(clap::Args)]
pub struct Args {
    /// The server
    address: SocketAddr,
    /// What is asked for
    path: String,
    /// For how long
    #[arg(long)]
    seconds: u64,
    /// Bytes of each message
    #[arg(long)]
    length: usize,
    /// WebSockets
    #[arg(long, default_value_t = 64)]
    connections: usize,
}

/// Sends every message back until it is killed.
pub fn serve(address: SocketAddr) -> Result<()> {
    LocalSet::new().block_on(&Builder::new_current_thread().enable_all().build()?, async move {
        let listener = TcpListener::bind(address).await.context("listening")?;
        loop {
            let (stream, _) = listener.accept().await?;
            // A connection's error is the load generator's business, which counts it.
            tokio::task::spawn_local(echo(stream));
        }
    })
}

async fn echo(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let head = head(&mut stream).await?;
    ensure!(has(&head, KEY), "another key:\n{head}");
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{ACCEPT}\r\n\r\n"
    );
    stream.write_all(answer.as_bytes()).await?;
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
    while let Some(message) = socket.next().await {
        match message? {
            message @ (Message::Binary(_) | Message::Text(_)) => socket.send(message).await?,
            Message::Close(_) => break,
            _ => {}
        }
    }
    Ok(())
}

/// Talks as long as it is told to, and says how many messages came back.
pub fn load(args: Args) -> Result<()> {
    let (answered, failed) = (Rc::new(Cell::new(0_u64)), Cell::new(0_u64));
    LocalSet::new().block_on(&Builder::new_current_thread().enable_all().build()?, async {
        let until = Instant::now() + Duration::from_secs(args.seconds);
        let talk = |_| {
            tokio::task::spawn_local(talk(
                args.address,
                args.path.clone(),
                args.length,
                until,
                answered.clone(),
            ))
        };
        for talk in (0..args.connections).map(talk).collect::<Vec<_>>() {
            if talk.await?.is_err() {
                failed.set(failed.get() + 1);
            }
        }
        anyhow::Ok(())
    })?;
    println!("requests: {} answered, {} failed", answered.get(), failed.get());
    Ok(())
}

async fn talk(
    address: SocketAddr,
    path: String,
    length: usize,
    until: Instant,
    answered: Rc<Cell<u64>>,
) -> Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{KEY}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let head = head(&mut stream).await?;
    ensure!(head.starts_with("HTTP/1.1 101 ") && has(&head, ACCEPT), "no WebSocket:\n{head}");
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Client, None).await;
    let message = Message::binary(vec![b'x'; length]);
    while Instant::now() < until {
        socket.send(message.clone()).await?;
        let back = socket.next().await.context("it was closed")??;
        ensure!(back == message, "something else came back");
        answered.set(answered.get() + 1);
    }
    socket.close(None).await?;
    Ok(())
}

/// Reads a head, and nothing behind it.
async fn head(stream: &mut TcpStream) -> Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        ensure!(head.len() < 8192, "a head without an end");
        head.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8(head)?)
}

/// Whether a head has a line, whatever the case of the field's name.
fn has(head: &str, line: &str) -> bool {
    let split =
        |line: &str| line.split_once(':').map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()));
    head.lines().any(|other| split(other).is_some() && split(other) == split(line))
}
