//! Heads, chunks and trailers as bytes. Typed values only, so that nothing written here can hold a line end that is
//! not ours.

use bytes::{BufMut, BytesMut};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::body::is_allowed_trailer;

/// Ends a head.
pub const END_OF_HEAD: &[u8] = b"\r\n";
/// Ends a chunk.
pub const CHUNK_END: &[u8] = b"\r\n";
/// Ends chunked content that has no trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
/// The field that announces chunks.
pub const CHUNKED: &[u8] = b"transfer-encoding: chunked\r\n";
/// The field that ends the connection.
pub const CLOSE: &[u8] = b"connection: close\r\n";
/// The field that keeps an HTTP/1.0 connection.
pub const KEEP_ALIVE: &[u8] = b"connection: keep-alive\r\n";
/// The whole of an interim answer.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The request line of an HTTP/1.1 request in origin-form.
pub fn request_line(out: &mut BytesMut, method: &Method, target: &PathAndQuery) {
    request_line_with(out, method, target.as_str().as_bytes());
}

/// The request line of an `OPTIONS *`.
pub fn request_line_asterisk(out: &mut BytesMut, method: &Method) {
    request_line_with(out, method, b"*");
}

/// The status line of an HTTP/1.1 answer; that is the version sent to HTTP/1.0 clients too (RFC 9110 §6.2).
pub fn status_line(out: &mut BytesMut, status: StatusCode) {
    match status {
        StatusCode::OK => out.put_slice(b"HTTP/1.1 200 OK\r\n"),
        StatusCode::NOT_MODIFIED => out.put_slice(b"HTTP/1.1 304 Not Modified\r\n"),
        status => {
            out.put_slice(b"HTTP/1.1 ");
            out.put_slice(status.as_str().as_bytes());
            out.put_u8(b' ');
            out.put_slice(status.canonical_reason().unwrap_or_default().as_bytes());
            out.put_slice(b"\r\n");
        }
    }
}

/// One field line.
pub fn field(out: &mut BytesMut, name: &HeaderName, value: &HeaderValue) {
    let (name, value) = (name.as_str().as_bytes(), value.as_bytes());
    out.reserve(name.len() + value.len() + 4);
    out.put_slice(name);
    out.put_slice(b": ");
    out.put_slice(value);
    out.put_slice(b"\r\n");
}

/// A line for every value.
pub fn fields(out: &mut BytesMut, headers: &HeaderMap) {
    for (name, value) in headers {
        field(out, name, value);
    }
}

/// `Content-Length`.
pub fn content_length(out: &mut BytesMut, length: u64) {
    out.reserve(40);
    out.put_slice(b"content-length: ");
    decimal(out, length);
    out.put_slice(b"\r\n");
}

/// The whole head of an HTTP/1.1 answer: status line, fields, and the empty line.
pub fn response_head(out: &mut BytesMut, status: StatusCode, headers: &HeaderMap) {
    status_line(out, status);
    fields(out, headers);
    out.put_slice(END_OF_HEAD);
}

/// The line before a chunk of `size` bytes, which must not be 0; [`CHUNK_END`] stands behind its data.
pub fn chunk_head(out: &mut BytesMut, size: usize) {
    debug_assert!(size > 0, "an empty chunk ends the content");
    out.reserve(18);
    let digits = (usize::BITS - (size | 1).leading_zeros()).div_ceil(4);
    for digit in (0..digits).rev() {
        out.put_u8(b"0123456789abcdef"[size >> (digit * 4) & 15]);
    }
    out.put_slice(b"\r\n");
}

/// The last chunk and the trailers, without those that may not stand there (RFC 9110 §6.5.1).
pub fn last_chunk(out: &mut BytesMut, trailers: &HeaderMap) {
    out.put_slice(b"0\r\n");
    for (name, value) in trailers.iter().filter(|(name, _)| is_allowed_trailer(name)) {
        field(out, name, value);
    }
    out.put_slice(b"\r\n");
}

fn request_line_with(out: &mut BytesMut, method: &Method, target: &[u8]) {
    out.reserve(method.as_str().len() + target.len() + 12);
    out.put_slice(method.as_str().as_bytes());
    out.put_u8(b' ');
    out.put_slice(target);
    out.put_slice(b" HTTP/1.1\r\n");
}

fn decimal(out: &mut BytesMut, mut number: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.put_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_decimal_and_sizes_in_hex() {
        for number in [0, 1, 9, 10, 99, 12345, u64::MAX] {
            let mut out = BytesMut::new();
            content_length(&mut out, number);
            assert_eq!(out, format!("content-length: {number}\r\n"));
        }
        for size in [1, 9, 15, 16, 255, 256, 0xabcde, usize::MAX] {
            let mut out = BytesMut::new();
            chunk_head(&mut out, size);
            assert_eq!(out, format!("{size:x}\r\n"));
        }
    }

    #[test]
    fn a_status_without_a_known_reason_has_an_empty_one() {
        let mut out = BytesMut::new();
        status_line(&mut out, StatusCode::from_u16(299).expect("a status"));
        assert_eq!(out, "HTTP/1.1 299 \r\n");
        out.clear();
        status_line(&mut out, StatusCode::NOT_FOUND);
        assert_eq!(out, "HTTP/1.1 404 Not Found\r\n");
    }

    #[test]
    fn trailers_that_frame_or_route_are_not_written() {
        let mut trailers = HeaderMap::new();
        trailers.insert("content-length", HeaderValue::from_static("5"));
        trailers.insert("x-checksum", HeaderValue::from_static("abc"));
        let mut out = BytesMut::new();
        last_chunk(&mut out, &trailers);
        assert_eq!(out, "0\r\nx-checksum: abc\r\n\r\n");
    }
}
