//! What a client opens beside requests: its control stream, and those of QPACK (RFC 9114 §6.2).

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use playhouse_protocol::http3::{Code, ControlDecoder, DecoderStream, EncoderStream, StreamType, UniHeader};
use quinn::RecvStream;

/// Which streams there have been of those that there is one of.
#[derive(Debug, Default)]
pub(super) struct Seen(Mutex<Vec<StreamType>>);

impl Seen {
    fn add(&self, kind: StreamType) -> Result<(), Code> {
        let mut seen = self.0.lock();
        if seen.contains(&kind) {
            return Err(Code::StreamCreationError);
        }
        seen.push(kind);
        Ok(())
    }
}

/// Reads a client's unidirectional stream to its end.
///
/// # Errors
/// The code with which the connection ends.
pub(super) async fn read(mut stream: RecvStream, seen: Arc<Seen>) -> Result<(), Code> {
    let mut header = UniHeader::default();
    let mut input = Bytes::new();
    let kind = loop {
        if let Some(kind) = header.read(&mut input) {
            break kind;
        }
        match stream.read_chunk(CHUNK, true).await {
            Ok(Some(chunk)) => input = chunk.bytes,
            // It may end before it is known what it was for.
            Ok(None) | Err(_) => return Ok(()),
        }
    };
    let mut decoder = match kind {
        StreamType::Control => Reading::Control(ControlDecoder::default()),
        StreamType::QpackEncoder => Reading::Encoder(EncoderStream),
        StreamType::QpackDecoder => Reading::Decoder(DecoderStream::default()),
        StreamType::Push => return Err(Code::StreamCreationError),
        StreamType::Unknown => {
            let _ = stream.stop(super::code(Code::StreamCreationError));
            return Ok(());
        }
    };
    seen.add(kind)?;
    loop {
        decoder.read(&mut input)?;
        match stream.read_chunk(CHUNK, true).await {
            Ok(Some(chunk)) => input = chunk.bytes,
            Err(quinn::ReadError::ConnectionLost(_)) => return Ok(()),
            Ok(None) | Err(_) => return Err(Code::ClosedCriticalStream),
        }
    }
}

enum Reading {
    Control(ControlDecoder),
    Encoder(EncoderStream),
    Decoder(DecoderStream),
}

impl Reading {
    fn read(&mut self, input: &mut Bytes) -> Result<(), Code> {
        match self {
            Reading::Control(decoder) => decoder.read(input),
            Reading::Encoder(decoder) => decoder.read(input),
            Reading::Decoder(decoder) => decoder.read(input),
        }
    }
}

const CHUNK: usize = 16 << 10;
