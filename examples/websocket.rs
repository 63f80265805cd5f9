//! WebSocket endpoints in a program of its own: `/echo` gives every message back, `/chat` gives it to all who are there.
//!
//!     cargo run --no-default-features --example websocket
//!
//! Then, in the console of a browser: `s = new WebSocket("ws://127.0.0.1:8080/chat"); s.onmessage = m => console.log(m.data)`.

use std::error::Error;

use playhouse::config::Site;
use playhouse::config::file::Target;
use playhouse::websocket::{self, Message, Options, WebSocket};
use playhouse::{Handlers, Instance};
use tokio::sync::broadcast;

/// Gives every message back.
async fn echo(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.receive().await {
        if socket.send(message).await.is_err() {
            break;
        }
    }
}

/// Gives every message to all who are there. Who reads too slowly misses some, and holds nobody up.
async fn chat(mut socket: WebSocket, room: broadcast::Sender<Message>) {
    let mut heard = room.subscribe();
    loop {
        tokio::select! {
            said = socket.receive() => match said {
                // There is always one who hears it: this one.
                Some(Ok(message)) => drop(room.send(message)),
                Some(Err(_)) | None => break,
            },
            message = heard.recv() => match message {
                Ok(message) => if socket.send(message).await.is_err() { break },
                Err(broadcast::error::RecvError::Lagged(missed)) => {
                    let note = Message::Text(format!("({missed} messages missed)"));
                    if socket.send(note).await.is_err() { break }
                }
                Err(broadcast::error::RecvError::Closed) => break,
            },
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (room, _) = broadcast::channel(256);
    let options = Options { max_message: 64 << 10, ..Options::default() };
    let handlers = Handlers::from([
        ("echo".into(), websocket::handler(options.clone(), echo)),
        ("chat".into(), websocket::handler(options, move |socket| chat(socket, room.clone()))),
    ]);
    let site = Site::builder("websocket")
        .listener("http", std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned()))
        .route(("/echo", Target::handler("echo")))
        .route(("/chat", Target::handler("chat")))
        .build()?;
    let instance = Instance::open(site, playhouse::Options { handlers, ..playhouse::Options::default() })?;
    println!("ws://{}/echo and /chat", instance.addresses()[0].1);
    instance.run().await?;
    Ok(())
}
