//! Who is restarted when, and when a supervisor gives up.

use tokio::time::Instant;

use super::*;

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
