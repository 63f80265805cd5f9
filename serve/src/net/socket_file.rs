//! The file of a Unix socket: who made it takes it away.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use socket2::{SockAddr, Socket, Type};

/// The file of a listening Unix socket. Dropped, it is removed, if it is still the same file and was not [kept](Self::keep).
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
    kept: AtomicBool,
}

impl SocketFile {
    /// The file that is there now.
    ///
    /// # Errors
    /// What the file system says; `InvalidInput` where it is no socket.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let metadata = std::fs::symlink_metadata(path)?;
        if !metadata.file_type().is_socket() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a socket"));
        }
        let inode = (metadata.dev(), metadata.ino());
        Ok(SocketFile { path: path.to_owned(), inode, kept: AtomicBool::new(false) })
    }

    /// From now on the file stays when this is dropped, or, called with `false`, goes again.
    pub(super) fn keep(&self, keep: bool) {
        self.kept.store(keep, Ordering::Release);
    }

    pub(super) fn set_mode(&self, mode: u32) -> io::Result<()> {
        std::fs::set_permissions(&self.path, std::fs::Permissions::from_mode(mode & 0o777))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.kept.load(Ordering::Acquire) {
            return;
        }
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.inode);
        if ours && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "socket file not removed");
        }
    }
}

/// Removes a socket file behind which nobody listens.
///
/// # Errors
/// `AddrInUse` where somebody does, `AlreadyExists` where it is no socket, else what the file system says.
pub(super) fn remove_stale(path: &Path) -> io::Result<()> {
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "exists and is not a socket"));
    }
    let probe = Socket::new(socket2::Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
    match probe.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
        // Connected, or the queue of whoever listens is full.
        Ok(()) | Err(_) => {
            Err(io::Error::new(io::ErrorKind::AddrInUse, "in use: another process listens on this socket"))
        }
    }
}
