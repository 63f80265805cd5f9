//! What controller and instances say of the site's apps: the controller runs their processes, the instances send them
//! requests.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// All apps and their processes. It replaces what was said before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AppsState {
    /// Counts what was said, by all controllers of the site: it never falls.
    pub generation: u64,
    /// The apps.
    pub apps: Vec<AppState>,
    /// All processes, those that serve nobody among them.
    pub processes: Vec<AppProcess>,
}

/// One app.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AppState {
    /// Its name.
    pub name: String,
    /// Where no process serves: whether one will, soon.
    pub expected: bool,
    /// The processes that requests go to.
    pub servers: Vec<AppServer>,
}

/// A process that requests go to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AppServer {
    /// Its place among those of its app, from 1.
    pub place: u32,
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks after boot.
    pub started: u64,
    /// The Unix socket that it listens on; else it listens on `port`.
    pub socket: Option<PathBuf>,
    /// The port of 127.0.0.1 that it listens on.
    pub port: u16,
    /// What health checks say.
    pub healthy: bool,
}

/// A process, and whose it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct AppProcess {
    /// The app's name.
    pub app: String,
    /// Its place among those of its app, from 1.
    pub place: u32,
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks after boot.
    pub started: u64,
}

/// What an instance has of the apps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AppsLoad {
    /// What the instance goes by: see [`AppsState::generation`].
    pub generation: u64,
    /// The apps.
    pub apps: Vec<AppLoad>,
}

/// What an instance has of one app.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AppLoad {
    /// Its name.
    pub name: String,
    /// Requests that wait for a process.
    pub waiting: u64,
    /// Its processes, also those that get no more requests and have some still.
    pub servers: Vec<AppServerLoad>,
}

/// What an instance has with one process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AppServerLoad {
    /// Its place.
    pub place: u32,
    /// Its number.
    pub pid: u32,
    /// Requests in flight.
    pub in_flight: u64,
    /// Requests so far.
    pub requests: u64,
}
