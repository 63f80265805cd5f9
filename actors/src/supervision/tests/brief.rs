//! Actors that only run, beneath a parent that notes what it hears of them.

use std::convert::Infallible;

use ractor::ActorId;
use tokio::sync::oneshot;

use super::*;

struct Parent(Arc<Stage>);

impl Actor for Parent {
    type Message = Infallible;
    const KIND: &'static str = "parent";

    async fn handle(&mut self, message: Infallible, _: &Context) -> Result<(), Failure> {
        match message {}
    }

    async fn child_ended(&mut self, _: ActorId, ended: Ended, _: &Context) -> Result<(), Failure> {
        self.0.note(format!("{ended:?}"));
        Ok(())
    }
}

struct Brief {
    end: oneshot::Receiver<Order>,
    _present: Present,
}

impl Actor for Brief {
    type Message = Infallible;
    const KIND: &'static str = "brief";
    const GRACEFUL: bool = true;
    const ONLY_RUNS: bool = true;

    async fn run(&mut self, context: &Context) -> Result<(), Failure> {
        tokio::select! {
            order = &mut self.end => match order {
                Ok(Order::Panic) => panic!("a crash"),
                Ok(Order::Fail) => Err("a failure".into()),
                _ => Ok(()),
            },
            () = context.drained() => Ok(()),
        }
    }

    async fn handle(&mut self, message: Infallible, _: &Context) -> Result<(), Failure> {
        match message {}
    }
}

async fn parent(stage: &Arc<Stage>) -> Arc<Tree> {
    let tree = Tree::new("root", Parent::KIND, 7);
    spawn(tree.root().clone(), Parent(stage.clone()), None).await.unwrap();
    tree.root().reached(SeatState::Running).await;
    tree
}

async fn brief(tree: &Tree, stage: &Arc<Stage>) -> (Arc<Seat>, oneshot::Sender<Order>) {
    let (sender, end) = oneshot::channel();
    stage.alive.fetch_add(1, SeqCst);
    let seat = tree.root().child("a", Brief::KIND);
    let actor = Brief { end, _present: Present("a", stage.clone()) };
    spawn(seat.clone(), actor, tree.root().cell()).await.unwrap();
    seat.reached(SeatState::Running).await;
    settle().await;
    (seat, sender)
}

#[tokio::test(start_paused = true)]
async fn its_beginning_and_its_end_in_order_are_no_message_and_no_event() {
    let stage = Arc::new(Stage::default());
    let tree = parent(&stage).await;
    let before = tree.messages();
    for incarnation in 1..=3 {
        let (seat, end) = brief(&tree, &stage).await;
        end.send(Order::Stop).unwrap();
        seat.vacated().await;
        settle().await;
        assert_eq!((seat.epoch(), seat.state(), seat.last_cause()), (incarnation, SeatState::Stopped, None));
        assert_eq!(stage.take(), ["-a"]);
    }
    let (seat, _end) = brief(&tree, &stage).await;
    assert_eq!(tree.messages(), before);
    seat.request_stop();
    seat.vacated().await;
    settle().await;
    assert_eq!(stage.take(), ["-a"]);
}

#[tokio::test(start_paused = true)]
async fn its_parent_hears_of_a_failure_a_crash_and_a_kill() {
    let stage = Arc::new(Stage::default());
    let tree = parent(&stage).await;
    for (order, heard) in [
        (Some(Order::Fail), r#"Failed("a failure")"#),
        (Some(Order::Panic), r#"Failed("a crash")"#),
        (None, "Killed"),
    ] {
        let (seat, end) = brief(&tree, &stage).await;
        match order {
            Some(order) => end.send(order).unwrap(),
            None => seat.inject(Fault::Kill).unwrap(),
        }
        seat.vacated().await;
        settle().await;
        assert_eq!(stage.alive.load(SeqCst), 0);
        let mut log = stage.take();
        log.sort();
        assert_eq!(log, ["-a", heard]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_injected_panic_and_the_end_of_its_parent_end_it() {
    let stage = Arc::new(Stage::default());
    let tree = parent(&stage).await;
    let (seat, _end) = brief(&tree, &stage).await;
    seat.inject(Fault::Panic).unwrap();
    seat.vacated().await;
    let (seat, _end) = brief(&tree, &stage).await;
    tree.root().kill();
    seat.vacated().await;
    assert_eq!(stage.alive.load(SeqCst), 0);
}
