//! Places at which a process of a site can be made to end as if it were killed there, to see that whoever follows it
//! neither loses nor counts anything twice.

use std::sync::OnceLock;

use rustix::process::{Signal, getpid, kill_process};

/// Names the place: `fold-write` say. Nothing else sets it, and no instance inherits it.
pub const VARIABLE: &str = "PLAYHOUSE_CRASH_AT";

/// Ends the process (SIGKILL) where [`VARIABLE`] names this place; else it costs a load.
///
/// The places: `start` (an instance's process runs, and nobody keeps it yet), `configure` (its sockets are on their way),
/// `activate`, `drain` (it has been told to), `drained` (it has ended, and nothing is left of it), `memo-write` and
/// `memo-rename` (`site.json`), `fold-unlink-last`, `fold-write`, `fold-rename` and `fold-unlink` (a ledger page),
/// `reload` (a configuration has been tried and is not in force). In a controller that begins: `open-start`, `open-lock`
/// (the state directory is its own), `open-adopt` (the instances have given it their sockets), `open-end`. In an
/// upgrade: `upgrade-start` (the candidate runs), `upgrade-noted` (and is written down), `upgrade-ready`,
/// `upgrade-over` (it has ended), `upgrade-memo` (a roll is to follow), `upgrade-exec`. With apps: `app-start` (a process
/// runs, and is not written down), `app-noted` (it is, and nobody else has its pipes), `app-leave` (a process gets no more
/// requests).
pub fn crash_point(place: &str) {
    static AT: OnceLock<Option<String>> = OnceLock::new();
    if AT.get_or_init(|| std::env::var(VARIABLE).ok()).as_deref() == Some(place) {
        // A process may signal itself; it does not come back from this.
        let _ = kill_process(getpid(), Signal::KILL);
    }
}
