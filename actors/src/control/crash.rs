//! Places at which a process of a site can be made to end as if it were killed there, to see that whoever follows it
//! neither loses nor counts anything twice.

use std::sync::OnceLock;

use rustix::process::{Signal, getpid, kill_process};

/// Names the place: `fold-write` say. Nothing else sets it, and no instance inherits it.
pub const VARIABLE: &str = "PLAYHOUSE_CRASH_AT";

/// Ends the process (SIGKILL) where [`VARIABLE`] names this place; else it costs a load.
///
/// The places: `start` (an instance's process runs, and nobody keeps it yet), `configure` (its sockets are on their way),
/// `activate`, `memo-write` and `memo-rename` (`site.json`), `fold-unlink-last`, `fold-write`, `fold-rename` and
/// `fold-unlink` (a ledger page), `reload` (a configuration has been tried and is not in force).
pub fn crash_point(place: &str) {
    static AT: OnceLock<Option<String>> = OnceLock::new();
    if AT.get_or_init(|| std::env::var(VARIABLE).ok()).as_deref() == Some(place) {
        // A process may signal itself; it does not come back from this.
        let _ = kill_process(getpid(), Signal::KILL);
    }
}
