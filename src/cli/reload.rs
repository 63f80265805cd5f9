//! `playhouse reload`

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use super::output::{Output, safe};
use super::target::Target;

/// Put a changed site file into force, without losing a request.
///
/// Only what has changed is touched. A file that is not valid changes nothing, and everything that is wrong with it is
/// said. The access log's file is opened again.
#[derive(Debug, Args)]
pub(super) struct Reload {
    /// The site file; the one that the site was started with, if not given
    #[arg(value_name = "SITE", id = "file")]
    site: Option<PathBuf>,
    #[command(flatten)]
    target: Target,
}

impl Reload {
    pub(super) fn execute(self, output: Output) -> anyhow::Result<()> {
        // The running site has a working directory of its own.
        let file = self.site.map(std::path::absolute).transpose().context("the site file's path")?;
        let request = file.map_or_else(|| serde_json::json!({}), |file| serde_json::json!({"site": file}));
        let answer = self.target.controller()?.post("/v1/reload", &request)?;
        if output.is_json() {
            return output.json(&answer);
        }
        let mut text = String::from("reloaded\n");
        for (field, word) in
            [("listeners_added", "opened"), ("listeners_removed", "closed"), ("listeners_changed", "changed")]
        {
            for name in answer[field].as_array().into_iter().flatten().filter_map(|name| name.as_str()) {
                text += &format!("  listener {} {word}\n", safe(name));
            }
        }
        output.text(&text)
    }
}
