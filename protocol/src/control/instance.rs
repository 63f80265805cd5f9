//! Between a controller and an instance.

use serde::{Deserialize, Serialize};

use super::{AppProcess, AppsLoad, AppsState, Hello, Passed, SiteText, State, TicketKey};

/// From a controller to an instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToInstance {
    /// Who speaks; the first message.
    Hello(Hello),
    /// Listening sockets for the next [`ToInstance::Configure`], where they are more than one message can carry.
    Sockets {
        /// Numbered descriptors.
        sockets: Vec<Passed>,
    },
    /// Put this configuration into force. Answered by [`ToController::Configured`] or [`ToController::Refused`]; on a
    /// refusal nothing has changed.
    Configure {
        /// The configuration.
        site: SiteText,
        /// Its listening sockets, beside those sent ahead: all of them, those that the instance holds already too.
        sockets: Vec<Passed>,
    },
    /// The keys of session tickets, newest first; they replace those before.
    TicketKeys {
        /// At least one.
        keys: Vec<TicketKey>,
    },
    /// Accept and serve.
    Activate,
    /// Accept no more, finish what is there within the deadline, and exit.
    Drain {
        /// In milliseconds; what is left then is ended.
        deadline_ms: u64,
        /// The site ends: take what the kernel has queued, since nobody else will.
        last: bool,
    },
    /// Send back every listening socket that the instance holds. Answered by [`ToController::Sockets`].
    GiveSockets,
    /// Another instance has seen this of an upstream server.
    ServerHealth(ServerHealth),
    /// The apps and their processes. Answered by [`ToController::AppsLoad`] once it is in force.
    Apps(AppsState),
    /// Hold what processes of apps write to, each for as long as [`AppsState::processes`] has it.
    AppOutputs {
        /// For each two descriptors, in this order: the read ends of its standard output and error.
        processes: Vec<AppProcess>,
    },
    /// Send back what processes of apps write to. Answered by [`ToController::AppOutputs`].
    GiveAppOutputs,
    /// Of a later version; ignored.
    #[serde(other)]
    Unknown,
}

/// From an instance to its controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToController {
    /// Who speaks; the first message.
    Hello(Hello),
    /// The configuration is in force.
    Configured {
        /// Its revision.
        revision: u64,
        /// Listeners that were opened.
        #[serde(default)]
        listeners_added: Vec<String>,
        /// Listeners that were closed.
        #[serde(default)]
        listeners_removed: Vec<String>,
        /// Listeners with other settings.
        #[serde(default)]
        listeners_changed: Vec<String>,
    },
    /// The configuration cannot be put into force; nothing has changed.
    Refused {
        /// Its revision.
        revision: u64,
        /// Why, for people.
        error: String,
    },
    /// The instance's state has changed.
    State {
        /// What it is now.
        state: State,
    },
    /// How it is: sent at fixed intervals by the runtime that serves, and so its heartbeat too.
    Sample(Sample),
    /// The listening sockets that the instance holds.
    Sockets {
        /// Numbered descriptors.
        sockets: Vec<Passed>,
        /// Whether another message with more of them follows.
        #[serde(default)]
        more: bool,
    },
    /// What this instance has seen of an upstream server, for the others.
    ServerHealth(ServerHealth),
    /// What this instance has of the apps: said when it changes.
    AppsLoad(AppsLoad),
    /// What processes of apps write to.
    AppOutputs {
        /// For each two descriptors, in this order: standard output and error.
        processes: Vec<AppProcess>,
        /// Whether another message with more of them follows.
        #[serde(default)]
        more: bool,
    },
    /// Of a later version; ignored.
    #[serde(other)]
    Unknown,
}

/// How an instance is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// Counts the samples of this process.
    pub number: u64,
    /// CPU time of the process so far, in microseconds.
    pub cpu_us: u64,
    /// Wall time since the sample before, in microseconds.
    pub interval_us: u64,
    /// Resident memory in bytes.
    pub rss_bytes: u64,
    /// How late the runtime woke a sleeper up, in microseconds; the worst since the sample before.
    pub lag_us: u64,
    /// Open connections.
    pub connections: u64,
    /// Requests accepted so far.
    pub accepted: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// Streams that wait in hand-off queues.
    pub waiting: u64,
    /// Clients in the kernel's accept queues that all instances share, all listeners together.
    pub queued: u64,
    /// Clients in the kernel's accept queues of this instance alone.
    pub queued_alone: u64,
}

/// Passive health of an upstream server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerHealth {
    /// The upstream's name.
    pub upstream: String,
    /// The server's address, as in the site file.
    pub server: String,
    /// Until when it is not to be chosen, in milliseconds of Unix time; 0 is that it may be chosen again.
    pub ejected_until_unix_ms: u64,
}
