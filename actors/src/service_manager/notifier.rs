//! The actor that tells the service manager how the site is.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use playhouse_serve::sockets::Passable;
use tokio::time::Instant;

use super::ServiceManager;
use super::store::Listening;
use crate::supervision::{Actor, ChildSpec, Context, Failure, Seat, Tree};

/// What runs as a service: a site in one process, or its controller.
pub trait Serviced: Send + Sync + 'static {
    /// Its actors.
    fn tree(&self) -> &Arc<Tree>;

    /// Whether every part of it is up.
    fn is_ready(&self) -> bool;

    /// The actors without which it does not do its work, the root apart.
    fn essential(&self) -> Vec<Arc<Seat>> {
        Vec::new()
    }

    /// How it is, in a line for people.
    fn line(&self) -> String;

    /// Where it listens.
    fn listening(&self) -> Vec<Listening>;

    /// Duplicates of its listening sockets.
    ///
    /// # Errors
    /// Where the process has no descriptor left.
    fn descriptors(&self) -> io::Result<Vec<Passable>>;
}

/// Says `READY=1` when the site is, keeps the status line and the descriptor store in line with it, and answers for its
/// life: a root that stands still, and a runtime that does, end the service manager's patience.
pub struct Notifier {
    manager: Arc<ServiceManager>,
    over: Arc<dyn Serviced>,
}

impl Notifier {
    /// The child that goes first, and so ends last: a drain is to be answered for to its end.
    pub fn spec(manager: &Arc<ServiceManager>, over: Arc<dyn Serviced>) -> ChildSpec {
        let manager = manager.clone();
        ChildSpec::new("notify", move || Notifier { manager: manager.clone(), over: over.clone() })
            .stall_after(STALL)
    }

    fn tell(&self) -> io::Result<()> {
        if !self.manager.is_told_ready() && self.over.is_ready() {
            self.manager.ready()?;
        }
        self.manager.status(&self.over.line())?;
        if self.manager.is_told_ready() {
            self.manager.keep(&self.over.listening(), || self.over.descriptors())?;
        }
        Ok(())
    }

    fn lives(&self) -> bool {
        let root = self.over.tree().root().answers(STALL);
        root && self.over.essential().iter().all(|seat| seat.stalled().is_none())
    }
}

impl Actor for Notifier {
    type Message = std::convert::Infallible;

    const KIND: &'static str = "notify";

    async fn run(&mut self, context: &Context) -> Result<(), Failure> {
        let mut failed = false;
        let mut dead_since: Option<Instant> = None;
        loop {
            match self.tell() {
                Ok(()) => failed = false,
                // It is tried again; one line of the log is enough.
                Err(error) if !std::mem::replace(&mut failed, true) => {
                    tracing::warn!(%error, "the service manager is not told how the site is");
                }
                Err(_) => {}
            }
            if self.manager.watchdog().is_some() {
                match (self.lives(), dead_since) {
                    (true, _) => {
                        dead_since = None;
                        self.manager.alive();
                    }
                    (false, None) => {
                        dead_since = Some(Instant::now());
                        tracing::error!(
                            "the root stands still; the service manager's watchdog is left to run out"
                        );
                    }
                    (false, Some(_)) => {}
                }
            }
            context.progress();
            // Half of what it waits for at most, and an eye on what has changed.
            let every = if self.manager.is_told_ready() { CALM } else { EAGER };
            tokio::time::sleep(self.manager.watchdog().map_or(every, |watchdog| every.min(watchdog / 2)))
                .await;
        }
    }

    async fn handle(&mut self, message: Self::Message, _: &Context) -> Result<(), Failure> {
        match message {}
    }
}

/// Between two looks while the site starts.
const EAGER: Duration = Duration::from_millis(20);
/// The same once it is ready.
const CALM: Duration = Duration::from_millis(500);
const STALL: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::tests::{Heard, pair};
    use super::*;
    use crate::supervision::{self, Fault, Intensity, Strategy, Supervisor};

    struct Site {
        tree: Arc<Tree>,
        ready: AtomicBool,
    }

    impl Serviced for Site {
        fn tree(&self) -> &Arc<Tree> {
            &self.tree
        }

        fn is_ready(&self) -> bool {
            self.ready.load(Ordering::Relaxed)
        }

        fn line(&self) -> String {
            if self.is_ready() { "serving".into() } else { "starting".into() }
        }

        fn listening(&self) -> Vec<Listening> {
            Vec::new()
        }

        fn descriptors(&self) -> io::Result<Vec<Passable>> {
            Ok(Vec::new())
        }
    }

    async fn start(watchdog: Option<Duration>, ready: bool) -> (Arc<Site>, Heard, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let (manager, heard) = pair(dir.path(), watchdog);
        let tree = Tree::new("root", <Supervisor as Actor>::KIND, 1);
        let site = Arc::new(Site { tree: tree.clone(), ready: AtomicBool::new(ready) });
        let over = site.clone();
        let root = Supervisor::new(Strategy::OneForOne, Intensity::default(), move || {
            vec![Notifier::spec(&manager, over.clone())]
        });
        supervision::spawn(tree.root().clone(), root, None).await.unwrap();
        (site, heard, dir)
    }

    /// Messages until one is this; the paused clock goes on by itself while the test waits.
    async fn until(heard: &Heard, message: &str) -> Vec<String> {
        let mut before = Vec::new();
        for _ in 0..1000 {
            while let Some(next) = heard.try_next() {
                if next == message {
                    return before;
                }
                before.push(next);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no {message}, but {before:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn readiness_is_told_when_it_comes_and_not_before() {
        let (site, heard, _dir) = start(None, false).await;
        assert!(until(&heard, "STATUS=starting").await.is_empty());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(heard.nothing());
        site.ready.store(true, Ordering::Relaxed);
        assert!(until(&heard, "READY=1").await.is_empty());
        assert!(until(&heard, "STATUS=serving").await.is_empty());
        // Another incarnation has nothing new to say.
        site.tree.kill("root/notify", Fault::Kill).unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(heard.nothing());
    }

    #[tokio::test(start_paused = true)]
    async fn a_root_that_stands_still_is_not_answered_for() {
        let watchdog = Duration::from_secs(4);
        let (site, heard, _dir) = start(Some(watchdog), true).await;
        until(&heard, "WATCHDOG=1").await;
        let begun = Instant::now();
        until(&heard, "WATCHDOG=1").await;
        assert!(begun.elapsed() <= watchdog / 2);
        site.tree.kill("root", Fault::Stall(Duration::from_secs(60))).unwrap();
        tokio::time::sleep(STALL * 2).await;
        while heard.try_next().is_some() {}
        tokio::time::sleep(watchdog).await;
        assert!(heard.nothing());
        tokio::time::sleep(Duration::from_secs(60)).await;
        until(&heard, "WATCHDOG=1").await;
    }
}
