//! Where state directories are when nobody says otherwise.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

pub use playhouse_actors::state_dir::{ADMIN_SOCKET, StateDir, StateDirError};

/// The state directory of a site of this name: `$PLAYHOUSE_STATE_DIR`, else `NAME` in [`base`].
///
/// # Errors
///
/// As [`base`].
pub fn default_for(name: &str) -> io::Result<PathBuf> {
    match from_environment() {
        Some(directory) => Ok(directory),
        None => Ok(base()?.join(name)),
    }
}

/// `$PLAYHOUSE_STATE_DIR`: the state directory of the one site that the environment is about.
pub fn from_environment() -> Option<PathBuf> {
    std::env::var_os("PLAYHOUSE_STATE_DIR").filter(|directory| !directory.is_empty()).map(PathBuf::from)
}

/// The directory in which sites have their state directories by default: `/run/playhouse` for root, else
/// `$XDG_RUNTIME_DIR/playhouse`, else `/tmp/playhouse-UID`.
///
/// # Errors
///
/// In `/tmp`, where anybody may have made it before us, it must be a directory of ours that nobody else can write to.
pub fn base() -> io::Result<PathBuf> {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return Ok(PathBuf::from(ROOTS_BASE));
    }
    if let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR").filter(|directory| !directory.is_empty()) {
        return Ok(PathBuf::from(runtime).join("playhouse"));
    }
    let base = PathBuf::from(format!("/tmp/playhouse-{}", user.as_raw()));
    private(&base, user.as_raw())?;
    Ok(base)
}

/// [`base`] for root.
pub const ROOTS_BASE: &str = "/run/playhouse";

/// The state directories beneath `base` in which a site answers, if only by instances whose controller is gone.
pub fn running(base: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(base) else { return Vec::new() };
    let answers = |socket: &Path| UnixStream::connect(socket).is_ok();
    let is_running = |directory: &PathBuf| {
        answers(&directory.join(ADMIN_SOCKET))
            || instance_sockets(directory).iter().any(|(_, socket)| answers(socket))
    };
    let mut running: Vec<_> = entries.flatten().map(|entry| entry.path()).filter(is_running).collect();
    running.sort();
    running
}

/// The places and admin sockets of the instances that have left one in a state directory, by their place. Nobody may be
/// behind it any more.
pub fn instance_sockets(directory: &Path) -> Vec<(u32, PathBuf)> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let slot_of = |name: &str| -> Option<u32> {
        let digits = name.strip_prefix("instance-")?.strip_suffix(".sock")?;
        // Only as it is written: no sign, no zeros in front.
        digits.parse().ok().filter(|slot: &u32| *slot > 0 && slot.to_string() == digits)
    };
    let mut sockets: Vec<_> = entries
        .flatten()
        .filter_map(|entry| Some((slot_of(entry.file_name().to_str()?)?, entry.path())))
        .collect();
    sockets.sort();
    sockets
}

/// Makes the directory, or makes sure that it is `user`'s own.
fn private(directory: &Path, user: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Not followed: a link could lead anywhere.
    let found = fs::symlink_metadata(directory)?;
    if found.is_dir() && found.uid() == user && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    let message = format!(
        "{} is not a directory that only this user can write to; name another by --state-dir",
        directory.display()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_directory_that_another_could_write_to_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let user = rustix::process::geteuid().as_raw();
        let path = dir.path().join("state");
        private(&path, user).unwrap();
        private(&path, user).unwrap();
        assert!(private(&path, user + 1).is_err());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(private(&path, user).is_err());
        let link = dir.path().join("link");
        symlink(dir.path(), &link).unwrap();
        assert!(private(&link, user).is_err());
    }

    #[test]
    fn only_sites_that_answer_are_running() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["gone", "alive", "empty"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        drop(UnixListener::bind(dir.path().join("gone").join(ADMIN_SOCKET)).unwrap());
        let _alive = UnixListener::bind(dir.path().join("alive").join(ADMIN_SOCKET)).unwrap();
        assert_eq!(running(dir.path()), [dir.path().join("alive")]);
        // Its controller is gone.
        let _orphan = UnixListener::bind(dir.path().join("gone/instance-10.sock")).unwrap();
        assert_eq!(running(dir.path()), [dir.path().join("alive"), dir.path().join("gone")]);
    }

    #[test]
    fn instances_are_found_by_their_sockets() {
        let dir = tempfile::tempdir().unwrap();
        for name in
            ["instance-10.sock", "instance-2.sock", "instance-0.sock", "instance-02.sock", "instance-x.sock"]
        {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let found = instance_sockets(dir.path());
        assert_eq!(found.iter().map(|(slot, _)| *slot).collect::<Vec<_>>(), [2, 10]);
        assert_eq!(found[0].1, dir.path().join("instance-2.sock"));
    }
}
