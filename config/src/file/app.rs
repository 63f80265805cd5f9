//! Managed applications as they are written.

use std::path::PathBuf;
use std::time::Duration;

use super::decode::{Decode, mismatch, record};
use super::{Health, KeepAlive, Named, Size, UpstreamTimeouts};
use crate::document::{Node, Shape};
use crate::error::{At, Report};

record! {
    /// A program that the site runs.
    App {
        /// The program and its arguments, with variables. Required.
        command: Vec<String>,
        /// Where it is started, relative to the file's directory.
        dir: PathBuf,
        /// Further environment, with variables.
        env: Named<String>,
        /// What each process listens on.
        listen: Listen,
        /// How many processes.
        processes: Processes,
        /// Requests in flight for each process from which there is another.
        busy_at: u64,
        /// Name or number; only as root.
        user: String,
        /// Name or number; only as root.
        group: String,
        /// From its start to its being ready.
        ready_timeout: Duration,
        /// For requests in flight, and from TERM to KILL.
        stop_timeout: Duration,
        /// What a process must answer to be ready.
        health: Health,
        /// Resident memory beyond which a process is replaced.
        max_memory: Size,
        /// Requests after which a process is replaced.
        max_requests: u64,
        /// Ended after so long without a request.
        idle_stop: Duration,
        /// What the kernel lets a process have.
        limits: ProcessLimits,
        /// How long a process may take to answer.
        timeouts: UpstreamTimeouts,
        /// Idle connections.
        keep_alive: KeepAlive,
    }
}

/// See [`crate::model::Listen`].
pub type Listen = crate::model::Listen;

/// How many processes: a number, or the fewest and the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processes {
    /// So many.
    Fixed(u64),
    /// As many as there is work for.
    Between(u64, u64),
}

record! {
    /// What the kernel lets a process have.
    ProcessLimits {
        /// Open descriptors.
        open_files: u64,
        /// Address space.
        address_space: Size,
        /// Processes of its user.
        processes: u64,
        /// A core dump.
        core: Size,
    }
}

record! {
    /// `App("blog")` or `App(app: "blog", …)`.
    ToApp {
        /// Required.
        app: String,
        /// Take the route's prefix off.
        strip_prefix: bool,
        /// Send the client's `Host`.
        preserve_host: bool,
    }
    short: app
}

impl Decode for Processes {
    fn decode(node: &Node<'_>, at: &At, report: &mut Report<'_>) -> Option<Self> {
        match &node.shape {
            Shape::Integer(_) => u64::decode(node, at, report).map(Processes::Fixed),
            Shape::Tuple(values) if values.len() == 2 => {
                let min = u64::decode(&values[0], &at.index(0), report);
                let max = u64::decode(&values[1], &at.index(1), report);
                min.zip(max).map(|(min, max)| Processes::Between(min, max))
            }
            _ => mismatch(node, at, report, "a number, or the fewest and the most, such as (1, 4)"),
        }
    }
}
