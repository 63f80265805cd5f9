//! Whatever an endpoint sends: what is passed on of it is what came, and cut into single bytes it is the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use playhouse_protocol::websocket::{FrameError, Sender, Step, Tracker};

fn follow<'a>(
    sender: Sender,
    extensions: bool,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> (Vec<u8>, Option<FrameError>, Tracker) {
    let mut tracker = Tracker::new(sender, extensions);
    let mut passed = Vec::new();
    for mut piece in pieces {
        loop {
            match tracker.step(piece) {
                Ok(Step::More) => break,
                Ok(Step::Header(taken, _)) => {
                    passed.extend_from_slice(tracker.header());
                    piece = &piece[taken..];
                }
                Ok(Step::Payload { taken, .. }) => {
                    passed.extend_from_slice(&piece[..taken]);
                    piece = &piece[taken..];
                }
                Err(error) => return (passed, Some(error), tracker),
            }
        }
    }
    (passed, None, tracker)
}

fuzz_target!(|data: &[u8]| {
    let Some((flags, bytes)) = data.split_first() else { return };
    let sender = if flags & 1 == 0 { Sender::Client } else { Sender::Server };
    let extensions = flags & 2 != 0;
    let (whole, error, tracker) = follow(sender, extensions, std::iter::once(bytes));
    assert_eq!([&whole[..], tracker.held()].concat(), bytes[..whole.len() + tracker.held().len()]);
    let (single, other, _) = follow(sender, extensions, bytes.chunks(1));
    assert_eq!((whole, error), (single, other));
});
