//! Between the controller that runs a site and the one of another build that is to take it over.
//!
//! ```text
//! incumbent                              candidate
//!   Hello                      →
//!                              ←           Hello
//!   Site (site, sockets)       →           reads the site, starts one instance of its own build
//!                              ←           Ready (that instance), or Failed
//!   Take (lock, admin sockets) →           from here on the site is the candidate's
//!                              ←           Taken
//!   leaves, ending nobody
//! ```
//!
//! Until `Take` is sent, the end of either side changes nothing: the candidate's instance has not been activated, and
//! ends with its link.

use serde::{Deserialize, Serialize};

use super::{Hello, Passed, SiteText, TicketKey};

/// From the incumbent to the candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToCandidate {
    /// Who speaks; the first message.
    Hello(Hello),
    /// What is to be taken over.
    Site {
        /// The configuration in force.
        site: SiteText,
        /// All listening sockets.
        sockets: Vec<Passed>,
        /// The keys of session tickets, newest first.
        ticket_keys: Vec<TicketKey>,
        /// A place that is free for the candidate's first instance.
        slot: u32,
        /// Its generation.
        generation: u64,
    },
    /// The site is the candidate's. Its descriptors: the state directory's lock, then the admin interface's listeners.
    Take {
        /// Which of the descriptors is the lock.
        lock: u32,
        /// The admin interface's listeners.
        admin: Vec<Passed>,
        /// How many instances the operator has asked for; `None` leaves it to the scaler.
        #[serde(default)]
        scale: Option<u32>,
    },
    /// Of a later version; ignored.
    #[serde(other)]
    Unknown,
}

/// From the candidate to the incumbent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToIncumbent {
    /// Who speaks; the first message.
    Hello(Hello),
    /// An instance of the new build is ready.
    Ready {
        /// Its process.
        pid: u32,
    },
    /// The candidate cannot take over, and ends.
    Failed {
        /// Why, for people.
        error: String,
    },
    /// The candidate runs the site.
    Taken,
    /// Of a later version; ignored.
    #[serde(other)]
    Unknown,
}
