//! The frames of a WebSocket (RFC 6455 §5), strictly, and known at every byte: whether the stream stands between two.

use bytes::{Buf, Bytes, BytesMut};
use tungstenite::protocol::frame::coding::{Control, Data, OpCode};
use tungstenite::protocol::frame::{Frame, FrameHeader};

/// What a server sends, taken apart while it arrives.
#[derive(Default)]
pub(super) struct Frames {
    buffer: BytesMut,
    /// A data frame's payload that is still to come, in bytes, and whether the message ends with it.
    payload: Option<(u64, bool)>,
    /// A message has begun, and its last fragment has not.
    fragmented: bool,
}

/// The next thing that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Bytes of a message, as many as there are.
    Data(Bytes),
    /// The message's end.
    End,
    Ping(Bytes),
    Pong,
    /// With its code; 1005 where it has none (RFC 6455 §7.1.5).
    Close(u16),
}

impl Frames {
    /// Where what is read goes.
    pub(super) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// The next part; `None` where more must be read first.
    ///
    /// # Errors
    /// What has arrived is no frame that a server may send.
    pub(super) fn next(&mut self) -> Result<Option<Part>, String> {
        loop {
            if let Some((left, last)) = &mut self.payload {
                if *left == 0 {
                    let last = *last;
                    self.payload = None;
                    if last {
                        return Ok(Some(Part::End));
                    }
                    continue;
                }
                let n = (*left).min(self.buffer.len() as u64);
                *left -= n;
                return Ok((n > 0).then(|| Part::Data(self.buffer.split_to(n as usize).freeze())));
            }
            let mut cursor = std::io::Cursor::new(&self.buffer[..]);
            let parsed = FrameHeader::parse(&mut cursor).map_err(|error| error.to_string())?;
            let Some((header, length)) = parsed else { return Ok(None) };
            let head = cursor.position() as usize;
            if header.mask.is_some() || header.rsv1 || header.rsv2 || header.rsv3 {
                return Err(format!("a frame that was not agreed upon: {header:?}"));
            }
            match header.opcode {
                OpCode::Data(data) => {
                    if (data == Data::Continue) != self.fragmented {
                        return Err(format!(
                            "{data} where the message before has not ended, or none has begun"
                        ));
                    }
                    self.buffer.advance(head);
                    self.fragmented = !header.is_final;
                    self.payload = Some((length, header.is_final));
                }
                OpCode::Control(_) if !header.is_final || length > 125 => {
                    return Err(format!("a control frame of {length} bytes, or in fragments"));
                }
                OpCode::Control(_) if ((self.buffer.len() - head) as u64) < length => return Ok(None),
                OpCode::Control(control) => {
                    self.buffer.advance(head);
                    return control_frame(control, self.buffer.split_to(length as usize).freeze()).map(Some);
                }
            }
        }
    }

    /// Where the stream stands, as far as it has been taken apart: nothing of a frame has begun that has not ended.
    pub(super) fn is_between_frames(&self) -> bool {
        self.buffer.is_empty() && self.payload.is_none_or(|(left, _)| left == 0)
    }
}

fn control_frame(control: Control, payload: Bytes) -> Result<Part, String> {
    match (control, &payload[..]) {
        (Control::Ping, _) => Ok(Part::Ping(payload)),
        (Control::Pong, _) => Ok(Part::Pong),
        (Control::Close, []) => Ok(Part::Close(1005)),
        (Control::Close, [_]) => Err("a Close with half a code".into()),
        (Control::Close, [a, b, ..]) => Ok(Part::Close(u16::from_be_bytes([*a, *b]))),
        // The parser has refused them.
        (Control::Reserved(code), _) => Err(format!("a control frame {code}")),
    }
}

/// A frame as a client sends it, masked with this key.
pub(super) fn frame(opcode: OpCode, last: bool, payload: Bytes, mask: [u8; 4]) -> Vec<u8> {
    let header = FrameHeader { is_final: last, opcode, mask: Some(mask), ..FrameHeader::default() };
    let mut frame = Vec::with_capacity(payload.len() + 14);
    // The only error there is comes from what is written to, and that is memory.
    let _ = Frame::from_payload(header, payload).format(&mut frame);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: OpCode = OpCode::Data(Data::Text);

    /// A server's frame.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![first];
        match payload.len() {
            length @ 0..126 => frame.push(length as u8),
            length @ 126..0x1_0000 => {
                frame.push(126);
                frame.extend((length as u16).to_be_bytes());
            }
            length => {
                frame.push(127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        frame.extend(payload);
        frame
    }

    /// What comes of these bytes, read in two pieces; adjoining data is joined.
    fn parts(bytes: &[u8], at: usize) -> Result<(Vec<Part>, bool), String> {
        let (mut frames, mut parts) = (Frames::default(), Vec::new());
        for piece in [&bytes[..at], &bytes[at..]] {
            frames.buffer().extend_from_slice(piece);
            while let Some(part) = frames.next()? {
                match (parts.last_mut(), part) {
                    (Some(Part::Data(before)), Part::Data(data)) => {
                        *before = [&before[..], &data].concat().into()
                    }
                    (_, part) => parts.push(part),
                }
            }
        }
        Ok((parts, frames.is_between_frames()))
    }

    #[test]
    fn frames_are_known_however_they_are_split() {
        let bytes = [
            frame(0x82, b"abc"),
            frame(0x02, b"de"),
            frame(0x89, b"p"),
            frame(0x80, b"f"),
            frame(0x81, b""),
            frame(0x8a, b""),
            frame(0x82, &[7; 300]),
            frame(0x88, &[3, 0xe9, b'x']),
        ]
        .concat();
        let data = |data: &[u8]| Part::Data(Bytes::copy_from_slice(data));
        let expected = vec![
            data(b"abc"),
            Part::End,
            data(b"de"),
            Part::Ping("p".into()),
            data(b"f"),
            Part::End,
            Part::End,
            Part::Pong,
            data(&[7; 300]),
            Part::End,
            Part::Close(1001),
        ];
        for at in 0..=bytes.len() {
            assert_eq!(parts(&bytes, at).unwrap(), (expected.clone(), true), "split at {at}");
        }
    }

    #[test]
    fn an_end_within_a_frame_is_told_from_one_between_two() {
        let bytes = [frame(0x02, &[1; 200]), frame(0x88, &[3, 0xe9])].concat();
        for at in 0..=bytes.len() {
            let (_, between) = parts(&bytes[..at], at).unwrap();
            assert_eq!(between, [0, 204, 208].contains(&at), "ended after {at} bytes");
        }
    }

    #[test]
    fn what_a_server_may_not_send_is_refused() {
        let wrong: [&[u8]; 8] = [
            // A reserved bit, a reserved opcode, a mask, a continuation of nothing, a message within another, a Ping in
            // fragments, one that is too long, half a code.
            b"\xc2\x00",
            b"\x83\x00",
            b"\x82\x80abcd",
            b"\x80\x00",
            b"\x02\x00\x82\x00",
            b"\x09\x00",
            b"\x89\x7e\x00\x7e",
            b"\x88\x01a",
        ];
        for bytes in wrong {
            assert!(parts(bytes, 0).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_clients_frame_is_masked() {
        assert_eq!(super::frame(TEXT, true, "abc".into(), [1, 2, 3, 4]), b"\x81\x83\x01\x02\x03\x04```");
    }
}
