//! The rules of supervision, on paused time and without sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::*;

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

#[tokio::test(start_paused = true)]
async fn one_for_one_restarts_the_failed_child_alone_and_at_once() {
    let stage = Arc::new(Stage::default());
    let tree = tree(Strategy::OneForOne, INTENSITY, three(&stage)).await;
    assert_eq!(stage.take(), ["+a", "+b", "+c"]);
    let before = Instant::now();
    order(&tree, "root/b", Order::Panic).await;
    assert_eq!(stage.take(), ["-b", "+b"]);
    assert_eq!(before.elapsed(), Duration::ZERO, "a first crash restarts at once");
    let b = seat(&tree, "root/b");
    assert_eq!((b.restarts(), b.state()), (1, SeatState::Running));
    assert!(b.last_cause().unwrap().contains("a crash"), "{:?}", b.last_cause());
}

#[tokio::test(start_paused = true)]
async fn one_for_all_ends_the_siblings_in_reverse_and_starts_all_in_order() {
    let stage = Arc::new(Stage::default());
    let tree = tree(Strategy::OneForAll, INTENSITY, three(&stage)).await;
    stage.take();
    order(&tree, "root/b", Order::Fail).await;
    seat(&tree, "root/c").until(|c| c.epoch() == 2 && c.state() == SeatState::Running).await;
    settle().await;
    assert_eq!(stage.take(), ["-b", "stopping c", "-c", "stopping a", "-a", "+a", "+b", "+c"]);
}

#[tokio::test(start_paused = true)]
async fn rest_for_one_leaves_the_earlier_children_alone() {
    let stage = Arc::new(Stage::default());
    let tree = tree(Strategy::RestForOne, INTENSITY, three(&stage)).await;
    stage.take();
    order(&tree, "root/b", Order::Fail).await;
    seat(&tree, "root/c").until(|c| c.epoch() == 2).await;
    settle().await;
    assert_eq!(stage.take(), ["-b", "stopping c", "-c", "+b", "+c"]);
    assert_eq!(seat(&tree, "root/a").restarts(), 0);
}

#[tokio::test(start_paused = true)]
async fn child_kinds_decide_who_comes_back() {
    let stage = Arc::new(Stage::default());
    let for_specs = stage.clone();
    let tree = tree(Strategy::OneForOne, INTENSITY, move || {
        vec![
            spec("permanent", &for_specs),
            spec("transient", &for_specs).restart(Restart::Transient),
            spec("temporary", &for_specs).restart(Restart::Temporary),
        ]
    })
    .await;
    order(&tree, "root/permanent", Order::Stop).await;
    order(&tree, "root/transient", Order::Stop).await;
    assert_eq!(seat(&tree, "root/permanent").restarts(), 1);
    assert!(!seat(&tree, "root/transient").is_occupied());
    order(&tree, "root/temporary", Order::Panic).await;
    assert!(tree.find("root/temporary").is_none(), "its seat goes with it");
}

#[tokio::test(start_paused = true)]
async fn a_transient_child_that_fails_is_restarted() {
    let stage = Arc::new(Stage::default());
    let for_specs = stage.clone();
    let specs = move || vec![spec("t", &for_specs).restart(Restart::Transient)];
    let tree = tree(Strategy::OneForOne, INTENSITY, specs).await;
    order(&tree, "root/t", Order::Fail).await;
    assert_eq!(seat(&tree, "root/t").restarts(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_second_crash_in_a_row_waits_and_a_stable_time_resets_the_backoff() {
    let stage = Arc::new(Stage::default());
    let tree = tree(Strategy::OneForOne, INTENSITY, three(&stage)).await;
    let b = seat(&tree, "root/b");
    order(&tree, "root/b", Order::Panic).await;
    assert_eq!(b.epoch(), 2);
    let before = Instant::now();
    order(&tree, "root/b", Order::Panic).await;
    assert_eq!(b.state(), SeatState::Restarting);
    b.until(|b| b.epoch() == 3).await;
    let waited = before.elapsed().as_millis();
    assert!((75..=101).contains(&waited), "waited {waited} ms");

    tokio::time::sleep(Duration::from_secs(6)).await;
    let before = Instant::now();
    order(&tree, "root/b", Order::Panic).await;
    b.until(|b| b.epoch() == 4).await;
    assert_eq!(before.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn beyond_the_intensity_the_failure_climbs_one_supervisor() {
    let stage = Arc::new(Stage::default());
    let for_specs = stage.clone();
    let tree = tree(Strategy::OneForOne, INTENSITY, move || {
        let stage = for_specs.clone();
        vec![
            ChildSpec::new("inner", move || Supervisor::new(Strategy::OneForOne, INTENSITY, three(&stage))),
            spec("beside", &for_specs),
        ]
    })
    .await;
    let (inner, b) = (seat(&tree, "root/inner"), seat(&tree, "root/inner/b"));
    for epoch in 1..=4 {
        b.until(|b| b.epoch() == epoch && b.state() == SeatState::Running).await;
        settle().await;
        order(&tree, "root/inner/b", Order::Panic).await;
    }
    inner.until(|inner| inner.epoch() == 2 && inner.state() == SeatState::Running).await;
    assert!(inner.last_cause().unwrap().contains("more than 3 failures"), "{:?}", inner.last_cause());
    b.until(|b| b.epoch() == 5).await;
    assert_eq!(seat(&tree, "root/beside").restarts(), 0);
    assert_eq!(tree.root().restarts(), 0);
}

#[tokio::test(start_paused = true)]
async fn at_the_top_the_failure_ends_the_root() {
    let stage = Arc::new(Stage::default());
    let tree = tree(Strategy::OneForOne, Intensity { restarts: 0, ..INTENSITY }, three(&stage)).await;
    order(&tree, "root/b", Order::Panic).await;
    tree.root().vacated().await;
    assert_eq!(stage.alive.load(SeqCst), 0);
    assert_eq!(stage.take()[3..], ["-b", "stopping c", "-c", "stopping a", "-a"]);
}

#[tokio::test(start_paused = true)]
async fn a_crash_during_start_is_retried_with_backoff() {
    let stage = Arc::new(Stage::default());
    stage.failing_starts.store(2, SeqCst);
    let for_specs = stage.clone();
    let tree = tree(Strategy::OneForOne, INTENSITY, move || vec![spec("a", &for_specs)]).await;
    let a = seat(&tree, "root/a");
    a.until(|a| a.epoch() == 3 && a.state() == SeatState::Running).await;
    settle().await;
    assert_eq!(stage.take(), ["+a"]);
    assert!(a.last_cause().unwrap().contains("cannot start"));
}

#[tokio::test(start_paused = true)]
async fn a_crash_during_shutdown_does_not_hold_up_the_rest() {
    let stage = Arc::new(Stage::default());
    let for_specs = stage.clone();
    let tree = tree(Strategy::OneForOne, INTENSITY, move || {
        vec![spec("a", &for_specs), lingering("b", &for_specs, Duration::ZERO, true), spec("c", &for_specs)]
    })
    .await;
    stage.take();
    tree.root().request_stop();
    tree.root().vacated().await;
    assert_eq!(stage.take(), ["stopping c", "-c", "stopping b", "-b", "stopping a", "-a"]);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_is_ordered_and_a_child_over_its_deadline_is_killed() {
    let stage = Arc::new(Stage::default());
    let for_specs = stage.clone();
    let tree = tree(Strategy::OneForOne, INTENSITY, move || {
        vec![
            lingering("quick", &for_specs, Duration::from_secs(1), false),
            lingering("slow", &for_specs, Duration::from_secs(60), false)
                .shutdown(Shutdown::After(Duration::from_secs(2))),
            spec("brutal", &for_specs).shutdown(Shutdown::Brutal),
        ]
    })
    .await;
    stage.take();
    let before = Instant::now();
    tree.root().request_stop();
    tree.root().vacated().await;
    assert_eq!(stage.take(), ["-brutal", "stopping slow", "-slow", "stopping quick", "-quick"]);
    assert_eq!(before.elapsed(), Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_supervisor_stays_at_its_mailbox_while_a_child_is_ended() {
    let stage = Arc::new(Stage::default());
    let for_specs = stage.clone();
    let tree = tree(Strategy::OneForOne, INTENSITY, move || {
        vec![
            lingering("slow", &for_specs, Duration::from_secs(60), false).shutdown(Shutdown::Infinity),
            spec("a", &for_specs),
        ]
    })
    .await;
    let root = tree.root().clone();
    let removing = tokio::spawn({
        let root = root.clone();
        async move {
            root.ask::<Supervisor, ()>(Duration::from_secs(90), |done| Command::Remove("slow".into(), done))
                .await
        }
    });
    settle().await;
    let before = Instant::now();
    order(&tree, "root/a", Order::Panic).await;
    assert_eq!(seat(&tree, "root/a").epoch(), 2, "restarted in the meantime");
    assert_eq!(before.elapsed(), Duration::ZERO);
    removing.await.unwrap().unwrap();
    assert!(tree.find("root/slow").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_killed_supervisor_never_lets_two_incarnations_of_a_child_live() {
    let stage = Arc::new(Stage::default());
    let for_specs = stage.clone();
    let tree = tree(Strategy::OneForOne, INTENSITY, move || {
        let stage = for_specs.clone();
        vec![ChildSpec::new("inner", move || {
            let stage = stage.clone();
            Supervisor::new(Strategy::OneForOne, INTENSITY, move || {
                vec![lingering("drainer", &stage, Duration::from_secs(30), false), spec("b", &stage)]
            })
        })]
    })
    .await;
    for round in 1..=20 {
        // The child is in the middle of its drain when its supervisor is cut off.
        seat(&tree, "root/inner/drainer").request_stop();
        settle().await;
        tree.kill("root/inner", Fault::Kill).unwrap();
        let drainer = seat(&tree, "root/inner/drainer");
        drainer.until(|drainer| drainer.epoch() == round + 1 && drainer.state() == SeatState::Running).await;
        settle().await;
        assert_eq!(stage.alive.load(SeqCst), 2, "round {round}");
    }
    let mut present = std::collections::HashMap::new();
    for entry in stage.take() {
        let (what, name) = entry.split_at(1);
        let count = present.entry(name.to_owned()).or_insert(0);
        match what {
            "+" => *count += 1,
            "-" => *count -= 1,
            _ => continue,
        }
        assert!((0..=1).contains(count), "{name} lived twice");
    }
}

#[tokio::test(start_paused = true)]
async fn operators_kills_use_up_neither_intensity_nor_backoff() {
    let stage = Arc::new(Stage::default());
    let tree = tree(Strategy::OneForOne, INTENSITY, three(&stage)).await;
    let b = seat(&tree, "root/b");
    let before = Instant::now();
    let faults = [Fault::Kill, Fault::Stop, Fault::Panic];
    for (round, fault) in faults.iter().cycle().take(60).enumerate() {
        tree.kill("root/b", *fault).unwrap();
        b.until(|b| b.epoch() == round as u64 + 2 && b.state() == SeatState::Running).await;
        settle().await;
        assert!(b.last_cause().unwrap().contains("by an operator"), "{:?}", b.last_cause());
    }
    assert_eq!(before.elapsed(), Duration::ZERO);
    assert_eq!((b.restarts(), tree.root().restarts()), (60, 0));
}

#[tokio::test(start_paused = true)]
async fn an_injected_panic_reaches_an_actor_in_the_middle_of_its_work() {
    let stage = Arc::new(Stage::default());
    let tree = tree(Strategy::OneForOne, INTENSITY, three(&stage)).await;
    order(&tree, "root/a", Order::Work(Duration::from_secs(3600))).await;
    tree.kill("root/a", Fault::Panic).unwrap();
    let a = seat(&tree, "root/a");
    a.until(|a| a.epoch() == 2).await;
    assert!(a.last_cause().unwrap().contains("panic asked for by an operator"));
}

#[tokio::test(start_paused = true)]
async fn a_stalled_child_is_replaced_at_its_deadline_and_a_busy_one_is_not() {
    let stage = Arc::new(Stage::default());
    let for_specs = stage.clone();
    let tree = tree(Strategy::OneForOne, INTENSITY, move || {
        vec![
            spec("watched", &for_specs).stall_after(Duration::from_secs(2)),
            spec("idle", &for_specs).stall_after(Duration::from_secs(2)),
            spec("unwatched", &for_specs),
        ]
    })
    .await;
    let before = Instant::now();
    tree.kill("root/watched", Fault::Stall(Duration::from_secs(3600))).unwrap();
    tree.kill("root/unwatched", Fault::Stall(Duration::from_secs(10))).unwrap();
    let watched = seat(&tree, "root/watched");
    watched.until(|watched| watched.epoch() == 2).await;
    assert!((2000..3000).contains(&before.elapsed().as_millis()), "{:?}", before.elapsed());
    assert!(watched.last_cause().unwrap().contains("no progress"), "{:?}", watched.last_cause());
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(seat(&tree, "root/idle").epoch(), 1, "idle is not stalled");
    let unwatched = seat(&tree, "root/unwatched");
    assert_eq!(unwatched.epoch(), 1);
    let echo = unwatched.ask::<Child, u32>(Duration::from_secs(1), |answer| Order::Echo(4, answer)).await;
    assert_eq!(echo, Ok(4), "the stall has passed");
}

#[tokio::test(start_paused = true)]
async fn a_real_stall_counts_as_a_failure() {
    let stage = Arc::new(Stage::default());
    let for_specs = stage.clone();
    let specs = move || vec![spec("a", &for_specs).stall_after(Duration::from_secs(1))];
    let tree = tree(Strategy::OneForOne, Intensity { restarts: 0, ..INTENSITY }, specs).await;
    order(&tree, "root/a", Order::Work(Duration::from_secs(3600))).await;
    tree.root().vacated().await;
    assert!(tree.events().recent(100).iter().any(|event| event.kind == EventKind::Escalated));
}

#[tokio::test(start_paused = true)]
async fn a_question_is_asked_again_when_the_incarnation_dies_over_it() {
    let stage = Arc::new(Stage::default());
    let tree = tree(Strategy::OneForOne, INTENSITY, three(&stage)).await;
    let a = seat(&tree, "root/a");
    a.send::<Child>(Order::Work(Duration::from_secs(60))).unwrap();
    a.send::<Child>(Order::Panic).unwrap();
    let echo = a.ask::<Child, u32>(Duration::from_secs(120), |answer| Order::Echo(5, answer)).await;
    assert_eq!(echo, Ok(5));
    assert_eq!(a.epoch(), 2);
    let nobody = tree.root().child("nobody", Child::KIND);
    let echo = nobody.ask::<Child, u32>(Duration::from_secs(1), |answer| Order::Echo(5, answer)).await;
    assert_eq!(echo, Err(AskError));
}

#[tokio::test(start_paused = true)]
async fn a_second_incarnation_is_refused_while_the_first_lives() {
    let stage = Arc::new(Stage::default());
    let tree = tree(Strategy::OneForOne, INTENSITY, three(&stage)).await;
    let a = seat(&tree, "root/a");
    let intruder = Child {
        name: "a",
        stage: stage.clone(),
        present: None,
        linger: Duration::ZERO,
        crash_in_stop: false,
    };
    assert!(spawn(a.clone(), intruder, None).await.is_err());
    settle().await;
    assert_eq!((a.epoch(), a.is_occupied(), a.state()), (1, true, SeatState::Running));
}

#[tokio::test(start_paused = true)]
async fn a_decision_of_an_older_incarnation_is_refused() {
    let table = playhouse_serve::epoch::Owner::default();
    let older = table.claim();
    let newer = table.claim();
    assert!(table.check(older).is_err());
    assert!(table.check(newer).is_ok());
}

#[tokio::test(start_paused = true)]
async fn children_are_added_and_removed_idempotently() {
    let stage = Arc::new(Stage::default());
    let tree = tree(Strategy::OneForOne, INTENSITY, three(&stage)).await;
    stage.take();
    let second = Duration::from_secs(1);
    for _ in 0..2 {
        let add = |done| Command::Add(spec("d", &stage), done);
        tree.root().ask::<Supervisor, ()>(second, add).await.unwrap();
    }
    settle().await;
    assert_eq!(stage.take(), ["+d"]);
    for _ in 0..2 {
        tree.root().ask::<Supervisor, ()>(second, |done| Command::Remove("d".into(), done)).await.unwrap();
    }
    assert_eq!(stage.take(), ["stopping d", "-d"]);
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_ten_thousand_crashes_is_paced_by_the_backoff() {
    let stage = Arc::new(Stage::default());
    stage.failing_starts.store(10_000, SeqCst);
    let intensity = Intensity { restarts: usize::MAX, ..INTENSITY };
    let for_specs = stage.clone();
    let tree = tree(Strategy::OneForOne, intensity, move || vec![spec("a", &for_specs)]).await;
    let before = (Instant::now(), tree.messages());
    let a = seat(&tree, "root/a");
    a.until(|a| a.epoch() == 10_001 && a.state() == SeatState::Running).await;
    let (elapsed, messages) = (before.0.elapsed(), tree.messages() - before.1);
    assert!(elapsed > Duration::from_millis(9_990 * 750), "10,000 crashes in {elapsed:?}");
    assert!(messages < 3 * 10_001, "{messages} messages");
    assert_eq!(stage.alive.load(SeqCst), 1);
}

#[test]
fn a_blocked_thread_is_seen_by_the_watchdog() {
    struct Blocker;
    impl Actor for Blocker {
        type Message = std::sync::mpsc::Receiver<()>;
        const KIND: &'static str = "blocker";
        async fn handle(&mut self, release: Self::Message, _: &Context) -> Result<(), Failure> {
            let _ = release.recv();
            Ok(())
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let tree = Tree::new("root", Blocker::KIND, 7);
    let _watchdog = watchdog::Watchdog::start(&tree, Duration::from_millis(150)).unwrap();
    runtime.block_on(async {
        spawn(tree.root().clone(), Blocker, None).await.unwrap();
        let (release, blocked) = std::sync::mpsc::channel();
        let (_, mut events) = tree.events().follow();
        tree.root().send::<Blocker>(blocked).unwrap();
        loop {
            let event = events.recv().await.unwrap();
            if event.kind == EventKind::Blocked {
                assert_eq!(event.path, "root");
                break;
            }
        }
        release.send(()).unwrap();
        tree.root().until(|root| root.mailbox() == 0).await;
    });
}

#[tokio::test(start_paused = true)]
async fn the_view_names_every_actor_and_a_wrong_path_gets_the_nearest() {
    let stage = Arc::new(Stage::default());
    let tree = tree(Strategy::OneForOne, INTENSITY, three(&stage)).await;
    let view = serde_json::to_value(tree.view(false)).unwrap();
    assert_eq!(view["path"], "root");
    assert_eq!(view["kind"], "supervisor");
    assert_eq!(view["state"], "running");
    assert_eq!(view["children"][1]["path"], "root/b");
    let error = tree.kill("root/bb", Fault::Kill).unwrap_err();
    assert_eq!(error.to_string(), r#"no actor "root/bb"; did you mean "root/b"?"#);
}
