//! `playhouse upgrade`

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use super::output::Output;
use super::target::Target;

/// Put another build in the place of the one that runs, without losing a request.
///
/// First one instance of it must become ready with the site's configuration; where it does not, nothing changes. Then the
/// controller becomes the new build, in the same process, adopts the instances, and replaces them one by one.
#[derive(Debug, Args)]
pub(super) struct Upgrade {
    /// The new binary; the file that the site was started from, as it is now, if not given
    #[arg(value_name = "BINARY")]
    binary: Option<PathBuf>,
    #[command(flatten)]
    target: Target,
}

impl Upgrade {
    pub(super) fn execute(self, output: Output) -> anyhow::Result<()> {
        // The running site has a working directory of its own.
        let binary = self.binary.map(std::path::absolute).transpose().context("the binary's path")?;
        let request =
            binary.map_or_else(|| serde_json::json!({}), |binary| serde_json::json!({"binary": binary}));
        let answer = self.target.controller()?.post("/v1/upgrade", &request)?;
        if output.is_json() {
            return output.json(&answer);
        }
        let binary = answer["binary"].as_str().unwrap_or("the new build").to_owned();
        output.text(&format!(
            "{binary} takes over, and replaces the instances one by one: playhouse status shows them\n"
        ))
    }
}
