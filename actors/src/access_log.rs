//! The access-log actor: keeps the log's writer alive.

use std::sync::Arc;
use std::time::Duration;

use playhouse_serve::Site;

use crate::supervision::{Actor, Context, Failure};

/// Looks after the access log. Lines are queued and written without it.
pub struct AccessLog {
    site: Arc<Site>,
}

impl AccessLog {
    /// The actor of this site's log.
    pub fn new(site: Arc<Site>) -> Self {
        AccessLog { site }
    }
}

impl Actor for AccessLog {
    type Message = std::convert::Infallible;

    const KIND: &'static str = "access log";

    async fn run(&mut self, context: &Context) -> Result<(), Failure> {
        loop {
            self.site.access_log.tend()?;
            context.progress();
            tokio::time::sleep(INTERVAL).await;
        }
    }

    async fn handle(&mut self, message: Self::Message, _: &Context) -> Result<(), Failure> {
        match message {}
    }
}

const INTERVAL: Duration = Duration::from_millis(500);
