//! Records of an answer, from the application.

use bytes::{Buf, Bytes, BytesMut};

use super::{END_REQUEST, HEADER, REQUEST, STDERR, STDOUT, VERSION};

/// Takes the records of one answer off a buffer.
#[derive(Debug, Default)]
pub struct Reader {
    state: State,
    /// The application has said that nothing more comes on it.
    stdout_ended: bool,
    stderr_ended: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Before a record's header.
    #[default]
    Header,
    /// Within the content of a stream, with so much of it and of padding to come.
    Stream {
        stderr: bool,
        content: usize,
        padding: usize,
    },
    /// Before the eight bytes of the end.
    End {
        padding: usize,
    },
    /// Within padding.
    Padding(usize),
    /// Within the padding of the end.
    Ending(usize, u32, ProtocolStatus),
    Done,
}

/// What has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// More bytes are needed.
    NeedMore,
    /// Of the answer: its head, then its content. Never empty.
    Output(Bytes),
    /// For the log. Never empty.
    Error(Bytes),
    /// The request has ended, and the connection may carry another if that was asked for.
    End {
        /// What the program has ended with; 0 is well.
        app_status: u32,
        /// Whether the application has taken the request at all.
        status: ProtocolStatus,
    },
}

/// What the application has made of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolStatus {
    /// It was carried out.
    Complete,
    /// It was refused: the connection has one already.
    CannotMultiplex,
    /// It was refused: there is too much to do.
    Overloaded,
    /// It was refused: the application is no responder.
    UnknownRole,
}

/// Why an answer is refused. The connection cannot go on after any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Not version 1.
    #[error("a record of unknown version {0}")]
    Version(u8),
    /// A type that an application does not send to one who has not asked for it.
    #[error("a record of unexpected type {0}")]
    Type(u8),
    /// A request that was not sent.
    #[error("a record of request {0}, which was not sent")]
    Request(u16),
    /// The end of a request has eight bytes.
    #[error("an end of {0} bytes")]
    EndLength(u16),
    /// Not 0 to 3.
    #[error("an unknown protocol status {0}")]
    Status(u8),
    /// A stream went on behind its end, or a record came behind that of the request.
    #[error("a record behind the end")]
    BehindEnd,
}

impl Reader {
    /// What comes next; content is given as far as it has come. After an error and behind the end nothing more is to be
    /// asked for.
    pub fn next(&mut self, input: &mut BytesMut) -> Result<Event, RecordError> {
        loop {
            match self.state {
                State::Header => {
                    let Some(header) = input.first_chunk::<HEADER>() else { return Ok(Event::NeedMore) };
                    self.state = self.begin(*header)?;
                    input.advance(HEADER);
                }
                State::Stream { content: 0, padding, .. } => self.state = State::Padding(padding),
                State::Stream { stderr, content, padding } => {
                    if input.is_empty() {
                        return Ok(Event::NeedMore);
                    }
                    let piece = input.split_to(content.min(input.len())).freeze();
                    self.state = State::Stream { stderr, content: content - piece.len(), padding };
                    return Ok(if stderr { Event::Error(piece) } else { Event::Output(piece) });
                }
                State::End { padding } => {
                    let Some([a, b, c, d, status, ..]) = input.first_chunk::<8>() else {
                        return Ok(Event::NeedMore);
                    };
                    let app_status = u32::from_be_bytes([*a, *b, *c, *d]);
                    let status = match status {
                        0 => ProtocolStatus::Complete,
                        1 => ProtocolStatus::CannotMultiplex,
                        2 => ProtocolStatus::Overloaded,
                        3 => ProtocolStatus::UnknownRole,
                        unknown => return Err(RecordError::Status(*unknown)),
                    };
                    input.advance(8);
                    self.state = State::Ending(padding, app_status, status);
                }
                State::Padding(left) => match skip(input, left) {
                    0 => self.state = State::Header,
                    left => {
                        self.state = State::Padding(left);
                        return Ok(Event::NeedMore);
                    }
                },
                State::Ending(left, app_status, status) => match skip(input, left) {
                    0 => {
                        self.state = State::Done;
                        return Ok(Event::End { app_status, status });
                    }
                    left => {
                        self.state = State::Ending(left, app_status, status);
                        return Ok(Event::NeedMore);
                    }
                },
                State::Done if input.is_empty() => return Ok(Event::NeedMore),
                State::Done => return Err(RecordError::BehindEnd),
            }
        }
    }

    /// Whether the request has ended.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    fn begin(&mut self, header: [u8; HEADER]) -> Result<State, RecordError> {
        let [version, kind, id_high, id_low, high, low, padding, _] = header;
        let (request, length) = (u16::from_be_bytes([id_high, id_low]), u16::from_be_bytes([high, low]));
        let padding = padding.into();
        if version != VERSION {
            return Err(RecordError::Version(version));
        }
        if !matches!(kind, STDOUT | STDERR | END_REQUEST) {
            return Err(RecordError::Type(kind));
        }
        if request != REQUEST {
            return Err(RecordError::Request(request));
        }
        if kind == END_REQUEST {
            return if length == 8 {
                Ok(State::End { padding })
            } else {
                Err(RecordError::EndLength(length))
            };
        }
        let stderr = kind == STDERR;
        let ended = if stderr { &mut self.stderr_ended } else { &mut self.stdout_ended };
        if *ended {
            return Err(RecordError::BehindEnd);
        }
        *ended = length == 0;
        Ok(State::Stream { stderr, content: length.into(), padding })
    }
}

/// Skips up to `left` bytes; how many are left.
fn skip(input: &mut BytesMut, left: usize) -> usize {
    let skipped = left.min(input.len());
    input.advance(skipped);
    left - skipped
}
