//! Messages too long for a datagram: memfds that nobody can change any more.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create};
use rustix::io::{Errno, pread, write};

use super::link::LinkError;

/// A sealed memfd with these bytes.
///
/// # Errors
/// What the kernel says.
pub(super) fn seal(bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memfd = match memfd_create(NAME, flags | MemfdFlags::NOEXEC_SEAL) {
        // Before Linux 6.3.
        Err(Errno::INVAL) => memfd_create(NAME, flags)?,
        result => result?,
    };
    let mut rest = bytes;
    while !rest.is_empty() {
        match write(&memfd, rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    fcntl_add_seals(&memfd, SEALS)?;
    Ok(memfd)
}

/// The bytes of a memfd that is sealed and has this length. It is read, not mapped: nothing that a peer does with it
/// can raise SIGBUS here.
///
/// # Errors
/// [`LinkError::Payload`] where it is anything else; it is not read then.
pub(super) fn open(memfd: &OwnedFd, length: usize) -> Result<Vec<u8>, LinkError> {
    // Anything but a memfd has no seals, and the kernel says so.
    let seals = fcntl_get_seals(memfd).map_err(|_| LinkError::Payload("not a memfd"))?;
    if !seals.contains(SEALS) {
        return Err(LinkError::Payload("not sealed"));
    }
    let size = fstat(memfd).map_err(io::Error::from)?.st_size;
    if usize::try_from(size).ok() != Some(length) {
        return Err(LinkError::Payload("of another length than said"));
    }
    let mut bytes = vec![0; length];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match pread(memfd, rest, filled as u64) {
            Ok(0) => return Err(LinkError::Payload("shorter than its size")),
            Ok(read) => filled += read,
            Err(Errno::INTR) => {}
            Err(error) => return Err(LinkError::Io(error.into())),
        }
    }
    Ok(bytes)
}

const NAME: &str = "playhouse-message";
const SEALS: SealFlags =
    SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_is_read_and_cannot_be_changed() {
        let bytes: Vec<u8> = (0..200_000).map(|i| (i % 251) as u8).collect();
        let memfd = seal(&bytes).unwrap();
        assert_eq!(open(&memfd, bytes.len()).unwrap(), bytes);
        assert!(write(&memfd, b"x").is_err());
        assert!(rustix::fs::ftruncate(&memfd, 0).is_err());
    }

    #[test]
    fn what_could_still_change_is_not_read() {
        let said = |result: Result<Vec<u8>, LinkError>| result.unwrap_err().to_string();
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        assert!(said(open(&file, 0)).contains("not sealed") || said(open(&file, 0)).contains("not a memfd"));
        let null: OwnedFd = std::fs::File::open("/dev/zero").unwrap().into();
        assert!(said(open(&null, 10)).contains("not a memfd"));
        let memfd = memfd_create(NAME, MemfdFlags::ALLOW_SEALING).unwrap();
        write(&memfd, b"four").unwrap();
        fcntl_add_seals(&memfd, SEALS.difference(SealFlags::GROW)).unwrap();
        assert!(said(open(&memfd, 4)).contains("not sealed"));
        assert!(said(open(&seal(b"four").unwrap(), 5)).contains("another length"));
    }
}
