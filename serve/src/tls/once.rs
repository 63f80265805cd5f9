//! Sessions of which each is good once, in the memory of this process: what early data (0-RTT) is taken from.
//!
//! A ticket that holds its session, as those of [`super::tickets`] do, can be shown as often as somebody likes, and what was
//! sent with it be repeated. One that only names its session cannot: the first to show it takes it (RFC 8446 §8.1). The
//! price is that no other process knows it; clients make a full handshake there, and send their requests after it.

use std::fmt;
use std::sync::Arc;

use rustls::server::{ServerSessionMemoryCache, StoresServerSessions};

use super::names::Resolver;

/// See the module. A session is good only while its listener's certificates are for the same names.
pub(super) struct OnceSessions {
    sessions: Arc<ServerSessionMemoryCache>,
    resolver: Arc<Resolver>,
}

impl OnceSessions {
    pub(super) fn new(resolver: Arc<Resolver>) -> Self {
        OnceSessions { sessions: ServerSessionMemoryCache::new(SESSIONS), resolver }
    }

    fn key(&self, id: &[u8]) -> Vec<u8> {
        // The digest's length is fixed, so that no two are the same bytes.
        [&self.resolver.digest()[..], id].concat()
    }
}

impl StoresServerSessions for OnceSessions {
    fn put(&self, id: Vec<u8>, session: Vec<u8>) -> bool {
        self.sessions.put(self.key(&id), session)
    }

    /// As [`take`](Self::take): nothing is ever only looked at.
    fn get(&self, id: &[u8]) -> Option<Vec<u8>> {
        self.take(id)
    }

    fn take(&self, id: &[u8]) -> Option<Vec<u8>> {
        self.sessions.take(&self.key(id))
    }

    fn can_cache(&self) -> bool {
        true
    }
}

impl fmt::Debug for OnceSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnceSessions").finish_non_exhaustive()
    }
}

/// Of a few hundred bytes each, two for a client. The oldest go first.
const SESSIONS: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_good_once() {
        let sessions = OnceSessions::new(Arc::default());
        assert!(sessions.put(b"id".to_vec(), b"session".to_vec()));
        assert_eq!(sessions.take(b"other"), None);
        assert_eq!(sessions.take(b"id").as_deref(), Some(&b"session"[..]));
        assert_eq!((sessions.take(b"id"), sessions.get(b"id")), (None, None));
    }
}
