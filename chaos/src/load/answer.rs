//! Reading one HTTP/1.1 answer, strictly, and checking it while it arrives (RFC 9112 §6, §7).

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::exchange::{Checker, Exchange};

/// An answer larger in its head than this is wrong, in bytes.
const HEAD_LIMIT: usize = 256 << 10;
/// A chunk's size line or trailer section longer than this is wrong, in bytes.
const LINE_LIMIT: usize = 64 << 10;

/// A complete answer.
pub(super) struct Answer {
    pub(super) status: u16,
    /// Its framing leaves the connection usable.
    pub(super) reusable: bool,
    /// What differs from what is expected, where the status does not already.
    pub(super) wrong: Option<String>,
}

/// There was no complete answer.
#[derive(Debug)]
pub(super) enum Broken {
    /// The connection ended before it.
    Closed(String),
    /// What arrived cannot be an answer.
    Wrong(String),
}

/// Reads the answer to `exchange`, skipping interim ones, and counts its bytes in `answered`.
pub(super) async fn read_answer(
    from: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
    answered: &AtomicU64,
    exchange: &Exchange,
) -> Result<Answer, Broken> {
    answered.fetch_add(buffer.len() as u64, Ordering::Relaxed);
    let mut reader = Reader { from, buffer, answered };
    let expect = &exchange.expect;
    let (status, http10, headers) = loop {
        let head = reader.head().await?;
        if !(100..200).contains(&head.0) || head.0 == 101 {
            break head;
        }
    };
    let expected = status == expect.status;
    let mut wrong = if expected { expect.check_headers(&headers) } else { None };
    let any = super::exchange::ExpectBody::Any;
    let mut checker = Checker::new(if expected { &expect.body } else { &any });
    let mut check = |data: Option<&[u8]>| {
        if wrong.is_none() {
            wrong = match data {
                Some(data) => checker.feed(data),
                None => checker.end(),
            }
            .err();
        }
    };

    let mut reusable = !http10 && !has_token(&headers, header::CONNECTION, "close") && status != 101;
    match framing(&exchange.method, status, &headers)? {
        // The content of a HEAD's answer is not there to be checked.
        Framing::None => {}
        Framing::Length(mut left) => {
            while left > 0 {
                reader.some().await?;
                let n = left.min(reader.buffer.len() as u64) as usize;
                check(Some(&reader.buffer[..n]));
                reader.buffer.advance(n);
                left -= n as u64;
            }
            check(None);
        }
        Framing::Chunked => {
            loop {
                let line = reader.line().await?;
                let mut left = chunk_size(&line)?;
                if left == 0 {
                    break;
                }
                while left > 0 {
                    reader.some().await?;
                    let n = left.min(reader.buffer.len() as u64) as usize;
                    check(Some(&reader.buffer[..n]));
                    reader.buffer.advance(n);
                    left -= n as u64;
                }
                if !reader.line().await?.is_empty() {
                    return Err(Broken::Wrong("a chunk is not followed by CRLF".into()));
                }
            }
            while !reader.line().await?.is_empty() {}
            check(None);
        }
        Framing::UntilClose => {
            reusable = false;
            loop {
                if !reader.buffer.is_empty() {
                    check(Some(&reader.buffer[..]));
                    reader.buffer.clear();
                }
                match reader.fill().await {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(error) => return Err(Broken::Closed(error.to_string())),
                }
            }
            check(None);
        }
    }
    // What comes behind a 101 is of the new protocol.
    if status != 101 && !reader.buffer.is_empty() && wrong.is_none() {
        wrong = Some(format!("{} bytes after the end of the answer", reader.buffer.len()));
        reusable = false;
    }
    Ok(Answer { status, reusable, wrong })
}

struct Reader<'a, R> {
    from: &'a mut R,
    buffer: &'a mut BytesMut,
    answered: &'a AtomicU64,
}

impl<R: AsyncRead + Unpin> Reader<'_, R> {
    async fn fill(&mut self) -> io::Result<usize> {
        self.buffer.reserve(16 << 10);
        let n = self.from.read_buf(self.buffer).await?;
        super::http1::count(self.answered, n);
        Ok(n)
    }

    /// Reads once more; that there is nothing more is an error.
    async fn more(&mut self) -> Result<(), Broken> {
        match self.fill().await {
            Ok(0) => Err(Broken::Closed("closed".into())),
            Ok(_) => Ok(()),
            Err(error) => Err(Broken::Closed(error.to_string())),
        }
    }

    /// Has at least one byte in the buffer.
    async fn some(&mut self) -> Result<(), Broken> {
        if self.buffer.is_empty() { self.more().await } else { Ok(()) }
    }

    /// A line without its CRLF.
    async fn line(&mut self) -> Result<BytesMut, Broken> {
        let mut looked = 0;
        loop {
            if let Some(at) = self.buffer[looked..].iter().position(|b| *b == b'\n') {
                let mut line = self.buffer.split_to(looked + at + 1);
                if line.len() < 2 || line[line.len() - 2] != b'\r' {
                    return Err(Broken::Wrong("a line ends in a bare LF".into()));
                }
                line.truncate(line.len() - 2);
                return Ok(line);
            }
            looked = self.buffer.len();
            if looked > LINE_LIMIT {
                return Err(Broken::Wrong("a line without an end".into()));
            }
            self.more().await?;
        }
    }

    /// The next head: its status, whether it is HTTP/1.0, its fields.
    async fn head(&mut self) -> Result<(u16, bool, HeaderMap), Broken> {
        loop {
            let mut fields = [httparse::EMPTY_HEADER; 128];
            let mut response = httparse::Response::new(&mut fields);
            match response.parse(self.buffer) {
                Ok(httparse::Status::Complete(length)) => {
                    if self.buffer[..length].windows(2).any(|pair| pair[1] == b'\n' && pair[0] != b'\r') {
                        return Err(Broken::Wrong("a line of the head ends in a bare LF".into()));
                    }
                    let mut headers = HeaderMap::with_capacity(response.headers.len());
                    for field in response.headers.iter() {
                        // httparse has let through only what these types let through.
                        if let (Ok(name), Ok(value)) =
                            (field.name.parse::<HeaderName>(), HeaderValue::from_bytes(field.value))
                        {
                            headers.append(name, value);
                        }
                    }
                    let head = (response.code.unwrap_or_default(), response.version == Some(0), headers);
                    self.buffer.advance(length);
                    return Ok(head);
                }
                Ok(httparse::Status::Partial) if self.buffer.len() > HEAD_LIMIT => {
                    return Err(Broken::Wrong("a head without an end".into()));
                }
                Ok(httparse::Status::Partial) => self.more().await?,
                Err(error) => {
                    let start =
                        String::from_utf8_lossy(&self.buffer[..self.buffer.len().min(40)]).into_owned();
                    return Err(Broken::Wrong(format!("no HTTP/1.1 head ({error}): {start:?}…")));
                }
            }
        }
    }
}

enum Framing {
    None,
    Length(u64),
    Chunked,
    UntilClose,
}

/// RFC 9112 §6.3; what is ambiguous is wrong, where a client would have to guess.
fn framing(method: &Method, status: u16, headers: &HeaderMap) -> Result<Framing, Broken> {
    let wrong = |detail: &str| Err(Broken::Wrong(detail.into()));
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let length = lengths.next();
    if lengths.next().is_some() {
        return wrong("several Content-Length fields");
    }
    let coding = headers.get(header::TRANSFER_ENCODING);
    if coding.is_some() && length.is_some() {
        return wrong("Content-Length beside Transfer-Encoding");
    }
    if *method == Method::HEAD || status == 204 || status == 304 {
        if status == 204 && (coding.is_some() || length.is_some()) {
            return wrong("a 204 with a length");
        }
        return Ok(Framing::None);
    }
    if status == 101 {
        return Ok(Framing::None);
    }
    if let Some(coding) = coding {
        return if coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
            Ok(Framing::Chunked)
        } else {
            wrong("a Transfer-Encoding other than chunked")
        };
    }
    let Some(length) = length else {
        return Ok(Framing::UntilClose);
    };
    match length.to_str().ok().filter(|v| v.bytes().all(|b| b.is_ascii_digit())).and_then(|v| v.parse().ok())
    {
        Some(length) => Ok(Framing::Length(length)),
        None => wrong("a Content-Length that is no number"),
    }
}

fn chunk_size(line: &[u8]) -> Result<u64, Broken> {
    let digits = line.split(|b| *b == b';').next().unwrap_or_default().trim_ascii_end();
    let valid = !digits.is_empty() && digits.len() <= 15 && digits.iter().all(u8::is_ascii_hexdigit);
    std::str::from_utf8(digits)
        .ok()
        .filter(|_| valid)
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .ok_or_else(|| Broken::Wrong(format!("a chunk of size {:?}", String::from_utf8_lossy(line))))
}

fn has_token(headers: &HeaderMap, name: HeaderName, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|part| part.trim().eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Expect, pattern};

    async fn read(mut input: &[u8], exchange: &Exchange) -> Result<Answer, Broken> {
        read_answer(&mut input, &mut BytesMut::new(), &AtomicU64::new(0), exchange).await
    }

    fn get(body: &'static str) -> Exchange {
        Exchange::get("/", Expect::body(body))
    }

    #[tokio::test]
    async fn an_answer_is_read_however_it_is_split() {
        let inputs: [&[u8]; 3] = [
            b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nx: y\r\n\r\n",
            b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\nhello",
        ];
        for input in inputs {
            for at in 0..input.len() {
                let (a, b) = input.split_at(at);
                let exchange = get("hello");
                let (mut buffer, count) = (BytesMut::new(), AtomicU64::new(0));
                let mut input = AsyncReadExt::chain(a, b);
                let answer = read_answer(&mut input, &mut buffer, &count, &exchange);
                assert_eq!(answer.await.unwrap().wrong, None, "split at {at}");
            }
        }
    }

    #[tokio::test]
    async fn a_cut_answer_is_closed_at_every_byte() {
        let inputs: [&[u8]; 2] = [
            b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        ];
        for input in inputs {
            for at in 0..input.len() {
                assert!(
                    matches!(read(&input[..at], &get("hello")).await, Err(Broken::Closed(_))),
                    "cut at {at}"
                );
            }
        }
    }

    #[tokio::test]
    async fn what_claims_to_be_complete_and_is_not_is_wrong() {
        let short: [&[u8]; 3] = [
            b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nhell",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhell\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n\r\nhell",
        ];
        for input in short {
            assert!(read(input, &get("hello")).await.unwrap().wrong.is_some());
        }
    }

    #[tokio::test]
    async fn ambiguous_or_malformed_framing_is_wrong() {
        let inputs: [&[u8]; 7] = [
            b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhello\r\n0\r\n\r\n",
            b"garbage\r\n\r\n",
        ];
        for input in inputs {
            assert!(matches!(read(input, &get("hello")).await, Err(Broken::Wrong(_))));
        }
    }

    #[tokio::test]
    async fn bytes_after_the_answer_are_wrong() {
        let answer =
            read(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhelloHTTP/1.1", &get("hello")).await.unwrap();
        assert!(answer.wrong.is_some() && !answer.reusable);
    }

    #[tokio::test]
    async fn the_content_of_another_status_is_not_compared() {
        let answer = read(b"HTTP/1.1 502 Bad\r\ncontent-length: 1\r\n\r\nx", &get("hello")).await.unwrap();
        assert_eq!((answer.status, answer.wrong, answer.reusable), (502, None, true));
    }

    #[tokio::test]
    async fn a_large_pattern_is_checked() {
        let body = pattern::bytes(4, 300_000);
        let mut input = b"HTTP/1.1 200 OK\r\ncontent-length: 300000\r\n\r\n".to_vec();
        input.extend_from_slice(&body);
        let exchange = Exchange::get("/", Expect::pattern(4, 300_000));
        assert_eq!(read(&input, &exchange).await.unwrap().wrong, None);
        input[200_000] ^= 0x80;
        assert!(read(&input, &exchange).await.unwrap().wrong.is_some());
    }
}
