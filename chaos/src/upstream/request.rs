//! Reading a request, content included.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// A request with its content gathered.
pub(super) struct Request {
    pub(super) method: String,
    pub(super) target: String,
    /// The head as it arrived, up to and with the empty line.
    pub(super) head: Bytes,
    pub(super) body: Bytes,
    /// The client closes after this one.
    pub(super) close: bool,
}

/// The next request; `None` where the client ended the connection in between two. Answers `Expect: 100-continue`.
pub(super) async fn read<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    buffer: &mut BytesMut,
) -> io::Result<Option<Request>> {
    let (mut request, length, chunked, expects) = loop {
        if let Some(parsed) = parse(buffer)? {
            break parsed;
        }
        buffer.reserve(16 << 10);
        if stream.read_buf(buffer).await? == 0 {
            return if buffer.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
    };
    if expects && (chunked || length > 0) {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    request.body = if chunked {
        read_chunks(stream, buffer).await?
    } else {
        fill(stream, buffer, length).await?;
        buffer.split_to(length).freeze()
    };
    Ok(Some(request))
}

fn parse(buffer: &mut BytesMut) -> io::Result<Option<(Request, usize, bool, bool)>> {
    let mut fields = [httparse::EMPTY_HEADER; 200];
    let mut parsed = httparse::Request::new(&mut fields);
    let httparse::Status::Complete(size) = parsed.parse(buffer).map_err(io::Error::other)? else {
        return Ok(None);
    };
    let field = |name: &str| {
        parsed.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
    };
    let is = |name, value: &[u8]| field(name).is_some_and(|v| v.eq_ignore_ascii_case(value));
    let length = match field("content-length") {
        Some(value) => {
            std::str::from_utf8(value).ok().and_then(|v| v.parse().ok()).ok_or(io::ErrorKind::InvalidData)?
        }
        None => 0,
    };
    let chunked = is("transfer-encoding", b"chunked");
    let expects = is("expect", b"100-continue");
    let close = is("connection", b"close") || (parsed.version == Some(0) && !is("connection", b"keep-alive"));
    let (method, target) =
        (parsed.method.unwrap_or_default().to_owned(), parsed.path.unwrap_or_default().to_owned());
    let head = buffer.split_to(size).freeze();
    Ok(Some((Request { method, target, head, body: Bytes::new(), close }, length, chunked, expects)))
}

/// Reads until the buffer has `length` bytes.
async fn fill(stream: &mut (impl AsyncRead + Unpin), buffer: &mut BytesMut, length: usize) -> io::Result<()> {
    while buffer.len() < length {
        buffer.reserve(16 << 10);
        if stream.read_buf(buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

async fn read_chunks(stream: &mut (impl AsyncRead + Unpin), buffer: &mut BytesMut) -> io::Result<Bytes> {
    let mut body = BytesMut::new();
    loop {
        let line = line(stream, buffer).await?;
        let digits = line[..].split(|b| *b == b';').next().unwrap_or_default();
        let size = std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| usize::from_str_radix(digits.trim(), 16).ok())
            .ok_or(io::ErrorKind::InvalidData)?;
        if size == 0 {
            break;
        }
        fill(stream, buffer, size + 2).await?;
        body.extend_from_slice(&buffer[..size]);
        buffer.advance(size + 2);
    }
    while !line(stream, buffer).await?.is_empty() {}
    Ok(body.freeze())
}

/// A line without its CRLF.
async fn line(stream: &mut (impl AsyncRead + Unpin), buffer: &mut BytesMut) -> io::Result<BytesMut> {
    loop {
        if let Some(at) = buffer.windows(2).position(|pair| pair == b"\r\n") {
            let line = buffer.split_to(at);
            buffer.advance(2);
            return Ok(line);
        }
        let more = buffer.len() + 1;
        fill(stream, buffer, more).await?;
    }
}
