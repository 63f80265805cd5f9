//! Memory that processes share: atomic cells in a file of the state directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// A page of 64-bit cells, all 0 at first, that every process which has it open reads and writes at the same time. The
/// first cell lies at a multiple of 128 bytes, so that a layout can keep what is written by different threads in
/// different cache lines.
///
/// The file's blocks are allocated before it is mapped: a full disk is an error of [`SharedPage::create`], never a signal
/// at some later write. It belongs in a directory that only its user can write: whoever may truncate it can end all
/// who have it mapped.
#[derive(Debug)]
pub struct SharedPage {
    /// The header. The mapping is `HEADER + words` words long.
    start: NonNull<AtomicU64>,
    words: usize,
}

impl SharedPage {
    /// Makes a file of `words` cells, mode 0600. Nobody sees it before it is whole. `AlreadyExists` where there is
    /// something by that name, `StorageFull` where the file system has no room.
    pub fn create(path: &Path, words: usize) -> io::Result<Self> {
        let temporary = beside(path);
        // Left by a process that was ended in the middle of this; only one at a time makes pages in a directory.
        remove_if_there(&temporary)?;
        let made = Self::make(&temporary, words)
            // Unlike a rename, a link never replaces a page that others have open.
            .and_then(|page| fs::hard_link(&temporary, path).map(|()| page));
        remove_if_there(&temporary).and(made)
    }

    /// Opens what [`SharedPage::create`] has made, with as many cells. `InvalidData` where it is anything else: another
    /// size or version, another user's, no regular file.
    pub fn open(path: &Path, words: usize) -> io::Result<Self> {
        let length = length(words)?;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(flags.bits().cast_signed());
        let file = options.open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(invalid(path, "is no regular file"));
        }
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(invalid(path, "belongs to another user"));
        }
        if metadata.len() != length as u64 {
            return Err(invalid(path, "has another size than this version of a page"));
        }
        let page = Self::map(&file, words, length)?;
        let header = page.header();
        let expected = [MAGIC, VERSION, words as u64];
        if header.iter().zip(expected).any(|(cell, expected)| cell.load(Ordering::Acquire) != expected) {
            return Err(invalid(path, "is not a page of this version"));
        }
        Ok(page)
    }

    /// Opens the page, or makes it where there is none. What is there and is no such page is replaced: to be called
    /// by the one process that owns the directory.
    pub fn open_or_create(path: &Path, words: usize) -> io::Result<Self> {
        match Self::open(path, words) {
            Ok(page) => return Ok(page),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) if error.kind() == ErrorKind::InvalidData => remove_if_there(path)?,
            Err(error) => return Err(error),
        }
        Self::create(path, words)
    }

    /// A page without a file, for a single process.
    pub fn anonymous(words: usize) -> io::Result<Self> {
        let length = length(words)?;
        // SAFETY: a null hint lets the kernel choose where nothing is mapped, so that no memory in use is affected.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
            )?
        };
        let page = Self::from_mapping(start, words)?;
        page.write_header();
        Ok(page)
    }

    /// The cells.
    #[inline]
    pub fn cells(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is `HEADER + words` words long, aligned to a memory page, readable and writable until
        // `drop`, and the slice cannot outlive `self`. Any bits are a valid `u64`, and what other processes write, they
        // write atomically too; a process of the same user that does not could as well write to our memory by ptrace.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(HEADER), self.words) }
    }

    fn make(path: &Path, words: usize) -> io::Result<Self> {
        let length = length(words)?;
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        allocate(&file, length as u64)?;
        let page = Self::map(&file, words, length)?;
        page.write_header();
        Ok(page)
    }

    fn map(file: &File, words: usize, length: usize) -> io::Result<Self> {
        // SAFETY: a null hint lets the kernel choose where nothing is mapped, so that no memory in use is affected.
        let start = unsafe {
            mmap(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)?
        };
        Self::from_mapping(start, words)
    }

    fn from_mapping(start: *mut std::ffi::c_void, words: usize) -> io::Result<Self> {
        // A successful `mmap` with a null hint never gives address 0.
        let start = NonNull::new(start.cast::<AtomicU64>()).ok_or(ErrorKind::OutOfMemory)?;
        Ok(SharedPage { start, words })
    }

    fn header(&self) -> &[AtomicU64] {
        // SAFETY: as in `cells`; the first `HEADER` words of the mapping.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), HEADER) }
    }

    fn write_header(&self) {
        for (cell, value) in self.header().iter().zip([MAGIC, VERSION, self.words as u64]) {
            cell.store(value, Ordering::Release);
        }
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and this long, and every reference into it has borrowed `self`. It cannot fail
        // for a range that is mapped.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), (HEADER + self.words) * WORD) };
    }
}

// SAFETY: the cells are atomics and nothing else is reached through the pointer; unmapping may be done by any thread.
unsafe impl Send for SharedPage {}
// SAFETY: as above: a shared reference gives nothing but atomics.
unsafe impl Sync for SharedPage {}

/// Gives the file its blocks, so that no write to the mapping needs one that is not there.
fn allocate(file: &File, length: u64) -> io::Result<()> {
    use rustix::io::Errno;
    loop {
        match fallocate(file, FallocateFlags::empty(), 0, length) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => break,
            Err(error) => return Err(error.into()),
        }
    }
    // A file system that cannot reserve has to be written to.
    let zeros = [0; 4096];
    let mut left = length as usize;
    while left > 0 {
        let chunk = left.min(zeros.len());
        (&*file).write_all(&zeros[..chunk])?;
        left -= chunk;
    }
    file.sync_data()
}

fn length(words: usize) -> io::Result<usize> {
    let bytes = words.checked_add(HEADER).and_then(|words| words.checked_mul(WORD));
    match bytes {
        Some(bytes) if words > 0 && bytes <= isize::MAX as usize => Ok(bytes),
        _ => Err(ErrorKind::InvalidInput.into()),
    }
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn invalid(path: &Path, what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("{} {what}", path.display()))
}

const WORD: usize = size_of::<AtomicU64>();
/// Words before the first cell: two cache lines, since processors fetch them in pairs.
const HEADER: usize = 16;
const MAGIC: u64 = u64::from_le_bytes(*b"playhous");
const VERSION: u64 = 1;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::process::Command;

    use super::*;

    #[test]
    fn two_mappings_of_a_file_are_one_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page");
        let mine = SharedPage::create(&path, 1000).unwrap();
        let theirs = SharedPage::open(&path, 1000).unwrap();
        assert_eq!(theirs.cells().len(), 1000);
        assert!(theirs.cells().iter().all(|cell| cell.load(Ordering::Relaxed) == 0));
        std::thread::scope(|scope| {
            for page in [&mine, &theirs] {
                scope.spawn(|| {
                    (0..10_000).for_each(|_| _ = page.cells()[999].fetch_add(1, Ordering::Relaxed))
                });
            }
        });
        assert_eq!(mine.cells()[999].load(Ordering::Relaxed), 20_000);
        drop(mine);
        assert_eq!(theirs.cells()[999].load(Ordering::Relaxed), 20_000);
        drop(theirs);
        let again = SharedPage::open(&path, 1000).unwrap();
        assert_eq!(again.cells()[999].load(Ordering::Relaxed), 20_000);
    }

    #[test]
    fn a_file_that_was_removed_stays_mapped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page");
        let page = SharedPage::create(&path, 10).unwrap();
        fs::remove_file(&path).unwrap();
        page.cells()[9].store(7, Ordering::Relaxed);
        assert_eq!(page.cells()[9].load(Ordering::Relaxed), 7);
    }

    #[test]
    fn it_is_private_and_has_its_blocks_before_it_is_mapped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page");
        let _page = SharedPage::create(&path, 100_000).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        assert!(metadata.blocks() * 512 >= 800_000, "{} blocks", metadata.blocks());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "the temporary file is gone");
    }

    #[test]
    fn a_page_that_exists_is_never_replaced_by_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page");
        let first = SharedPage::create(&path, 10).unwrap();
        first.cells()[0].store(5, Ordering::Relaxed);
        assert_eq!(SharedPage::create(&path, 10).unwrap_err().kind(), ErrorKind::AlreadyExists);
        let same = SharedPage::open_or_create(&path, 10).unwrap();
        assert_eq!(same.cells()[0].load(Ordering::Relaxed), 5);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let other = SharedPage::open_or_create(&path, 20).unwrap();
        assert_eq!((other.cells().len(), other.cells()[0].load(Ordering::Relaxed)), (20, 0));
    }

    #[test]
    fn what_a_process_left_in_the_middle_is_no_obstacle() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page");
        fs::write(dir.path().join("page.new"), "half").unwrap();
        SharedPage::create(&path, 10).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_page_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let kind = |name: &str| SharedPage::open(&path(name), 10).unwrap_err().kind();
        SharedPage::create(&path("page"), 10).unwrap();
        SharedPage::create(&path("larger"), 11).unwrap();
        fs::write(path("zeros"), [0; (HEADER + 10) * WORD]).unwrap();
        fs::write(path("short"), [0; 8]).unwrap();
        fs::create_dir(path("directory")).unwrap();
        symlink(path("page"), path("link")).unwrap();
        assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        for name in ["larger", "zeros", "short", "pipe"] {
            assert_eq!(kind(name), ErrorKind::InvalidData, "{name}");
        }
        assert_eq!(kind("directory"), ErrorKind::IsADirectory);
        assert_eq!(kind("absent"), ErrorKind::NotFound);
        let link = SharedPage::open(&path("link"), 10).unwrap_err();
        assert_eq!(link.raw_os_error(), Some(libc::ELOOP));
        SharedPage::open(&path("page"), 10).unwrap();
    }

    #[test]
    fn another_version_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page");
        let page = SharedPage::create(&path, 10).unwrap();
        page.header()[1].store(VERSION + 1, Ordering::Relaxed);
        assert_eq!(SharedPage::open(&path, 10).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn a_page_for_which_there_is_no_room_is_an_error_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page");
        // More than any disk has.
        assert!(SharedPage::create(&path, 1 << 55).is_err());
        assert_eq!(SharedPage::create(&path, usize::MAX).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(SharedPage::create(&path, 0).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_anonymous_page_is_zero_and_aligned() {
        let page = SharedPage::anonymous(100).unwrap();
        assert!(page.cells().iter().all(|cell| cell.load(Ordering::Relaxed) == 0));
        assert_eq!(page.cells().as_ptr().addr() % 128, 0);
    }
}
