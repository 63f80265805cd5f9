//! A shard of the connections: their parent, who hears of those that do not end in order, and ends with the last one.
//!
//! Connections hang in several shards because to end a parent of tens of thousands holds a thread for as many
//! milliseconds.

use std::time::Duration;

use ractor::ActorId;

use crate::supervision::{
    Actor, ChildSpec, Context, Ended, EventKind, Failure, Intensity, Shutdown, Strategy, Supervisor,
};

/// Parent of a share of the connections.
#[derive(Default)]
pub struct Shard {
    stopping: bool,
}

impl Shard {
    fn stop_if_empty(&self, context: &Context) {
        if self.stopping && context.seat().child_count() == 0 {
            context.stop();
        }
    }
}

impl Actor for Shard {
    type Message = std::convert::Infallible;

    const KIND: &'static str = KIND;

    const STARTS_IN_RUN: bool = true;

    async fn run(&mut self, context: &Context) -> Result<(), Failure> {
        context.seat().kill_descendants().await;
        Ok(())
    }

    async fn handle(&mut self, message: Self::Message, _: &Context) -> Result<(), Failure> {
        match message {}
    }

    async fn child_ended(&mut self, _: ActorId, ended: Ended, context: &Context) -> Result<(), Failure> {
        if let Ended::Failed(failure) = ended {
            let path = context.seat().path();
            context.emit(EventKind::Ended, path, format!("a connection has failed: {failure}"));
        }
        self.stop_if_empty(context);
        Ok(())
    }

    async fn stopping(&mut self, context: &Context) -> Result<bool, Failure> {
        self.stopping = true;
        for connection in context.seat().children() {
            connection.request_stop();
        }
        // Who ends in order says nothing, and the end of another may come before its place is given up.
        let (seat, context) = (context.seat().clone(), context.clone());
        tokio::spawn(async move {
            while seat.child_count() > 0 && seat.is_occupied() {
                tokio::time::sleep(DRAIN_POLL).await;
            }
            context.stop();
        });
        Ok(false)
    }
}

/// Makes the supervisor of `count` shards. A shard that stalls holds up nobody: its connections are served on without it,
/// and to replace it would end them. When it is to end, each is given the `drain` of that time to let its connections
/// finish.
pub fn supervisor_of(
    count: usize,
    drain: impl Fn() -> Duration + Clone + Send + Sync + 'static,
) -> impl Fn() -> Supervisor {
    let shard = move |number| {
        let drain = drain.clone();
        ChildSpec::new(format!("shard-{number}"), Shard::default)
            .shutdown_by(move || Shutdown::After(drain()))
            .report_stalls(STALL)
    };
    move || {
        let shard = shard.clone();
        let shards = move || (0..count).map(&shard).collect();
        Supervisor::new(Strategy::OneForOne, Intensity::default(), shards).shutdown_at_once()
    }
}

/// The kind of a shard.
pub const KIND: &str = "shard";
/// With the default limit of 20,000 connections a shard holds little more than a thousand.
pub const COUNT: usize = 16;

const DRAIN_POLL: Duration = Duration::from_millis(5);
const STALL: Duration = Duration::from_secs(2);
