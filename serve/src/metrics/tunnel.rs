//! What is counted of tunnels, per listener and route.

use super::counter::{Counter, Sharded};
use super::scrape::Page;
use crate::tunnel::summary::{REASONS, Reason};

/// The handles of one route's tunnels on one listener.
#[derive(Debug, Default)]
pub struct TunnelMetrics(Sharded<Shard>);

#[derive(Debug, Default)]
struct Shard {
    opened: Counter,
    /// By reason.
    closed: [Counter; REASONS.len()],
    /// Both by direction.
    bytes: [Counter; DIRECTIONS.len()],
    frames: [Counter; DIRECTIONS.len()],
}

/// What has gone by since it was last told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    /// From the client, to the client.
    pub(crate) bytes: [u64; 2],
    /// The same; 0 where it is no WebSocket.
    pub(crate) frames: [u64; 2],
}

impl TunnelMetrics {
    pub(crate) fn opened(&self) {
        self.0.mine().opened.add(1);
    }

    pub(crate) fn closed(&self, reason: Reason) {
        self.0.mine().closed[reason as usize].add(1);
    }

    pub(crate) fn passed(&self, passed: &Passed) {
        let shard = self.0.mine();
        for direction in 0..DIRECTIONS.len() {
            if passed.bytes[direction] > 0 {
                shard.bytes[direction].add(passed.bytes[direction]);
            }
            if passed.frames[direction] > 0 {
                shard.frames[direction].add(passed.frames[direction]);
            }
        }
    }

    pub(super) fn render(&self, page: &mut Page, listener: &str, route: &str) {
        let sum = |counter: &dyn Fn(&Shard) -> u64| self.0.all().map(counter).sum::<u64>();
        let mut closed = 0;
        for reason in REASONS {
            let count = sum(&|shard| shard.closed[reason as usize].value());
            closed += count;
            if count > 0 {
                page.sample("playhouse_tunnels_closed_total", &[listener, route, reason.as_str()], count);
            }
        }
        // Read after those that have closed: never less.
        let opened = sum(&|shard| shard.opened.value());
        page.sample("playhouse_tunnels", &[listener, route], opened.saturating_sub(closed));
        for (number, direction) in DIRECTIONS.into_iter().enumerate() {
            let labels = [listener, route, direction];
            let bytes = sum(&|shard| shard.bytes[number].value());
            page.sample("playhouse_tunnel_bytes_total", &labels, bytes);
            let frames = sum(&|shard| shard.frames[number].value());
            page.sample("playhouse_tunnel_frames_total", &labels, frames);
        }
    }
}

/// In the order of their counters.
const DIRECTIONS: [&str; 2] = ["from_client", "to_client"];
