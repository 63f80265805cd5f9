//! The manager of an app: decides how many processes there are, and which.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::managed::Managed;
use super::place::{Phase, Place};
use super::table::Table;
use super::{HEALTH, group, health_spec, place_name, place_spec};
use crate::supervision::{Actor, AskError, Command, Context, EventKind, Failure, Seat, Supervisor};

/// Decides for one app. It holds nothing: what there is, is in the table.
pub struct Manager {
    managed: Arc<Managed>,
    table: Arc<Table>,
    /// The app's supervisor.
    supervisor: Arc<Seat>,
    /// The supervisor of all apps.
    above: Arc<Seat>,
    measured: Option<Instant>,
}

impl Manager {
    /// The manager of this app.
    pub fn new(managed: Arc<Managed>, table: Arc<Table>, supervisor: Arc<Seat>, above: Arc<Seat>) -> Self {
        Manager { managed, table, supervisor, above, measured: None }
    }

    async fn step(&mut self, context: &Context, jitter: f64) -> Result<(), AskError> {
        let stepped = self.managed.step(&self.table.surroundings(), jitter);
        for told in stepped.told {
            context.emit(EventKind::App, self.supervisor.path(), told);
        }
        for number in stepped.gone {
            self.remove(place_name(number)).await?;
        }
        for place in self.managed.places() {
            if place.has_actor.load(Ordering::Acquire) {
                continue;
            }
            // One that was in this place before may not have been taken away.
            self.remove(place_name(place.number)).await?;
            let spec = place_spec(&place, &self.managed, &self.table);
            let add = |done| Command::Add(spec.clone(), done);
            self.supervisor.ask::<Supervisor, ()>(DEADLINE, add).await?;
            place.has_actor.store(true, Ordering::Release);
        }
        let is_checked = self.supervisor.find_child(HEALTH).is_some();
        match self.managed.app.settings().health {
            Some(_) if !is_checked => {
                let add = |done| Command::Add(health_spec(&self.managed), done);
                self.supervisor.ask::<Supervisor, ()>(DEADLINE, add).await?;
            }
            None if is_checked => self.remove(HEALTH.to_owned()).await?,
            _ => {}
        }
        if stepped.over {
            self.table.forget(&self.managed, || {
                // This ends the manager too, so that nobody waits for an answer.
                let name = self.managed.app.name().to_string();
                let _ = self.above.send::<Supervisor>(Command::Remove(name, oneshot::channel().0));
            });
        }
        Ok(())
    }

    async fn remove(&self, name: String) -> Result<(), AskError> {
        self.supervisor.ask::<Supervisor, ()>(DEADLINE, |done| Command::Remove(name.clone(), done)).await
    }

    /// Looks at the memory of all processes, if it is time.
    async fn measure(&mut self) {
        let every = if self.managed.app.settings().max_memory.is_some() { OFTEN } else { SELDOM };
        if self.measured.is_some_and(|at| at.elapsed() < every) {
            return;
        }
        self.measured = Some(Instant::now());
        let places = self.managed.places();
        let is_alive = |place: &&Arc<Place>| matches!(place.phase(), Phase::Starting | Phase::Serving);
        let leaders: Vec<u32> = places.iter().filter(is_alive).filter_map(|place| place.pid()).collect();
        if leaders.is_empty() {
            return;
        }
        let usage = tokio::task::spawn_blocking(move || group::usage(&leaders)).await.unwrap_or_default();
        for place in places {
            if let Some(group) = place.pid().and_then(|pid| usage.get(&pid)) {
                place.rss_bytes.store(group.rss_bytes, Ordering::Relaxed);
            }
        }
    }
}

impl Actor for Manager {
    type Message = std::convert::Infallible;

    const KIND: &'static str = "app manager";

    async fn run(&mut self, context: &Context) -> Result<(), Failure> {
        loop {
            self.measure().await;
            let jitter = context.jitter();
            self.step(context, jitter).await?;
            context.progress();
            let next = Instant::now() + TICK;
            let next = self.managed.due().map_or(next, |due| due.min(next));
            tokio::select! {
                () = self.managed.changed.notified() => {}
                () = self.managed.app.wanted() => self.managed.note_demand(),
                () = tokio::time::sleep_until(next) => {}
            }
        }
    }

    async fn handle(&mut self, message: Self::Message, _: &Context) -> Result<(), Failure> {
        match message {}
    }
}

/// How often it looks at what nobody tells of: requests in flight, idleness, limits.
const TICK: Duration = Duration::from_millis(200);
/// How often memory is looked at where it is limited,
const OFTEN: Duration = Duration::from_secs(1);
/// and where it is only shown.
const SELDOM: Duration = Duration::from_secs(5);
const DEADLINE: Duration = Duration::from_secs(10);
