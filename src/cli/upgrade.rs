//! `playhouse upgrade`

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use super::output::Output;
use super::target::Target;

/// Put another build in the place of the one that runs, without losing a request.
///
/// The controller starts the new binary, which starts one instance and takes the site over once that is ready; then the other
/// instances are replaced one by one. Until then the end of either changes nothing.
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
        match (answer["build"].as_str(), answer["pid"].as_u64()) {
            (Some(build), Some(pid)) => {
                output.text(&format!("playhouse {build} runs the site as process {pid}\n"))
            }
            _ => output.text("upgraded\n"),
        }
    }
}
