//! The scaler: decides again and again how many instances there should be.
//!
//! What it goes by and what it has decided are in the [`ScalerTable`]: a scaler that dies forgets nothing.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use playhouse_serve::epoch::{Epoch, Owner, Stale};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::scaling::{Autoscaler, Decision, Facts, Host};
use crate::supervision::{Actor, Context, EventKind, Failure};

/// Whose number is decided: it tells how it is, and makes what was decided come true.
pub trait Scaled: Send + Sync + 'static {
    /// How it is. Called twice a second; never waits.
    fn facts(&self) -> Facts;

    /// There are to be so many. Called after every decision, also where nothing has changed; never waits.
    fn want(&self, decision: &Arc<Decision>);
}

/// What outlives a scaler.
pub struct ScalerTable {
    owner: Owner,
    autoscaler: Mutex<Autoscaler>,
    decision: ArcSwap<Decision>,
    woken: Notify,
    host: Box<dyn Fn() -> Host + Send + Sync>,
}

impl Default for ScalerTable {
    fn default() -> Self {
        ScalerTable::with_host(|| Host::read(Path::new("/")))
    }
}

impl ScalerTable {
    /// A table for a host that is looked at by this function.
    pub fn with_host(host: impl Fn() -> Host + Send + Sync + 'static) -> Self {
        ScalerTable {
            owner: Owner::default(),
            autoscaler: Mutex::default(),
            decision: ArcSwap::default(),
            woken: Notify::new(),
            host: Box::new(host),
        }
    }

    /// The last decision.
    pub fn decision(&self) -> Arc<Decision> {
        self.decision.load_full()
    }

    /// Lets the scaler decide at once: an operator has asked for a number, an instance has gone, the configuration is
    /// another.
    pub fn wake(&self) {
        self.woken.notify_one();
    }

    /// Takes over; every earlier epoch is refused from here on.
    fn claim(&self) -> Epoch {
        self.owner.claim()
    }

    /// Decides, publishes, and hands on. The decision before comes back with the new one.
    fn decide(&self, epoch: Epoch, fleet: &impl Scaled) -> Result<(Arc<Decision>, Arc<Decision>), Stale> {
        let mut autoscaler = self.autoscaler.lock();
        self.owner.check(epoch)?;
        let decision = Arc::new(autoscaler.decide(Instant::now(), &fleet.facts(), &(self.host)()));
        let before = self.decision.swap(decision.clone());
        fleet.want(&decision);
        Ok((before, decision))
    }
}

impl std::fmt::Debug for ScalerTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScalerTable").field("decision", &self.decision).finish_non_exhaustive()
    }
}

/// The actor.
pub struct Scaler<F> {
    fleet: Arc<F>,
    table: Arc<ScalerTable>,
}

impl<F: Scaled> Scaler<F> {
    /// The scaler of this fleet.
    pub fn new(fleet: Arc<F>, table: Arc<ScalerTable>) -> Self {
        Scaler { fleet, table }
    }
}

impl<F: Scaled> Actor for Scaler<F> {
    type Message = std::convert::Infallible;

    const KIND: &'static str = "scaler";

    async fn run(&mut self, context: &Context) -> Result<(), Failure> {
        let epoch = self.table.claim();
        loop {
            let (before, decision) = self.table.decide(epoch, &*self.fleet)?;
            for message in news(&before, &decision) {
                context.emit(EventKind::Scaling, context.seat().path(), message);
            }
            context.progress();
            tokio::select! {
                () = self.table.woken.notified() => {}
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
    }

    async fn handle(&mut self, message: Self::Message, _: &Context) -> Result<(), Failure> {
        match message {}
    }
}

/// What has changed from one decision to the next, for people.
fn news(before: &Decision, decision: &Decision) -> Vec<String> {
    let mut news = Vec::new();
    if before.wanted != decision.wanted
        && let Some(change) = &decision.last_change
    {
        news.push(format!("{} instead of {} instances: {}", change.to, change.from, change.reason));
    }
    match (before.memory_pressure, decision.memory_pressure) {
        (false, true) => {
            let why = decision.refused.as_deref().unwrap_or("less than min_free_memory is free");
            news.push(format!("memory pressure keeps the number of instances down: {why}"));
        }
        (true, false) => news.push("memory pressure is over".to_owned()),
        _ => {}
    }
    news
}

/// As often as instances say how they are.
const INTERVAL: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::super::simulation::{SIZE, Simulation, TICK};
    use super::*;
    use crate::supervision::{ChildSpec, Fault, Intensity, SeatState, Strategy, Supervisor, Tree, spawn};

    struct Fleet(Mutex<Simulation>);

    impl Scaled for Fleet {
        fn facts(&self) -> Facts {
            self.0.lock().facts()
        }

        fn want(&self, decision: &Arc<Decision>) {
            self.0.lock().want(decision.wanted, decision.refused.is_some(), Instant::now());
        }
    }

    struct Stage {
        fleet: Arc<Fleet>,
        table: Arc<ScalerTable>,
        tree: Arc<Tree>,
    }

    async fn stage(min: u32, max: u32, load: f64) -> Stage {
        let fleet = Arc::new(Fleet(Mutex::new(Simulation::new(min, max, load))));
        let table = Arc::new(ScalerTable::with_host({
            let fleet = fleet.clone();
            move || fleet.0.lock().host()
        }));
        let tree = Tree::new("controller", "controller", 1);
        let root = Supervisor::new(Strategy::OneForOne, Intensity::default(), {
            let (fleet, table) = (fleet.clone(), table.clone());
            move || {
                let (fleet, table) = (fleet.clone(), table.clone());
                vec![ChildSpec::new("scaler", move || Scaler::new(fleet.clone(), table.clone()))]
            }
        });
        spawn(tree.root().clone(), root, None).await.unwrap();
        Stage { fleet, table, tree }
    }

    impl Stage {
        async fn pass(&self, seconds: u64) {
            for _ in 0..seconds * 2 {
                tokio::time::sleep(TICK).await;
                self.fleet.0.lock().tick(Instant::now());
            }
        }

        fn serving(&self) -> u32 {
            self.fleet.0.lock().serving()
        }

        fn events(&self) -> Vec<String> {
            let events = self.tree.events().recent(100).into_iter();
            events.filter(|event| event.kind == EventKind::Scaling).map(|event| event.message).collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_brings_instances_and_its_end_takes_them_away() {
        let stage = stage(1, 3, 0.1).await;
        stage.pass(30).await;
        assert_eq!(stage.serving(), 1);
        stage.fleet.0.lock().load = 2.9;
        stage.pass(60).await;
        assert_eq!(stage.serving(), 3);
        stage.fleet.0.lock().load = 0.1;
        stage.pass(200).await;
        assert_eq!(stage.serving(), 1);
        let events = stage.events();
        assert_eq!(events.len(), 5, "{events:?}");
        assert_eq!(events[0], "1 instead of 0 instances: the site starts");
        assert!(events[1].starts_with("2 instead of 1 instances: too much for 3s: CPU 100%"), "{events:?}");
        assert!(events[4].starts_with("1 instead of 2 instances: too little for 60s: "), "{events:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_killed_scaler_loses_nothing_of_what_it_knew() {
        let stage = stage(1, 4, 0.9).await;
        // Killed every second, it still sees that it has been too much for three.
        for _ in 0..14 {
            stage.pass(1).await;
            stage.tree.kill("controller/scaler", Fault::Kill).unwrap();
        }
        stage.pass(2).await;
        assert_eq!(stage.serving(), 2);
        assert!(stage.tree.find("controller/scaler").unwrap().restarts() >= 14);
        stage.pass(300).await;
        assert_eq!(stage.serving(), 2);
        assert_eq!(stage.tree.find("controller/scaler").unwrap().state(), SeatState::Running);
    }

    #[tokio::test(start_paused = true)]
    async fn an_operator_does_not_wait_for_the_next_look() {
        let stage = stage(1, 4, 0.0).await;
        stage.pass(5).await;
        tokio::time::sleep(TICK / 4).await;
        stage.fleet.0.lock().asked = Some(3);
        stage.table.wake();
        tokio::time::sleep(Duration::from_millis(1)).await;
        let decision = stage.table.decision();
        assert_eq!((decision.wanted, decision.asked), (3, true));
        stage.pass(3).await;
        assert_eq!(stage.serving(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn memory_pressure_is_an_event_and_so_is_its_end() {
        let stage = stage(1, 2, 1.9).await;
        stage.fleet.0.lock().memory = Some((64 << 20) + SIZE + 1);
        stage.pass(60).await;
        assert_eq!(stage.serving(), 1);
        assert!(stage.table.decision().memory_pressure);
        stage.fleet.0.lock().memory = None;
        stage.pass(30).await;
        assert_eq!(stage.serving(), 2);
        let events = stage.events();
        let memory: Vec<_> = events.iter().filter(|message| message.starts_with("memory")).collect();
        assert_eq!(
            memory,
            [
                "memory pressure keeps the number of instances down: memory is short: with another instance less than 64MiB would stay free",
                "memory pressure is over"
            ]
        );
    }

    #[test]
    fn a_scaler_of_before_decides_nothing() {
        let fleet = Fleet(Mutex::new(Simulation::new(1, 2, 0.0)));
        let table = ScalerTable::with_host(|| Simulation::new(1, 2, 0.0).host());
        let (old, new) = (table.claim(), table.claim());
        assert!(table.decide(old, &fleet).is_err());
        assert!(table.decide(new, &fleet).is_ok());
    }
}
