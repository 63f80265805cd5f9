//! The tree of a site's seats, and what all of them share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use playhouse_serve::random::Random;
use tokio::time::Instant;

use super::{Events, Fault, Seat, SeatState, Unavailable};

/// The seats of one site.
#[derive(Debug)]
pub struct Tree {
    root: Arc<Seat>,
    shared: Arc<Shared>,
    blocked: Mutex<Vec<String>>,
}

/// What all seats of a tree share.
#[derive(Debug)]
pub(super) struct Shared {
    events: Events,
    messages: AtomicU64,
    origin: Instant,
    random: Random,
}

/// One node of the tree as programs see it. Fields are added, never renamed.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Node {
    /// The names from the root, joined by `/`.
    pub path: String,
    /// What kind of actor it is.
    pub kind: String,
    /// What it is doing.
    pub state: SeatState,
    /// How often it was started again.
    pub restarts: u64,
    /// Why its last incarnation ended.
    pub last_cause: Option<String>,
    /// Messages that wait.
    pub mailbox: usize,
    /// How long this incarnation has lived, in milliseconds.
    pub age_ms: u64,
    /// How many connections hang here; they are listed among the children on request only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub connections: Option<usize>,
    /// Those beneath it.
    pub children: Vec<Node>,
}

/// Why a fault could not be put into an actor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KillError {
    /// No seat has this path.
    #[error("no actor {path:?}{}", .nearest.as_ref().map(|near| format!("; did you mean {near:?}?")).unwrap_or_default())]
    NoSuchActor {
        /// What was asked for.
        path: String,
        /// The nearest path that exists.
        nearest: Option<String>,
    },
    /// The seat is empty just now.
    #[error("{0}: no incarnation is alive just now")]
    Unavailable(String),
}

impl Tree {
    /// An empty tree. The seed drives the jitter of backoffs.
    pub fn new(root: &str, kind: &'static str, seed: u64) -> Arc<Self> {
        let shared = Arc::new(Shared {
            events: Events::default(),
            messages: AtomicU64::new(0),
            origin: Instant::now(),
            random: Random::seeded(seed),
        });
        let root = Seat::new(root, kind, Weak::new(), shared.clone());
        Arc::new(Tree { root, shared, blocked: Mutex::new(Vec::new()) })
    }

    /// The root's seat.
    pub fn root(&self) -> &Arc<Seat> {
        &self.root
    }

    /// What has happened.
    pub fn events(&self) -> &Events {
        &self.shared.events
    }

    /// A number that other trees do not have.
    pub(crate) fn unique(&self) -> u64 {
        self.shared.random.below(u64::MAX)
    }

    /// A number from 0 to less than 1, for backoffs that are not to be in step.
    pub(crate) fn jitter(&self) -> f64 {
        self.shared.jitter()
    }

    /// Messages sent to any actor of the tree, ever.
    pub fn messages(&self) -> u64 {
        self.shared.messages.load(Ordering::Relaxed)
    }

    /// The paths of actors whose thread does not come back just now; filled by the watchdog.
    pub fn blocked_threads(&self) -> Vec<String> {
        self.blocked.lock().clone()
    }

    /// The seat with this path.
    pub fn find(&self, path: &str) -> Option<Arc<Seat>> {
        let mut names = path.trim_matches('/').split('/');
        if names.next() != Some(self.root.name()) {
            return None;
        }
        names.try_fold(self.root.clone(), |seat, name| seat.find_child(name))
    }

    /// The seat with this path, or what could have been meant.
    pub fn seat(&self, path: &str) -> Result<Arc<Seat>, KillError> {
        let missing = || KillError::NoSuchActor { path: path.to_owned(), nearest: self.nearest(path) };
        self.find(path).ok_or_else(missing)
    }

    /// Puts a fault into the actor with this path.
    pub fn kill(&self, path: &str, fault: Fault) -> Result<(), KillError> {
        self.seat(path)?.inject(fault).map_err(|Unavailable| KillError::Unavailable(path.to_owned()))
    }

    /// The whole tree; connections are listed only on request.
    pub fn view(&self, connections: bool) -> Node {
        view(&self.root, String::new(), connections)
    }

    pub(super) fn path_of(&self, seat: u64) -> Option<String> {
        fn search(at: &Arc<Seat>, id: u64) -> Option<String> {
            if at.id() == id {
                return Some(at.path());
            }
            at.children().iter().find_map(|child| search(child, id))
        }
        search(&self.root, seat)
    }

    pub(super) fn set_blocked(&self, paths: Vec<String>) {
        *self.blocked.lock() = paths;
    }

    fn nearest(&self, path: &str) -> Option<String> {
        let mut paths = Vec::new();
        collect(&view(&self.root, String::new(), false), &mut paths);
        let distance = |candidate: &String| strsim::damerau_levenshtein(candidate, path);
        paths.into_iter().min_by_key(distance).filter(|near| distance(near) <= path.len() / 3 + 1)
    }
}

impl Shared {
    pub fn next_seat_id(&self) -> u64 {
        // One count for all trees of the process: the watchdog's stamps are shared by them.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    pub fn events(&self) -> &Events {
        &self.events
    }

    pub fn now_ms(&self) -> u64 {
        self.origin.elapsed().as_millis() as u64
    }

    pub fn count_message(&self) {
        self.messages.fetch_add(1, Ordering::Relaxed);
    }

    pub fn jitter(&self) -> f64 {
        self.random.unit()
    }
}

/// The kind whose seats are counted rather than listed.
pub(crate) const CONNECTION: &str = "connection";

fn view(seat: &Arc<Seat>, parent: String, connections: bool) -> Node {
    let path = if parent.is_empty() { seat.name().to_owned() } else { format!("{parent}/{}", seat.name()) };
    let children = seat.children();
    let counted = children.iter().filter(|child| child.kind() == CONNECTION).count();
    Node {
        kind: seat.kind().to_owned(),
        state: seat.state(),
        restarts: seat.restarts(),
        last_cause: seat.last_cause(),
        mailbox: seat.mailbox(),
        age_ms: seat.age().as_millis() as u64,
        connections: (counted > 0 || seat.kind() == crate::shard::KIND).then_some(counted),
        children: children
            .iter()
            .filter(|child| connections || child.kind() != CONNECTION)
            .map(|child| view(child, path.clone(), connections))
            .collect(),
        path,
    }
}

fn collect(node: &Node, paths: &mut Vec<String>) {
    paths.push(node.path.clone());
    node.children.iter().for_each(|child| collect(child, paths));
}
