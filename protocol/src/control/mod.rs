//! What a controller and its instances say to each other.
//!
//! One JSON object a datagram, over a `SOCK_SEQPACKET` Unix socket. Two builds must understand each other during an
//! upgrade: fields are added and never renamed, unknown fields are ignored, and a message of an unknown type is
//! [`ToInstance::Unknown`] and its like, never an error. The first message of each side is its [`Hello`]. Descriptors
//! travel beside a message and are numbered in it ([`Passed::descriptor`]); what is longer than [`MAX_MESSAGE`] travels
//! as a sealed memfd (`F_SEAL_WRITE`, `F_SEAL_SHRINK`, `F_SEAL_GROW`, `F_SEAL_SEAL`), for which the datagram
//! `{"memfd":LENGTH}` stands ([`envelope`]): the memfd is its first descriptor, and not counted among the message's own.
//! Every message is hostile input.

mod apps;
mod codec;
mod envelope;
mod instance;
#[cfg(test)]
mod properties;

pub use apps::{AppLoad, AppProcess, AppServer, AppServerLoad, AppState, AppsLoad, AppsState};
pub use codec::{DecodeError, EncodeError, MAX_DESCRIPTORS, MAX_MESSAGE, MAX_PAYLOAD, decode, encode};
pub use envelope::{envelope, enveloped};
pub use instance::{Sample, ServerHealth, ToController, ToInstance};

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The version of this protocol. A peer of another major version is not spoken to.
pub const VERSION: Version = Version { major: 1, minor: 1 };

/// Major: what cannot be understood any more. Minor: what was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Equal on both sides, or the link ends.
    pub major: u32,
    /// A peer of an earlier one passes over what was added since.
    #[serde(default)]
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl Version {
    /// Whether a peer of this version knows of apps.
    pub fn knows_apps(self) -> bool {
        self.is_understood() && self.minor >= 1
    }

    /// Whether we can speak with a peer of this version.
    pub fn is_understood(self) -> bool {
        self.major == VERSION.major
    }
}

/// Who speaks: the first message of each side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Of the protocol.
    pub version: Version,
    /// The program's own version, for people.
    pub build: String,
    /// The process, as it sees itself; the receiver compares it with the socket's credentials.
    pub pid: u32,
    /// When the process started, in clock ticks after boot (field 22 of `/proc/PID/stat`): with the pid, it names one
    /// process for good.
    pub started: u64,
    /// The site's name.
    pub site: String,
    /// The instance's place, from 1; 0 is a controller.
    #[serde(default)]
    pub slot: u32,
    /// Counts the processes that the site has started, from 1; a controller's own is the last that it has given.
    #[serde(default)]
    pub generation: u64,
    /// The revision of the configuration in force; 0 is none yet.
    #[serde(default)]
    pub revision: u64,
    /// The instance's state; a controller has none.
    #[serde(default)]
    pub state: Option<State>,
    /// The session ticket keys that it uses, newest first: how a controller gets them from those that it adopts.
    #[serde(default)]
    pub ticket_keys: Vec<TicketKey>,
}

/// The life of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Its process runs; it is not ready yet.
    Starting,
    /// Everything is up; it accepts nobody until it is told to.
    Ready,
    /// It accepts and serves.
    Active,
    /// It accepts no more, and finishes what it has.
    Draining,
    /// Its process has ended.
    Gone,
    /// Of a later build.
    #[serde(other)]
    Unknown,
}

impl State {
    /// Its name in status, logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Starting => "starting",
            State::Ready => "ready",
            State::Active => "active",
            State::Draining => "draining",
            State::Gone => "gone",
            State::Unknown => "unknown",
        }
    }
}

/// A site file as it was read: instances never read it themselves, so that one that starts later has the configuration
/// that is in force, whatever has become of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteText {
    /// Where it was read: relative paths in it are joined to its directory.
    pub path: PathBuf,
    /// Its text.
    pub text: String,
    /// Counts the configurations that were put into force, from 1.
    pub revision: u64,
}

/// A listening socket that travels beside a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passed {
    /// The listener's name.
    pub listener: String,
    /// Its place among the sockets of this listener, for those that have one per instance; else 0.
    #[serde(default)]
    pub slot: u32,
    /// Which of the message's descriptors it is, from 0.
    pub descriptor: u32,
}

/// A key of TLS session tickets (RFC 5077 §4): made and replaced by the controller.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketKey {
    /// Found in the ticket: 16 bytes in hexadecimal.
    pub name: String,
    /// 32 bytes in hexadecimal.
    pub secret: String,
    /// When it was made, in milliseconds of Unix time.
    pub made_unix_ms: u64,
}

impl std::fmt::Debug for TicketKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TicketKey").field("name", &self.name).finish_non_exhaustive()
    }
}
