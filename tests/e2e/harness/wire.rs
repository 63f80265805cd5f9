//! One connection, scripted byte by byte, and an HTTP/1.1 reader of our own: it shares nothing with the server's.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::wait::PATIENCE;

/// A connection with what was read of it and not yet consumed.
pub struct Wire {
    stream: Box<dyn Stream>,
    buffer: Vec<u8>,
}

/// Names as they came, in their order, and values.
pub type Fields = Vec<(String, String)>;

/// An answer as it came.
#[derive(Clone, Debug, Default)]
pub struct Response {
    pub status: u16,
    /// In their order, names as they came.
    pub headers: Fields,
    pub body: Vec<u8>,
    pub trailers: Fields,
    /// The interim answers before it.
    pub interim: Vec<(u16, Fields)>,
}

/// A request as an upstream server gets it.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub method: String,
    pub target: String,
    pub version: String,
    pub headers: Fields,
    pub body: Vec<u8>,
    pub trailers: Fields,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        field(&self.headers, name)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        field(&self.headers, name)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Wire {
    #[track_caller]
    pub fn connect(address: SocketAddr) -> Self {
        Wire::try_connect(address).unwrap_or_else(|error| panic!("{address}: {error}"))
    }

    pub fn try_connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        Ok(Wire::over(stream))
    }

    #[track_caller]
    pub fn connect_unix(path: &Path) -> Self {
        Wire::over(UnixStream::connect(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    pub fn over(stream: impl Stream + 'static) -> Self {
        stream.patience(Some(PATIENCE)).expect("a socket takes a timeout");
        Wire { stream: Box::new(stream), buffer: Vec::new() }
    }

    /// How long a read or write waits; the default is [`PATIENCE`].
    pub fn patience(&self, patience: Duration) -> &Self {
        self.stream.patience(Some(patience)).expect("a socket takes a timeout");
        self
    }

    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.try_send(bytes).expect("the peer takes what is sent");
        self
    }

    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())?;
        self.stream.flush()
    }

    /// Sends FIN; reading goes on.
    pub fn finish(&mut self) {
        let _ = self.stream.shut(Shutdown::Write);
    }

    /// Reads at least one more byte into the buffer; `Ok(0)` is the end.
    pub fn fill(&mut self) -> io::Result<usize> {
        let mut chunk = [0; 64 << 10];
        let read = self.stream.read(&mut chunk)?;
        self.buffer.extend_from_slice(&chunk[..read]);
        Ok(read)
    }

    /// What was read and not consumed.
    pub fn pending(&self) -> &[u8] {
        &self.buffer
    }

    /// Reads the next `length` bytes.
    pub fn take(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.buffer.len() < length {
            if self.fill()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.buffer.drain(..length).collect())
    }

    /// Reads to the end of the stream. A reset is an end too; panics when the stream stays open.
    #[track_caller]
    pub fn rest(&mut self) -> Vec<u8> {
        loop {
            match self.fill() {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    panic!("the peer keeps the connection open; so far {:?}", Lossy(&self.buffer));
                }
                Err(_) => break,
            }
        }
        std::mem::take(&mut self.buffer)
    }

    /// Whether the peer has closed (or reset) and nothing more came. Waits for it.
    #[track_caller]
    pub fn expect_closed(&mut self) {
        match self.fill() {
            Ok(0) => assert!(self.buffer.is_empty(), "before the end came {:?}", Lossy(&self.buffer)),
            Ok(_) => panic!("in place of the end came {:?}", Lossy(&self.buffer)),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("not closed: {error}"),
        }
    }

    /// The final answer, with the interim ones before it.
    #[track_caller]
    pub fn response(&mut self) -> Response {
        self.try_response(false)
            .unwrap_or_else(|e| panic!("no answer: {e}; so far {:?}", Lossy(&self.buffer)))
    }

    /// The answer to HEAD: its fields speak of a body that does not follow.
    #[track_caller]
    pub fn response_to_head(&mut self) -> Response {
        self.try_response(true).unwrap_or_else(|e| panic!("no answer: {e}; so far {:?}", Lossy(&self.buffer)))
    }

    pub fn try_response(&mut self, to_head: bool) -> io::Result<Response> {
        let mut response = self.response_head()?;
        if to_head || matches!(response.status, 204 | 304) {
            return Ok(response);
        }
        self.body_of(&mut response)?;
        Ok(response)
    }

    /// The final answer's head; the body is left on the wire.
    pub fn response_head(&mut self) -> io::Result<Response> {
        let mut interim = Vec::new();
        loop {
            let (start, headers) = self.head()?;
            let mut words = start.splitn(3, ' ');
            let version = words.next().unwrap_or_default();
            let status = words.next().and_then(|word| word.parse().ok()).ok_or_else(|| bad(&start))?;
            if !version.starts_with("HTTP/1.") {
                return Err(bad(&start));
            }
            if (100..200).contains(&status) && status != 101 {
                interim.push((status, headers));
                continue;
            }
            return Ok(Response { status, headers, interim, ..Response::default() });
        }
    }

    /// Reads the body that `response`'s fields announce. Without any it goes to the end of the stream.
    pub fn body_of(&mut self, response: &mut Response) -> io::Result<()> {
        let framing = (response.header("transfer-encoding"), response.header("content-length"));
        match framing {
            (Some(coding), None) if coding.eq_ignore_ascii_case("chunked") => {
                (response.body, response.trailers) = self.chunked()?;
            }
            (None, Some(length)) => {
                response.body = self.take(length.parse().map_err(|_| bad(length))?)?;
            }
            (None, None) => {
                while self.fill()? > 0 {}
                response.body = std::mem::take(&mut self.buffer);
            }
            (coding, length) => return Err(bad(&format!("framed by {coding:?} and {length:?}"))),
        }
        Ok(())
    }

    /// The next request with its body; `None` at the end of the stream between requests.
    pub fn request(&mut self) -> io::Result<Option<Request>> {
        let Some(mut request) = self.request_head()? else { return Ok(None) };
        self.body_of_request(&mut request)?;
        Ok(Some(request))
    }

    /// The next request's head; the body is left on the wire.
    pub fn request_head(&mut self) -> io::Result<Option<Request>> {
        if self.buffer.is_empty() && self.fill()? == 0 {
            return Ok(None);
        }
        let (start, headers) = self.head()?;
        let words: Vec<&str> = start.split(' ').collect();
        let [method, target, version] = words[..] else { return Err(bad(&start)) };
        let (method, target, version) = (method.to_owned(), target.to_owned(), version.to_owned());
        Ok(Some(Request { method, target, version, headers, ..Request::default() }))
    }

    pub fn body_of_request(&mut self, request: &mut Request) -> io::Result<()> {
        match (request.header("transfer-encoding"), request.header("content-length")) {
            (Some(coding), None) if coding.eq_ignore_ascii_case("chunked") => {
                (request.body, request.trailers) = self.chunked()?;
            }
            (None, Some(length)) => request.body = self.take(length.parse().map_err(|_| bad(length))?)?,
            (None, None) => {}
            (coding, length) => return Err(bad(&format!("framed by {coding:?} and {length:?}"))),
        }
        Ok(())
    }

    /// The next chunk's data; empty is the last chunk, whose trailers are still on the wire.
    pub fn chunk(&mut self) -> io::Result<Vec<u8>> {
        let line = self.line()?;
        let size = line.split(';').next().unwrap_or_default();
        let size = usize::from_str_radix(size, 16).map_err(|_| bad(&line))?;
        let data = self.take(size)?;
        if size > 0 && !self.line()?.is_empty() {
            return Err(bad("a chunk's data is not followed by CRLF"));
        }
        Ok(data)
    }

    fn chunked(&mut self) -> io::Result<(Vec<u8>, Fields)> {
        let mut body = Vec::new();
        loop {
            let chunk = self.chunk()?;
            if chunk.is_empty() {
                return Ok((body, self.fields()?));
            }
            body.extend_from_slice(&chunk);
        }
    }

    fn head(&mut self) -> io::Result<(String, Fields)> {
        let start = self.line()?;
        Ok((start, self.fields()?))
    }

    fn fields(&mut self) -> io::Result<Fields> {
        let mut fields = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(fields);
            }
            let (name, value) = line.split_once(':').ok_or_else(|| bad(&line))?;
            fields.push((name.to_owned(), value.trim().to_owned()));
        }
    }

    /// The next line; it must end with CRLF.
    fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line).into_owned();
                return line.strip_suffix("\r\n").map(str::to_owned).ok_or_else(|| bad(&line));
            }
            if self.fill()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// What a [`Wire`] runs over.
pub trait Stream: Read + Write + Send {
    fn patience(&self, patience: Option<Duration>) -> io::Result<()>;
    fn shut(&self, how: Shutdown) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn patience(&self, patience: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(patience)?;
        self.set_write_timeout(patience)
    }

    fn shut(&self, how: Shutdown) -> io::Result<()> {
        self.shutdown(how)
    }
}

impl Stream for UnixStream {
    fn patience(&self, patience: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(patience)?;
        self.set_write_timeout(patience)
    }

    fn shut(&self, how: Shutdown) -> io::Result<()> {
        self.shutdown(how)
    }
}

impl Stream for rustls::StreamOwned<rustls::ClientConnection, TcpStream> {
    fn patience(&self, patience: Option<Duration>) -> io::Result<()> {
        self.sock.patience(patience)
    }

    fn shut(&self, how: Shutdown) -> io::Result<()> {
        self.sock.shutdown(how)
    }
}

fn field<'a>(fields: &'a [(String, String)], name: &str) -> Option<&'a str> {
    fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not HTTP/1.1: {what:?}"))
}

struct Lossy<'a>(&'a [u8]);

impl std::fmt::Debug for Lossy<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0[..self.0.len().min(2000)]))
    }
}
