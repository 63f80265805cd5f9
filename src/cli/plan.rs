//! `playhouse plan`

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use super::output::{Output, Tone, safe};
use super::target::Target;

/// Say what a reload would change and restart, without doing it.
///
/// The file is checked as by a reload, except that no socket is opened: whether a new listener's address is free is not
/// known before. The exit status is 1 where the reload would be refused.
#[derive(Debug, Args)]
pub(super) struct Plan {
    /// The site file; the one that the site was started with, if not given
    #[arg(value_name = "SITE", id = "file")]
    site: Option<PathBuf>,
    #[command(flatten)]
    target: Target,
}

impl Plan {
    pub(super) fn execute(self, output: Output) -> anyhow::Result<()> {
        // The running site has a working directory of its own.
        let file = self.site.map(std::path::absolute).transpose().context("the site file's path")?;
        let request = file.map_or_else(|| serde_json::json!({}), |file| serde_json::json!({"site": file}));
        let plan = self.target.controller()?.post("/v1/plan", &request)?;
        if output.is_json() {
            output.json(&plan)?;
        } else {
            output.text(&text(&plan, output))?;
        }
        match plan["refused"].as_str() {
            Some(why) => anyhow::bail!("the reload would be refused: {}", safe(why)),
            None => Ok(()),
        }
    }
}

/// For people: a line for each part and its effect, and beneath it the actors that come or go.
fn text(plan: &serde_json::Value, output: Output) -> String {
    let changes = plan["changes"].as_array().map(Vec::as_slice).unwrap_or_default();
    if changes.is_empty() {
        return "nothing would change\n".to_owned();
    }
    let mut text = String::new();
    for change in changes {
        let (word, tone) = match change["change"].as_str().unwrap_or_default() {
            "added" => ("+", Tone::Good),
            "removed" => ("-", Tone::Bad),
            _ => ("~", Tone::Warning),
        };
        let part = safe(change["part"].as_str().unwrap_or_default());
        let _ = write!(text, "{} {part}", output.toned(tone, word));
        let fields: Vec<_> = strings(&change["fields"]).collect();
        if !fields.is_empty() {
            let _ = write!(text, " ({})", safe(&fields.join(", ")));
        }
        let _ = writeln!(text, ": {}", safe(change["effect"].as_str().unwrap_or_default()));
        for list in ["starts", "ends", "restarts"] {
            for actor in strings(&change[list]) {
                let _ = writeln!(text, "    {} {}", output.toned(Tone::Faint, list), safe(actor));
            }
        }
    }
    text
}

fn strings(list: &serde_json::Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(|item| item.as_str())
}
