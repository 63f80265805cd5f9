//! `playhouse kill`

use std::thread;
use std::time::Duration;

use clap::Args;
use playhouse::Fault;
use serde::Deserialize;

use super::admin::Admin;
use super::output::{Output, safe};
use super::target::{Found, Target};

/// End one actor of a running site, to see what it costs.
///
/// It counts as an operator's doing: it is restarted at once, and uses up neither intensity nor backoff. What clients may
/// lose is what was in flight in that actor; most hold nothing.
#[derive(Debug, Args)]
pub(super) struct Kill {
    /// The actor, as in `playhouse tree`: instance-1/listeners/http
    path: String,
    /// stop: ask it to end; kill: end it at once; panic: let it panic; stall=500ms: let it do nothing for so long; sigkill:
    /// end the whole process of an instance, of the controller, or of an app's place, by signal 9
    #[arg(long, value_name = "FAULT", default_value = "kill", value_parser = fault)]
    how: String,
    #[command(flatten)]
    target: Target,
}

impl Kill {
    pub(super) fn execute(self, output: Output) -> anyhow::Result<()> {
        let request = serde_json::json!({"path": self.path, "how": self.how});
        let found = self.target.find()?;
        let admin = match &found {
            Found::Site(admin) => admin,
            Found::Orphans(orphans) => orphans.owner(&self.path)?,
        };
        if output.is_json() {
            return output.json(&admin.post("/v1/kill", &request)?);
        }
        let last = admin.read::<Page>("/v1/status")?.events.last().map_or(0, |event| event.sequence);
        admin.post("/v1/kill", &request)?;
        let said = self.consequences(admin, last);
        output.text(&format!("{}: {}\n", safe(&self.path), safe(&said)))
    }

    /// What the events say became of it.
    fn consequences(&self, admin: &Admin, last: u64) -> String {
        let mut said = Vec::new();
        for _ in 0..LOOKS {
            // The admin interface itself may have been ended: then it is asked again.
            let page: Page = admin.read("/v1/status").unwrap_or_default();
            let new =
                page.events.into_iter().filter(|event| event.sequence > last && event.path == self.path);
            let new: Vec<_> = new.filter(|event| event.kind != "fault").collect();
            let is_back = new.iter().any(|event| event.kind == "restarted");
            if !new.is_empty() {
                said = new.into_iter().map(|event| event.message).collect();
            }
            if is_back {
                return said.join(", then ");
            }
            thread::sleep(INTERVAL);
        }
        match said.is_empty() {
            true => format!("{} is on its way; `playhouse tree` shows what it does", self.how),
            false => said.join(", then "),
        }
    }
}

/// What is looked at of a status page.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Page {
    events: Vec<Event>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Event {
    sequence: u64,
    kind: String,
    path: String,
    message: String,
}

/// For half a second: a restart takes a millisecond, and what comes later is better watched.
const LOOKS: usize = 25;

const INTERVAL: Duration = Duration::from_millis(20);

fn fault(text: &str) -> Result<String, String> {
    if text == SIGKILL {
        return Ok(text.to_owned());
    }
    text.parse::<Fault>().map(|_| text.to_owned()).map_err(|error| format!("{error}, {SIGKILL}"))
}

/// Not for an actor, but for a process.
const SIGKILL: &str = "sigkill";
