//! `playhouse restart`

use clap::Args;
use serde::Deserialize;

use super::output::{Output, safe};
use super::target::Target;

/// Replace the processes of an app, one after another.
///
/// Each goes on until another is ready in its place, and then finishes the requests that it has. Returns when all have been
/// replaced, or says why the first new one did not become ready; those that there were go on then.
#[derive(Debug, Args)]
pub(super) struct Restart {
    /// The app, as in the site file
    app: String,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Restarted {
    done: bool,
    pids: Vec<u32>,
}

impl Restart {
    pub(super) fn execute(self, output: Output) -> anyhow::Result<()> {
        let request = serde_json::json!({"app": self.app});
        let answer = self.target.controller()?.post("/v1/restart", &request)?;
        if output.is_json() {
            return output.json(&answer);
        }
        let Restarted { done, pids } = serde_json::from_value(answer).unwrap_or_default();
        let app = safe(&self.app);
        if !done {
            return output
                .text(&format!("{app} is being restarted; `playhouse status` shows how far it is\n"));
        }
        let pids: Vec<_> = pids.iter().map(u32::to_string).collect();
        let processes = match pids.is_empty() {
            true => "no process runs".to_owned(),
            false => format!("its processes: {}", pids.join(", ")),
        };
        output.text(&format!("{app} is restarted; {processes}\n"))
    }
}
