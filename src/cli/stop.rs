//! `playhouse stop`

use std::thread;
use std::time::Duration;

use clap::Args;

use super::output::Output;
use super::target::Target;

/// Drain and stop a running site.
///
/// It accepts no more, answers what is in flight within the site's drain_timeout, and ends. Returns when it has ended.
#[derive(Debug, Args)]
pub(super) struct Stop {
    /// Return at once; the site drains on
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    target: Target,
}

impl Stop {
    pub(super) fn execute(self, output: Output) -> anyhow::Result<()> {
        let admin = self.target.find()?;
        admin.post("/v1/stop", &serde_json::json!({}))?;
        // The site itself sees to it that a drain ends.
        while !self.no_wait && admin.is_there() {
            thread::sleep(INTERVAL);
        }
        let word = if self.no_wait { "stopping" } else { "stopped" };
        if output.is_json() {
            return output.json(&serde_json::json!({word: true}));
        }
        output.text(&format!("{word}\n"))
    }
}

const INTERVAL: Duration = Duration::from_millis(20);
