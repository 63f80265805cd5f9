//! The access log: a line per request, written by a thread of its own.
//!
//! A request only copies what will be logged and pushes it into a bounded queue; it never waits for the log. What finds
//! the queue full is dropped, what cannot be written is lost; both are counted, and the log itself says how many lines
//! are missing where they are missing.

mod entry;
mod format;
mod writer;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use http::StatusCode;
use parking_lot::Mutex;
use playhouse_config::model::{self, LogDestination, LogFormat};
use tokio::sync::oneshot;

pub use entry::Entry;

use crate::application::End;
use crate::metrics::Scrape;
use crate::{ConnectionInfo, Exchange};
use entry::Line;

/// The access log of one site.
#[derive(Debug)]
pub struct AccessLog {
    shared: Arc<Shared>,
    sender: Sender<Message>,
    /// Kept so that lines in the queue outlive a writer.
    receiver: Receiver<Message>,
    /// Serialises [`apply`](Self::apply) and its kind; the thread is started by the first.
    writer: Mutex<Writer>,
}

#[derive(Debug, Default)]
struct Writer {
    thread: Option<JoinHandle<()>>,
    applied: Option<model::AccessLog>,
}

/// What the requests' side and the writer have in common.
#[derive(Debug, Default)]
struct Shared {
    enabled: AtomicBool,
    written: AtomicU64,
    dropped: AtomicU64,
    errors: AtomicU64,
    /// What the writer shall do before its next batch.
    orders: Mutex<Orders>,
}

#[derive(Debug, Default)]
struct Orders {
    /// Where lines go from now on.
    sink: Option<Sink>,
    /// Answered when all that was in the queue has been written; the writer ends with it.
    stop: Option<oneshot::Sender<()>>,
}

#[derive(Debug)]
struct Sink {
    file: File,
    format: LogFormat,
    /// Bytes that one write may have, so that other processes which write there do not come in between.
    whole: usize,
}

impl Sink {
    fn open(log: &model::AccessLog) -> io::Result<Self> {
        let file = open(&log.to)?;
        // To a file that is appended to, a write of any length is one.
        let whole = if file.metadata()?.file_type().is_fifo() { PIPE_BUF } else { usize::MAX };
        Ok(Sink { file, format: log.format, whole })
    }
}

#[derive(Debug)]
enum Message {
    Line(Line),
    /// There are new [`Orders`].
    Wake,
}

/// Lines since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Written.
    pub written: u64,
    /// Dropped because the queue was full.
    pub dropped: u64,
    /// Lost to an error of writing, such as a full disk.
    pub errors: u64,
}

impl Default for AccessLog {
    fn default() -> Self {
        let (sender, receiver) = bounded(QUEUE);
        AccessLog { shared: Arc::default(), sender, receiver, writer: Mutex::default() }
    }
}

impl AccessLog {
    /// Follows the site file: opens the destination (again) and writes there from now on; `None` writes no more. Lines
    /// of requests that end during this go to either. On an error nothing has changed.
    pub fn apply(&self, log: Option<&model::AccessLog>) -> io::Result<()> {
        let mut writer = self.writer.lock();
        if let Some(log) = log {
            let sink = Sink::open(log)?;
            self.shared.orders.lock().sink = Some(sink);
            self.start(&mut writer)?;
        }
        writer.applied = log.cloned();
        self.shared.enabled.store(log.is_some(), Ordering::Relaxed);
        self.wake();
        Ok(())
    }

    /// Opens the destination again, after a rotation has renamed the file. On an error the old one is kept.
    pub fn reopen(&self) -> io::Result<()> {
        let applied = self.writer.lock().applied.clone();
        match applied {
            Some(log) => self.apply(Some(&log)),
            None => Ok(()),
        }
    }

    /// Starts the writer again, should its thread have ended; the lines in the queue are still there. Cheap, to be called
    /// now and then by whoever looks after the log.
    pub fn tend(&self) -> io::Result<()> {
        let mut writer = self.writer.lock();
        match writer.applied.clone() {
            Some(log) if writer.thread.as_ref().is_none_or(JoinHandle::is_finished) => {
                let sink = Sink::open(&log)?;
                self.shared.orders.lock().sink = Some(sink);
                self.start(&mut writer)
            }
            _ => Ok(()),
        }
    }

    /// Copies what the log says of a request, before anything else touches its head: at most [`entry::TARGET`] bytes of
    /// the target and [`entry::FIELD`] of each field. `None` where there is no log.
    #[inline]
    pub fn capture(&self, exchange: &Exchange) -> Option<Arc<Entry>> {
        self.enabled().then(|| Arc::new(Entry::capture(exchange)))
    }

    /// Writes the line of a request that has ended, if [`capture`](Self::capture)d. Never blocks.
    #[inline]
    pub fn write(&self, exchange: &Exchange, end: &End) {
        let Some(entry) = &exchange.record.log else { return };
        self.push(Line {
            entry: Some(entry.clone()),
            connection: exchange.connection.clone(),
            route: exchange.record.route.clone(),
            server: exchange.record.server.clone(),
            tunnel: exchange.record.tunnel.clone(),
            end: *end,
            ended: SystemTime::now(),
        });
    }

    /// Writes the line of a request that never had a complete head. Never blocks.
    pub fn refused(&self, connection: &ConnectionInfo, status: Option<StatusCode>) {
        if self.enabled() {
            self.push(Line::refused(connection, status, SystemTime::now()));
        }
    }

    /// Whether requests are logged.
    #[inline]
    pub fn enabled(&self) -> bool {
        self.shared.enabled.load(Ordering::Relaxed)
    }

    /// How many lines were written, dropped and lost.
    pub fn counts(&self) -> Counts {
        Counts {
            written: self.shared.written.load(Ordering::Relaxed),
            dropped: self.shared.dropped.load(Ordering::Relaxed),
            errors: self.shared.errors.load(Ordering::Relaxed),
        }
    }

    /// Sets the counts in a collection.
    pub fn collect(&self, scrape: &mut Scrape<'_>) {
        let counts = self.counts();
        scrape.set("playhouse_access_log_lines_total", &[], counts.written as f64);
        scrape.set("playhouse_access_log_dropped_total", &[], counts.dropped as f64);
        scrape.set("playhouse_access_log_errors_total", &[], counts.errors as f64);
    }

    /// Logs no more and waits until what is queued has been written, at most `within`. Says whether it was: a reader of
    /// standard output that has stopped may keep the writer from ever ending.
    pub async fn stop(&self, within: Duration) -> bool {
        let done = {
            let mut writer = self.writer.lock();
            self.shared.enabled.store(false, Ordering::Relaxed);
            writer.applied = None;
            if writer.thread.take().is_none_or(|thread| thread.is_finished()) {
                return true;
            }
            let (sender, receiver) = oneshot::channel();
            self.shared.orders.lock().stop = Some(sender);
            receiver
        };
        self.wake();
        matches!(tokio::time::timeout(within, done).await, Ok(Ok(())))
    }

    fn start(&self, writer: &mut Writer) -> io::Result<()> {
        if writer.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return Ok(());
        }
        let (shared, receiver) = (self.shared.clone(), self.receiver.clone());
        let run = move || writer::run(&shared, &receiver);
        writer.thread = Some(thread::Builder::new().name("access-log".into()).spawn(run)?);
        Ok(())
    }

    #[inline]
    fn push(&self, line: Line) {
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.sender.try_send(Message::Line(line))
        {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A writer whose queue is full is awake.
    fn wake(&self) {
        let _ = self.sender.try_send(Message::Wake);
    }
}

impl Drop for AccessLog {
    /// The writer ends once the queue is empty.
    fn drop(&mut self) {
        let (sender, _) = oneshot::channel();
        self.shared.orders.lock().stop = Some(sender);
        self.wake();
    }
}

fn open(to: &LogDestination) -> io::Result<File> {
    match to {
        LogDestination::Stdout => Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?)),
        LogDestination::File(path) => OpenOptions::new()
            .append(true)
            .create(true)
            // Whom the process shares its group with may read; addresses of clients are nobody else's business.
            .mode(0o640)
            .open(path)
            .map_err(|error| io::Error::new(error.kind(), format!("access log {}: {error}", path.display()))),
    }
}

/// What POSIX and pipe(7) say is written to a pipe as one.
const PIPE_BUF: usize = 4096;

/// Lines that wait for the writer. At the size limits of an entry a full queue is some 40 MB, usually 5.
const QUEUE: usize = 8192;

#[cfg(test)]
mod tests {
    use super::entry::tests::{END, exchange};
    use super::*;
    use std::fs;
    use std::path::Path;

    fn to_file(path: &Path) -> model::AccessLog {
        model::AccessLog { to: LogDestination::File(path.to_owned()), format: LogFormat::Json }
    }

    fn log_one(log: &AccessLog, target: &str) {
        let mut exchange = exchange(target, &[]);
        exchange.record.log = log.capture(&exchange);
        log.write(&exchange, &END);
    }

    #[tokio::test]
    async fn a_stop_writes_what_is_queued() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.log");
        let log = AccessLog::default();
        log.apply(Some(&to_file(&path))).unwrap();
        for n in 0..1000 {
            log_one(&log, &format!("/{n}"));
        }
        assert!(log.stop(Duration::from_secs(30)).await);
        let text = fs::read_to_string(&path).unwrap();
        let targets: Vec<String> = text
            .lines()
            .map(|line| {
                serde_json::from_str::<serde_json::Value>(line).unwrap()["target"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            })
            .collect();
        assert_eq!(targets, (0..1000).map(|n| format!("/{n}")).collect::<Vec<_>>());
        assert_eq!(log.counts(), Counts { written: 1000, dropped: 0, errors: 0 });
    }

    #[tokio::test]
    async fn without_a_log_nothing_is_captured() {
        let log = AccessLog::default();
        assert!(log.capture(&exchange("/", &[])).is_none());
        assert!(log.stop(Duration::ZERO).await);
    }

    #[tokio::test]
    async fn a_full_queue_drops_and_the_log_says_how_many() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.log");
        let log = AccessLog::default();
        // Enabled, but no thread takes anything yet.
        log.shared.enabled.store(true, Ordering::Relaxed);
        for _ in 0..QUEUE + 5 {
            log_one(&log, "/");
        }
        assert_eq!(log.counts().dropped, 5);
        log.apply(Some(&to_file(&path))).unwrap();
        assert!(log.stop(Duration::from_secs(30)).await);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), QUEUE + 1);
        assert!(text.lines().any(|line| line.contains("\"dropped\":5")), "{}", text.lines().next().unwrap());
    }

    #[tokio::test]
    async fn after_a_rotation_lines_go_to_the_new_file() {
        let dir = tempfile::tempdir().unwrap();
        let (path, rotated) = (dir.path().join("access.log"), dir.path().join("access.log.1"));
        let log = AccessLog::default();
        log.apply(Some(&to_file(&path))).unwrap();
        fs::rename(&path, &rotated).unwrap();
        log.reopen().unwrap();
        log_one(&log, "/new");
        assert!(log.stop(Duration::from_secs(30)).await);
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1);
        assert_eq!(fs::read_to_string(&rotated).unwrap(), "");
    }

    #[tokio::test]
    async fn a_full_disk_is_counted_and_does_not_end_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.log");
        let log = AccessLog::default();
        log.apply(Some(&to_file(Path::new("/dev/full")))).unwrap();
        log_one(&log, "/lost");
        while log.counts().errors == 0 {
            tokio::task::yield_now().await;
        }
        log.apply(Some(&to_file(&path))).unwrap();
        log_one(&log, "/kept");
        assert!(log.stop(Duration::from_secs(30)).await);
        assert_eq!(log.counts(), Counts { written: 1, dropped: 0, errors: 1 });
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("\"lost\":1") && text.contains("/kept"), "{text}");
    }

    #[test]
    fn a_destination_that_cannot_be_opened_changes_nothing() {
        let log = AccessLog::default();
        let error = log.apply(Some(&to_file(Path::new("/nonexistent/access.log")))).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/access.log"), "{error}");
        assert!(!log.enabled());
    }

    #[tokio::test]
    async fn a_refused_request_leaves_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.log");
        let log = AccessLog::default();
        log.apply(Some(&to_file(&path))).unwrap();
        log.refused(&exchange("/", &[]).connection, Some(StatusCode::BAD_REQUEST));
        assert!(log.stop(Duration::from_secs(30)).await);
        let line: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!((&line["status"], &line["outcome"]), (&400.into(), &"rejected".into()));
        assert!(line["method"].is_null() && line["target"].is_null());
    }
}
