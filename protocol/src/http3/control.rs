//! What comes on a client's control stream (RFC 9114 §6.2.1, §7.2).

use bytes::{Buf, Bytes, BytesMut};

use super::{Code, Varint, frame};

/// Reads a control stream behind its type. What a client says there changes nothing that we do, and is checked.
#[derive(Debug, Default)]
pub struct ControlDecoder {
    state: State,
    number: Varint,
    has_settings: bool,
    max_push: Option<u64>,
    goaway: Option<u64>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Kind,
    Length(u64),
    Gather {
        kind: u64,
        left: usize,
        content: BytesMut,
    },
    Skip(u64),
}

impl ControlDecoder {
    /// Reads all of `input`.
    ///
    /// # Errors
    /// The code with which the connection ends.
    pub fn read(&mut self, input: &mut Bytes) -> Result<(), Code> {
        loop {
            match &mut self.state {
                State::Kind => {
                    let Some(kind) = self.number.read(input) else { return Ok(()) };
                    self.check(kind)?;
                    self.state = State::Length(kind);
                }
                State::Length(kind) => {
                    let kind = *kind;
                    let Some(length) = self.number.read(input) else { return Ok(()) };
                    self.state = begin(kind, length)?;
                }
                State::Gather { kind, left, content } => {
                    let taken = input.len().min(*left);
                    content.extend_from_slice(&input.split_to(taken));
                    *left -= taken;
                    if *left > 0 {
                        return Ok(());
                    }
                    let (kind, content) = (*kind, std::mem::take(content).freeze());
                    self.state = State::Kind;
                    self.take(kind, content)?;
                }
                State::Skip(0) => self.state = State::Kind,
                State::Skip(left) => {
                    if input.is_empty() {
                        return Ok(());
                    }
                    let skipped = usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
                    input.advance(skipped);
                    *left -= skipped as u64;
                }
            }
        }
    }

    fn check(&mut self, kind: u64) -> Result<(), Code> {
        match kind {
            frame::SETTINGS if self.has_settings => Err(Code::FrameUnexpected),
            frame::SETTINGS => Ok(()),
            _ if !self.has_settings => Err(Code::MissingSettings),
            frame::DATA | frame::HEADERS | frame::PUSH_PROMISE => Err(Code::FrameUnexpected),
            kind if frame::is_of_http2(kind) => Err(Code::FrameUnexpected),
            _ => Ok(()),
        }
    }

    fn take(&mut self, kind: u64, mut content: Bytes) -> Result<(), Code> {
        if kind == frame::SETTINGS {
            self.has_settings = true;
            return settings(content);
        }
        let number = Varint::default().read(&mut content).ok_or(Code::FrameError)?;
        if !content.is_empty() {
            return Err(Code::FrameError);
        }
        match kind {
            // We never promise a push.
            frame::CANCEL_PUSH => Err(Code::IdError),
            frame::MAX_PUSH_ID => {
                let shrinks = self.max_push.replace(number).is_some_and(|before| number < before);
                if shrinks { Err(Code::IdError) } else { Ok(()) }
            }
            _ => {
                let grows = self.goaway.replace(number).is_some_and(|before| number > before);
                if grows { Err(Code::IdError) } else { Ok(()) }
            }
        }
    }
}

fn begin(kind: u64, length: u64) -> Result<State, Code> {
    let most = match kind {
        frame::SETTINGS => MAX_SETTINGS,
        // One number.
        frame::CANCEL_PUSH | frame::GOAWAY | frame::MAX_PUSH_ID => 8,
        _ => return Ok(State::Skip(length)),
    };
    if length > most {
        let code = if kind == frame::SETTINGS { Code::ExcessiveLoad } else { Code::FrameError };
        return Err(code);
    }
    Ok(State::Gather { kind, left: length as usize, content: BytesMut::new() })
}

/// RFC 9114 §7.2.4
fn settings(mut content: Bytes) -> Result<(), Code> {
    let mut seen = Vec::new();
    while !content.is_empty() {
        let mut number = || Varint::default().read(&mut content).ok_or(Code::FrameError);
        let (setting, value) = (number()?, number()?);
        // Those of HTTP/2, and what is said twice.
        if matches!(setting, 0x02..=0x05) || seen.contains(&setting) {
            return Err(Code::SettingsError);
        }
        let is_flag = setting == ENABLE_CONNECT_PROTOCOL || setting == H3_DATAGRAM;
        if is_flag && value > 1 {
            return Err(Code::SettingsError);
        }
        seen.push(setting);
    }
    Ok(())
}

/// Hundreds of settings; a client has a handful.
const MAX_SETTINGS: u64 = 1024;
/// RFC 9220 §5
const ENABLE_CONNECT_PROTOCOL: u64 = 0x08;
/// RFC 9297 §2.1.1
const H3_DATAGRAM: u64 = 0x33;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(stream: &[u8]) -> Result<(), Code> {
        let whole = ControlDecoder::default().read(&mut Bytes::copy_from_slice(stream));
        let mut decoder = ControlDecoder::default();
        let by_byte = stream.iter().try_for_each(|byte| decoder.read(&mut Bytes::copy_from_slice(&[*byte])));
        assert_eq!(whole, by_byte, "{stream:?}");
        whole
    }

    #[test]
    fn settings_come_first_and_once() {
        assert_eq!(read(&[4, 0]), Ok(()));
        assert_eq!(read(&[4, 4, 1, 0, 6, 10, 0x21, 3, 1, 2, 3]), Ok(()));
        assert_eq!(read(&[0x21, 0]), Err(Code::MissingSettings));
        assert_eq!(read(&[7, 1, 0]), Err(Code::MissingSettings));
        assert_eq!(read(&[4, 0, 4, 0]), Err(Code::FrameUnexpected));
    }

    #[test]
    fn settings_are_checked() {
        assert_eq!(read(&[4, 2, 2, 0]), Err(Code::SettingsError));
        assert_eq!(read(&[4, 4, 6, 10, 6, 10]), Err(Code::SettingsError));
        assert_eq!(read(&[4, 2, 8, 2]), Err(Code::SettingsError));
        assert_eq!(read(&[4, 1, 6]), Err(Code::FrameError));
        assert_eq!(read(&[4, 0x7f, 0xff]), Err(Code::ExcessiveLoad));
    }

    #[test]
    fn frames_of_other_streams_end_the_connection() {
        for kind in [0, 1, 2, 5, 6, 8, 9] {
            assert_eq!(read(&[4, 0, kind, 0]), Err(Code::FrameUnexpected), "{kind}");
        }
    }

    #[test]
    fn numbers_go_one_way_only() {
        assert_eq!(read(&[4, 0, 7, 1, 9, 7, 1, 5]), Ok(()));
        assert_eq!(read(&[4, 0, 7, 1, 5, 7, 1, 9]), Err(Code::IdError));
        assert_eq!(read(&[4, 0, 13, 1, 5, 13, 1, 9]), Ok(()));
        assert_eq!(read(&[4, 0, 13, 1, 9, 13, 1, 5]), Err(Code::IdError));
        assert_eq!(read(&[4, 0, 3, 1, 0]), Err(Code::IdError));
        assert_eq!(read(&[4, 0, 7, 2, 5, 5]), Err(Code::FrameError));
        assert_eq!(read(&[4, 0, 7, 0]), Err(Code::FrameError));
        assert_eq!(read(&[4, 0, 7, 9]), Err(Code::FrameError));
    }
}
