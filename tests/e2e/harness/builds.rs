//! Other builds than the one that was built: to be upgraded to, and back from.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::process::Pid;

use super::Running;
use super::site::BINARY;

/// A copy of the built binary beside the site file that calls itself otherwise.
pub fn called(site: &Running, name: &str) -> PathBuf {
    let path = site.path(name);
    relabelled(&path, name);
    path
}

/// A copy of the built binary that calls itself otherwise.
pub fn relabelled(path: &Path, name: &str) {
    const LABEL: &[u8] = b"playhouse build ";
    let mut binary = std::fs::read(BINARY).expect("the built binary");
    let whole = |at: &usize| binary[at + LABEL.len()..].starts_with(build_of().as_bytes());
    let places = binary.windows(LABEL.len()).enumerate().filter(|(_, bytes)| *bytes == LABEL);
    let places: Vec<_> = places.map(|(at, _)| at).filter(whole).collect();
    assert_eq!(places.len(), 1, "one label says what the binary is called");
    let at = places[0] + LABEL.len();
    binary[at..at + name.len() + 1].copy_from_slice(format!("{name}\0").as_bytes());
    std::fs::write(path, binary).expect("a binary");
    executable(path);
}

/// What the built binary calls itself.
pub fn build_of() -> &'static str {
    option_env!("PLAYHOUSE_BUILD").unwrap_or(env!("CARGO_PKG_VERSION"))
}

/// A program that is this build, and whose controllers end at `place`.
pub fn with_crash_at(site: &Running, place: &str) -> PathBuf {
    let text =
        format!("#!/bin/sh\n[ \"$1\" = run ] && export PLAYHOUSE_CRASH_AT={place}\nexec {BINARY} \"$@\"\n");
    script(site, &format!("crashes-at-{place}"), &text)
}

/// A program of a test's own.
pub fn script(site: &Running, name: &str, text: &str) -> PathBuf {
    let path = site.path(name);
    std::fs::write(&path, text).expect("a script");
    executable(&path);
    path
}

/// The program that a process runs.
pub fn program_of(pid: Pid) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero())).ok()
}

fn executable(path: &Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
}
