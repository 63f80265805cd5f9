//! The files of an instance in the state directory.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::process::Process;
use super::record::{self, Record};

/// Where the controllers to come connect to the instance in this place.
pub fn control_path(directory: &Path, slot: u32) -> PathBuf {
    directory.join(format!("instance-{slot}.control"))
}

/// Where the instance's own admin interface is.
pub fn admin_path(directory: &Path, slot: u32) -> PathBuf {
    directory.join(format!("instance-{slot}.sock"))
}

/// Where an instance counts requests: made by the controller, folded into the site's accounts when the process is gone.
pub fn ledger_path(directory: &Path, slot: u32, generation: u64) -> PathBuf {
    directory.join(format!("ledger-{slot}.{generation}"))
}

/// Where the instances of a site see how many connections each has.
pub fn board_path(directory: &Path) -> PathBuf {
    directory.join("board")
}

/// Where the instances of a site count what each client address has.
pub fn limits_path(directory: &Path) -> PathBuf {
    directory.join("limits")
}

/// Where the keys of the site's QUIC endpoints are, made by whoever has the state directory.
pub fn quic_path(directory: &Path) -> PathBuf {
    directory.join("quic-keys")
}

/// Removes what a process that has ended has left in its place; nothing where the place is another's by its record.
pub fn remove_files(directory: &Path, slot: u32, process: &Process) {
    let is_anothers = |record: Record| (record.pid, record.started) != (process.pid(), process.started());
    if !Record::read(directory, slot).is_ok_and(|record| record.is_some_and(is_anothers)) {
        remove_files_of(directory, slot);
    }
}

/// Removes what is left in this place, whosesoever it was.
pub fn remove_files_of(directory: &Path, slot: u32) {
    let files = [
        record::path(directory, slot),
        record::new_path(directory, slot),
        control_path(directory, slot),
        admin_path(directory, slot),
    ];
    // Where it took packets of HTTP/3 from the others, if it did.
    let prefix = format!("quic-{slot}.");
    let is_relay = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&prefix);
    let relays = fs::read_dir(directory).into_iter().flatten().flatten().filter(is_relay);
    for path in files.into_iter().chain(relays.map(|entry| entry.path())) {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "not removed");
            }
            _ => {}
        }
    }
}

/// Whether a process was started as the instance in this place of this state directory, as its arguments say.
pub fn is_instance_of(pid: u32, directory: &Path, slot: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| says_instance(&line, directory, slot))
}

fn says_instance(command_line: &[u8], directory: &Path, slot: u32) -> bool {
    let arguments: Vec<_> = command_line.split(|byte| *byte == 0).collect();
    let has = |option: &str, value: &OsStr| {
        arguments.windows(2).any(|pair| pair == [option.as_bytes(), value.as_bytes()])
    };
    arguments.get(1) == Some(&&b"instance"[..])
        && has("--state-dir", directory.as_os_str())
        && has("--slot", OsStr::new(&slot.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_known_by_its_arguments() {
        let line =
            b"playhouse\0instance\0--state-dir\0/run/shop\0--site\0shop\0--slot\x002\0--generation\x0012\0";
        assert!(says_instance(line, Path::new("/run/shop"), 2));
        assert!(!says_instance(line, Path::new("/run/shop"), 12));
        assert!(!says_instance(line, Path::new("/run/sho"), 2));
        assert!(!says_instance(b"vi\0instance\0--state-dir\0/run/shop\0", Path::new("/run/shop"), 2));
        assert!(!says_instance(b"", Path::new("/run/shop"), 2));
        assert!(!is_instance_of(std::process::id(), Path::new("/run/shop"), 2));
    }

    #[tokio::test]
    async fn files_are_removed_unless_the_place_is_anothers() {
        let dir = tempfile::tempdir().unwrap();
        let me = Record::of_this_process(1, 1, "x").unwrap();
        let process = Process::open(me.pid, me.started).unwrap();
        let count = || fs::read_dir(dir.path()).unwrap().count();
        let leave = |record: Record| {
            record.write(dir.path()).unwrap();
            fs::write(control_path(dir.path(), 1), "").unwrap();
            fs::write(admin_path(dir.path(), 1), "").unwrap();
        };
        leave(Record { started: me.started + 1, ..me.clone() });
        remove_files(dir.path(), 1, &process);
        assert_eq!(count(), 3);
        leave(me);
        remove_files(dir.path(), 1, &process);
        assert_eq!(count(), 0);
        fs::write(record::path(dir.path(), 1), "garbage").unwrap();
        remove_files(dir.path(), 1, &process);
        assert_eq!(count(), 0);
    }
}
