//! WebSockets (RFC 6455), over HTTP/1.1 and HTTP/2 (RFC 8441): numbered messages to a server that sends them back, compared
//! byte by byte, and how each WebSocket has ended.

mod frames;
mod messages;
mod transport;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, header};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tungstenite::protocol::frame::coding::{Control, OpCode};

pub use messages::Messages;
pub(super) use transport::{From, To};

use self::frames::{Frames, Part, frame};
use self::messages::Message;
use super::exchange::{Exchange, Expect};
use super::report::{Class, Sent};
use super::worker::{Fault, Phase};

/// Between two writes of a frame that is sent in several, so that the server sees each.
const BETWEEN_WRITES: Duration = Duration::from_millis(1);
const NORMAL: u16 = 1000;
/// The server goes away.
const GOING_AWAY: u16 = 1001;

/// The handshake. Over HTTP/1.1 its key is the RFC's example (§1.3): nobody is to be kept from guessing it here.
pub(super) fn handshake(path: &str, http2: bool) -> Exchange {
    let token = HeaderValue::from_static("websocket");
    let version = (HeaderName::from_static("sec-websocket-version"), HeaderValue::from_static("13"));
    if http2 {
        let mut exchange = Exchange::get(path, Expect::status(200));
        exchange.method = Method::CONNECT;
        exchange.headers.push(version);
        return exchange;
    }
    let accept = HeaderValue::from_static("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    let expect = Expect::status(101)
        .with_header(header::UPGRADE, token.clone())
        .with_header(header::SEC_WEBSOCKET_ACCEPT, accept);
    let mut exchange = Exchange::get(path, expect);
    exchange.headers = vec![
        (header::CONNECTION, HeaderValue::from_static("Upgrade")),
        (header::UPGRADE, token),
        (header::SEC_WEBSOCKET_KEY, HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==")),
        version,
    ];
    exchange
}

/// How a WebSocket has ended, in order.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// Every message had come back when we closed it.
    Closed,
    /// The server has sent Close 1001; so many messages had not come back, and do not.
    Drained(u64),
}

/// A WebSocket whose handshake is done.
pub(super) struct Tunnel<'a, F> {
    /// Its number within the stream.
    pub(super) id: u64,
    pub(super) messages: &'a Messages,
    /// For each message to come back, and for each Close to be followed by the end.
    pub(super) deadline: Duration,
    /// When it is to be closed in any case.
    pub(super) ends: Option<Instant>,
    pub(super) phase: watch::Receiver<Phase>,
    /// A message that began then has come back.
    pub(super) came_back: F,
}

/// What the two directions know of each other.
struct Shared {
    /// When each message that has not come back was begun.
    on_their_way: Mutex<VecDeque<Instant>>,
    /// Places for further ones.
    places: Semaphore,
    /// Messages that were begun.
    begun: AtomicU64,
    /// When our Close was begun, and whether it was written.
    closing: Mutex<Option<Instant>>,
    closed: AtomicBool,
}

/// What the reader wants written.
enum Order {
    Pong(Bytes),
    Close(u16),
}

impl<F: Fn(Instant)> Tunnel<'_, F> {
    /// Talks until it has ended.
    pub(super) async fn run(self, mut from: From, mut to: To) -> Result<Ended, Fault> {
        let shared = Shared {
            on_their_way: Mutex::default(),
            places: Semaphore::new(self.messages.ahead.max(1)),
            begun: AtomicU64::new(0),
            closing: Mutex::default(),
            closed: AtomicBool::new(false),
        };
        let (order, orders) = mpsc::unbounded_channel();
        let mut broken = None;
        let ended = {
            let mut write = std::pin::pin!(async {
                match self.write(&shared, &mut to, orders).await {
                    Ok(never) => match never {},
                    Err(error) => error,
                }
            });
            let mut read = std::pin::pin!(self.read(&shared, &mut from, order));
            let mut overdue = std::pin::pin!(self.overdue(&shared));
            loop {
                tokio::select! {
                    ended = &mut read => break ended,
                    // What cannot be written says less than what can still be read.
                    error = &mut write, if broken.is_none() => broken = Some(error),
                    what = &mut overdue => break Err((Class::Lost, what)),
                }
            }
        };
        match ended {
            Ok(ended) => {
                to.end();
                Ok(ended)
            }
            Err((class, mut detail)) => {
                if let Some(error) = broken {
                    detail = format!("{detail}; while writing: {error}");
                }
                let answered = shared.begun.load(Ordering::Acquire) - shared.unanswered();
                detail = format!("after {answered} messages: {detail}");
                Err(Fault { class, sent: Sent::Part, answered: 0, detail })
            }
        }
    }

    /// Sends messages for as long as there is to be one more, and what the reader wants in between; ends with our Close.
    async fn write(
        &self,
        shared: &Shared,
        to: &mut To,
        mut orders: mpsc::UnboundedReceiver<Order>,
    ) -> Result<Infallible, String> {
        let mut phase = self.phase.clone();
        let mut due = Instant::now();
        let code = loop {
            tokio::select! {
                biased;
                Some(order) = orders.recv() => match order {
                    Order::Pong(payload) => to.write(control(Control::Pong, payload)).await?,
                    Order::Close(code) => break code,
                },
                message = self.next(shared, &mut phase, due) => match message {
                    Some(message) => {
                        due = Instant::now() + self.messages.pause;
                        send(to, &message).await?;
                    }
                    None => break NORMAL,
                },
            }
        };
        *lock(&shared.closing) = Some(Instant::now());
        to.write(control(Control::Close, Bytes::copy_from_slice(&code.to_be_bytes()))).await?;
        shared.closed.store(true, Ordering::Release);
        std::future::pending().await
    }

    /// The next message, begun, once it is time for it; `None` where no more are to be sent and all have come back.
    async fn next(
        &self,
        shared: &Shared,
        phase: &mut watch::Receiver<Phase>,
        due: Instant,
    ) -> Option<Message> {
        let number = shared.begun.load(Ordering::Acquire);
        let over = async {
            if number < self.messages.each {
                let ends = async {
                    match self.ends {
                        Some(at) => sleep_until(at).await,
                        None => std::future::pending().await,
                    }
                };
                let told = async { drop(phase.wait_for(|phase| *phase != Phase::Run).await) };
                tokio::select! {
                    () = told => {}
                    () = ends => {}
                }
            }
        };
        let place = async {
            sleep_until(due).await;
            shared.places.acquire().await
        };
        tokio::select! {
            biased;
            () = over => {
                // The semaphore is never closed.
                let _ = shared.places.acquire_many(self.messages.ahead.max(1) as u32).await;
                None
            }
            place = place => {
                if let Ok(place) = place {
                    place.forget();
                }
                lock(&shared.on_their_way).push_back(Instant::now());
                shared.begun.store(number + 1, Ordering::Release);
                Some(self.messages.message(self.id, number))
            }
        }
    }

    /// Compares what comes back, to the end.
    async fn read(
        &self,
        shared: &Shared,
        from: &mut From,
        order: mpsc::UnboundedSender<Order>,
    ) -> Result<Ended, (Class, String)> {
        let wrong = |detail: String| (Class::Wrong, detail);
        let mut frames = Frames::default();
        let (mut number, mut offset) = (0, 0);
        let mut ended = None;
        loop {
            while let Some(part) = frames.next().map_err(wrong)? {
                if ended.is_some() {
                    return Err(wrong(format!("something after the Close: {part:?}")));
                }
                match part {
                    Part::Data(_) | Part::End if number == shared.begun.load(Ordering::Acquire) => {
                        return Err(wrong("a message that was not sent".into()));
                    }
                    Part::Data(data) => {
                        self.messages.message(self.id, number).check(offset, &data).map_err(wrong)?;
                        offset += data.len();
                    }
                    Part::End => {
                        self.messages.message(self.id, number).check_end(offset).map_err(wrong)?;
                        (number, offset) = (number + 1, 0);
                        if let Some(begun) = lock(&shared.on_their_way).pop_front() {
                            (self.came_back)(begun);
                        }
                        shared.places.add_permits(1);
                    }
                    Part::Ping(payload) => _ = order.send(Order::Pong(payload)),
                    Part::Pong => {}
                    Part::Close(NORMAL) if shared.is_closing() => ended = Some(Ended::Closed),
                    Part::Close(GOING_AWAY) => {
                        ended = Some(Ended::Drained(shared.unanswered()));
                        _ = order.send(Order::Close(GOING_AWAY));
                    }
                    Part::Close(code) => return Err(wrong(format!("Close {code}"))),
                }
            }
            let n = match from.read(frames.buffer()).await {
                Ok(n) => n,
                Err((class, error)) => return Err((class, frames.cut(&error))),
            };
            if n > 0 {
                continue;
            }
            return match ended {
                // The server has to wait for our Close (RFC 6455 §7.1.1).
                Some(ended) if shared.closed.load(Ordering::Acquire) => Ok(ended),
                Some(_) => Err((Class::InFlight, "ended before the Close was answered".into())),
                None => Err((Class::InFlight, frames.cut("ended"))),
            };
        }
    }

    /// Ends when something has taken longer than the deadline.
    async fn overdue(&self, shared: &Shared) -> String {
        loop {
            let oldest = lock(&shared.on_their_way).front().copied();
            let closing = *lock(&shared.closing);
            // Once there is a Close, nothing else is waited for.
            let (since, what) = match (closing, oldest) {
                (Some(at), _) => (at, "no end after the Close within the deadline"),
                (None, Some(at)) => (at, "a message has not come back within the deadline"),
                (None, None) => (Instant::now(), ""),
            };
            let due = since + self.deadline;
            if Instant::now() >= due {
                return what.to_owned();
            }
            // What is begun meanwhile is due later than after one deadline from now.
            sleep_until(due).await;
        }
    }
}

impl Shared {
    fn unanswered(&self) -> u64 {
        lock(&self.on_their_way).len() as u64
    }

    fn is_closing(&self) -> bool {
        lock(&self.closing).is_some()
    }
}

impl Frames {
    /// What an end without a Close has cut.
    fn cut(&self, how: &str) -> String {
        let place = if self.is_between_frames() { "between two frames" } else { "within a frame" };
        format!("{how}, without a Close, {place}")
    }
}

async fn send(to: &mut To, message: &Message) -> Result<(), String> {
    for frame in message.frames() {
        let frame = Bytes::from(frame);
        let mut from = 0;
        for end in message.writes(frame.len()) {
            if from > 0 {
                sleep(BETWEEN_WRITES).await;
            }
            to.write(frame.slice(from..end)).await?;
            from = end;
        }
    }
    Ok(())
}

fn control(control: Control, payload: Bytes) -> Bytes {
    frame(OpCode::Control(control), true, payload, [0x37, 0xfa, 0x21, 0x3d]).into()
}

/// What is kept stays usable whoever panicked while holding it.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
