//! The account of a finished load.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::account::Counts;
use super::histogram::Histogram;

/// Why a request counts as failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// A new connection was not accepted: refused, no such socket, or no handshake within the deadline.
    Refused,
    /// Provably never processed: the connection ended before a byte of the request reached the kernel, in the TLS
    /// handshake, or HTTP/2 said so (a GOAWAY whose last stream is before this one, `REFUSED_STREAM`). Safe to retry.
    Unsent,
    /// The request was at least partly sent; its connection or stream ended before a complete answer.
    InFlight,
    /// As `InFlight`, on a reused HTTP/1.1 connection without a single byte of an answer: the keep-alive race, in which
    /// the server closes an idle connection just as the client writes.
    InFlightReused,
    /// A complete, well-framed answer with another status than expected.
    Status(u16),
    /// An answer that is malformed, has wrong bytes or fields, or claims to be complete and is not.
    Wrong,
    /// No complete answer within the deadline, and the connection still open.
    Lost,
}

impl Class {
    /// A client may send the request again whatever its method is.
    pub fn is_safe_to_retry(self) -> bool {
        matches!(self, Class::Refused | Class::Unsent)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Class::Refused => f.write_str("refused"),
            Class::Unsent => f.write_str("unsent"),
            Class::InFlight => f.write_str("in flight"),
            Class::InFlightReused => f.write_str("in flight, reused"),
            Class::Status(status) => write!(f, "status {status}"),
            Class::Wrong => f.write_str("wrong"),
            Class::Lost => f.write_str("lost"),
        }
    }
}

/// How much of a request the kernel took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sent {
    /// No byte, provably.
    None,
    /// Some, or (HTTP/2) perhaps some.
    Part,
    /// All of it. In HTTP/2: all was handed to a connection that wrote something since.
    All,
}

/// One failed request.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// The stream's name.
    pub stream: String,
    /// The request's number within its stream.
    pub id: u64,
    /// The connection's number within the load; `None` where there was none.
    pub connection: Option<u64>,
    /// Why.
    pub class: Class,
    /// How much of the request was sent.
    pub sent: Sent,
    /// Bytes of the answer that had arrived (HTTP/2: of its content).
    pub answered: u64,
    /// When the request began, from the start of the load.
    #[serde(serialize_with = "seconds")]
    pub begun: Duration,
    /// When the failure was noticed, from the start of the load.
    #[serde(serialize_with = "seconds")]
    pub at: Duration,
    /// What was seen.
    pub detail: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.3} s: {} #{}: {} (began {:.3} s, sent {:?}, {} bytes answered): {}",
            self.at.as_secs_f64(),
            self.stream,
            self.id,
            self.class,
            self.begun.as_secs_f64(),
            self.sent,
            self.answered,
            self.detail
        )
    }
}

/// What happened within one [`Window::LENGTH`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Window {
    /// Requests answered as expected.
    pub answered: u32,
    /// Requests that failed.
    pub failed: u32,
}

impl Window {
    /// The length of each window.
    pub const LENGTH: Duration = Duration::from_millis(10);
}

/// What became of the requests of one stream.
#[derive(Clone, Debug, Serialize)]
pub struct StreamReport {
    /// The stream's name.
    pub name: String,
    /// How many requests ended in which way.
    pub counts: Counts,
    /// From before the write (or the connect, where one was needed) to the last byte of the answer, answered only. Of
    /// WebSockets: from the begin of each message until it had come back.
    pub latency: Histogram,
    /// Answers of another status than expected, by status.
    pub statuses: BTreeMap<u16, u64>,
}

/// What became of every request of a load.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// From the start to the last request's end.
    #[serde(serialize_with = "seconds")]
    pub duration: Duration,
    /// Sums over all streams.
    pub counts: Counts,
    /// Over all streams.
    pub latency: Histogram,
    /// Answers of another status than expected, by status, over all streams.
    pub statuses: BTreeMap<u16, u64>,
    /// Each stream for itself.
    pub streams: Vec<StreamReport>,
    /// Each failure in the order in which they were noticed; at most the first 10,000 (the counts have all).
    pub failures: Vec<Failure>,
    /// What happened when, in steps of [`Window::LENGTH`] from the start.
    pub windows: Vec<Window>,
    /// For each connection that answered at all: when it was begun and when its first answer was complete.
    #[serde(skip)]
    pub first_answers: Vec<(Duration, Duration)>,
}

impl Report {
    /// Every request was answered as expected.
    pub fn is_clean(&self) -> bool {
        self.counts.failed() == 0
    }

    /// The listed failures of a class.
    pub fn of(&self, class: Class) -> impl Iterator<Item = &Failure> {
        self.failures.iter().filter(move |failure| failure.class == class)
    }

    /// The listed failures noticed from `from` until `to`.
    pub fn between(&self, from: Duration, to: Duration) -> impl Iterator<Item = &Failure> {
        self.failures.iter().filter(move |failure| (from..=to).contains(&failure.at))
    }

    /// How long after `moment` the first answer came over a connection begun after it.
    pub fn recovery(&self, moment: Duration) -> Option<Duration> {
        recovery(&self.first_answers, moment)
    }

    /// The longest time without an answer, in whole windows: where it began and how long it was.
    pub fn longest_gap(&self) -> (Duration, Duration) {
        let mut longest = (0, 0);
        let mut began = 0;
        for (i, window) in self.windows.iter().enumerate() {
            if window.answered > 0 {
                began = i + 1;
            } else if i + 1 - began > longest.1 {
                longest = (began, i + 1 - began);
            }
        }
        (Window::LENGTH * longest.0 as u32, Window::LENGTH * longest.1 as u32)
    }
}

pub(super) fn recovery(first_answers: &[(Duration, Duration)], moment: Duration) -> Option<Duration> {
    first_answers.iter().filter(|(begun, _)| *begun >= moment).map(|(_, at)| *at - moment).min()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.duration.as_secs_f64();
        writeln!(
            f,
            "{} requests in {seconds:.2} s ({:.0}/s), {} answered, {} failed",
            self.counts.begun,
            self.counts.answered as f64 / seconds.max(1e-9),
            self.counts.answered,
            self.counts.failed()
        )?;
        for stream in &self.streams {
            let Counts {
                answered,
                refused,
                unsent,
                in_flight,
                in_flight_reused,
                wrong,
                lost,
                connections,
                idle_closes,
                opened,
                drained,
                messages,
                unreturned,
                ..
            } = stream.counts;
            writeln!(
                f,
                "  {}: answered {answered}, refused {refused}, unsent {unsent}, in flight {in_flight}, \
                 in flight (reused) {in_flight_reused}, wrong {wrong}, lost {lost}, statuses {:?}; \
                 {connections} connections, {idle_closes} closed idle",
                stream.name, stream.statuses
            )?;
            if opened > 0 {
                writeln!(
                    f,
                    "    {opened} WebSockets, {drained} drained; {messages} messages, {unreturned} not returned"
                )?;
            }
            let latency = &stream.latency;
            writeln!(
                f,
                "    latency p50 {:?}, p90 {:?}, p99 {:?}, p99.9 {:?}, max {:?}",
                latency.quantile(0.5),
                latency.quantile(0.9),
                latency.quantile(0.99),
                latency.quantile(0.999),
                latency.max()
            )?;
        }
        const SHOWN: usize = 20;
        for failure in self.failures.iter().take(SHOWN) {
            writeln!(f, "  {failure}")?;
        }
        if self.counts.failed() as usize > SHOWN {
            writeln!(f, "  … and {} more failures", self.counts.failed() as usize - SHOWN)?;
        }
        Ok(())
    }
}

fn seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}
