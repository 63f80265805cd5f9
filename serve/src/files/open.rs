//! Finding a file beneath a root.

use std::ffi::{CString, OsStr, OsString};
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::HeaderValue;
use playhouse_config::model::{self, Encoding};
use rustix::fs::{AtFlags, FileType, Mode as Permissions, OFlags, ResolveFlags, Statx, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::body::{self, OpenFile};
use super::cache::{Cached, Content, FileCache, MAX_CACHED};
use super::head::Head;

/// A directory that files are served from.
#[derive(Debug)]
pub(super) struct Root {
    /// Ends with a slash.
    directory: PathBuf,
    /// Where symlinks may lead besides.
    follow: Box<[PathBuf]>,
    cache: Arc<FileCache>,
    /// What distinguishes this root's entries in the cache; the same for an unchanged configuration.
    identity: Arc<u64>,
    pub(super) cache_control: Option<HeaderValue>,
    /// Whether answers depend on `Accept-Encoding`.
    pub(super) varies: bool,
    /// A file system whose calls may wait for a network or another process. Never unset.
    remote: AtomicBool,
}

/// Which calls are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// On a runtime thread: what must wait for a disk is `EAGAIN`.
    Inline,
    /// In the blocking pool.
    Blocking,
}

/// What is at a path.
#[derive(Debug)]
pub(super) enum Found {
    File(Content),
    Directory,
}

/// What a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
}

impl Root {
    pub(super) fn new(config: &model::Static, cache: &Arc<FileCache>) -> Self {
        let mut directory = config.root.as_os_str().as_bytes().to_vec();
        if directory.last() != Some(&b'/') {
            directory.push(b'/');
        }
        let directory = PathBuf::from(OsString::from_vec(directory));
        let follow: Box<[PathBuf]> = config.follow.clone().into();
        let remote =
            |directory: &PathBuf| rustix::fs::statfs(directory).is_ok_and(|fs| is_remote(fs.f_type as u64));
        let remote = remote(&directory) || follow.iter().any(remote);
        Root {
            identity: cache.identity(config),
            cache: cache.clone(),
            cache_control: config.cache_control.clone(),
            varies: !config.precompressed.is_empty(),
            remote: AtomicBool::new(remote),
            directory,
            follow,
        }
    }

    pub(super) fn is_remote(&self) -> bool {
        self.remote.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(super) fn assume_remote(&self) {
        self.remote.store(true, Ordering::Relaxed);
    }

    /// What is at `relative`: out of the cache after one `statx`, else opened.
    pub(super) fn find(&self, relative: &[u8], coding: Option<Encoding>, mode: Mode) -> Result<Found, Errno> {
        if let Some(cached) = self.cached(relative, coding) {
            return Ok(Found::File(Content::Memory(cached)));
        }
        // A file that changes while it is read into memory is read again, and then streamed as it is.
        for _ in 0..2 {
            let (file, stamp) = match self.open(relative)? {
                Some(opened) => opened,
                None => return Ok(Found::Directory),
            };
            let head = Head::new(self, relative, coding, stamp);
            let Ok(size) = usize::try_from(stamp.size) else { return Ok(streamed(self, head, file)) };
            if size > MAX_CACHED {
                return Ok(streamed(self, head, file));
            }
            let Some(bytes) = read_whole(&file, size, mode)? else { continue };
            if Stamp::of(&rustix::fs::statx(&file, c"", AtFlags::EMPTY_PATH, STAMP)?) != stamp {
                continue;
            }
            let cached = Arc::new(Cached::new(self.path(relative)?, head, bytes));
            if !self.is_remote() && stamp.settled(self.cache.settle, SystemTime::now()) {
                self.cache.insert(*self.identity, coding, relative, cached.clone());
            }
            return Ok(Found::File(Content::Memory(cached)));
        }
        match self.open(relative)? {
            Some((file, stamp)) => Ok(streamed(self, Head::new(self, relative, coding, stamp), file)),
            None => Ok(Found::Directory),
        }
    }

    /// The file at `relative` as it is in the cache, when one `statx` says that it has not changed. That may wait where
    /// the root [is remote](Self::is_remote).
    pub(super) fn cached(&self, relative: &[u8], coding: Option<Encoding>) -> Option<Arc<Cached>> {
        let cached = self.cache.get(*self.identity, coding, relative)?;
        let now = rustix::fs::statx(rustix::fs::CWD, &*cached.path, AtFlags::NO_AUTOMOUNT, STAMP);
        if now.is_ok_and(|now| Stamp::of(&now) == cached.head.stamp) {
            return Some(cached);
        }
        self.cache.remove(*self.identity, coding, relative);
        None
    }

    /// The whole path of what is at `relative`.
    fn path(&self, relative: &[u8]) -> Result<CString, Errno> {
        CString::new([self.directory.as_os_str().as_bytes(), relative].concat()).map_err(|_| Errno::INVAL)
    }

    /// What is at `relative`, which need not be readable.
    pub(super) fn kind(&self, relative: &[u8]) -> Result<Kind, Errno> {
        let relative = if relative.is_empty() { b"." } else { relative };
        let file = self.open_beneath(relative, OFlags::PATH | OFlags::CLOEXEC)?;
        let status = rustix::fs::statx(&file, c"", AtFlags::EMPTY_PATH, STAMP)?;
        match FileType::from_raw_mode(status.stx_mode.into()) {
            FileType::RegularFile => Ok(Kind::File),
            FileType::Directory => Ok(Kind::Directory),
            _ => Err(Errno::NOENT),
        }
    }

    /// Opens a regular file beneath the root as it is now. `None` is a directory.
    fn open(&self, relative: &[u8]) -> Result<Option<(OwnedFd, Stamp)>, Errno> {
        // Non-blocking, so that a FIFO without a writer does not hold the thread.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = self.open_beneath(relative, flags)?;
        let status = rustix::fs::statx(&file, c"", AtFlags::EMPTY_PATH, STAMP)?;
        match FileType::from_raw_mode(status.stx_mode.into()) {
            FileType::RegularFile => {}
            FileType::Directory => return Ok(None),
            _ => return Err(Errno::NOENT),
        }
        if rustix::fs::fstatfs(&file).is_ok_and(|fs| is_remote(fs.f_type as u64)) {
            self.remote.store(true, Ordering::Relaxed);
        }
        Ok(Some((file, Stamp::of(&status))))
    }

    /// Opens what is at a path, which cannot lead out of the root and the directories that links may lead into.
    fn open_beneath(&self, relative: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        match open_beneath(&self.directory, relative, flags) {
            Err(Errno::XDEV) if !self.follow.is_empty() => self.open_followed(relative, flags),
            opened => opened,
        }
    }

    /// Opens what is at a path that leads out of the root, beneath the directory that it leads into. Where it leads is
    /// found out first; should that have changed by then, the kernel still refuses what is not beneath that directory.
    fn open_followed(&self, relative: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let error = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::NOENT);
        let path = self.directory.join(OsStr::from_bytes(relative));
        let path = std::fs::canonicalize(path).map_err(error)?;
        // Links back into the root are among those that lead out of the others.
        for allowed in self.follow.iter().chain([&self.directory]) {
            let Ok(allowed) = std::fs::canonicalize(allowed) else { continue };
            if let Ok(rest) = path.strip_prefix(&allowed) {
                let rest = if rest.as_os_str().is_empty() { b"." } else { rest.as_os_str().as_bytes() };
                return open_beneath(&allowed, rest, flags);
            }
        }
        Err(Errno::XDEV)
    }
}

/// Opens what is at a path beneath a directory, and nothing else.
fn open_beneath(directory: &Path, relative: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let root = rustix::fs::openat(
        rustix::fs::CWD,
        directory,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Permissions::empty(),
    )?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let open = || rustix::fs::openat2(&root, relative, flags, Permissions::empty(), resolve);
    // A rename elsewhere while `..` of a symlink was resolved; the kernel cannot say whether we are still beneath.
    let mut opened = open();
    for _ in 0..8 {
        if !matches!(opened, Err(Errno::AGAIN | Errno::INTR)) {
            break;
        }
        opened = open();
    }
    opened
}

fn streamed(root: &Root, head: Head, file: OwnedFd) -> Found {
    Found::File(Content::File(Box::new((head, OpenFile::new(file, !root.is_remote())))))
}

/// A whole small file; `None` where it is not of this size any more.
fn read_whole(file: &OwnedFd, size: usize, mode: Mode) -> Result<Option<Bytes>, Errno> {
    // One byte more, so that growth is noticed.
    let mut bytes = vec![0; size + 1];
    let mut filled = 0;
    while filled < bytes.len() {
        let free = &mut bytes[filled..];
        let read = match mode {
            Mode::Inline => {
                match rustix::io::preadv2(
                    file,
                    &mut [IoSliceMut::new(free)],
                    filled as u64,
                    ReadWriteFlags::NOWAIT,
                ) {
                    // A file system without it: the pool reads.
                    Err(error) if body::has_no_nowait(error) => Err(Errno::AGAIN),
                    read => read,
                }
            }
            Mode::Blocking => rustix::io::pread(file, free, filled as u64),
        };
        match read {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    if filled != size {
        return Ok(None);
    }
    bytes.truncate(size);
    Ok(Some(bytes.into()))
}

/// What tells one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) device: (u32, u32),
    pub(super) inode: u64,
    pub(super) size: u64,
    /// Seconds since 1970, and nanoseconds.
    pub(super) modified: (i64, u32),
    /// The same, of any change of the inode; no program can set it.
    pub(super) changed: (i64, u32),
    /// Type and permissions.
    pub(super) mode: u16,
}

impl Stamp {
    fn of(status: &Statx) -> Self {
        Stamp {
            device: (status.stx_dev_major, status.stx_dev_minor),
            inode: status.stx_ino,
            size: status.stx_size,
            modified: (status.stx_mtime.tv_sec, status.stx_mtime.tv_nsec),
            changed: (status.stx_ctime.tv_sec, status.stx_ctime.tv_nsec),
            mode: status.stx_mode,
        }
    }

    /// Whether the last change is so long ago that the next one cannot have the same timestamps. A writer sets them
    /// before it copies its data, with a clock that ticks every few milliseconds, and may be held up in between.
    fn settled(&self, after: Duration, now: SystemTime) -> bool {
        let Ok(now) = now.duration_since(SystemTime::UNIX_EPOCH) else { return false };
        let age = |(seconds, nanoseconds): (i64, u32)| match u64::try_from(seconds) {
            Ok(seconds) => now.checked_sub(Duration::new(seconds, nanoseconds)),
            Err(_) => Some(now),
        };
        [self.modified, self.changed].into_iter().all(|time| age(time).is_some_and(|age| age >= after))
    }
}

const STAMP: StatxFlags = StatxFlags::BASIC_STATS;

/// Whether calls on a file system of this type may wait for a network or for another process (statfs(2)).
fn is_remote(magic: u64) -> bool {
    matches!(
        magic & 0xffff_ffff,
        0x6969          // NFS
        | 0xff53_4d42   // CIFS
        | 0xfe53_4d42   // SMB2
        | 0x517b        // SMB
        | 0x6573_5546   // FUSE
        | 0x0102_1997   // 9P
        | 0x00c3_6400   // Ceph
        | 0x5346_414f   // AFS
        | 0x6b41_4653   // AFS in the kernel
        | 0x7375_7245   // Coda
        | 0x0bd0_0bd0   // Lustre
        | 0x0116_1970   // GFS2
        | 0x7461_636f   // OCFS2
        | 0x4750_4653   // GPFS
        | 0x1983_0326 // BeeGFS
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_settles_with_its_younger_timestamp() {
        let stamp = Stamp {
            device: (0, 0),
            inode: 1,
            size: 1,
            modified: (100, 0),
            changed: (200, 500_000_000),
            mode: 0,
        };
        let at = |milliseconds| SystemTime::UNIX_EPOCH + Duration::from_millis(milliseconds);
        let after = Duration::from_secs(2);
        assert!(!stamp.settled(after, at(202_499)));
        assert!(stamp.settled(after, at(202_500)));
        assert!(!stamp.settled(after, at(100_000)), "from the future");
        assert!(!Stamp { modified: (500, 0), ..stamp }.settled(after, at(202_500)));
        assert!(Stamp { modified: (-5, 0), ..stamp }.settled(after, at(202_500)));
    }
}
