//! What has happened in a site: the last few hundred events, and whoever follows them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::sync::broadcast;

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Event {
    /// Ascending without gaps while the process lives. The first one is the time of the process's start in microseconds
    /// since the Unix epoch, so that the numbers of the next process go on higher.
    pub sequence: u64,
    /// Milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// What kind of event.
    pub kind: EventKind,
    /// The actor's path, or empty.
    pub path: String,
    /// For people.
    pub message: String,
}

/// What kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// An operator or a plan has put a fault into an actor.
    Fault,
    /// An actor has failed, stalled or was ended by a fault.
    Ended,
    /// An actor sits in its seat again.
    Restarted,
    /// More failures than the intensity allows: the supervisor gives up.
    Escalated,
    /// An actor made no progress within its deadline.
    Stalled,
    /// A runtime thread has not come back from one poll.
    Blocked,
    /// A configuration took effect, or was refused.
    Reload,
    /// Certificates were read again, or could not be.
    Certificates,
    /// A server's health or ejection has changed.
    Upstream,
    /// A process of an app was started, is ready, has ended, or is to.
    App,
    /// A listener was opened, closed, or could not accept.
    Listener,
    /// Another number of instances is wanted, or memory keeps it down.
    Scaling,
    /// The site or one of its processes starts, drains or stops.
    Lifecycle,
    /// Of another build.
    #[serde(other)]
    Other,
}

/// The events of a site.
#[derive(Debug)]
pub struct Events {
    next: AtomicU64,
    recent: Mutex<VecDeque<Event>>,
    followers: broadcast::Sender<Event>,
    suppressed: Mutex<(u64, u64)>,
}

impl Default for Events {
    fn default() -> Self {
        Events {
            // Nothing has a million events a second for all its life.
            next: AtomicU64::new(unix_time().as_micros() as u64),
            recent: Mutex::new(VecDeque::with_capacity(KEPT)),
            followers: broadcast::channel(KEPT).0,
            suppressed: Mutex::new((0, 0)),
        }
    }
}

impl Events {
    /// Notes an event: here, for followers, and in the log.
    pub fn emit(&self, kind: EventKind, path: impl Into<String>, message: impl Into<String>) {
        let unix_ms = unix_time().as_millis() as u64;
        let (path, message) = (path.into(), message.into());
        if self.log_admits(unix_ms) {
            match kind {
                EventKind::Escalated | EventKind::Blocked => tracing::error!(%path, ?kind, "{message}"),
                EventKind::Ended | EventKind::Stalled => tracing::warn!(%path, ?kind, "{message}"),
                _ => tracing::info!(%path, ?kind, "{message}"),
            }
        }
        self.add(Event { sequence: 0, unix_ms, kind, path, message });
    }

    /// Notes what another process has noted, and logged; here it has a number of our own.
    pub fn relay(&self, event: Event) {
        self.add(event);
    }

    fn add(&self, mut event: Event) {
        let mut recent = self.recent.lock();
        event.sequence = self.next.fetch_add(1, Ordering::Relaxed);
        if recent.len() == KEPT {
            recent.pop_front();
        }
        recent.push_back(event.clone());
        // No follower is no error.
        let _ = self.followers.send(event);
    }

    /// The last events, oldest first, at most `count`.
    pub fn recent(&self, count: usize) -> Vec<Event> {
        let recent = self.recent.lock();
        recent.iter().skip(recent.len().saturating_sub(count)).cloned().collect()
    }

    /// The kept events, and a receiver of all that come after them. A receiver that lags loses the oldest.
    pub fn follow(&self) -> (Vec<Event>, broadcast::Receiver<Event>) {
        let recent = self.recent.lock();
        (recent.iter().cloned().collect(), self.followers.subscribe())
    }

    /// A storm of events must not become a storm of log lines: at most so many in one second.
    fn log_admits(&self, unix_ms: u64) -> bool {
        let mut window = self.suppressed.lock();
        let second = unix_ms / 1000;
        if window.0 != second {
            if window.1 > LOGGED_PER_SECOND {
                tracing::warn!(suppressed = window.1 - LOGGED_PER_SECOND, "events left out of the log");
            }
            *window = (second, 0);
        }
        window.1 += 1;
        window.1 <= LOGGED_PER_SECOND
    }
}

fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)
}

const KEPT: usize = 512;
const LOGGED_PER_SECOND: u64 = 50;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_ascend_without_gaps_and_go_on_higher_in_the_next_process() {
        let numbers = |events: &Events| {
            events.emit(EventKind::Lifecycle, "a", "one");
            let foreign = Event {
                sequence: 3,
                unix_ms: 5,
                kind: EventKind::Ended,
                path: "instance-2/metrics".into(),
                message: "killed".into(),
            };
            events.relay(foreign.clone());
            events.emit(EventKind::Lifecycle, "a", "three");
            let recent = events.recent(10);
            assert_eq!(Event { sequence: foreign.sequence, ..recent[1].clone() }, foreign);
            recent.iter().map(|event| event.sequence).collect::<Vec<_>>()
        };
        let first = numbers(&Events::default());
        assert!(first.windows(2).all(|pair| pair[1] == pair[0] + 1), "{first:?}");
        let second = numbers(&Events::default());
        assert!(second[0] > first[0], "{first:?}, then {second:?}");
        // Whole numbers of JavaScript.
        assert!(second[2] < 1 << 53);
    }
}
