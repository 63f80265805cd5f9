//! Field sections (RFC 9204), encoded and decoded without a dynamic table.

mod huffman;
mod table;
#[cfg(test)]
mod tests;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, StatusCode};

/// A field line: name and value, as they came. Pseudo-header fields begin with a colon.
pub type Field = (Bytes, Bytes);

/// Why a field section was not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It is broken, or refers to a dynamic table, which has no entries. The connection ends with
    /// QPACK_DECOMPRESSION_FAILED.
    #[error("broken field section")]
    Broken,
    /// It has more fields than allowed, or they are larger, decoded.
    #[error("too many or too large fields")]
    TooLarge,
}

/// What a field section may be, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all names and values, and 32 more for each field (RFC 9114 §4.2.2).
    pub size: usize,
    /// Fields, pseudo-header fields among them.
    pub fields: usize,
}

/// Decodes a field section. What is not Huffman-coded is not copied.
///
/// # Errors
/// See [`DecodeError`].
pub fn decode(mut section: Bytes, limits: Limits) -> Result<Vec<Field>, DecodeError> {
    // Required Insert Count and Base: without a dynamic table the first is 0, and the other means nothing
    // (RFC 9204 §4.5.1).
    if integer(&mut section, 8)?.1 != 0 {
        return Err(DecodeError::Broken);
    }
    integer(&mut section, 7)?;
    let mut fields = Vec::new();
    let mut size = 0_usize;
    while section.has_remaining() {
        let field = field(&mut section)?;
        size = size.saturating_add(field.0.len() + field.1.len() + 32);
        if size > limits.size || fields.len() == limits.fields {
            return Err(DecodeError::TooLarge);
        }
        fields.push(field);
    }
    Ok(fields)
}

fn field(section: &mut Bytes) -> Result<Field, DecodeError> {
    let first = section[0];
    // RFC 9204 §4.5.2 to §4.5.6; `T`, where it is 0, means the dynamic table.
    if first & 0x80 != 0 {
        let is_static = first & 0x40 != 0;
        let index = integer(section, 6)?.1;
        let (name, value) = table::entry(index).filter(|_| is_static).ok_or(DecodeError::Broken)?;
        return Ok((Bytes::from_static(name.as_bytes()), Bytes::from_static(value.as_bytes())));
    }
    if first & 0x40 != 0 {
        let is_static = first & 0x10 != 0;
        let index = integer(section, 4)?.1;
        let (name, _) = table::entry(index).filter(|_| is_static).ok_or(DecodeError::Broken)?;
        return Ok((Bytes::from_static(name.as_bytes()), string(section, 7)?));
    }
    if first & 0x20 != 0 {
        return Ok((string(section, 3)?, string(section, 7)?));
    }
    // Indexed or named behind the base: dynamic.
    Err(DecodeError::Broken)
}

/// An integer with a prefix of so many bits, and the bits before it (RFC 9204 §4.1.1).
fn integer(section: &mut Bytes, prefix: u32) -> Result<(u8, u64), DecodeError> {
    if section.is_empty() {
        return Err(DecodeError::Broken);
    }
    let first = section.get_u8();
    let mask = 0xff >> (8 - prefix);
    let mut value = u64::from(first & mask);
    if first & mask != mask {
        return Ok((first & !mask, value));
    }
    let mut shift = 0;
    loop {
        // 62 bits are what must be understood.
        if section.is_empty() || shift > 56 {
            return Err(DecodeError::Broken);
        }
        let byte = section.get_u8();
        value += u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return Ok((first & !mask, value));
        }
    }
}

/// A string whose length has a prefix of so many bits, the bit before which says whether it is Huffman-coded.
fn string(section: &mut Bytes, prefix: u32) -> Result<Bytes, DecodeError> {
    let (before, length) = integer(section, prefix)?;
    let length = usize::try_from(length).ok().filter(|length| *length <= section.len());
    let text = section.split_to(length.ok_or(DecodeError::Broken)?);
    if before & 1 << prefix == 0 {
        return Ok(text);
    }
    huffman::decode(&text).map(Bytes::from).ok_or(DecodeError::Broken)
}

/// Encodes a field section: with the pseudo-header field of an answer, or without, for trailers.
pub fn encode(out: &mut BytesMut, status: Option<StatusCode>, fields: &HeaderMap) {
    out.put_slice(&[0, 0]);
    if let Some(status) = status {
        line(out, ":status", status.as_str().as_bytes(), false);
    }
    for (name, value) in fields {
        line(out, name.as_str(), value.as_bytes(), value.is_sensitive());
    }
}

/// One field line; `never` asks whoever sends it on not to index it either.
fn line(out: &mut BytesMut, name: &str, value: &[u8], never: bool) {
    let known = table::with_name(name);
    let same = known
        .iter()
        .find(|index| table::entry(u64::from(**index)).is_some_and(|(_, known)| known.as_bytes() == value));
    match (same, known.first()) {
        (Some(index), _) if !never => put_integer(out, 0xc0, 6, usize::from(*index)),
        (_, Some(index)) => {
            put_integer(out, if never { 0x70 } else { 0x50 }, 4, usize::from(*index));
            put_string(out, value);
        }
        _ => {
            put_integer(out, if never { 0x30 } else { 0x20 }, 3, name.len());
            out.put_slice(name.as_bytes());
            put_string(out, value);
        }
    }
}

fn put_string(out: &mut BytesMut, value: &[u8]) {
    put_integer(out, 0, 7, value.len());
    out.put_slice(value);
}

fn put_integer(out: &mut BytesMut, before: u8, prefix: u32, value: usize) {
    let mask = 0xff_u8 >> (8 - prefix);
    if value < usize::from(mask) {
        out.put_u8(before | value as u8);
        return;
    }
    out.put_u8(before | mask);
    let mut rest = value - usize::from(mask);
    while rest >= 0x80 {
        out.put_u8(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.put_u8(rest as u8);
}
