//! A client that sends what it is told, and judges what it is owed.

use super::wire::*;
use super::{Owed, Owed::*};
use crate::harness::Wire;

pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

impl Frame {
    /// The code of RST_STREAM, or of GOAWAY.
    pub(super) fn code(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        self.payload.get(at..at + 4).map_or(u32::MAX, |code| u32::from_be_bytes(code.try_into().unwrap()))
    }
}

pub(super) struct Client {
    pub(super) wire: Wire,
    /// Statuses of answers, by stream, as HEADERS came.
    pub(super) status: Vec<(u32, u16)>,
}

impl Client {
    /// The server may have ended the connection already.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        let _ = self.wire.try_send(bytes);
    }

    pub(super) fn read(&mut self) -> Result<Frame, String> {
        let mut take = |length| self.wire.take(length).map_err(|error| error.kind().to_string());
        let head = take(9)?;
        let payload = take(u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize)?;
        let stream = u32::from_be_bytes(head[5..9].try_into().unwrap()) & 0x7fff_ffff;
        let frame = Frame { kind: head[3], flags: head[4], stream, payload };
        if frame.kind == HEADERS
            && let Some(status) = status(&frame.payload)
        {
            self.status.push((stream, status));
        }
        if frame.kind == DATA && !frame.payload.is_empty() {
            // Windows stay open, but for rows that shut them.
            let more = (frame.payload.len() as u32).to_be_bytes();
            let mut both = self::frame(WINDOW_UPDATE, 0, 0, &more);
            if frame.flags & END_STREAM == 0 {
                both.extend(self::frame(WINDOW_UPDATE, 0, stream, &more));
            }
            self.send(&both);
        }
        Ok(frame)
    }

    pub(super) fn until<T>(&mut self, fits: impl Fn(&Frame) -> Option<T>) -> Result<T, String> {
        loop {
            let frame = self.read()?;
            if let Some(found) = fits(&frame) {
                return Ok(found);
            }
            if frame.kind == GOAWAY {
                return Err(format!("GOAWAY with code {}", frame.code()));
            }
        }
    }

    /// Reads to the end of the answer on a stream; its status.
    pub(super) fn answer(&mut self, stream: u32) -> Result<u16, String> {
        self.until(|frame| match frame.kind {
            RST_STREAM if frame.stream == stream => {
                Some(Err(format!("RST_STREAM with code {}", frame.code())))
            }
            DATA | HEADERS if frame.stream == stream && frame.flags & END_STREAM != 0 => Some(Ok(())),
            _ => None,
        })??;
        let status = self.status.iter().rfind(|(of, _)| *of == stream);
        status.map(|(_, status)| *status).ok_or_else(|| "an answer without a status".to_owned())
    }

    /// Whether the connection still works.
    pub(super) fn goes_on(&mut self) -> Result<(), String> {
        self.send(&frame(PING, 0, 0, b"go on ok"));
        self.until(|frame| {
            (frame.kind == PING && frame.flags == ACK && frame.payload == b"go on ok").then_some(())
        })
        .map_err(|error| format!("the connection does not go on: {error}"))
    }

    pub(super) fn owes(&mut self, owed: &Owed) -> Result<(), String> {
        match owed {
            Nothing => self.goes_on(),
            Answer(stream, wanted) => match self.answer(*stream)? {
                status if status == *wanted => self.goes_on(),
                status => Err(format!("answered with {status}")),
            },
            End => {
                self.wire.rest();
                Ok(())
            }
            Connection(codes) => loop {
                let frame = self.read().map_err(|error| format!("no GOAWAY: {error}"))?;
                if frame.kind == GOAWAY {
                    if !codes.contains(&frame.code()) {
                        return Err(format!("GOAWAY with code {}", frame.code()));
                    }
                    self.wire.rest();
                    return Ok(());
                }
            },
            StreamOrConnection(stream, codes) => loop {
                let frame = self.read().map_err(|error| format!("neither RST_STREAM nor GOAWAY: {error}"))?;
                let end = frame.kind == GOAWAY || (frame.kind == RST_STREAM && frame.stream == *stream);
                if end {
                    let code = frame.code();
                    return codes
                        .contains(&code)
                        .then_some(())
                        .ok_or(format!("code {code} in frame {}", frame.kind));
                }
            },
            Malformed(stream) | MalformedOrConnection(stream) => {
                let ended = self.until(|frame| {
                    let reset = frame.kind == RST_STREAM;
                    let refused =
                        frame.kind == HEADERS && status(&frame.payload).is_some_and(|s| s / 100 == 4);
                    let ended = frame.kind == GOAWAY && matches!(owed, MalformedOrConnection(_));
                    ((frame.stream == *stream && (reset || refused)) || ended).then_some(ended)
                })?;
                if let Some((_, status)) = self.status.iter().find(|(_, status)| *status < 400) {
                    return Err(format!("answered with {status}"));
                }
                if ended { Ok(()) } else { self.goes_on() }
            }
        }
    }
}

/// `:status` is the first field of an answer, indexed or literal.
fn status(block: &[u8]) -> Option<u16> {
    // A size update may stand before it.
    let block = match block {
        [0x20, rest @ ..] => rest,
        block => block,
    };
    match block {
        [index @ 0x88..=0x8e, ..] => Some([200, 204, 206, 304, 400, 404, 500][usize::from(index - 0x88)]),
        // Three digits, plain or in Huffman's code of 5 or 6 bits each.
        [0x08 | 0x48, 0x03, digits @ ..] => std::str::from_utf8(digits.get(..3)?).ok()?.parse().ok(),
        [0x08 | 0x48, length @ 0x82..=0x83, digits @ ..] => {
            let digits = digits.get(..usize::from(length & 0x7f))?;
            let mut bits = digits.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte))
                << (32 - 8 * digits.len());
            let mut status = 0;
            for _ in 0..3 {
                let (digit, used) =
                    if bits >> 27 < 3 { (bits >> 27, 5) } else { ((bits >> 26) - 0x19 + 3, 6) };
                status = 10 * status + digit as u16;
                bits <<= used;
            }
            Some(status)
        }
        _ => None,
    }
}
