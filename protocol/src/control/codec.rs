//! Messages as bytes.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of the longest datagram. What is longer travels as a memfd.
pub const MAX_MESSAGE: usize = 64 << 10;

/// Bytes of the longest message in a memfd: a site file of the greatest length as a JSON string, and what is around it.
pub const MAX_PAYLOAD: usize = 32 << 20;

/// Descriptors of a message at most: fewer than the kernel would pass (253).
pub const MAX_DESCRIPTORS: usize = 64;

/// Why bytes are no message. The link that they came by is ended.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Longer than [`MAX_PAYLOAD`].
    #[error("a message of {0} bytes is too long")]
    TooLong(usize),
    /// Begins as an envelope does, and is none.
    #[error("a malformed envelope")]
    Envelope,
    /// No JSON, or not of this shape.
    #[error("not a message: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// Why a message cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// Longer than [`MAX_PAYLOAD`].
    #[error("a message of {0} bytes is too long")]
    TooLong(usize),
    /// It holds what JSON cannot (a path that is not UTF-8).
    #[error("cannot be sent: {0}")]
    Unrepresentable(#[from] serde_json::Error),
}

/// The message of a datagram or memfd.
///
/// # Errors
/// See [`DecodeError`]. A message of an unknown type is no error.
pub fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, DecodeError> {
    if bytes.len() > MAX_PAYLOAD {
        return Err(DecodeError::TooLong(bytes.len()));
    }
    Ok(serde_json::from_slice(bytes)?)
}

/// A message's bytes, on one line.
///
/// # Errors
/// See [`EncodeError`].
pub fn encode<M: Serialize>(message: &M) -> Result<Vec<u8>, EncodeError> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MAX_PAYLOAD {
        return Err(EncodeError::TooLong(bytes.len()));
    }
    Ok(bytes)
}
