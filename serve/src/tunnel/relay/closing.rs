//! How a tunnel is ended by us, and what it is waited for.
//!
//! A WebSocket's client is told first: Close 1001 as soon as it stands between two frames. What it has sent until it reads
//! that still reaches the server, and its own Close then tells the server, with our code; a client that does not answer
//! has the server told without it. When both have answered, or at the deadline, the tunnel is over. Of another tunnel
//! nothing is known; it has until the deadline, and is then closed on both sides.

use std::time::Duration;

use playhouse_config::model::OnReload;
use playhouse_protocol::websocket::control::code;
use tokio::time::Instant;

use super::{Near, Reason, Relay, Side};
use crate::Outcome;
use crate::tunnel::Duplex;

/// We end it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closing {
    pub(super) reason: Reason,
    pub(super) outcome: Outcome,
    /// When the server is told, whether the client has answered or not; `None` once that is done.
    tell_upstream: Option<Instant>,
    /// When it is over in any case.
    until: Instant,
    /// Both sides are being shut.
    shutting: bool,
}

/// What falls due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Idle,
    Life,
    Ping,
    Pong,
    TellUpstream,
    Until,
    /// A side has closed, and the other takes too long to.
    Patience,
    /// A side takes nothing.
    Stalled(Side),
}

impl<N: Near, IO: Duplex> Relay<'_, N, IO> {
    /// The connection is to end.
    pub(super) fn drained(&mut self, since: Instant) {
        let already = self.closing.is_some_and(|closing| closing.reason == Reason::Drain);
        if already {
            return;
        }
        // Whoever drains us ends what is left at its deadline; we do so a little earlier, and in order.
        let drain = self.terms.drain();
        self.close_until(Reason::Drain, since + (drain - (drain / 4).min(MARGIN)));
    }

    /// A reload has changed the route.
    pub(super) fn reloaded(&mut self, since: Instant) {
        match self.terms.settings.on_reload {
            OnReload::Keep => {}
            OnReload::Drain => self.close_until(Reason::Reload, since + self.terms.drain()),
            OnReload::Close => self.close_until(Reason::Reload, self.soon()),
        }
    }

    fn soon(&self) -> Instant {
        Instant::now() + if self.websocket { PATIENCE.min(self.terms.drain()) } else { Duration::ZERO }
    }

    fn close_until(&mut self, reason: Reason, until: Instant) {
        if let Some(closing) = &mut self.closing {
            // It is being closed already; it may only have to be faster.
            closing.until = closing.until.min(until);
            return;
        }
        let now = Instant::now();
        let left = until.saturating_duration_since(now);
        self.closing = Some(Closing {
            reason,
            outcome: Outcome::Answered,
            tell_upstream: self.websocket.then_some(now + TOLD_AFTER.min(left / 2)),
            until,
            shutting: false,
        });
        if self.websocket {
            let (to_client, to_upstream) = self.closes(code::GOING_AWAY);
            self.down.close_wanted = Some(to_client);
            if self.up.close_seen || self.up.source_ended {
                self.up.close_wanted = Some(to_upstream);
            } else {
                self.up.close_instead = Some(to_upstream);
            }
        }
    }

    /// Tells both sides at once.
    pub(super) fn close_both(&mut self, code: u16, reason: Reason, outcome: Outcome) {
        let (to_client, to_upstream) = self.closes(code);
        self.down.close_wanted = Some(to_client);
        self.up.close_wanted = Some(to_upstream);
        self.closing = Some(Closing {
            reason,
            outcome,
            tell_upstream: None,
            until: Instant::now() + PATIENCE,
            shutting: false,
        });
    }

    /// What falls due first, and when.
    pub(super) fn due(&self) -> Option<(Instant, Due)> {
        let settings = &self.terms.settings;
        let stalls = [
            self.down.stalled.map(|since| (since + self.near_write, Due::Stalled(Side::Client))),
            self.up.stalled.map(|since| (since + self.far_write, Due::Stalled(Side::Upstream))),
        ];
        let others = match &self.closing {
            Some(closing) => [
                Some((closing.until, Due::Until)),
                closing.tell_upstream.map(|at| (at, Due::TellUpstream)),
                None,
                None,
            ],
            None => [
                Some((self.moved + settings.idle, Due::Idle)),
                settings.life.map(|life| (self.started + life, Due::Life)),
                self.ping_due(),
                self.patience().map(|until| (until, Due::Patience)),
            ],
        };
        stalls.into_iter().chain(others).flatten().min_by_key(|(at, _)| *at)
    }

    fn ping_due(&self) -> Option<(Instant, Due)> {
        let every = self.terms.settings.ping.filter(|_| self.websocket && !self.down.close_sent)?;
        match self.pinged {
            Some(pinged) => Some((pinged + every, Due::Pong)),
            None => Some((self.moved.max(self.last_ping.unwrap_or(self.moved)) + every, Due::Ping)),
        }
    }

    /// How long the other side of one that has closed may take. Without a Close in both directions a WebSocket that has
    /// lost a side is over; half an ordinary tunnel may live as long as it likes.
    fn patience(&self) -> Option<Instant> {
        let (side, since) = self.first?;
        let both = self.up.close_seen && self.down.close_seen;
        let half = match side {
            Side::Client => self.up.source_ended,
            Side::Upstream => self.down.source_ended || self.up.sink_shut,
        };
        (self.websocket && (both || half)).then_some(since + PATIENCE)
    }

    /// Does what is due; how it has ended, if it has.
    pub(super) fn fall_due(&mut self, due: Due) -> Option<(Reason, Outcome)> {
        match due {
            Due::Idle => self.close_until(Reason::Idle, self.soon()),
            Due::Life => self.close_until(Reason::Life, self.soon()),
            Due::Ping => {
                let now = Instant::now();
                self.pings = self.pings.wrapping_add(1);
                let mut payload = *b"play\0\0\0\0";
                payload[4..].copy_from_slice(&self.pings.to_be_bytes());
                self.down.ping_wanted = Some(payload);
                self.up.pong_expected = Some(payload);
                (self.pinged, self.last_ping) = (Some(now), Some(now));
            }
            Due::Pong => return Some((Reason::Ping, Outcome::ClientGone)),
            Due::TellUpstream => {
                if let Some(closing) = &mut self.closing {
                    closing.tell_upstream = None;
                }
                if let Some(close) = self.up.close_instead.take() {
                    self.up.close_wanted = Some(close);
                }
            }
            Due::Until => return self.shut(),
            Due::Patience => return Some(self.closed()),
            Due::Stalled(side) => return Some(self.lost(side)),
        }
        None
    }

    /// The time is over: both sides are shut, and have a moment to be. A frame that is still not whole is cut.
    fn shut(&mut self) -> Option<(Reason, Outcome)> {
        let whole = self.down.is_between_frames() && self.down.is_written();
        let closing = self.closing.as_mut()?;
        if closing.shutting || self.websocket {
            let outcome = if whole || !self.websocket { closing.outcome } else { Outcome::Killed };
            return Some((closing.reason, outcome));
        }
        closing.shutting = true;
        closing.until = Instant::now() + SHUTTING;
        self.up.source_ended = true;
        self.down.source_ended = true;
        None
    }
}

/// How long a side may take to close once it has been told.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the server is not told while the client has not answered.
const TOLD_AFTER: Duration = Duration::from_secs(2);

/// How much earlier than a drain's deadline a tunnel ends.
const MARGIN: Duration = Duration::from_secs(1);

/// To write what is left, and the ends of both directions.
const SHUTTING: Duration = Duration::from_millis(200);
