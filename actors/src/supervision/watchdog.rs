//! The watchdog: an operating-system thread that sees a runtime thread which does not come back from one poll.
//!
//! Every poll of an actor notes the actor and the watchdog's tick in a stamp of its thread: two relaxed stores, no clock.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use super::{EventKind, Tree};

/// What a thread is polling: 0 is nothing.
#[derive(Default)]
struct Stamp {
    seat: AtomicU64,
    since: AtomicU64,
}

/// Counts [`TICK`]s while any watchdog runs.
static NOW: AtomicU64 = AtomicU64::new(0);
static STAMPS: Mutex<Vec<Weak<Stamp>>> = Mutex::new(Vec::new());

thread_local! {
    static MINE: OnceCell<Arc<Stamp>> = const { OnceCell::new() };
}

/// The thread polls this seat's occupant until the guard is dropped.
pub(super) fn polling(seat: u64) -> Polling {
    MINE.with(|mine| {
        let stamp = mine.get_or_init(|| {
            let stamp = Arc::new(Stamp::default());
            let mut stamps = STAMPS.lock();
            stamps.retain(|stamp| stamp.strong_count() > 0);
            stamps.push(Arc::downgrade(&stamp));
            stamp
        });
        stamp.since.store(NOW.load(Ordering::Relaxed), Ordering::Relaxed);
        stamp.seat.store(seat, Ordering::Release);
    });
    Polling
}

pub(super) struct Polling;

impl Drop for Polling {
    fn drop(&mut self) {
        let clear = |mine: &OnceCell<Arc<Stamp>>| {
            if let Some(stamp) = mine.get() {
                stamp.seat.store(0, Ordering::Release);
            }
        };
        // While the thread ends there is no stamp left to clear.
        let _ = MINE.try_with(clear);
    }
}

/// Runs until it is dropped.
#[derive(Debug)]
pub struct Watchdog {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Watches the actors of one tree; a poll of theirs that takes longer than `limit` is an event, and counted in
    /// [`Tree::blocked_threads`] while it lasts.
    pub fn start(tree: &Arc<Tree>, limit: Duration) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, tree) = (stop.clone(), Arc::downgrade(tree));
        let limit = (limit.as_millis() / TICK.as_millis()).max(2) as u64;
        let thread = std::thread::Builder::new().name("watchdog".into()).spawn(move || {
            let mut reported = Vec::<(u64, u64)>::new();
            while !stopped.load(Ordering::Acquire) {
                std::thread::park_timeout(TICK);
                let now = NOW.fetch_add(1, Ordering::Relaxed) + 1;
                let Some(tree) = tree.upgrade() else { return };
                let blocked = blocked_since(now, limit);
                let mut paths = Vec::new();
                reported.retain(|seen| blocked.contains(seen));
                for stamp in blocked {
                    let Some(path) = tree.path_of(stamp.0) else { continue };
                    if !reported.contains(&stamp) {
                        reported.push(stamp);
                        let millis = (now - stamp.1) * TICK.as_millis() as u64;
                        let message = format!("its thread has not come back from one poll for {millis} ms");
                        tree.events().emit(EventKind::Blocked, path.clone(), message);
                    }
                    paths.push(path);
                }
                tree.set_blocked(paths);
            }
        })?;
        Ok(Watchdog { stop, thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It holds nothing and ends within a tick; a panic in it has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

fn blocked_since(now: u64, limit: u64) -> Vec<(u64, u64)> {
    let stamps = STAMPS.lock();
    stamps
        .iter()
        .filter_map(Weak::upgrade)
        .map(|stamp| (stamp.seat.load(Ordering::Acquire), stamp.since.load(Ordering::Relaxed)))
        .filter(|(seat, since)| *seat != 0 && now.saturating_sub(*since) >= limit)
        .collect()
}

const TICK: Duration = Duration::from_millis(50);
