//! The rules of supervision, on paused time and without sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use super::*;
use parking_lot::Mutex;

mod brief;
mod faults;
mod lifecycle;
mod strategies;

/// What the children of a test do and have done.
#[derive(Default)]
struct Stage {
    log: Mutex<Vec<String>>,
    alive: AtomicUsize,
    /// Fails its next so many starts.
    failing_starts: AtomicUsize,
}

impl Stage {
    fn note(&self, what: String) {
        self.log.lock().push(what);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock())
    }
}

struct Child {
    name: &'static str,
    stage: Arc<Stage>,
    present: Option<Present>,
    linger: Duration,
    crash_in_stop: bool,
}

/// Two incarnations of one child never hold this at the same time.
struct Present(&'static str, Arc<Stage>);

impl Drop for Present {
    fn drop(&mut self) {
        self.1.alive.fetch_sub(1, SeqCst);
        self.1.note(format!("-{}", self.0));
    }
}

#[derive(Debug)]
enum Order {
    Panic,
    Fail,
    Stop,
    Work(Duration),
    Echo(u32, tokio::sync::oneshot::Sender<u32>),
}

impl Actor for Child {
    type Message = Order;
    const KIND: &'static str = "child";

    async fn run(&mut self, _: &Context) -> Result<(), Failure> {
        let failing = self.stage.failing_starts.load(SeqCst);
        if failing > 0 {
            self.stage.failing_starts.store(failing - 1, SeqCst);
            return Err("cannot start".into());
        }
        self.stage.alive.fetch_add(1, SeqCst);
        self.stage.note(format!("+{}", self.name));
        self.present = Some(Present(self.name, self.stage.clone()));
        Ok(())
    }

    async fn handle(&mut self, order: Order, context: &Context) -> Result<(), Failure> {
        match order {
            Order::Panic => panic!("a crash"),
            Order::Fail => return Err("a failure".into()),
            Order::Stop => context.stop(),
            Order::Work(time) => tokio::time::sleep(time).await,
            Order::Echo(value, answer) => {
                let _ = answer.send(value);
            }
        }
        Ok(())
    }

    async fn stopping(&mut self, _: &Context) -> Result<bool, Failure> {
        self.stage.note(format!("stopping {}", self.name));
        tokio::time::sleep(self.linger).await;
        assert!(!self.crash_in_stop, "a crash during shutdown");
        Ok(true)
    }
}

fn spec(name: &'static str, stage: &Arc<Stage>) -> ChildSpec {
    lingering(name, stage, Duration::ZERO, false)
}

fn lingering(name: &'static str, stage: &Arc<Stage>, linger: Duration, crash_in_stop: bool) -> ChildSpec {
    let stage = stage.clone();
    ChildSpec::new(name, move || Child { name, stage: stage.clone(), present: None, linger, crash_in_stop })
}

const INTENSITY: Intensity = Intensity {
    restarts: 3,
    period: Duration::from_secs(5),
    backoff: Backoff { min: Duration::from_millis(100), max: Duration::from_secs(1) },
};

/// A running tree: `root` supervises `specs`.
async fn tree(
    strategy: Strategy,
    intensity: Intensity,
    specs: impl Fn() -> Vec<ChildSpec> + Send + Sync + 'static,
) -> Arc<Tree> {
    let tree = Tree::new("root", Supervisor::KIND, 7);
    spawn(tree.root().clone(), Supervisor::new(strategy, intensity, specs), None).await.unwrap();
    tree.root().reached(SeatState::Running).await;
    settle().await;
    tree
}

/// Lets everything that is ready run, without advancing time.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

fn seat(tree: &Tree, path: &str) -> Arc<Seat> {
    tree.find(path).unwrap()
}

async fn order(tree: &Tree, path: &str, order: Order) {
    let seat = seat(tree, path);
    seat.send::<Child>(order).unwrap();
    settle().await;
}

fn three(stage: &Arc<Stage>) -> impl Fn() -> Vec<ChildSpec> + Send + Sync + 'static {
    let stage = stage.clone();
    move || vec![spec("a", &stage), spec("b", &stage), spec("c", &stage)]
}
