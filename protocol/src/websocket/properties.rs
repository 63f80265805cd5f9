//! Frames that are cut anywhere are the same frames.

use bytes::BytesMut;
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
struct Frame {
    header: Header,
    payload: Vec<u8>,
}

/// Frames in an order that a sender may send: messages of one to three frames, control frames anywhere.
fn frames(masked: bool) -> impl Strategy<Value = Vec<Frame>> {
    let length = prop_oneof![0..4usize, 120..130usize, 65_530..65_540usize];
    let piece = (length, any::<[u8; 4]>(), 0..4u8, any::<bool>());
    proptest::collection::vec(piece, 0..8).prop_map(move |pieces| {
        let mut frames = Vec::new();
        let mut open = false;
        for (length, key, kind, fin) in pieces {
            let (opcode, fin, length) = match kind {
                0 => (Opcode::Ping, true, length.min(125)),
                1 => (Opcode::Pong, true, length.min(125)),
                _ if open => (Opcode::Continuation, fin, length),
                2 => (Opcode::Text, fin, length),
                _ => (Opcode::Binary, fin, length),
            };
            if !opcode.is_control() {
                open = !fin;
            }
            let mask = masked.then_some(key);
            let header = Header { fin, reserved: 0, opcode, mask, length: length as u64 };
            frames.push(Frame { header, payload: vec![key[0]; length] });
        }
        frames
    })
}

fn encode(frames: &[Frame]) -> (BytesMut, Vec<usize>) {
    let mut out = BytesMut::new();
    let mut ends = vec![0];
    for frame in frames {
        frame.header.write(&mut out);
        out.extend_from_slice(&frame.payload);
        ends.push(out.len());
    }
    (out, ends)
}

/// Passes the pieces on as a relay does; the headers seen, and where the other side stood between two frames.
fn follow<'a>(sender: Sender, pieces: impl Iterator<Item = &'a [u8]>) -> (Tracker, Vec<u8>, Vec<Header>) {
    let mut tracker = Tracker::new(sender, false);
    let (mut passed, mut headers) = (Vec::new(), Vec::new());
    for mut piece in pieces {
        loop {
            match tracker.step(piece).expect("valid frames") {
                Step::More => break,
                Step::Header(taken, header) => {
                    headers.push(header);
                    passed.extend_from_slice(tracker.header());
                    piece = &piece[taken..];
                }
                Step::Payload { taken, .. } => {
                    passed.extend_from_slice(&piece[..taken]);
                    piece = &piece[taken..];
                }
            }
        }
    }
    (tracker, passed, headers)
}

fn check(frames: &[Frame], sender: Sender, cut: impl Fn(usize) -> Vec<usize>) {
    let (bytes, ends) = encode(frames);
    let mut at = 0;
    let mut cuts = cut(bytes.len());
    cuts.push(bytes.len());
    let pieces = cuts.into_iter().map(|end| {
        let piece = &bytes[at..end];
        at = end;
        piece
    });
    let (tracker, passed, headers) = follow(sender, pieces);
    assert_eq!(passed, bytes);
    assert_eq!(headers, frames.iter().map(|frame| frame.header).collect::<Vec<_>>());
    assert!(tracker.is_between_frames() && tracker.held().is_empty());
    let counts = tracker.counts();
    assert_eq!(counts.frames as usize, ends.len() - 1);
    assert_eq!(counts.payload, frames.iter().map(|frame| frame.header.length).sum::<u64>());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn frames_cut_anywhere_are_the_same(frames in frames(true), at in any::<prop::sample::Index>()) {
        check(&frames, Sender::Client, |length| vec![at.index(length + 1)]);
    }

    #[test]
    fn frames_of_a_server_cut_into_pieces_of_any_size_are_the_same(frames in frames(false), size in 1..2000usize) {
        check(&frames, Sender::Server, |length| (0..length).step_by(size).collect());
    }

    #[test]
    fn any_bytes_are_frames_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..64), extensions: bool) {
        let mut whole = Tracker::new(Sender::Client, extensions);
        let mut single = Tracker::new(Sender::Client, extensions);
        let run = |tracker: &mut Tracker, mut rest: &[u8]| loop {
            match tracker.step(rest) {
                Ok(Step::More) => return None,
                Ok(Step::Header(taken, _) | Step::Payload { taken, .. }) => rest = &rest[taken..],
                Err(error) => return Some(error),
            }
        };
        let one = run(&mut whole, &bytes);
        let other = bytes.iter().find_map(|byte| run(&mut single, &[*byte]));
        prop_assert_eq!(one, other);
        prop_assert_eq!(whole.counts(), single.counts());
    }
}

#[test]
fn small_frames_are_the_same_cut_at_every_byte() {
    let frame = |fin, opcode, length: usize| Frame {
        header: Header { fin, reserved: 0, opcode, mask: Some([9, 8, 7, 6]), length: length as u64 },
        payload: vec![5; length],
    };
    let frames = [
        frame(false, Opcode::Text, 3),
        frame(true, Opcode::Ping, 0),
        frame(false, Opcode::Continuation, 0),
        frame(true, Opcode::Continuation, 130),
        frame(true, Opcode::Binary, 1),
        frame(true, Opcode::Close, 2),
    ];
    let (bytes, _) = encode(&frames);
    for first in 0..=bytes.len() {
        check(&frames, Sender::Client, |_| vec![first]);
    }
    check(&frames, Sender::Client, |length| (0..length).collect());
}
