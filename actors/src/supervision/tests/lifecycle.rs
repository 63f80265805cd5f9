//! Starts, ends, and what stays true over them.

use tokio::time::Instant;

use super::*;

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

#[tokio::test(start_paused = true)]
async fn who_is_added_under_the_name_of_one_that_is_being_removed_has_its_seat_after_it() {
    let stage = Arc::new(Stage::default());
    let for_specs = stage.clone();
    let linger = Duration::from_secs(1);
    let tree =
        tree(Strategy::OneForOne, INTENSITY, move || vec![lingering("a", &for_specs, linger, false)]).await;
    stage.take();
    let root = tree.root();
    let second = Duration::from_secs(10);
    let remove = root.ask::<Supervisor, ()>(second, |done| Command::Remove("a".into(), done));
    let next = spec("a", &stage);
    let add = async {
        settle().await;
        root.ask::<Supervisor, ()>(second, |done| Command::Add(next.clone(), done)).await.unwrap();
    };
    let (removed, ()) = futures_util::future::join(remove, add).await;
    removed.unwrap();
    settle().await;
    assert_eq!(stage.take(), ["stopping a", "-a", "+a"]);
    let a = seat(&tree, "root/a");
    assert!(a.is_occupied() && a.restarts() == 0, "a seat of its own");

    let remove = || root.ask::<Supervisor, ()>(second, |done| Command::Remove("a".into(), done));
    let (first, again) = futures_util::future::join(remove(), remove()).await;
    assert!(first.is_ok() && again.is_ok());
    assert!(root.find_child("a").is_none());
}
