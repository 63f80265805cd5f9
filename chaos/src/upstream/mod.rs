//! A small HTTP/1.1 server for tests, on a port that the kernel chose, which answers by path and misbehaves when told to.
//!
//! | path | answer |
//! |---|---|
//! | `/` and what is not below | 200, `ok` and a line feed |
//! | `/bytes/N` | the first N bytes of the [`pattern`](crate::pattern) 0; `?seed=S` for another |
//! | `/chunked/N` | the same, chunked, in pieces of 1000 bytes |
//! | `/until-close/N` | the same, ended by the end of the connection |
//! | `/trailers/N` | the same, chunked, with a trailer `x-checksum: 1` |
//! | `/id/X` | X |
//! | `/status/N` | that status with its number as content |
//! | `/echo` | the request's content |
//! | `/head` | the request's head as it arrived, as `text/plain` |
//! | `/slow/MS` | `ok` after that many milliseconds |
//! | `/drip/N/MS` | the pattern's first N bytes one by one, with so many milliseconds in between |
//! | `/hints` | 103 with a `link`, then `ok` |
//! | `/close` | the connection is closed without an answer |
//! | `/reset` | the same with a RST |
//! | `/cut/N` | a `Content-Length: N` with half of it, then the end |
//! | `/cut-chunked/N` | half of it in chunks without the last, then the end |
//! | `/short/N` | chunked and complete, but a byte less than N |
//! | `/flipped/N` | as `/bytes/N` with one bit of the last byte changed |
//! | `/garbage` | what is not HTTP |
//! | `/hang` | nothing, until the client goes |

mod answer;
mod request;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::load::Target;

/// How it behaves on every request, whatever the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// By the path.
    Normal = 0,
    /// Closes each connection as soon as it is accepted.
    CloseOnAccept = 1,
    /// Reads each request and closes without an answer.
    CloseOnRequest = 2,
    /// Reads each request and resets the connection.
    ResetOnRequest = 3,
    /// Reads each request and never answers.
    Hang = 4,
    /// Answers each request with 500.
    Fail = 5,
    /// Answers each request with what is not HTTP.
    Garbage = 6,
}

impl Mode {
    const ALL: [Mode; 7] = [
        Mode::Normal,
        Mode::CloseOnAccept,
        Mode::CloseOnRequest,
        Mode::ResetOnRequest,
        Mode::Hang,
        Mode::Fail,
        Mode::Garbage,
    ];
}

/// A running server, on a thread of its own. Dropping it ends it and all its connections.
pub struct Upstream {
    target: Target,
    state: Arc<State>,
    running: Option<Thread>,
}

struct Thread {
    stop: watch::Sender<()>,
    handle: JoinHandle<()>,
}

/// What connections share with the handle.
#[derive(Default)]
struct State {
    mode: AtomicU8,
    keep_alive: AtomicU64,
    connections: AtomicU64,
    open: AtomicUsize,
    requests: AtomicU64,
    answered: AtomicU64,
}

impl State {
    fn mode(&self) -> Mode {
        Mode::ALL.get(usize::from(self.mode.load(Ordering::Acquire))).copied().unwrap_or(Mode::Normal)
    }
}

impl Upstream {
    /// Listens on a port of 127.0.0.1 that the kernel chooses.
    ///
    /// # Errors
    /// No socket or no thread can be made.
    pub fn start() -> io::Result<Upstream> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let target = Target::Tcp(listener.local_addr()?);
        Upstream::with(target, Listener::Tcp(listener))
    }

    /// Listens on a Unix socket, which must not exist yet.
    ///
    /// # Errors
    /// No socket or no thread can be made.
    pub fn unix(path: impl AsRef<Path>) -> io::Result<Upstream> {
        let listener = std::os::unix::net::UnixListener::bind(&path)?;
        Upstream::with(Target::Unix(path.as_ref().to_owned()), Listener::Unix(listener))
    }

    fn with(target: Target, listener: Listener) -> io::Result<Upstream> {
        let state = Arc::new(State { keep_alive: AtomicU64::new(u64::MAX), ..State::default() });
        let running = Some(Thread::start(listener, state.clone())?);
        Ok(Upstream { target, state, running })
    }

    /// Where it listens.
    pub fn target(&self) -> Target {
        self.target.clone()
    }

    /// Its address over TCP.
    ///
    /// # Panics
    /// Where it listens on a Unix socket.
    pub fn address(&self) -> SocketAddr {
        match &self.target {
            Target::Tcp(address) => *address,
            Target::Unix(path) => panic!("{} is a Unix socket", path.display()),
        }
    }

    /// As a site file writes it.
    pub fn server(&self) -> String {
        match &self.target {
            Target::Tcp(address) => address.to_string(),
            Target::Unix(path) => format!("unix:{}", path.display()),
        }
    }

    /// Behaves like this from the next request (or connection) on.
    pub fn mode(&self, mode: Mode) {
        self.state.mode.store(mode as u8, Ordering::Release);
    }

    /// Closes each connection after this many requests, without saying so in the last answer: a proxy that keeps
    /// connections meets the keep-alive race.
    pub fn close_silently_after(&self, requests: u64) {
        self.state.keep_alive.store(requests, Ordering::Release);
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> u64 {
        self.state.connections.load(Ordering::Acquire)
    }

    /// Connections that are open now.
    pub fn open(&self) -> usize {
        self.state.open.load(Ordering::Acquire)
    }

    /// Requests whose head was read so far.
    pub fn requests(&self) -> u64 {
        self.state.requests.load(Ordering::Acquire)
    }

    /// Requests whose answer was completely written so far.
    pub fn answered(&self) -> u64 {
        self.state.answered.load(Ordering::Acquire)
    }

    /// Closes the listening socket and all connections, and waits until that is done: connects are refused from here
    /// on. Nothing happens where it is stopped already.
    pub fn stop(&mut self) {
        if let Some(Thread { stop, handle }) = self.running.take() {
            drop(stop);
            // It has no result, and its panic was printed.
            let _ = handle.join();
            if let Target::Unix(path) = &self.target {
                let _ = std::fs::remove_file(path);
            }
        }
    }

    /// Listens again, at the same address as before.
    ///
    /// # Errors
    /// The address is taken, or no thread can be made.
    pub fn restart(&mut self) -> io::Result<()> {
        self.stop();
        let listener = match &self.target {
            // The standard library sets `SO_REUSEADDR`.
            Target::Tcp(address) => Listener::Tcp(std::net::TcpListener::bind(address)?),
            Target::Unix(path) => Listener::Unix(std::os::unix::net::UnixListener::bind(path)?),
        };
        self.running = Some(Thread::start(listener, self.state.clone())?);
        Ok(())
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stop();
    }
}

enum Listener {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
}

impl Thread {
    fn start(listener: Listener, state: Arc<State>) -> io::Result<Thread> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, mut stopped) = watch::channel(());
        let handle = std::thread::Builder::new().name("upstream".into()).spawn(move || {
            runtime.block_on(async move {
                tokio::select! {
                    result = accept(listener, state) => {
                        if let Err(error) = result {
                            eprintln!("upstream: {error}");
                        }
                    }
                    _ = stopped.changed() => {}
                }
            });
        })?;
        Ok(Thread { stop, handle })
    }
}

async fn accept(listener: Listener, state: Arc<State>) -> io::Result<()> {
    // Dropped with this future, and all connections with it.
    let mut connections = JoinSet::new();
    match listener {
        Listener::Tcp(listener) => {
            listener.set_nonblocking(true)?;
            let listener = TcpListener::from_std(listener)?;
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                connections.spawn(connection(stream, state.clone()));
                while connections.try_join_next().is_some() {}
            }
        }
        Listener::Unix(listener) => {
            listener.set_nonblocking(true)?;
            let listener = UnixListener::from_std(listener)?;
            loop {
                let (stream, _) = listener.accept().await?;
                connections.spawn(connection(stream, state.clone()));
                while connections.try_join_next().is_some() {}
            }
        }
    }
}

/// A stream that can be made to end with a RST.
trait Resettable {
    fn reset_on_close(&self) {}
}

impl Resettable for TcpStream {
    fn reset_on_close(&self) {
        // Where that fails the peer sees a FIN, which is no worse a fault.
        let _ = SockRef::from(self).set_linger(Some(std::time::Duration::ZERO));
    }
}

impl Resettable for tokio::net::UnixStream {}

async fn connection(mut stream: impl AsyncRead + AsyncWrite + Resettable + Unpin, state: Arc<State>) {
    struct Open(Arc<State>);
    impl Drop for Open {
        fn drop(&mut self) {
            self.0.open.fetch_sub(1, Ordering::AcqRel);
        }
    }
    state.connections.fetch_add(1, Ordering::AcqRel);
    state.open.fetch_add(1, Ordering::AcqRel);
    let open = Open(state);
    let state = &open.0;
    if state.mode() == Mode::CloseOnAccept {
        return;
    }
    let mut buffer = bytes::BytesMut::with_capacity(16 << 10);
    let mut answered = 0;
    loop {
        let request = match request::read(&mut stream, &mut buffer).await {
            Ok(Some(request)) => request,
            // The client has gone, or sent what is no request: the tests look at the client's side.
            Ok(None) | Err(_) => return,
        };
        state.requests.fetch_add(1, Ordering::AcqRel);
        let then = match answer::answer(&mut stream, &request, state.mode()).await {
            Ok(then) => then,
            Err(_) => return,
        };
        match then {
            answer::Then::Reset => return stream.reset_on_close(),
            answer::Then::Close => return,
            answer::Then::Answered { keep } => {
                state.answered.fetch_add(1, Ordering::AcqRel);
                answered += 1;
                if !keep || request.close || answered >= state.keep_alive.load(Ordering::Acquire) {
                    return;
                }
            }
        }
    }
}
