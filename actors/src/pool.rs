//! The pool actor of an upstream: decides which servers are eligible and which idle connections are kept.

use std::sync::Arc;
use std::time::Duration;

use playhouse_serve::upstream::Upstream;

use crate::supervision::{Actor, Context, EventKind, Failure};

/// Decides for one upstream. Requests read what it has published, and go on without it.
pub struct Pool {
    upstream: Arc<Upstream>,
}

impl Pool {
    /// The actor of this upstream's table.
    pub fn new(upstream: Arc<Upstream>) -> Self {
        Pool { upstream }
    }
}

impl Actor for Pool {
    type Message = std::convert::Infallible;

    const KIND: &'static str = "pool";

    async fn run(&mut self, context: &Context) -> Result<(), Failure> {
        let epoch = self.upstream.claim();
        loop {
            let decisions = self.upstream.decide(epoch)?;
            for event in decisions.events {
                context.emit(EventKind::Upstream, context.seat().path(), event.to_string());
            }
            context.progress();
            tokio::select! {
                () = self.upstream.changed() => {}
                () = tokio::time::sleep(decisions.next.min(LONGEST)) => {}
            }
        }
    }

    async fn handle(&mut self, message: Self::Message, _: &Context) -> Result<(), Failure> {
        match message {}
    }
}

/// Shows at least this often that it is alive.
const LONGEST: Duration = Duration::from_millis(500);
