//! What the admin interface stands over: a site in one process, or the controller of several.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::StatusCode;
use playhouse_config::model;
use playhouse_serve::sockets::Sockets;
use serde::{Deserialize, Deserializer, Serialize};

use super::status::Status;
use crate::reload::ReloadError;
use crate::supervision::{EventKind, Fault, KillError, Tree};

/// Whoever runs a site, as administrators see it. The interface's own actors are in its tree, as `admin`.
pub trait Administered: Send + Sync + 'static {
    /// The actors of this process, and its events.
    fn own_tree(&self) -> &Arc<Tree>;

    /// The admin interface's own listeners.
    fn admin_sockets(&self) -> &Sockets;

    /// The configuration in force.
    fn site_config(&self) -> Arc<model::Site>;

    /// The bearer token, where the site has one.
    fn bearer_token(&self) -> Arc<Option<String>>;

    /// Whether every part of the site is up.
    fn is_site_ready(&self) -> bool;

    /// All metrics, in Prometheus' text format.
    fn metrics(&self) -> BoxFuture<'_, String>;

    /// The site at a glance.
    fn status(&self) -> BoxFuture<'_, Status>;

    /// All actors, as the JSON of a [`Node`](crate::supervision::Node); connections are listed on request only.
    fn actors(&self, connections: bool) -> BoxFuture<'_, Bytes>;

    /// Puts a fault into the actor with this path.
    fn fault(&self, path: String, fault: Fault) -> BoxFuture<'_, Result<(), Refused>>;

    /// Ends a whole process by SIGKILL, to see what it costs: `instance-2`, `controller`, or that of an app,
    /// `controller/apps/blog/place-1`.
    fn end_process(&self, _: String) -> BoxFuture<'_, Result<(), Refused>> {
        Box::pin(async { Err(Refused::no_controller()) })
    }

    /// Puts a site file into force, or the one that the site was started from; answers what has changed, as JSON.
    fn reload_site(self: Arc<Self>, file: Option<PathBuf>) -> BoxFuture<'static, Result<Value, Refused>>;

    /// What [`Administered::reload_site`] would do, as the JSON of a [`Plan`](crate::plan::Plan).
    fn plan_reload(self: Arc<Self>, file: Option<PathBuf>) -> BoxFuture<'static, Result<Value, Refused>>;

    /// Drains and stops the site; completes when it has ended, or with the process.
    fn stop_site(self: Arc<Self>) -> BoxFuture<'static, ()>;

    /// Replaces the processes of an app, one after another.
    fn restart_app(&self, _: String) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async { Err(Refused::new(StatusCode::NOT_FOUND, "this site has no apps")) })
    }

    /// Sets how many instances there are.
    fn scale(&self, _: Scale) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async { Err(Refused::no_controller()) })
    }

    /// Drains one instance, `instance-2` say, and ends its process.
    fn drain_instance(&self, _: String) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async { Err(Refused::no_controller()) })
    }

    /// Replaces every process of the site by one of this binary; `None` is the file that the controller was started
    /// from, as it is now.
    fn upgrade(self: Arc<Self>, _: Option<PathBuf>) -> BoxFuture<'static, Result<Value, Refused>> {
        Box::pin(async { Err(Refused::no_controller()) })
    }
}

/// What a command answers.
pub type Value = serde_json::Value;

/// The answer of a command that was carried out.
pub(crate) fn to_json(answer: &impl Serialize) -> Result<Value, Refused> {
    serde_json::to_value(answer).map_err(|error| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, error))
}

/// Why a command was not carried out. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    /// What kind of reason.
    pub status: StatusCode,
    /// For people.
    pub message: String,
}

impl Refused {
    /// A refusal with this message.
    pub fn new(status: StatusCode, message: impl std::fmt::Display) -> Self {
        Refused { status, message: message.to_string() }
    }

    pub(super) fn no_controller() -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "this needs a controller: set `instances` in the site file, and ask the site, not one of its instances",
        )
    }
}

impl From<KillError> for Refused {
    fn from(error: KillError) -> Self {
        let status = match error {
            KillError::NoSuchActor { .. } => StatusCode::NOT_FOUND,
            KillError::Unavailable(_) => StatusCode::CONFLICT,
        };
        Refused::new(status, error)
    }
}

impl From<ReloadError> for Refused {
    fn from(error: ReloadError) -> Self {
        let status = match error {
            ReloadError::NoAnswer => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Refused::new(status, error)
    }
}

/// How many instances there should be: in JSON a number, or `"auto"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// As many as the scaler finds right.
    Auto,
    /// So many, whatever the scaler finds.
    To(NonZeroU32),
}

impl<'de> Deserialize<'de> for Scale {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            To(NonZeroU32),
            Word(String),
        }
        match Written::deserialize(deserializer)? {
            Written::To(count) => Ok(Scale::To(count)),
            Written::Word(word) if word == "auto" => Ok(Scale::Auto),
            Written::Word(_) => Err(serde::de::Error::custom("neither a number nor \"auto\"")),
        }
    }
}

impl Serialize for Scale {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Scale::Auto => serializer.serialize_str("auto"),
            Scale::To(count) => serializer.serialize_u32(count.get()),
        }
    }
}

/// Puts a fault into an actor of this process. What carries the answer to whoever asked would be cut off with the admin
/// interface or anything above it: there the answer goes first, then the fault.
pub(crate) fn fault_here(tree: &Arc<Tree>, path: &str, fault: Fault) -> Result<(), Refused> {
    let admin = format!("{}/{}/", tree.root().name(), super::NAME);
    let path = path.trim_matches('/');
    if !admin.starts_with(&format!("{path}/")) && !path.starts_with(&admin) {
        return Ok(tree.kill(path, fault)?);
    }
    let seat = tree.seat(path)?;
    tokio::spawn(async move {
        tokio::time::sleep(ANSWER_FIRST).await;
        // It may have ended by itself meanwhile.
        let _ = seat.inject(fault);
    });
    Ok(())
}

/// Kills the process of an app by the path of what keeps it; `None` where that is another path.
pub(crate) fn end_app_process(
    tree: &Arc<Tree>,
    apps: &crate::apps::Table,
    path: &str,
) -> Option<Result<(), Refused>> {
    let path = path.trim_matches('/');
    let beneath = path.strip_prefix(tree.root().name())?.strip_prefix('/')?;
    let killed = apps.kill_by_operator(beneath)?;
    Some(match killed {
        Ok(pid) => {
            let message = format!("sigkill of process {pid} (by an operator)");
            tree.events().emit(EventKind::Fault, path, message);
            Ok(())
        }
        Err(error) => Err(Refused::new(StatusCode::CONFLICT, error)),
    })
}

/// Enough for an answer of a few bytes to leave.
const ANSWER_FIRST: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_a_number_or_auto() {
        let read = |text: &str| serde_json::from_str::<Scale>(text);
        assert_eq!(read("\"auto\"").unwrap(), Scale::Auto);
        assert_eq!(read("3").unwrap(), Scale::To(NonZeroU32::new(3).unwrap()));
        for wrong in ["0", "-1", "1.5", "\"3\"", "\"\"", "null", "[]", "4294967296"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert_eq!(serde_json::to_string(&Scale::Auto).unwrap(), "\"auto\"");
    }
}
