//! A program of its own, with Playhouse as one child in its ractor supervision tree.
//!
//! Its host actor serves `/` from a function and `/counter` from another actor, loses Playhouse twice (once by a kill,
//! once by a panic at the root), starts it again on the same socket, and stops it gracefully.
//!
//!     cargo run --no-default-features --example embed

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use playhouse::config::Site;
use playhouse::config::file::Target;
use playhouse::{AskActor, Body, Fault, Handler, Handlers, Instance, Options, from_fn};
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Supervises Playhouse, and whatever else the program has.
struct Host;

struct HostState {
    instance: Arc<Instance>,
    playhouse: ActorCell,
    restarts: Arc<AtomicU64>,
}

impl Actor for Host {
    type Msg = ();
    type State = HostState;
    type Arguments = (Arc<Instance>, Arc<AtomicU64>);

    async fn pre_start(
        &self,
        me: ActorRef<()>,
        (instance, restarts): Self::Arguments,
    ) -> Result<HostState, ActorProcessingErr> {
        let playhouse = instance.spawn(Some(me.get_cell())).await?;
        Ok(HostState { instance, playhouse, restarts })
    }

    async fn handle_supervisor_evt(
        &self,
        me: ActorRef<()>,
        event: SupervisionEvent,
        state: &mut HostState,
    ) -> Result<(), ActorProcessingErr> {
        let (child, cause) = match event {
            SupervisionEvent::ActorTerminated(child, _, reason) => (child, reason.unwrap_or_default()),
            SupervisionEvent::ActorFailed(child, error) => (child, error.to_string()),
            _ => return Ok(()),
        };
        if child.get_id() != state.playhouse.get_id() || state.instance.is_stopping() {
            return Ok(());
        }
        println!("host: Playhouse has ended ({cause}); starting it again");
        state.restarts.fetch_add(1, Ordering::Relaxed);
        state.playhouse = state.instance.spawn(Some(me.get_cell())).await?;
        Ok(())
    }
}

/// Another actor of the program, which counts its questions.
struct Counter;

struct Question(Request<Bytes>, RpcReplyPort<Response<Body>>);

impl Actor for Counter {
    type Msg = Question;
    type State = u64;
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<Question>, (): ()) -> Result<u64, ActorProcessingErr> {
        Ok(0)
    }

    async fn handle(
        &self,
        _: ActorRef<Question>,
        Question(request, reply): Question,
        count: &mut u64,
    ) -> Result<(), ActorProcessingErr> {
        *count += 1;
        let _ = reply.send(Response::new(Body::from(format!("{} number {count}\n", request.method()))));
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (counter, _) = Actor::spawn(None, Counter, ()).await?;
    let greet = from_fn(|exchange| {
        Box::pin(async move {
            let path = exchange.request.uri().path();
            assert!(path != "/panic", "this request's own fault");
            Response::new(Body::from(format!("hello from {path}\n")))
        })
    });
    let count: Arc<dyn Handler> =
        Arc::new(AskActor::new(move || Some(counter.clone()), Question, Duration::from_secs(5), 1024));
    let handlers = Handlers::from([("greet".into(), greet), ("count".into(), count)]);

    let site = Site::builder("embedded")
        .listener("http", "127.0.0.1:0")
        .route(("/", Target::handler("greet")))
        .route(("/counter", Target::handler("count")))
        .build()?;
    let instance = Instance::open(site, Options { handlers, ..Options::default() })?;
    let restarts = Arc::new(AtomicU64::new(0));
    let (host, _) = Actor::spawn(None, Host, (instance.clone(), restarts.clone())).await?;
    let address = instance.addresses()[0].1.clone();
    println!("host: Playhouse answers at http://{address}/");

    println!("client: {}", get(&address, "/world").await?);
    println!("client: {}", get(&address, "/counter").await?);
    println!("client: a panic costs its own request: {}", get(&address, "/panic").await?);

    for (round, fault) in [Fault::Kill, Fault::Panic].into_iter().enumerate() {
        instance.tree().kill("instance-1", fault)?;
        instance.tree().root().until(|root| root.restarts() == round as u64 + 1).await;
        // The socket has outlived every actor, so a client may come at any time; one that was accepted before the new
        // incarnation has ended what was left of the old one would be lost with it.
        while !instance.is_ready() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        println!("client, after {fault}: {}", get(&address, "/again").await?);
    }

    assert_eq!(restarts.load(Ordering::Relaxed), 2);
    let tree = instance.tree().view(false);
    println!("host: {} is {:?}, started again {} times", tree.path, tree.state, tree.restarts);
    let (_, mut events) = instance.tree().events().follow();
    instance.stop().await;
    println!("host: {}", events.recv().await?.message);
    let ledger = instance.ledger();
    println!("host: {} requests, {} answered, {} killed", ledger.accepted, ledger.answered, ledger.killed);
    assert_eq!((ledger.in_flight, ledger.accepted), (0, ledger.ended()));
    host.stop(None);
    Ok(())
}

/// The status and the first line of the content.
async fn get(address: &str, path: &str) -> Result<String, Box<dyn Error>> {
    #[allow(clippy::disallowed_methods, reason = "this client is not part of the site")]
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let status = answer.get(9..12).unwrap_or("no answer");
    let content = answer.split_once("\r\n\r\n").and_then(|(_, content)| content.lines().next());
    Ok(format!("{status} {}", content.unwrap_or_default()))
}
