//! A load that is under way.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::account::{Account, Counts};
use super::multiplexed::Multiplexed;
use super::report::{Failure, Report};
use super::stream::{Load, Protocol};
use super::worker::{Phase, Shared};
use super::{clients, http2, http3};

/// A load under way. Dropping it ends it at once.
pub struct Running {
    account: Arc<Account>,
    phase: watch::Sender<Phase>,
    workers: JoinSet<()>,
    runtime: Option<Runtime>,
}

/// What was waited for did not happen in time.
#[derive(Debug, thiserror::Error)]
#[error("{what} not reached within {within:?}; so far {counts:?}, last failure: {}", last.as_deref().unwrap_or("none"))]
pub struct NotReached {
    /// What was waited for.
    pub what: String,
    /// How long it was waited for.
    pub within: Duration,
    /// The counts at the end.
    pub counts: Counts,
    /// The last failure, if there was any.
    pub last: Option<String>,
}

impl Running {
    pub(super) fn start(load: Load) -> io::Result<Running> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(load.threads)
            .thread_name("load")
            .enable_all()
            .build()?;
        let account = Arc::new(Account::new(load.streams.iter().map(|stream| stream.name.clone())));
        let (phase, _) = watch::channel(Phase::Run);
        let mut workers = JoinSet::new();
        for (index, stream) in load.streams.into_iter().enumerate() {
            let (concurrency, protocol) = (stream.concurrency, stream.protocol);
            let messages = stream.messages.clone();
            let shared =
                Arc::new(Shared::new(index, stream, &load.target, account.clone(), phase.subscribe()));
            for _ in 0..concurrency {
                let shared = shared.clone();
                let runtime = runtime.handle();
                match (protocol, messages.clone()) {
                    (Protocol::Http2 { streams }, None) => {
                        multiplexed::<http2::Connection>(&mut workers, runtime, &shared, streams);
                    }
                    (Protocol::Http3 { streams }, _) => {
                        multiplexed::<http3::Connection>(&mut workers, runtime, &shared, streams);
                    }
                    (Protocol::Http2 { streams }, Some(messages)) => {
                        let slot = Arc::default();
                        for _ in 0..streams.max(1) {
                            let tunnels =
                                clients::http2_tunnels(shared.clone(), Arc::clone(&slot), messages.clone());
                            workers.spawn_on(tunnels, runtime);
                        }
                    }
                    (_, None) => _ = workers.spawn_on(clients::http1(shared), runtime),
                    (_, Some(messages)) => {
                        workers.spawn_on(clients::http1_tunnels(shared, messages), runtime);
                    }
                }
            }
        }
        Ok(Running { account, phase, workers, runtime: Some(runtime) })
    }

    /// When it began.
    pub fn started(&self) -> Instant {
        self.account.started
    }

    /// Since it began; what the report's moments are measured in.
    pub fn elapsed(&self) -> Duration {
        self.account.started.elapsed()
    }

    /// The counts so far, summed over all streams.
    pub fn counts(&self) -> Counts {
        self.account.counts()
    }

    /// The counts of the stream of this name so far.
    pub fn stream_counts(&self, name: &str) -> Option<Counts> {
        self.account.stream_counts(name)
    }

    /// Requests answered as expected so far.
    pub fn answered(&self) -> u64 {
        self.counts().answered
    }

    /// Requests that failed so far.
    pub fn failed(&self) -> u64 {
        self.counts().failed()
    }

    /// The failures so far, at most the first 10,000.
    pub fn failures(&self) -> Vec<Failure> {
        self.account.failures()
    }

    /// Waits until the counts fulfil a condition.
    ///
    /// # Errors
    /// They did not within `within`.
    pub async fn until(
        &self,
        what: &str,
        within: Duration,
        condition: impl Fn(&Counts) -> bool,
    ) -> Result<Counts, NotReached> {
        self.wait(what, within, || Some(self.counts()).filter(|counts| condition(counts))).await
    }

    /// Waits for `n` more answers from now on.
    ///
    /// # Errors
    /// They did not come within `within`.
    pub async fn answers(&self, n: u64, within: Duration) -> Result<Counts, NotReached> {
        let before = self.answered();
        self.until(&format!("{n} more answers"), within, |counts| counts.answered >= before + n).await
    }

    /// Waits for `n` more messages to come back over WebSockets from now on.
    ///
    /// # Errors
    /// They did not within `within`.
    pub async fn messages(&self, n: u64, within: Duration) -> Result<Counts, NotReached> {
        let before = self.counts().messages;
        self.until(&format!("{n} more messages"), within, |counts| counts.messages >= before + n).await
    }

    /// Waits for an answer over a connection that was begun after `moment` (as [`Running::elapsed`] gave it), and says
    /// how long after the moment it was complete.
    ///
    /// # Errors
    /// None came within `within`.
    pub async fn recovery(&self, moment: Duration, within: Duration) -> Result<Duration, NotReached> {
        self.wait("an answer over a new connection", within, || self.account.recovery(moment)).await
    }

    /// Waits for an answer to a request that was begun after `moment` (as [`Running::elapsed`] gave it), over whichever
    /// connection, and says how long after the moment it was complete; later than it was where the caller is slow.
    ///
    /// # Errors
    /// None came within `within`.
    pub async fn answered_after(&self, moment: Duration, within: Duration) -> Result<Duration, NotReached> {
        self.wait("an answer to a new request", within, || self.account.answered_after(moment)).await
    }

    async fn wait<T>(
        &self,
        what: &str,
        within: Duration,
        condition: impl FnMut() -> Option<T>,
    ) -> Result<T, NotReached> {
        timeout(within, self.account.until(condition)).await.map_err(|_| NotReached {
            what: what.to_owned(),
            within,
            counts: self.counts(),
            last: self.failures().last().map(ToString::to_string),
        })
    }

    /// Begins no further requests, and waits until none is under way (each has its deadline). Connections stay open,
    /// but WebSockets are closed once every message has come back.
    pub async fn pause(&self) {
        self.phase.send_replace(Phase::Pause);
        self.account.until(|| (self.counts().pending() == 0).then_some(())).await;
    }

    /// Goes on after a pause.
    pub fn resume(&self) {
        self.phase.send_replace(Phase::Run);
    }

    /// Begins no further requests, waits for those under way (each has its deadline), and gives the account.
    pub async fn stop(self) -> Report {
        self.phase.send_replace(Phase::Stop);
        self.finished().await
    }

    /// Waits until all streams have ended by themselves (by their number of requests or their duration), and gives the
    /// account. Without such a bound it never ends.
    ///
    /// # Panics
    /// Where a request's generator panicked.
    pub async fn finished(mut self) -> Report {
        while let Some(ended) = self.workers.join_next().await {
            if let Err(error) = ended
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic());
            }
        }
        self.account.report()
    }
}

/// The clients of one connection.
fn multiplexed<C: Multiplexed>(
    workers: &mut JoinSet<()>,
    runtime: &Handle,
    shared: &Arc<Shared>,
    streams: usize,
) {
    let slot = Arc::default();
    for _ in 0..streams.max(1) {
        workers.spawn_on(clients::multiplexed::<C>(shared.clone(), Arc::clone(&slot)), runtime);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // It may be dropped within another runtime, where waiting for threads is not allowed.
            runtime.shutdown_background();
        }
    }
}
