//! Where state directories are when nobody says otherwise.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

pub use playhouse_actors::state_dir::ADMIN_SOCKET;

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

/// The state directories beneath `base` in which a site answers.
pub fn running(base: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(base) else { return Vec::new() };
    let directories = entries.flatten().map(|entry| entry.path());
    let mut running: Vec<_> =
        directories.filter(|directory| UnixStream::connect(directory.join(ADMIN_SOCKET)).is_ok()).collect();
    running.sort();
    running
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
    }
}
