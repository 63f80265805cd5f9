//! What is known of a tunnel when it has ended.

use std::sync::Arc;

/// What went by a tunnel, and why it ended. Kept up to date while it is open.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The upgrade token in lower case.
    pub protocol: Arc<str>,
    /// Bytes that were passed on to the upstream server or the handler.
    pub bytes_from_client: u64,
    /// Bytes that were passed on to the client.
    pub bytes_to_client: u64,
    /// Frames of the client; 0 where it is no WebSocket.
    pub frames_from_client: u64,
    /// Frames of the other side; 0 where it is no WebSocket.
    pub frames_to_client: u64,
    /// [`Reason::Killed`] until it has ended otherwise.
    pub reason: Reason,
}

impl Summary {
    pub(super) fn new(protocol: Arc<str>) -> Self {
        Summary {
            protocol,
            bytes_from_client: 0,
            bytes_to_client: 0,
            frames_from_client: 0,
            frames_to_client: 0,
            reason: Reason::Killed,
        }
    }
}

/// Why a tunnel has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The client has closed in order.
    Client,
    /// The upstream server or the handler has closed in order.
    Upstream,
    /// The client has reset, vanished, or takes nothing.
    ClientGone,
    /// The upstream server has reset, vanished, or takes nothing; or the handler has panicked.
    UpstreamFailed,
    /// What one side has sent are no WebSocket frames.
    Protocol,
    /// Nothing went by for as long as the route allows.
    Idle,
    /// It was as old as the route allows.
    Life,
    /// The client has not answered a Ping.
    Ping,
    /// The connection was drained.
    Drain,
    /// A reload has changed the route.
    Reload,
    /// It was ended with its connection.
    Killed,
}

/// All reasons, in the order of their numbers.
pub const REASONS: [Reason; 11] = [
    Reason::Client,
    Reason::Upstream,
    Reason::ClientGone,
    Reason::UpstreamFailed,
    Reason::Protocol,
    Reason::Idle,
    Reason::Life,
    Reason::Ping,
    Reason::Drain,
    Reason::Reload,
    Reason::Killed,
];

impl Reason {
    /// Whether both sides know that it was to end: how the transport ends behind that does not matter.
    pub(crate) fn is_orderly(self) -> bool {
        use Reason::{Client, Drain, Idle, Life, Reload, Upstream};
        matches!(self, Client | Upstream | Idle | Life | Drain | Reload)
    }

    /// As in metrics and in the access log.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Client => "client",
            Reason::Upstream => "upstream",
            Reason::ClientGone => "client_gone",
            Reason::UpstreamFailed => "upstream_failed",
            Reason::Protocol => "protocol",
            Reason::Idle => "idle",
            Reason::Life => "life",
            Reason::Ping => "ping",
            Reason::Drain => "drain",
            Reason::Reload => "reload",
            Reason::Killed => "killed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_stand_at_their_numbers() {
        for (number, reason) in REASONS.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
        }
    }
}
