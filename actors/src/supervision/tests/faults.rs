//! Kills by operators, stalls, storms, blocked threads.

use tokio::time::Instant;

use super::*;

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
    assert!((2000..=3001).contains(&before.elapsed().as_millis()), "{:?}", before.elapsed());
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
