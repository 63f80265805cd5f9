//! Streams that were answered before their request had ended.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use h2::SendStream;
use tokio::time::Instant;

/// Holds such streams for a while. Let go, `h2` sends RST_STREAM with NO_ERROR for them (RFC 9113 §8.1), at which clients
/// in wide use drop the answer, if it comes together with it; most end the stream by themselves when they have read the
/// answer. What arrives until then is thrown away, and no window is given for it.
#[derive(Debug, Default)]
pub(super) struct Leftovers(VecDeque<(Instant, SendStream<Bytes>)>);

impl Leftovers {
    pub(super) fn hold(&mut self, stream: SendStream<Bytes>) {
        if self.0.len() == MAXIMUM {
            self.0.pop_front();
        }
        self.0.push_back((Instant::now(), stream));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Lets go those whose time is over.
    pub(super) fn expire(&mut self) {
        if self.0.is_empty() {
            return;
        }
        let now = Instant::now();
        while self.0.front().is_some_and(|(since, _)| now.saturating_duration_since(*since) >= HELD) {
            self.0.pop_front();
        }
    }

    /// Lets all go.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// For a client to read the answer and end its request.
pub(super) const HELD: Duration = Duration::from_secs(1);

/// The oldest makes room for the next: a client that sends many such requests has to bear the resets.
const MAXIMUM: usize = 16;
