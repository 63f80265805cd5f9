//! `playhouse drain`

use clap::Args;

use super::output::{Output, safe};
use super::target::Target;

/// Drain one instance of a site, and end its process.
///
/// It accepts no more, answers what is in flight within the site's drain_timeout, and ends; another takes its place if as
/// many as before are wanted. Returns at once.
#[derive(Debug, Args)]
pub(super) struct Drain {
    /// The instance, as in `playhouse status`: instance-2
    instance: String,
    #[command(flatten)]
    target: Target,
}

impl Drain {
    pub(super) fn execute(self, output: Output) -> anyhow::Result<()> {
        let request = serde_json::json!({"instance": self.instance});
        let answer = self.target.controller()?.post("/v1/drain", &request)?;
        if output.is_json() {
            return output.json(&answer);
        }
        output.text(&format!("{} drains\n", safe(&self.instance)))
    }
}
