//! Rolling restarts, as operators ask for them.

use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, sleep};

use super::table::Table;
use crate::admin::{Refused, Value, to_json};

/// What a restart answers.
#[derive(Debug, serde::Serialize)]
struct Restarted<'a> {
    app: &'a str,
    /// Every process has been replaced; false where that goes on.
    done: bool,
    /// Those that there are now.
    pids: Vec<u32>,
}

/// Replaces every process of an app, one after another: each only once another is ready in its stead. Waits for the end of
/// that, though not for ever.
pub async fn restart(table: &Table, name: &str) -> Result<Value, Refused> {
    let Some(managed) = table.get(name) else {
        let names: Vec<_> = table.all().iter().map(|managed| managed.app.name().to_string()).collect();
        let message = match names.is_empty() {
            true => "this site has no apps".to_owned(),
            false => format!("no app {name:?}; there is {}", names.join(", ")),
        };
        return Err(Refused::new(StatusCode::NOT_FOUND, message));
    };
    if table.is_stopping() {
        return Err(Refused::new(StatusCode::CONFLICT, "the site ends"));
    }
    let generation = managed.restart();
    let deadline = Instant::now() + PATIENCE;
    loop {
        match managed.restarted(generation) {
            Some(Err(why)) => {
                let message = format!("{why}; the processes that there were go on");
                return Err(Refused::new(StatusCode::CONFLICT, message));
            }
            done if done.is_some() || Instant::now() >= deadline => {
                let pids = managed.places().iter().filter_map(|place| place.pid()).collect();
                return to_json(&Restarted { app: name, done: done.is_some(), pids });
            }
            _ => sleep(LOOK).await,
        }
    }
}

/// Less than the commands wait for an answer.
const PATIENCE: Duration = Duration::from_secs(50);
const LOOK: Duration = Duration::from_millis(20);
