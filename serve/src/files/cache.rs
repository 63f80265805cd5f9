//! Small files in memory.

use std::ffi::CString;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use playhouse_config::model::{self, Encoding};
use quick_cache::sync::Cache;
use quick_cache::{Equivalent, Weighter};

use super::body::OpenFile;
use super::head::Head;
use crate::CachedAnswer;

/// Small files in memory, shared by all static routes of a site. What is in here is served only after the file system has
/// said that it is unchanged.
#[derive(Debug)]
pub struct FileCache {
    entries: Cache<Key, Arc<Cached>, Weight>,
    /// How long ago a file must have changed last to be kept.
    pub(super) settle: Duration,
    identities: Mutex<Vec<(model::Static, Weak<u64>)>>,
    next_identity: AtomicU64,
}

impl Default for FileCache {
    fn default() -> Self {
        FileCache::new(CAPACITY, SETTLE)
    }
}

impl FileCache {
    /// A cache of `capacity` bytes for files whose last change is at least `settle` ago.
    pub fn new(capacity: u64, settle: Duration) -> Self {
        let items = usize::try_from(capacity / TYPICAL).unwrap_or(usize::MAX).max(16);
        FileCache {
            entries: Cache::with_weighter(items, capacity, Weight),
            settle,
            identities: Mutex::default(),
            next_identity: AtomicU64::new(0),
        }
    }

    /// Files in memory.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes in use, with an estimate of what goes with each file.
    pub fn bytes(&self) -> u64 {
        self.entries.weight()
    }

    /// A number for this configuration, so that a reload that does not change it keeps its entries, and two routes with
    /// different fields for one file do not share them. Held as long as there is a route with it.
    pub(super) fn identity(&self, config: &model::Static) -> Arc<u64> {
        let mut identities = self.identities.lock();
        identities.retain(|(_, identity)| identity.strong_count() > 0);
        let known = identities.iter().find(|(known, _)| known == config);
        if let Some(identity) = known.and_then(|(_, identity)| identity.upgrade()) {
            return identity;
        }
        let identity = Arc::new(self.next_identity.fetch_add(1, Ordering::Relaxed));
        identities.push((config.clone(), Arc::downgrade(&identity)));
        identity
    }

    pub(super) fn get(&self, root: u64, coding: Option<Encoding>, path: &[u8]) -> Option<Arc<Cached>> {
        self.entries.get(&KeyRef(root, coding, path))
    }

    pub(super) fn insert(&self, root: u64, coding: Option<Encoding>, path: &[u8], cached: Arc<Cached>) {
        self.entries.insert(Key { root, coding, path: path.into() }, cached);
    }

    pub(super) fn remove(&self, root: u64, coding: Option<Encoding>, path: &[u8]) {
        self.entries.remove(&KeyRef(root, coding, path));
    }
}

/// A file whose content is at hand.
#[derive(Clone, Debug)]
pub(super) enum Content {
    Memory(Arc<Cached>),
    /// Boxed, so that what is in memory is passed on at the cost of a pointer.
    File(Box<(Head, OpenFile)>),
}

/// A file in memory.
#[derive(Debug)]
pub(super) struct Cached {
    /// Where it is asked for whether it has changed.
    pub(super) path: CString,
    pub(super) head: Head,
    pub(super) answer: Arc<CachedAnswer>,
}

impl Cached {
    pub(super) fn new(path: CString, head: Head, content: Bytes) -> Self {
        let answer = Arc::new(CachedAnswer::new(head.fields.clone(), content));
        Cached { path, head, answer }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Key {
    root: u64,
    coding: Option<Encoding>,
    /// Beneath the root.
    path: Box<[u8]>,
}

/// A key that owns nothing.
struct KeyRef<'a>(u64, Option<Encoding>, &'a [u8]);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        KeyRef(self.root, self.coding, &self.path).hash(state);
    }
}

impl Hash for KeyRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.0, self.1, self.2).hash(state);
    }
}

impl Equivalent<Key> for KeyRef<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.2 == &*key.path && self.0 == key.root && self.1 == key.coding
    }
}

#[derive(Clone, Debug)]
struct Weight;

impl Weighter<Key, Arc<Cached>> for Weight {
    fn weight(&self, key: &Key, cached: &Arc<Cached>) -> u64 {
        (key.path.len() + cached.answer.content().len()) as u64 + OVERHEAD
    }
}

/// Bytes of the largest file that is kept in memory: from about here, copying the bytes costs more than opening the file.
pub(super) const MAX_CACHED: usize = 64 << 10;

/// Bytes of files in memory.
const CAPACITY: u64 = 64 << 20;

/// Bytes of a file of the kind sites have most of, to size tables by.
const TYPICAL: u64 = 8 << 10;

/// Bytes that a file takes in memory beside its content and path: fields, table slots, reference counts.
const OVERHEAD: u64 = 1024;

/// Far beyond a clock's tick, and more than a writer is held up between setting the time and copying its data.
const SETTLE: Duration = Duration::from_secs(2);
