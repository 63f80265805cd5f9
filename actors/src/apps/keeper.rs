//! The keeper of a process: starts it, says when it is ready, reads what it writes, and ends it.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use playhouse_serve::net::Connector;
use rustix::process::Signal;
use tokio::time::Instant;

use super::managed::Managed;
use super::output::Line;
use super::place::{Phase, Place};
use super::table::Table;
use crate::supervision::{Actor, Context, EventKind, Failure};

/// Keeps one process, and stays until the manager has taken note of its end. What it has come to know is in the place, so
/// that the next incarnation goes on from there; the process notices nothing of it.
pub struct Keeper {
    place: Arc<Place>,
    managed: Arc<Managed>,
    table: Arc<Table>,
    /// Why the process was not ready when it was last asked.
    not_ready: Mutex<Option<String>>,
}

impl Keeper {
    /// The keeper of this place.
    pub fn new(place: Arc<Place>, managed: Arc<Managed>, table: Arc<Table>) -> Self {
        Keeper { place, managed, table, not_ready: Mutex::default() }
    }

    /// Does what is due. Gives when there is more, unless something happens before.
    async fn step(&self, context: &Context) -> Duration {
        let place = &self.place;
        let ended = place.process().is_some_and(|process| process.has_ended());
        let (phase, since) = place.phase_for();
        match phase {
            Phase::New if place.asked().is_some() => place.enter(Phase::Gone),
            Phase::New => {
                place.enter(Phase::Launching);
                let launched = place.clone();
                tokio::task::spawn_blocking(move || launched.launch());
            }
            Phase::Launching | Phase::Gone => {}
            Phase::Starting | Phase::Serving | Phase::Leaving if ended => {
                self.leave(Phase::Ending);
                place.bury().await;
            }
            Phase::Starting => {
                let patience = place.settings.ready_timeout;
                if place.asked().is_some() {
                    place.signal(Signal::TERM);
                    place.enter(Phase::Ending);
                } else if since >= patience {
                    let why = self.not_ready.lock().take().map_or_else(String::new, |why| format!(": {why}"));
                    place.fail(format!("process {} was not ready within {patience:?}{why}", pid(place)));
                } else {
                    return (patience - since).min(PROBE);
                }
            }
            Phase::Serving => {
                let patience = place.settings.ready_timeout;
                if place.asked().is_some() {
                    self.leave(Phase::Leaving);
                } else if place.unhealthy_for() >= patience {
                    let failure = format!("process {} was unhealthy for {patience:?}", pid(place));
                    place.fail(failure);
                }
            }
            Phase::Leaving => {
                // A request may just now have chosen it by what was published before.
                let late = if place.has_audience() { LATE_ELSEWHERE } else { LATE };
                let is_free = place.in_flight() == 0 && place.is_left_alone(late);
                if is_free || since >= place.settings.stop_timeout {
                    place.signal(Signal::TERM);
                    place.enter(Phase::Ending);
                }
                return LOOK;
            }
            Phase::Ending => {
                let over = since >= place.settings.stop_timeout;
                if over && !ended {
                    let patience = place.settings.stop_timeout;
                    let message =
                        format!("process {} has not ended within {patience:?}; it is killed", pid(place));
                    context.emit(EventKind::App, context.seat().path(), message);
                }
                if over || (ended && !place.has_left_others().await) {
                    place.bury().await;
                } else {
                    return LOOK;
                }
            }
        }
        if place.phase() == phase { TICK } else { Duration::ZERO }
    }

    /// Takes it out of service first.
    fn leave(&self, phase: Phase) {
        self.place.enter(phase);
        self.place.note_left(self.managed.publish());
    }

    fn ready(&self, context: &Context) {
        let place = &self.place;
        // It may have been asked to end, or have ended, while it was asked.
        if place.phase() != Phase::Starting || place.asked().is_some() {
            return;
        }
        let took = place.phase_for().1;
        place.enter(Phase::Serving);
        self.managed.note_ready();
        self.managed.publish();
        let message = format!("process {} is ready after {took:.1?}", pid(place));
        context.emit(EventKind::App, context.seat().path(), message);
    }

    fn write(&self, line: &Line) {
        line.write(&self.place.settings.name, self.place.number, pid(&self.place));
    }

    /// Writes what the process has left in its pipes. Another process may hold them open, so not for long.
    async fn write_rest(&self, context: &Context) {
        let rest = async {
            while let Some(line) = next_line(&self.place).await {
                self.write(&line);
                context.progress();
            }
        };
        // What comes later is nobody's any more.
        let _ = tokio::time::timeout(REST, rest).await;
        *self.place.output.lock() = None;
    }
}

impl Actor for Keeper {
    type Message = std::convert::Infallible;

    const KIND: &'static str = "app process";

    const GRACEFUL: bool = true;

    async fn run(&mut self, context: &Context) -> Result<(), Failure> {
        let place = self.place.clone();
        let mut probe: Option<Probe<'_>> = None;
        let mut probe_at = Instant::now();
        let (mut silent, mut is_drained, mut is_written) = (false, false, false);
        loop {
            context.progress();
            let wait = self.step(context).await;
            let phase = place.phase();
            if phase == Phase::Gone && !is_written {
                is_written = true;
                self.managed.changed.notify_one();
                self.write_rest(context).await;
            }
            if phase == Phase::Gone && is_drained {
                break;
            }
            if phase != Phase::Starting {
                probe = None;
            } else if probe.is_none() && probe_at <= Instant::now() {
                probe = Some(Box::pin(is_ready(&self.managed, &place)));
            }
            let probe_is_there = probe.is_some();
            let runs = matches!(phase, Phase::Starting | Phase::Serving | Phase::Leaving);
            tokio::select! {
                biased;
                () = context.drained(), if !is_drained => {
                    is_drained = true;
                    // Whoever ends only this actor does not mean the process.
                    if phase == Phase::Gone || !self.table.is_stopping() {
                        break;
                    }
                    place.ask("the site stops");
                }
                () = place.changed.notified() => silent = false,
                () = ended(&place), if runs => {}
                ready = done(&mut probe), if probe_is_there => {
                    probe = None;
                    probe_at = Instant::now() + PROBE;
                    match ready {
                        Ok(()) => self.ready(context),
                        Err(why) => *self.not_ready.lock() = Some(why),
                    }
                }
                line = next_line(&place), if !silent && !is_written => match line {
                    Some(line) => self.write(&line),
                    None => silent = true,
                },
                () = tokio::time::sleep(wait) => {}
            }
        }
        context.stop();
        Ok(())
    }

    async fn handle(&mut self, message: Self::Message, _: &Context) -> Result<(), Failure> {
        match message {}
    }
}

/// Completes when the process has ended; not where there is none.
async fn ended(place: &Place) {
    match place.process() {
        Some(process) => process.ended().await,
        None => std::future::pending().await,
    }
}

/// What the probe says; not where there is none.
async fn done(probe: &mut Option<Probe<'_>>) -> Result<(), String> {
    match probe {
        Some(probe) => probe.await,
        None => std::future::pending().await,
    }
}

fn pid(place: &Place) -> u32 {
    place.pid().unwrap_or(0)
}

/// The next line of the process's output; pending while it has none, and before it was started.
async fn next_line(place: &Place) -> Option<Line> {
    poll_fn(|cx| match &mut *place.output.lock() {
        Some(output) => output.poll_line(cx),
        // `changed` tells of it.
        None if place.phase() == Phase::Gone => Poll::Ready(None),
        None => Poll::Pending,
    })
    .await
}

/// Whether a process answers what it is asked, or can be connected to where it is asked nothing; else why not.
async fn is_ready(managed: &Managed, place: &Place) -> Result<(), String> {
    match managed.app.settings().health {
        Some(_) => {
            let probed = managed.app.upstream().probe(&place.server).await;
            probed.map(drop).map_err(|failure| failure.to_string())
        }
        None => match tokio::time::timeout(CONNECT, Connector::connect(&place.address)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(format!("cannot connect: {error}")),
            Err(_) => Err("no connection in time".to_owned()),
        },
    }
}

type Probe<'a> = BoxFuture<'a, Result<(), String>>;

/// From one try of a process that is not ready to the next.
const PROBE: Duration = Duration::from_millis(50);
const CONNECT: Duration = Duration::from_secs(2);
/// How often a process that is to end is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// From what was published to the last who goes by what was before.
const LATE: Duration = Duration::from_millis(100);
/// The same where it was published in other processes, which say what they have a few times a second.
const LATE_ELSEWHERE: Duration = Duration::from_millis(300);
/// How often it shows that it is alive.
const TICK: Duration = Duration::from_millis(500);
/// For what is still in the pipes of a process that has ended.
const REST: Duration = Duration::from_millis(500);
