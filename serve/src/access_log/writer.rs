//! The thread that writes.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, SystemTime};

use crossbeam_channel::Receiver;
use playhouse_config::model::LogFormat;
use rustix::event::{PollFd, PollFlags, poll};

use super::format::{self, Missing};
use super::{Message, Shared, Sink};

/// Writes until it is told to stop and has written all that is queued, or nobody is left who could send.
pub(super) fn run(shared: &Shared, receiver: &Receiver<Message>) {
    let mut writer = Writer { shared, sink: None, batch: Batch::default(), failing: false, torn: false };
    // What an earlier writer has not reported is reported by this one: both begin at zero.
    let mut reported = Reported::default();
    loop {
        // Before waiting, as the wake-up of an order that came while the queue was full has been lost; and after it, so
        // that a line which was queued after a reopening goes to the new file.
        let mut stop = writer.take_orders();
        let first = if stop.is_none() {
            let Ok(first) = receiver.recv() else { return };
            stop = writer.take_orders();
            Some(first)
        } else {
            None
        };
        writer.report(&mut reported);
        first.into_iter().for_each(|message| writer.take(message));
        while let Ok(message) = receiver.try_recv() {
            writer.take(message);
            if writer.batch.bytes.len() >= BATCH_BYTES {
                writer.flush();
            }
        }
        writer.flush();
        if let Some(done) = stop {
            // The receiver may have given up waiting.
            let _ = done.send(());
            return;
        }
        // While this thread sleeps, lines gather and nobody has to wake it: a request pays for no system call, and a
        // busy log for some hundred writes a second.
        thread::sleep(LINGER);
    }
}

struct Writer<'a> {
    shared: &'a Shared,
    sink: Option<Sink>,
    batch: Batch,
    /// The last write failed; said once, not for every line.
    failing: bool,
    /// The last write ended within a line.
    torn: bool,
}

#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    lines: u64,
}

/// What of the missing lines has been said in the log.
#[derive(Default)]
struct Reported {
    dropped: u64,
    errors: u64,
}

impl Writer<'_> {
    fn take_orders(&mut self) -> Option<tokio::sync::oneshot::Sender<()>> {
        let mut orders = self.shared.orders.lock();
        if let Some(sink) = orders.sink.take() {
            self.sink = Some(sink);
            self.torn = false;
        }
        orders.stop.take()
    }

    fn format(&self) -> LogFormat {
        self.sink.as_ref().map_or(LogFormat::Json, |sink| sink.format)
    }

    fn take(&mut self, message: Message) {
        if let Message::Line(line) = message {
            let format = self.format();
            format::line(&mut self.batch.bytes, format, &line);
            self.batch.lines += 1;
        }
    }

    /// Says in the log what is missing from it. Alone in its batch, so that a failure leaves it to be said again.
    fn report(&mut self, reported: &mut Reported) {
        let dropped = self.shared.dropped.load(Ordering::Relaxed);
        let errors = self.shared.errors.load(Ordering::Relaxed);
        let (now, format) = (SystemTime::now(), self.format());
        if dropped > reported.dropped {
            format::missing(&mut self.batch.bytes, format, Missing::Dropped(dropped - reported.dropped), now);
        }
        if errors > reported.errors {
            format::missing(&mut self.batch.bytes, format, Missing::Lost(errors - reported.errors), now);
        }
        if !self.batch.bytes.is_empty() && self.flush() {
            *reported = Reported { dropped, errors };
        }
    }

    /// Whether all was written.
    fn flush(&mut self) -> bool {
        if self.batch.bytes.is_empty() {
            return true;
        }
        let result = match &mut self.sink {
            Some(sink) => write(&mut sink.file, &self.batch.bytes, sink.whole, &mut self.torn),
            None => Err(ErrorKind::NotConnected.into()),
        };
        let written = match result {
            Ok(()) => {
                if std::mem::take(&mut self.failing) {
                    tracing::info!("access log: written again");
                }
                self.shared.written.fetch_add(self.batch.lines, Ordering::Relaxed);
                true
            }
            Err(error) => {
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::error!(%error, "access log: cannot write, lines are lost until it can");
                }
                self.shared.errors.fetch_add(self.batch.lines, Ordering::Relaxed);
                false
            }
        };
        self.batch.lines = 0;
        self.batch.bytes.clear();
        // One burst of long lines does not keep its memory.
        self.batch.bytes.shrink_to(2 * BATCH_BYTES);
        written
    }
}

/// Writes all of `lines`, of at most `whole` bytes at once where lines are not longer; `torn` says whether what is in the file ends within a line. Lines of a batch that fails
/// halfway are counted as lost though some are there: nobody is told that there is what is not.
fn write(file: &mut File, mut lines: &[u8], whole: usize, torn: &mut bool) -> io::Result<()> {
    if *torn {
        write_some(file, b"\n")?;
        *torn = false;
    }
    while !lines.is_empty() {
        let count = write_some(file, piece(lines, whole))?;
        *torn = lines[..count].last().is_some_and(|&byte| byte != b'\n');
        lines = &lines[count..];
    }
    Ok(())
}

/// As many lines from the beginning as have at most `whole` bytes; one at least.
fn piece(lines: &[u8], whole: usize) -> &[u8] {
    let Some(most) = lines.get(..whole) else { return lines };
    let end = match memchr::memrchr(b'\n', most) {
        Some(end) => end + 1,
        None => memchr::memchr(b'\n', lines).map_or(lines.len(), |end| end + 1),
    };
    lines.get(..end).unwrap_or(lines)
}

fn write_some(file: &mut File, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match file.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => return Ok(count),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // Standard output may have been made non-blocking by another of its holders.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(file, PollFlags::OUT)], None)?;
            }
            Err(error) => return Err(error),
        }
    }
}

/// How long lines gather. Longer would save little, and the queue must hold what comes in this time.
const LINGER: Duration = Duration::from_millis(5);

/// Written at once when there is this much.
const BATCH_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_was_cut_is_ended_before_the_next() {
        let mut file = tempfile::tempfile().unwrap();
        let mut torn = true;
        write(&mut file, b"next\n", usize::MAX, &mut torn).unwrap();
        assert!(!torn);
        let mut text = String::new();
        io::Seek::rewind(&mut file).unwrap();
        io::Read::read_to_string(&mut file, &mut text).unwrap();
        assert_eq!(text, "\nnext\n");
    }

    #[test]
    fn lines_that_others_must_not_come_between_are_written_whole() {
        let cut = |lines, whole| piece(lines, whole).len();
        assert_eq!(cut(b"one\ntwo\nthree\n", usize::MAX), 14);
        assert_eq!(cut(b"one\ntwo\nthree\n", 14), 14);
        assert_eq!(cut(b"one\ntwo\nthree\n", 13), 8);
        assert_eq!(cut(b"one\ntwo\nthree\n", 8), 8);
        assert_eq!(cut(b"one\ntwo\n", 2), 4);
        assert_eq!(cut(b"torn", 2), 4);
    }
}
