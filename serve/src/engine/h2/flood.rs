//! Counts the frames that cost us something and bring nobody further, which the `h2` crate lets through
//! (CVE-2019-9512 to 9518, CVE-2023-44487, CVE-2024-27316), and the requests that have begun. Looks, too, at what a
//! frame's header alone tells, where `h2` is laxer than RFC 9113 or gives another code.
//!
//! A state machine without I/O: it sees the bytes that the peer sends, from the preface on, and a clock.

use std::time::Duration;

use h2::Reason;
use tokio::time::Instant;

/// Reads frame headers and keeps two accounts: one for control frames, one for resets. Both are filled by time and by
/// work that was done for the client, so that a busy connection may talk more than an idle one.
#[derive(Debug)]
pub(super) struct FrameCounter {
    /// Bytes that are still to come of the preface or of a payload.
    skip: u32,
    header: [u8; HEADER],
    filled: usize,
    kind: u8,
    greeted: bool,
    /// Between a HEADERS frame and the frame with END_HEADERS.
    open_block: bool,
    continuations: u32,
    /// The highest stream that has begun.
    last_stream: u32,
    heads: u64,
    control: Account,
    resets: Account,
    total_resets: u64,
    total_answered: u64,
    /// Where in the bytes that were taken last a PING's acknowledgement begins.
    ping_ack: Option<usize>,
}

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Breach {
    /// What the peer has done too much of.
    Flood(Flood),
    /// The first frame is not SETTINGS (RFC 9113 §3.4).
    Greeting,
    /// A frame of a fixed length that has another (RFC 9113 §4.2).
    Length,
}

impl Breach {
    /// What the GOAWAY says.
    pub(super) fn reason(self) -> Reason {
        match self {
            Breach::Flood(_) => Reason::ENHANCE_YOUR_CALM,
            Breach::Greeting => Reason::PROTOCOL_ERROR,
            Breach::Length => Reason::FRAME_SIZE_ERROR,
        }
    }
}

/// What the peer has done too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flood {
    /// PING, SETTINGS, PRIORITY, WINDOW_UPDATE, empty DATA or unknown frames.
    Control,
    /// RST_STREAM.
    Resets,
    /// CONTINUATION frames of one header block.
    Continuation,
}

impl FrameCounter {
    pub(super) fn new(now: Instant) -> Self {
        FrameCounter {
            skip: PREFACE,
            header: [0; HEADER],
            filled: 0,
            kind: 0,
            greeted: false,
            open_block: false,
            continuations: 0,
            last_stream: 0,
            heads: 0,
            control: Account::new(CONTROL_MAXIMUM, CONTROL_PER_SECOND, now),
            resets: Account::new(RESETS_MAXIMUM, RESETS_PER_SECOND, now),
            total_resets: 0,
            total_answered: 0,
            ping_ack: None,
        }
    }

    /// Takes what was read. `clock` is asked only where an account has run out. The error has with it how many of the
    /// bytes came before the frame that is the breach, as far as they are here.
    pub(super) fn feed(&mut self, input: &[u8], clock: impl Fn() -> Instant) -> Result<(), (usize, Breach)> {
        let mut bytes = input;
        self.ping_ack = None;
        while !bytes.is_empty() {
            if self.skip > 0 {
                let skipped = bytes.len().min(self.skip as usize);
                // No more than `skip`, which is a `u32`.
                self.skip -= skipped as u32;
                bytes = &bytes[skipped..];
                continue;
            }
            let taken = bytes.len().min(HEADER - self.filled);
            self.header[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled == HEADER {
                self.filled = 0;
                self.frame(&clock).map_err(|breach| {
                    let frame = input.len() - bytes.len();
                    (frame.saturating_sub(HEADER), breach)
                })?;
                if self.kind == PING && self.header[4] & ACK != 0 {
                    self.ping_ack = (input.len() - bytes.len()).checked_sub(HEADER);
                }
            }
        }
        Ok(())
    }

    /// Where in the bytes that were taken last a PING's acknowledgement is, if it is there as a whole.
    pub(super) fn ping_ack(&self, taken: usize) -> Option<std::ops::Range<usize>> {
        let frame = self.ping_ack.map(|begin| begin..begin + PING_FRAME)?;
        (frame.end <= taken).then_some(frame)
    }

    /// Whether the next byte begins a frame.
    pub(super) fn between_frames(&self) -> bool {
        self.skip == 0 && self.filled == 0
    }

    /// So many bytes were written to the peer: a client that receives answers has to update windows.
    pub(super) fn written(&mut self, bytes: usize) {
        self.control.earn_parts(bytes as u64, BYTES_PER_CREDIT);
    }

    /// So many requests were answered in full.
    pub(super) fn answered(&mut self, requests: usize) {
        self.total_answered += requests as u64;
        self.resets.earn(requests as i64);
    }

    /// So many requests have begun to arrive: HEADERS of streams that were idle.
    pub(super) fn heads(&self) -> u64 {
        self.heads
    }

    /// Whether the first frame's header has arrived.
    pub(super) fn greeted(&self) -> bool {
        self.greeted
    }

    /// Whether a header block has begun to arrive and has not ended.
    pub(super) fn in_head(&self) -> bool {
        self.open_block || (self.skip > 0 && matches!(self.kind, HEADERS | CONTINUATION) && self.greeted)
    }

    fn frame(&mut self, clock: &impl Fn() -> Instant) -> Result<(), Breach> {
        let [high, middle, low, kind, flags, stream @ ..] = self.header;
        let length = u32::from_be_bytes([0, high, middle, low]);
        if !self.greeted && (kind != SETTINGS || flags & ACK != 0) {
            return Err(Breach::Greeting);
        }
        if !fits(kind, flags, length) {
            return Err(Breach::Length);
        }
        self.count(kind, flags, length, u32::from_be_bytes(stream) & STREAM, clock).map_err(Breach::Flood)
    }

    fn count(
        &mut self,
        kind: u8,
        flags: u8,
        length: u32,
        stream: u32,
        clock: &impl Fn() -> Instant,
    ) -> Result<(), Flood> {
        self.skip = length;
        self.kind = kind;
        self.greeted = true;
        match kind {
            DATA if length > 0 => self.control.earn(1),
            DATA if flags & END_STREAM != 0 => {}
            DATA => self.control.spend(EMPTY_DATA_COST, Flood::Control, clock)?,
            HEADERS => {
                if stream > self.last_stream {
                    self.last_stream = stream;
                    self.heads += 1;
                }
                self.open_block = flags & END_HEADERS == 0;
                self.continuations = 0;
                self.control.earn(CREDIT_PER_STREAM);
            }
            CONTINUATION => {
                self.open_block &= flags & END_HEADERS == 0;
                self.continuations += 1;
                if self.continuations > CONTINUATIONS {
                    return Err(Flood::Continuation);
                }
            }
            RST_STREAM => {
                self.total_resets += 1;
                if self.total_resets > RESETS_OF_A_LIFE && self.total_resets > self.total_answered {
                    return Err(Flood::Resets);
                }
                self.resets.spend(1, Flood::Resets, clock)?;
            }
            SETTINGS => self.control.spend(SETTINGS_COST, Flood::Control, clock)?,
            _ => self.control.spend(1, Flood::Control, clock)?,
        }
        Ok(())
    }
}

/// Whether a frame's length is one that its type can have (RFC 9113 §6).
fn fits(kind: u8, flags: u8, length: u32) -> bool {
    match kind {
        PRIORITY => length == 5,
        RST_STREAM | WINDOW_UPDATE => length == 4,
        SETTINGS if flags & ACK != 0 => length == 0,
        SETTINGS => length.is_multiple_of(6),
        PING => length == 8,
        GOAWAY => length >= 8,
        _ => true,
    }
}

/// An account that time and work fill, up to a maximum.
#[derive(Debug)]
struct Account {
    left: i64,
    maximum: i64,
    per_second: i64,
    filled: Instant,
    parts: u64,
}

impl Account {
    fn new(maximum: i64, per_second: i64, now: Instant) -> Self {
        Account { left: maximum, maximum, per_second, filled: now, parts: 0 }
    }

    fn earn(&mut self, credit: i64) {
        self.left = (self.left + credit).min(self.maximum);
    }

    fn earn_parts(&mut self, parts: u64, per_credit: u64) {
        self.parts += parts;
        self.earn((self.parts / per_credit) as i64);
        self.parts %= per_credit;
    }

    fn spend(&mut self, cost: i64, flood: Flood, clock: &impl Fn() -> Instant) -> Result<(), Flood> {
        if self.left < cost {
            let now = clock();
            let since = now.saturating_duration_since(self.filled).min(Duration::from_secs(3600));
            self.filled = now;
            self.earn(since.as_millis() as i64 * self.per_second / 1000);
        }
        if self.left < cost {
            return Err(flood);
        }
        self.left -= cost;
        Ok(())
    }
}

/// `PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n`
const PREFACE: u32 = 24;
const HEADER: usize = 9;
/// Bytes of a whole PING frame.
pub(super) const PING_FRAME: usize = HEADER + 8;
/// Without the reserved bit.
const STREAM: u32 = 0x7fff_ffff;

const DATA: u8 = 0x0;
const HEADERS: u8 = 0x1;
const PRIORITY: u8 = 0x2;
const RST_STREAM: u8 = 0x3;
const SETTINGS: u8 = 0x4;
const PING: u8 = 0x6;
const GOAWAY: u8 = 0x7;
const WINDOW_UPDATE: u8 = 0x8;
const CONTINUATION: u8 = 0x9;
const ACK: u8 = 0x1;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

// Generous: gRPC pings once per round trip, nghttp2 sends five PRIORITY frames at the start, and a window is rarely
// updated for less than a kilobyte.
const CONTROL_MAXIMUM: i64 = 2_000;
const CONTROL_PER_SECOND: i64 = 100;
const CREDIT_PER_STREAM: i64 = 8;
const BYTES_PER_CREDIT: u64 = 1024;
/// An empty DATA frame without END_STREAM has no honest use.
const EMPTY_DATA_COST: i64 = 20;
const SETTINGS_COST: i64 = 10;
/// A browser that leaves a page resets some dozens of streams at once.
const RESETS_MAXIMUM: i64 = 500;
const RESETS_PER_SECOND: i64 = 50;
/// After so many, a connection must have had more requests answered than it has reset.
const RESETS_OF_A_LIFE: u64 = 10_000;
/// A head of 32 KiB needs one; nobody sends tiny ones but attackers and tests.
const CONTINUATIONS: u32 = 16;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let length = (payload as u32).to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags, 0, 0, 0, 1];
        frame.resize(HEADER + payload, 0xff);
        frame
    }

    /// Feeds frames until one is too many; how many there were before it.
    fn endured(
        counter: &mut FrameCounter,
        now: Instant,
        frame: &[u8],
        most: usize,
    ) -> (usize, Option<Flood>) {
        for count in 0..most {
            match counter.feed(frame, || now) {
                Ok(()) => {}
                Err((before, Breach::Flood(flood))) => {
                    // Whole frames are fed, of which the last header is the breach.
                    assert!(before == 0 || before + HEADER <= frame.len());
                    return (count, Some(flood));
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        (most, None)
    }

    fn greeted(now: Instant) -> FrameCounter {
        let mut counter = FrameCounter::new(now);
        counter.feed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", || now).unwrap();
        counter.feed(&frame(SETTINGS, 0, 0), || now).unwrap();
        counter.control.earn(SETTINGS_COST);
        counter
    }

    #[test]
    fn every_kind_of_idle_frame_is_a_flood_in_the_end() {
        let now = Instant::now();
        let empty_data = frame(DATA, 0, 0);
        let (ping, settings, window, priority) =
            (frame(0x6, 0, 8), frame(SETTINGS, 0, 0), frame(0x8, 0, 4), frame(0x2, 0, 5));
        for frame in [ping, settings, window, priority, empty_data, frame(0xbe, 0, 3)] {
            let (_, flood) = endured(&mut greeted(now), now, &frame, 10_000);
            assert_eq!(flood, Some(Flood::Control));
        }
        let reset = frame(RST_STREAM, 0, 4);
        assert_eq!(endured(&mut greeted(now), now, &reset, 10_000), (500, Some(Flood::Resets)));
        let continuation = frame(CONTINUATION, 0, 1);
        assert_eq!(endured(&mut greeted(now), now, &continuation, 100), (16, Some(Flood::Continuation)));
    }

    #[test]
    fn a_busy_connection_may_talk() {
        let now = Instant::now();
        let mut counter = greeted(now);
        let (headers, window, reset) = (frame(HEADERS, 5, 20), frame(0x8, 0, 4), frame(RST_STREAM, 0, 4));
        for _ in 0..20_000 {
            counter.feed(&headers, || now).unwrap();
            counter.feed(&window, || now).unwrap();
            counter.written(4096);
            counter.feed(&window, || now).unwrap();
            counter.answered(1);
            counter.feed(&reset, || now).unwrap();
        }
    }

    #[test]
    fn rapid_reset_is_a_flood_whatever_it_opens() {
        let now = Instant::now();
        let mut counter = greeted(now);
        let mut pair = frame(HEADERS, 5, 20);
        pair.extend(frame(RST_STREAM, 0, 4));
        assert_eq!(endured(&mut counter, now, &pair, 10_000), (500, Some(Flood::Resets)));
    }

    #[test]
    fn time_fills_the_account() {
        let mut now = Instant::now();
        let mut counter = greeted(now);
        let ping = frame(0x6, 0, 8);
        for _ in 0..100 {
            now += Duration::from_secs(1);
            assert_eq!(endured(&mut counter, now, &ping, 100), (100, None));
        }
    }

    #[test]
    fn a_life_of_resets_ends() {
        let mut now = Instant::now();
        let mut counter = greeted(now);
        let reset = frame(RST_STREAM, 0, 4);
        let mut endured = 0;
        while counter.feed(&reset, || now).is_ok() {
            endured += 1;
            now += Duration::from_secs(1);
        }
        assert_eq!(endured, 10_000);
    }

    #[test]
    fn a_head_that_has_not_ended_is_seen() {
        let now = Instant::now();
        let mut counter = FrameCounter::new(now);
        let mut feed = |bytes: &[u8]| {
            counter.feed(bytes, || now).unwrap();
            (counter.greeted(), counter.in_head())
        };
        assert_eq!(feed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), (false, false));
        assert_eq!(feed(&frame(SETTINGS, 0, 6)), (true, false));
        let headers = frame(HEADERS, END_STREAM, 10);
        assert_eq!(feed(&headers[..12]), (true, true));
        assert_eq!(feed(&headers[12..]), (true, true));
        assert_eq!(feed(&frame(CONTINUATION, END_HEADERS, 10)), (true, false));
        assert_eq!(feed(&frame(HEADERS, END_HEADERS, 10)), (true, false));
        assert_eq!(feed(&frame(DATA, 0, 10)[..12]), (true, false));
    }

    #[test]
    fn the_first_frame_is_settings() {
        let now = Instant::now();
        for (first, good) in [
            (frame(SETTINGS, 0, 12), true),
            (frame(SETTINGS, ACK, 0), false),
            (frame(HEADERS, 5, 3), false),
            (frame(0x42, 0, 0), false),
        ] {
            let mut counter = FrameCounter::new(now);
            let bytes = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &first].concat();
            let expected = if good { Ok(()) } else { Err((24, Breach::Greeting)) };
            assert_eq!(counter.feed(&bytes, || now), expected);
        }
    }

    #[test]
    fn a_frame_of_a_wrong_length_is_seen_by_its_header() {
        let now = Instant::now();
        for (kind, flags, length) in [
            (PRIORITY, 0, 4),
            (RST_STREAM, 0, 3),
            (SETTINGS, 0, 5),
            (SETTINGS, ACK, 6),
            (PING, 0, 6),
            (GOAWAY, 0, 4),
            (WINDOW_UPDATE, 0, 5),
        ] {
            let mut counter = greeted(now);
            let bytes = [frame(HEADERS, 5, 3), frame(kind, flags, length)].concat();
            assert_eq!(counter.feed(&bytes, || now), Err((12, Breach::Length)), "{kind}");
        }
    }

    #[test]
    fn requests_are_counted_once_each() {
        let now = Instant::now();
        let mut counter = greeted(now);
        for (stream, heads) in [(1, 1), (1, 1), (5, 2), (3, 2), (7, 3)] {
            let mut headers = frame(HEADERS, 5, 3);
            headers[8] = stream;
            counter.feed(&headers, || now).unwrap();
            assert_eq!(counter.heads(), heads);
        }
    }

    proptest! {
        #[test]
        fn where_the_input_is_split_makes_no_difference(
            frames in proptest::collection::vec((0u8..12, any::<u8>(), 4usize..9), 0..60),
            cut in 1usize..20,
        ) {
            let now = Instant::now();
            let bytes: Vec<u8> = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".iter().copied()
                .chain(frame(SETTINGS, 0, 0))
                .chain(frames.iter().flat_map(|(kind, flags, payload)| frame(*kind, *flags, *payload)))
                .collect();
            let mut whole = FrameCounter::new(now);
            let expected = whole.feed(&bytes, || now);
            let mut split = FrameCounter::new(now);
            let got = bytes.chunks(cut).try_for_each(|chunk| split.feed(chunk, || now));
            // Where a header was cut, some of what came before the breach was given away already.
            prop_assert_eq!(expected.map_err(|(_, breach)| breach), got.map_err(|(_, breach)| breach));
            if expected.is_ok() {
                prop_assert_eq!(whole.in_head(), split.in_head());
                prop_assert_eq!(whole.control.left, split.control.left);
                prop_assert_eq!(whole.resets.left, split.resets.left);
            }
        }
    }
}
