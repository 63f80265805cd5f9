//! `playhouse kill`

use clap::Args;
use playhouse::Fault;

use super::output::{Output, safe};
use super::target::Target;

/// End one actor of a running site, to see what it costs.
///
/// It counts as an operator's doing: it is restarted at once, and uses up neither intensity nor backoff. What clients may
/// lose is what was in flight in that actor; most hold nothing.
#[derive(Debug, Args)]
pub(super) struct Kill {
    /// The actor, as in `playhouse tree`: instance-1/listeners/http
    path: String,
    /// stop: ask it to end; kill: end it at once; panic: let it panic; stall=500ms: let it do nothing for so long
    #[arg(long, value_name = "FAULT", default_value = "kill", value_parser = fault)]
    how: String,
    #[command(flatten)]
    target: Target,
}

impl Kill {
    pub(super) fn execute(self, output: Output) -> anyhow::Result<()> {
        let request = serde_json::json!({"path": self.path, "how": self.how});
        let answer = self.target.find()?.post("/v1/kill", &request)?;
        if output.is_json() {
            return output.json(&answer);
        }
        output.text(&format!("{}: {}\n", safe(&self.path), self.how))
    }
}

fn fault(text: &str) -> Result<String, String> {
    text.parse::<Fault>().map(|_| text.to_owned())
}
