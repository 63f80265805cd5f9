//! A value that is replaced as a whole, and that every request reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

/// A value that readers see whole, the old one or the new one. Who reads it often keeps a [`Snapshot`]: as long as
/// nothing has been published since, to bring that up to date costs one load, and no count of references is touched.
#[derive(Debug, Default)]
pub struct Published<T> {
    value: ArcSwap<T>,
    /// How often it was replaced.
    version: AtomicU64,
}

/// A value as it was published.
#[derive(Debug)]
pub struct Snapshot<T> {
    value: Arc<T>,
    version: u64,
}

impl<T> Published<T> {
    /// Replaces the value. Who looks when this has returned sees the new one.
    pub fn store(&self, value: Arc<T>) {
        self.value.store(value);
        // Behind the value: a snapshot that is taken in between is refreshed once too often, never once too seldom.
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The value as it is now. `kept` is a snapshot of this same value, if there is one.
    #[inline]
    pub fn refreshed(&self, kept: Option<Snapshot<T>>) -> Snapshot<T> {
        let version = self.version.load(Ordering::Acquire);
        match kept {
            Some(kept) if kept.version == version => kept,
            _ => Snapshot { value: self.value.load_full(), version },
        }
    }
}

impl<T> std::ops::Deref for Snapshot<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_kept_until_something_else_is_published() {
        let published = Published::<u8>::default();
        let first = published.refreshed(None);
        let held = Arc::downgrade(&first.value);
        let again = published.refreshed(Some(first));
        assert!(std::ptr::eq(&*again, held.as_ptr()));
        published.store(Arc::new(7));
        assert_eq!(*again, 0, "who reads it goes on with what it has");
        assert_eq!(*published.refreshed(Some(again)), 7);
        assert!(held.upgrade().is_none());
    }
}
