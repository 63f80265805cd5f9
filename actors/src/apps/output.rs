//! What a process writes to its standard output and error, line by line.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::unix::pipe::Receiver;
use tokio::time::{Duration, Instant};

/// The read ends of a process's pipes, and what has come of the next lines. Kept where it outlives whoever reads: what
/// nobody has read yet waits in the pipe.
#[derive(Debug)]
pub struct Output {
    streams: [Stream; 2],
    window: Window,
}

#[derive(Debug)]
struct Stream {
    name: &'static str,
    /// `None` after its end.
    pipe: Option<Receiver>,
    buffer: Vec<u8>,
    /// So many bytes of the buffer have no line break.
    searched: usize,
}

/// One line.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    /// `stdout` or `stderr`.
    pub stream: &'static str,
    /// Without its line break and with control characters escaped, so that no terminal obeys them; of a long one a piece.
    pub text: String,
    /// Lines that were left out before this one, because too many came in one second.
    pub left_out: u64,
}

impl Line {
    /// Writes it to the log.
    pub fn write(&self, app: &str, place: u32, pid: u32) {
        if self.left_out > 0 {
            tracing::warn!(app, place, pid, lines = self.left_out, "lines of an app's output were left out");
        }
        tracing::info!(target: "playhouse::app", app, place, pid, stream = self.stream, "{}", self.text);
    }
}

/// How many lines have come in the current second.
#[derive(Debug)]
struct Window {
    since: Instant,
    lines: u64,
    left_out: u64,
}

impl Output {
    /// Reads from these pipes. Must be called within a runtime.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(stdout: OwnedFd, stderr: OwnedFd) -> io::Result<Output> {
        let stream = |name, pipe| {
            let pipe = Some(Receiver::from_owned_fd(pipe)?);
            Ok::<_, io::Error>(Stream { name, pipe, buffer: Vec::new(), searched: 0 })
        };
        let streams = [stream("stdout", stdout)?, stream("stderr", stderr)?];
        Ok(Output { streams, window: Window { since: Instant::now(), lines: 0, left_out: 0 } })
    }

    /// What has come of the next lines, for when somebody else reads on.
    pub fn take_begun(&mut self) -> Vec<Line> {
        let begun = |stream: &mut Stream| {
            stream.searched = 0;
            let text = std::mem::take(&mut stream.buffer);
            (!text.is_empty()).then(|| Line { stream: stream.name, text: shown(&text), left_out: 0 })
        };
        self.streams.iter_mut().filter_map(begun).collect()
    }

    /// The next line of either; `None` when both have ended.
    pub fn poll_line(&mut self, cx: &mut Context<'_>) -> Poll<Option<Line>> {
        let mut turns = 0;
        loop {
            let mut over = true;
            let mut found = None;
            for stream in &mut self.streams {
                match stream.poll_line(cx) {
                    Poll::Ready(Some(text)) => {
                        found = Some((stream.name, text));
                        break;
                    }
                    Poll::Ready(None) => {}
                    Poll::Pending => over = false,
                }
            }
            let Some((stream, text)) = found else {
                return if over { Poll::Ready(None) } else { Poll::Pending };
            };
            if let Some(left_out) = self.window.admit(Instant::now()) {
                return Poll::Ready(Some(Line { stream, text, left_out }));
            }
            // Who writes faster than can be thrown away does not hold the thread.
            turns += 1;
            if turns > TURNS {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }
}

impl Stream {
    fn poll_line(&mut self, cx: &mut Context<'_>) -> Poll<Option<String>> {
        loop {
            if let Some(line) = self.take_line() {
                return Poll::Ready(Some(line));
            }
            let Some(pipe) = &mut self.pipe else {
                let rest = std::mem::take(&mut self.buffer);
                self.searched = 0;
                return Poll::Ready((!rest.is_empty()).then(|| shown(&rest)));
            };
            let mut chunk = [0u8; CHUNK];
            let mut chunk = ReadBuf::new(&mut chunk);
            match Pin::new(pipe).poll_read(cx, &mut chunk) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) if !chunk.filled().is_empty() => {
                    self.buffer.extend_from_slice(chunk.filled());
                }
                Poll::Ready(_) => self.pipe = None,
            }
        }
    }

    fn take_line(&mut self) -> Option<String> {
        let end = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n');
        let (length, with_break) = match end.map(|end| self.searched + end) {
            Some(end) if end <= LONGEST => (end, end + 1),
            _ if self.buffer.len() > LONGEST => (LONGEST, LONGEST),
            _ => {
                self.searched = self.buffer.len();
                return None;
            }
        };
        let line = shown(&self.buffer[..length]);
        self.buffer.drain(..with_break);
        self.searched = 0;
        if self.buffer.is_empty() {
            self.buffer = Vec::new();
        }
        Some(line)
    }
}

impl Window {
    /// The number of those left out before, unless this one is to be left out too.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if now.duration_since(self.since) >= Duration::from_secs(1) {
            self.since = now;
            self.lines = 0;
        }
        self.lines += 1;
        if self.lines > LINES_PER_SECOND {
            self.left_out += 1;
            return None;
        }
        Some(std::mem::take(&mut self.left_out))
    }
}

/// Text that no terminal obeys.
fn shown(line: &[u8]) -> String {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text = String::from_utf8_lossy(line);
    if !text.chars().any(is_obeyed) {
        return text.into_owned();
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_obeyed(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

fn is_obeyed(c: char) -> bool {
    c.is_control() && c != '\t'
}

/// A longer line is told in pieces.
const LONGEST: usize = 8 << 10;
/// Read at once.
const CHUNK: usize = 4 << 10;
/// Lines thrown away in one poll.
const TURNS: usize = 256;
/// More are left out, and counted: a program that has lost its mind does not fill the disk.
const LINES_PER_SECOND: u64 = 1000;

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Write;

    use super::*;

    fn output() -> (Output, std::io::PipeWriter, std::io::PipeWriter) {
        let (out, out_writer) = std::io::pipe().unwrap();
        let (err, err_writer) = std::io::pipe().unwrap();
        (Output::new(out.into(), err.into()).unwrap(), out_writer, err_writer)
    }

    async fn next(output: &mut Output) -> Option<(&'static str, String)> {
        poll_fn(|cx| output.poll_line(cx)).await.map(|line| (line.stream, line.text))
    }

    #[tokio::test]
    async fn lines_of_both_streams_come_whole_and_the_last_without_a_break_too() {
        let (mut output, mut out, mut err) = output();
        out.write_all(b"one\r\ntw").unwrap();
        assert_eq!(next(&mut output).await, Some(("stdout", "one".into())));
        err.write_all(b"\x1b[2J \xff\n").unwrap();
        assert_eq!(next(&mut output).await, Some(("stderr", "\\u{1b}[2J \u{fffd}".into())));
        out.write_all(b"o\n\nrest").unwrap();
        drop((out, err));
        for text in ["two", "", "rest"] {
            assert_eq!(next(&mut output).await, Some(("stdout", text.into())));
        }
        assert_eq!(next(&mut output).await, None);
    }

    #[tokio::test]
    async fn a_line_without_an_end_is_told_in_pieces() {
        let (mut output, mut out, _err) = output();
        std::thread::spawn(move || out.write_all(&[b'x'; LONGEST + 10]).unwrap());
        assert_eq!(next(&mut output).await.unwrap().1.len(), LONGEST);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_left_out_and_counted() {
        let mut window = Window { since: Instant::now(), lines: 0, left_out: 0 };
        for _ in 0..LINES_PER_SECOND {
            assert_eq!(window.admit(Instant::now()), Some(0));
        }
        assert_eq!(window.admit(Instant::now()), None);
        assert_eq!(window.admit(Instant::now()), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(window.admit(Instant::now()), Some(2));
        assert_eq!(window.admit(Instant::now()), Some(0));
    }
}
