//! The counters that workers write and tests watch.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::histogram::Histogram;
use super::report::{Class, Failure, Report, StreamReport, Window, recovery};
use super::tunnel::Ended;

/// The failures that are kept one by one; beyond it they are only counted.
const KEPT_FAILURES: usize = 10_000;
/// Twenty minutes of windows; what is later counts in the last.
const KEPT_WINDOWS: usize = 120_000;
/// The connections whose first answer is kept.
const KEPT_FIRST_ANSWERS: usize = 1 << 20;

/// How many requests ended in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Begun, whatever became of them.
    pub begun: u64,
    /// Answered as expected.
    pub answered: u64,
    /// [`Class::Refused`].
    pub refused: u64,
    /// [`Class::Unsent`].
    pub unsent: u64,
    /// [`Class::InFlight`].
    pub in_flight: u64,
    /// [`Class::InFlightReused`].
    pub in_flight_reused: u64,
    /// [`Class::Status`] of any status.
    pub status: u64,
    /// [`Class::Wrong`].
    pub wrong: u64,
    /// [`Class::Lost`].
    pub lost: u64,
    /// Connections that were established.
    pub connections: u64,
    /// Kept-alive connections that had ended (HTTP/2: or were ending) before the next request was written; no failures.
    pub idle_closes: u64,
    /// WebSockets that were opened.
    pub opened: u64,
    /// WebSockets among the answered that the server ended with Close 1001.
    pub drained: u64,
    /// Messages that came back over WebSockets as they were sent, in their order.
    pub messages: u64,
    /// Messages that were on their way when a WebSocket was drained, and did not come back.
    pub unreturned: u64,
}

impl Counts {
    /// Requests that ended in any other way than answered.
    pub fn failed(&self) -> u64 {
        self.refused
            + self.unsent
            + self.in_flight
            + self.in_flight_reused
            + self.status
            + self.wrong
            + self.lost
    }

    /// Requests that have not ended yet.
    pub fn pending(&self) -> u64 {
        self.begun - self.answered - self.failed()
    }

    pub(super) fn add(&mut self, other: &Counts) {
        self.begun += other.begun;
        self.answered += other.answered;
        self.refused += other.refused;
        self.unsent += other.unsent;
        self.in_flight += other.in_flight;
        self.in_flight_reused += other.in_flight_reused;
        self.status += other.status;
        self.wrong += other.wrong;
        self.lost += other.lost;
        self.connections += other.connections;
        self.idle_closes += other.idle_closes;
        self.opened += other.opened;
        self.drained += other.drained;
        self.messages += other.messages;
        self.unreturned += other.unreturned;
    }
}

/// The account of a whole load.
pub(super) struct Account {
    pub(super) started: Instant,
    pub(super) streams: Vec<StreamAccount>,
    connections: AtomicU64,
    shared: Mutex<Shared>,
    /// Signalled after each change, while somebody waits for one.
    changed: Notify,
    waiting: AtomicUsize,
}

#[derive(Default)]
struct Shared {
    failures: Vec<Failure>,
    windows: Vec<Window>,
    first_answers: Vec<(Duration, Duration)>,
    /// Of the answered request that was begun last: when it was begun and when its answer was complete.
    latest: Option<(Duration, Duration)>,
    ended: Duration,
}

/// The account of one stream.
pub(super) struct StreamAccount {
    name: String,
    counts: Mutex<(Counts, Histogram, BTreeMap<u16, u64>)>,
}

impl Account {
    pub(super) fn new(names: impl Iterator<Item = String>) -> Account {
        Account {
            started: Instant::now(),
            streams: names.map(|name| StreamAccount { name, counts: Mutex::default() }).collect(),
            connections: AtomicU64::new(0),
            shared: Mutex::default(),
            changed: Notify::new(),
            waiting: AtomicUsize::new(0),
        }
    }

    pub(super) fn begun(&self, stream: usize) {
        lock(&self.streams[stream].counts).0.begun += 1;
    }

    /// Takes a [`begun`](Account::begun) back.
    pub(super) fn not_begun(&self, stream: usize) {
        lock(&self.streams[stream].counts).0.begun -= 1;
        self.signal();
    }

    /// A connection was established; gives its number.
    pub(super) fn connected(&self, stream: usize) -> u64 {
        lock(&self.streams[stream].counts).0.connections += 1;
        self.connections.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn idle_close(&self, stream: usize) {
        lock(&self.streams[stream].counts).0.idle_closes += 1;
        self.signal();
    }

    /// A request was answered. `first_on` is when its connection was begun, where this was its first answer.
    pub(super) fn answered(&self, stream: usize, begun: Instant, first_on: Option<Instant>) {
        let now = Instant::now();
        {
            let mut counts = lock(&self.streams[stream].counts);
            counts.0.answered += 1;
            counts.1.record(now - begun);
        }
        let at = now - self.started;
        lock(&self.shared).window(at).answered += 1;
        self.first_answer(begun, first_on, at);
    }

    /// A WebSocket was opened; as for an answer.
    pub(super) fn opened(&self, stream: usize, begun: Instant, first_on: Option<Instant>) {
        lock(&self.streams[stream].counts).0.opened += 1;
        self.first_answer(begun, first_on, self.started.elapsed());
    }

    /// A message that was begun then came back.
    pub(super) fn came_back(&self, stream: usize, begun: Instant) {
        {
            let mut counts = lock(&self.streams[stream].counts);
            counts.0.messages += 1;
            counts.1.record(begun.elapsed());
        }
        self.signal();
    }

    /// A WebSocket has ended in order.
    pub(super) fn ended(&self, stream: usize, ended: Ended) {
        {
            let counts = &mut lock(&self.streams[stream].counts).0;
            counts.answered += 1;
            if let Ended::Drained(unreturned) = ended {
                counts.drained += 1;
                counts.unreturned += unreturned;
            }
        }
        lock(&self.shared).window(self.started.elapsed()).answered += 1;
        self.signal();
    }

    fn first_answer(&self, begun: Instant, first_on: Option<Instant>, at: Duration) {
        {
            let mut shared = lock(&self.shared);
            let begun = begun - self.started;
            if shared.latest.is_none_or(|(latest, _)| latest < begun) {
                shared.latest = Some((begun, at));
            }
            if let Some(connected) = first_on
                && shared.first_answers.len() < KEPT_FIRST_ANSWERS
            {
                shared.first_answers.push((connected - self.started, at));
            }
        }
        self.signal();
    }

    /// A request failed; `failure` lacks the stream's name and the time.
    pub(super) fn failed(&self, stream: usize, mut failure: Failure) {
        let at = self.started.elapsed();
        failure.at = at;
        {
            let mut guard = lock(&self.streams[stream].counts);
            let (counts, _, statuses) = &mut *guard;
            match failure.class {
                Class::Refused => counts.refused += 1,
                Class::Unsent => counts.unsent += 1,
                Class::InFlight => counts.in_flight += 1,
                Class::InFlightReused => counts.in_flight_reused += 1,
                Class::Status(status) => {
                    counts.status += 1;
                    *statuses.entry(status).or_default() += 1;
                }
                Class::Wrong => counts.wrong += 1,
                Class::Lost => counts.lost += 1,
            }
        }
        {
            let mut shared = lock(&self.shared);
            shared.window(at).failed += 1;
            if shared.failures.len() < KEPT_FAILURES {
                failure.stream.clone_from(&self.streams[stream].name);
                shared.failures.push(failure);
            }
        }
        self.signal();
    }

    pub(super) fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for stream in &self.streams {
            sum.add(&lock(&stream.counts).0);
        }
        sum
    }

    pub(super) fn stream_counts(&self, name: &str) -> Option<Counts> {
        let stream = self.streams.iter().find(|stream| stream.name == name)?;
        Some(lock(&stream.counts).0)
    }

    pub(super) fn recovery(&self, moment: Duration) -> Option<Duration> {
        recovery(&lock(&self.shared).first_answers, moment)
    }

    /// How long after `moment` a request begun since was answered: the latest such, so that who asks after each change
    /// gets the first.
    pub(super) fn answered_after(&self, moment: Duration) -> Option<Duration> {
        lock(&self.shared).latest.filter(|(begun, _)| *begun >= moment).map(|(_, at)| at - moment)
    }

    /// The failures noticed so far, at most the first 10,000.
    pub(super) fn failures(&self) -> Vec<Failure> {
        lock(&self.shared).failures.clone()
    }

    /// Waits until `condition` holds; it is looked at after each change.
    pub(super) async fn until<T>(&self, mut condition: impl FnMut() -> Option<T>) -> T {
        struct Waiting<'a>(&'a AtomicUsize);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _waiting = Waiting(&self.waiting);
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(found) = condition() {
                return found;
            }
            changed.await;
        }
    }

    /// Lets who waits look again.
    pub(super) fn signal(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.changed.notify_waiters();
        }
    }

    pub(super) fn report(&self) -> Report {
        let mut counts = Counts::default();
        let mut latency = Histogram::default();
        let mut statuses = BTreeMap::<u16, u64>::new();
        let mut streams = Vec::new();
        for stream in &self.streams {
            let guard = lock(&stream.counts);
            counts.add(&guard.0);
            latency.merge(&guard.1);
            for (status, n) in &guard.2 {
                *statuses.entry(*status).or_default() += n;
            }
            streams.push(StreamReport {
                name: stream.name.clone(),
                counts: guard.0,
                latency: guard.1.clone(),
                statuses: guard.2.clone(),
            });
        }
        let shared = lock(&self.shared);
        Report {
            duration: shared.ended,
            counts,
            latency,
            statuses,
            streams,
            failures: shared.failures.clone(),
            windows: shared.windows.clone(),
            first_answers: shared.first_answers.clone(),
        }
    }
}

impl Shared {
    fn window(&mut self, at: Duration) -> &mut Window {
        self.ended = self.ended.max(at);
        let index = ((at.as_millis() / Window::LENGTH.as_millis()) as usize).min(KEPT_WINDOWS - 1);
        if self.windows.len() <= index {
            self.windows.resize(index + 1, Window::default());
        }
        &mut self.windows[index]
    }
}

/// Counters stay usable whoever panicked while holding them.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
