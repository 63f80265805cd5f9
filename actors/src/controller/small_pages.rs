//! Huge pages, which a controller does better without: it needs little memory, and would use a corner of each.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::thread;

/// Has the kernel give this process small pages only, whatever it has been advised by the allocator: about 6 MiB less of
/// resident memory. For a process that is a controller and nothing else.
pub fn use_small_pages() {
    let as_usual = thread::transparent_huge_pages_are_disabled().is_ok_and(|disabled| !disabled);
    if as_usual && thread::disable_transparent_huge_pages(true).is_ok() {
        CHOSEN.store(true, Ordering::Relaxed);
    }
}

/// Starts a program, which would inherit the choice: it is given huge pages as the controller was.
pub(crate) fn as_found<T>(start: impl FnOnce() -> T) -> T {
    if !CHOSEN.load(Ordering::Relaxed) {
        return start();
    }
    // Neither fails where `use_small_pages` has not; what it would cost is time or memory.
    let _ = thread::disable_transparent_huge_pages(false);
    let started = start();
    let _ = thread::disable_transparent_huge_pages(true);
    started
}

/// Whether this process has chosen small pages; what others have chosen for it is not ours to change.
static CHOSEN: AtomicBool = AtomicBool::new(false);

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn small_pages_are_not_inherited_by_what_is_started() {
        let are_disabled = || thread::transparent_huge_pages_are_disabled().unwrap();
        let of_child = || {
            let output = Command::new("cat").arg("/proc/self/status").output().unwrap();
            let status = String::from_utf8(output.stdout).unwrap();
            status.lines().any(|line| line.starts_with("THP_enabled") && line.ends_with('1'))
        };
        if are_disabled() {
            // By whoever runs the tests.
            return;
        }
        use_small_pages();
        assert!(are_disabled() && !of_child());
        assert!(as_found(of_child));
        assert!(are_disabled());
        thread::disable_transparent_huge_pages(false).unwrap();
    }
}
