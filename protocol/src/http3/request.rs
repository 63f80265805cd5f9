//! What comes on a request stream (RFC 9114 §4.1).

use bytes::{Buf, Bytes, BytesMut};

use super::{Code, Varint, frame};

/// Takes a request apart: a HEADERS frame, DATA frames, perhaps another HEADERS frame. Frames of unknown types are
/// skipped.
#[derive(Debug)]
pub struct RequestDecoder {
    part: Part,
    state: State,
    number: Varint,
    /// Bytes of one field section, encoded, before it is refused.
    limit: usize,
}

/// What has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A whole field section: the head, or behind it the trailers.
    Headers(Bytes),
    /// Some content, never empty.
    Data(Bytes),
}

/// Why there is no more to be had of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The connection ends with this code.
    #[error("{0:?}")]
    Connection(Code),
    /// A field section is too large.
    #[error("a field section is too large")]
    TooLarge,
    /// The stream has ended before the head.
    #[error("no head")]
    Incomplete,
}

/// Which frames may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Head,
    Content,
    /// After the trailers.
    End,
}

#[derive(Debug)]
enum State {
    Kind,
    Length(u64),
    Headers { left: usize, section: BytesMut },
    Data(u64),
    Skip(u64),
}

impl RequestDecoder {
    /// For one stream. A field section may have `limit` bytes as it is encoded.
    pub fn new(limit: usize) -> Self {
        RequestDecoder { part: Part::Head, state: State::Kind, number: Varint::default(), limit }
    }

    /// The next event; `None` when `input` is used up.
    ///
    /// # Errors
    /// See [`RequestError`]; the decoder is not to be used again.
    pub fn next(&mut self, input: &mut Bytes) -> Result<Option<Event>, RequestError> {
        loop {
            match &mut self.state {
                State::Kind => {
                    let Some(kind) = self.number.read(input) else { return Ok(None) };
                    self.check(kind)?;
                    self.state = State::Length(kind);
                }
                State::Length(kind) => {
                    let kind = *kind;
                    let Some(length) = self.number.read(input) else { return Ok(None) };
                    self.state = self.begin(kind, length)?;
                }
                State::Headers { left, section } => {
                    // Most come in one piece.
                    let section = if section.is_empty() && input.len() >= *left {
                        input.split_to(*left)
                    } else {
                        let taken = input.len().min(*left);
                        section.extend_from_slice(&input.split_to(taken));
                        *left -= taken;
                        if *left > 0 {
                            return Ok(None);
                        }
                        std::mem::take(section).freeze()
                    };
                    self.state = State::Kind;
                    self.part = if self.part == Part::Head { Part::Content } else { Part::End };
                    return Ok(Some(Event::Headers(section)));
                }
                State::Data(0) | State::Skip(0) => self.state = State::Kind,
                State::Data(left) => {
                    if input.is_empty() {
                        return Ok(None);
                    }
                    let data = input.split_to(shorter(input.len(), *left));
                    *left -= data.len() as u64;
                    return Ok(Some(Event::Data(data)));
                }
                State::Skip(left) => {
                    if input.is_empty() {
                        return Ok(None);
                    }
                    let skipped = shorter(input.len(), *left);
                    input.advance(skipped);
                    *left -= skipped as u64;
                }
            }
        }
    }

    /// The stream has ended.
    ///
    /// # Errors
    /// In the middle of a frame, or before the head (RFC 9114 §7.1, §4.1).
    pub fn finish(&self) -> Result<(), RequestError> {
        match &self.state {
            State::Kind if self.number.is_partial() => Err(RequestError::Connection(Code::FrameError)),
            State::Kind | State::Data(0) | State::Skip(0) if self.part == Part::Head => {
                Err(RequestError::Incomplete)
            }
            State::Kind | State::Data(0) | State::Skip(0) => Ok(()),
            _ => Err(RequestError::Connection(Code::FrameError)),
        }
    }

    fn check(&self, kind: u64) -> Result<(), RequestError> {
        let is_expected = match kind {
            frame::DATA => self.part == Part::Content,
            frame::HEADERS => self.part != Part::End,
            frame::CANCEL_PUSH
            | frame::SETTINGS
            | frame::PUSH_PROMISE
            | frame::GOAWAY
            | frame::MAX_PUSH_ID => false,
            kind => !frame::is_of_http2(kind),
        };
        if is_expected { Ok(()) } else { Err(RequestError::Connection(Code::FrameUnexpected)) }
    }

    fn begin(&self, kind: u64, length: u64) -> Result<State, RequestError> {
        Ok(match kind {
            frame::DATA => State::Data(length),
            frame::HEADERS => {
                let left = usize::try_from(length).ok().filter(|length| *length <= self.limit);
                State::Headers { left: left.ok_or(RequestError::TooLarge)?, section: BytesMut::new() }
            }
            _ => State::Skip(length),
        })
    }
}

fn shorter(available: usize, wanted: u64) -> usize {
    usize::try_from(wanted).map_or(available, |wanted| wanted.min(available))
}

#[cfg(test)]
mod tests {
    use super::super::varint;
    use super::*;

    fn frame(out: &mut BytesMut, kind: u64, content: &[u8]) {
        varint::put(out, kind);
        varint::put(out, content.len() as u64);
        out.extend_from_slice(content);
    }

    /// All events of a stream that comes in pieces of `size` bytes, content joined.
    fn read(stream: &[u8], size: usize) -> Result<Vec<Event>, RequestError> {
        let mut decoder = RequestDecoder::new(100);
        let mut events = Vec::new();
        for piece in stream.chunks(size) {
            let mut input = Bytes::copy_from_slice(piece);
            while let Some(event) = decoder.next(&mut input)? {
                match (events.last_mut(), event) {
                    (Some(Event::Data(before)), Event::Data(data)) => {
                        *before = [before.as_ref(), data.as_ref()].concat().into();
                    }
                    (_, event) => events.push(event),
                }
            }
            assert!(input.is_empty());
        }
        decoder.finish().map(|()| events)
    }

    #[test]
    fn a_request_is_the_same_however_it_is_split() {
        let mut stream = BytesMut::new();
        frame(&mut stream, 0x21, b"grease");
        frame(&mut stream, frame::HEADERS, b"head");
        frame(&mut stream, frame::DATA, b"");
        frame(&mut stream, frame::DATA, b"some ");
        frame(&mut stream, 0x40, &[7; 70]);
        frame(&mut stream, frame::DATA, b"content");
        frame(&mut stream, frame::HEADERS, b"trailers");
        frame(&mut stream, 0x21, b"");
        let expected = [
            Event::Headers("head".into()),
            Event::Data("some content".into()),
            Event::Headers("trailers".into()),
        ];
        for size in 1..=stream.len() {
            assert_eq!(read(&stream, size).as_deref(), Ok(&expected[..]), "{size}");
        }
    }

    #[test]
    fn frames_out_of_order_end_the_connection() {
        let unexpected = Err(RequestError::Connection(Code::FrameUnexpected));
        let stream = |kinds: &[u64]| {
            let mut stream = BytesMut::new();
            kinds.iter().for_each(|kind| frame(&mut stream, *kind, b"x"));
            read(&stream, 100)
        };
        assert_eq!(stream(&[frame::DATA]), unexpected);
        assert_eq!(stream(&[1, 1, 0]), unexpected);
        assert_eq!(stream(&[1, 1, 1]), unexpected);
        for kind in [0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0d] {
            assert_eq!(stream(&[1, kind]), unexpected, "{kind}");
        }
    }

    #[test]
    fn a_stream_that_is_cut_is_told_from_one_that_has_ended() {
        let mut stream = BytesMut::new();
        frame(&mut stream, 0x21, b"grease");
        assert_eq!(read(&stream, 100), Err(RequestError::Incomplete));
        assert_eq!(read(b"", 1), Err(RequestError::Incomplete));
        frame(&mut stream, frame::HEADERS, b"head");
        frame(&mut stream, frame::DATA, b"data");
        let cut = Err(RequestError::Connection(Code::FrameError));
        let head = stream.len() - 6;
        assert!(read(&stream[..head], 100).is_ok());
        for end in head + 1..stream.len() {
            assert_eq!(read(&stream[..end], 100), cut, "{end}");
        }
    }

    #[test]
    fn a_field_section_has_a_bound_before_it_is_read() {
        let mut stream = BytesMut::new();
        varint::put(&mut stream, frame::HEADERS);
        varint::put(&mut stream, varint::MAX);
        assert_eq!(read(&stream, 100), Err(RequestError::TooLarge));
    }
}
