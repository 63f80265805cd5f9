//! An upstream server that does, connection by connection, what a test tells it.

use std::collections::HashMap;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::wire::{Request, Wire};

/// A listening server; each connection runs the script on a thread of its own.
pub struct Scripted {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stopping: AtomicBool,
    accepted: AtomicUsize,
    requests: Mutex<Vec<Request>>,
    // Those still open, so that stopping closes them.
    open: Mutex<HashMap<usize, TcpStream>>,
}

/// A connection in the hands of a script.
pub struct Connection {
    pub wire: Wire,
    shared: Arc<Shared>,
}

impl Connection {
    /// The next request, recorded; `None` when the peer has closed (or broken off).
    pub fn request(&mut self) -> Option<Request> {
        let request = self.wire.request().ok()??;
        self.shared.requests.lock().unwrap().push(request.clone());
        Some(request)
    }

    /// The next request's head, recorded; its body stays on the wire.
    pub fn request_head(&mut self) -> Option<Request> {
        let request = self.wire.request_head().ok()??;
        self.shared.requests.lock().unwrap().push(request.clone());
        Some(request)
    }

    /// Sends as it is; the peer may have gone.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.wire.try_send(bytes).is_ok()
    }
}

impl Scripted {
    /// A server that runs `script` with each connection.
    pub fn start(script: impl Fn(Connection) + Send + Sync + 'static) -> Self {
        Scripted::start_at("127.0.0.1:0".parse().expect("an address"), script)
    }

    /// The same at an address that was another's before.
    #[track_caller]
    pub fn start_at(address: SocketAddr, script: impl Fn(Connection) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared::default());
        let acceptor = std::thread::spawn({
            let shared = shared.clone();
            move || accept(&listener, &shared, &Arc::new(script))
        });
        Scripted { address, shared, acceptor: Some(acceptor) }
    }

    /// A server that answers every request, by `answer`, with whole responses on kept-alive connections.
    pub fn answering(answer: impl Fn(&Request) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Scripted::start(answers(answer))
    }

    /// The same at an address that was another's before.
    #[track_caller]
    pub fn answering_at(
        address: SocketAddr,
        answer: impl Fn(&Request) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        Scripted::start_at(address, answers(answer))
    }

    /// A server that answers everything with 200 and this text.
    pub fn saying(text: &'static str) -> Self {
        Scripted::answering(move |_| ok(text))
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Requests read so far.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// Closes the listening socket and all connections, as a dying process does.
    pub fn stop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        // Wakes the acceptor.
        drop(TcpStream::connect(self.address));
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.join().expect("the acceptor does not panic");
        }
        for (_, stream) in self.shared.open.lock().unwrap().drain() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A whole answer of status 200.
pub fn ok(text: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{text}", text.len())
        .into_bytes()
}

fn answers(
    answer: impl Fn(&Request) -> Vec<u8> + Send + Sync + 'static,
) -> impl Fn(Connection) + Send + Sync {
    move |mut connection| {
        while let Some(request) = connection.request() {
            if !connection.send(answer(&request)) {
                return;
            }
        }
    }
}

fn accept(
    listener: &TcpListener,
    shared: &Arc<Shared>,
    script: &Arc<impl Fn(Connection) + Send + Sync + 'static>,
) {
    while let Ok((stream, _)) = listener.accept() {
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        let number = shared.accepted.fetch_add(1, Ordering::SeqCst);
        let _ = stream.set_nodelay(true);
        shared.open.lock().unwrap().insert(number, stream.try_clone().expect("a socket can be cloned"));
        let connection = Connection { wire: Wire::over(stream), shared: shared.clone() };
        let (script, shared) = (script.clone(), shared.clone());
        std::thread::spawn(move || {
            script(connection);
            if let Some(stream) = shared.open.lock().unwrap().remove(&number) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        });
    }
}
