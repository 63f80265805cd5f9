//! What an instance writes down of itself, for a controller that has not started it.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::process;

/// The record of an instance: `instance-SLOT.json` in the state directory. Written by the instance before anything else;
/// removed by whoever sees it gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its process.
    pub pid: u32,
    /// When that started, as [`process::start_time`].
    pub started: u64,
    /// Its place, from 1.
    pub slot: u32,
    /// Counts the processes that the site has started.
    pub generation: u64,
    /// The program's version, for people.
    #[serde(default)]
    pub build: String,
}

/// Why there is no record to be had from a file.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It cannot be read or written.
    #[error("{}: {error}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// It is no record, or that of another place.
    #[error("{}: not the record of an instance: {why}", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

impl Record {
    /// Of this process, in this place.
    ///
    /// # Errors
    /// Where `/proc` cannot be read.
    pub fn of_this_process(slot: u32, generation: u64, build: &str) -> io::Result<Record> {
        let pid = std::process::id();
        let started = process::start_time(pid)
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "/proc/self/stat: no start time"))?;
        Ok(Record { pid, started, slot, generation, build: build.to_owned() })
    }

    /// Writes it (mode 0600): whole, or not at all. One that is there already is replaced.
    ///
    /// # Errors
    /// What the file system says.
    pub fn write(&self, directory: &Path) -> Result<(), RecordError> {
        let (path, new) = (path(directory, self.slot), new_path(directory, self.slot));
        let write = || {
            // A leftover is not written to: it may be a link, or open elsewhere.
            match fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
            serde_json::to_writer(&mut file, self)?;
            file.write_all(b"\n")?;
            fs::rename(&new, &path)
        };
        write().map_err(|error| RecordError::Io { path: path.clone(), error })
    }

    /// The record of this place; `None` where there is none.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn read(directory: &Path, slot: u32) -> Result<Option<Record>, RecordError> {
        let path = path(directory, slot);
        let malformed = |why: String| RecordError::Malformed { path: path.clone(), why };
        let bytes = match read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(RecordError::Io { path, error }),
        };
        if bytes.len() > MAX_BYTES {
            return Err(malformed(format!("longer than {MAX_BYTES} bytes")));
        }
        let record: Record = serde_json::from_slice(&bytes).map_err(|error| malformed(error.to_string()))?;
        if record.slot != slot {
            return Err(malformed(format!("it is of instance {}", record.slot)));
        }
        Ok(Some(record))
    }

    /// Removes it, unless the file is another process's by now.
    ///
    /// # Errors
    /// See [`RecordError`]; then nothing is removed.
    pub fn remove(&self, directory: &Path) -> Result<(), RecordError> {
        if Self::read(directory, self.slot)?.is_some_and(|record| record == *self) {
            let path = path(directory, self.slot);
            fs::remove_file(&path).map_err(|error| RecordError::Io { path, error })?;
        }
        Ok(())
    }
}

/// The records in a state directory by their places, in order; those that cannot be read among them.
pub fn all(directory: &Path) -> Vec<(u32, Result<Record, RecordError>)> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut slots: Vec<_> =
        entries.flatten().filter_map(|entry| slot_of(entry.file_name().to_str()?)).collect();
    slots.sort_unstable();
    let read = |slot| Some((slot, Record::read(directory, slot).transpose()?));
    slots.into_iter().filter_map(read).collect()
}

/// Where the record of this place is.
pub fn path(directory: &Path, slot: u32) -> PathBuf {
    directory.join(format!("instance-{slot}.json"))
}

/// Where it is written first.
pub(super) fn new_path(directory: &Path, slot: u32) -> PathBuf {
    directory.join(format!("instance-{slot}.json.new"))
}

fn slot_of(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("instance-")?.strip_suffix(".json")?;
    let slot: u32 = digits.parse().ok().filter(|slot| *slot > 0)?;
    // Not "007" or "+7": one name for one place.
    (slot.to_string() == digits).then_some(slot)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // A link is not followed, and a pipe not waited for.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

const MAX_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn record(slot: u32) -> Record {
        Record { pid: 7, started: 8, slot, generation: 9, build: "1.2.3".into() }
    }

    #[test]
    fn a_record_is_private_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Record::read(dir.path(), 2).unwrap().is_none());
        record(2).write(dir.path()).unwrap();
        let newer = Record { generation: 10, ..record(2) };
        newer.write(dir.path()).unwrap();
        assert_eq!(Record::read(dir.path(), 2).unwrap(), Some(newer.clone()));
        let mode = fs::metadata(path(dir.path(), 2)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);

        record(2).remove(dir.path()).unwrap();
        assert_eq!(Record::read(dir.path(), 2).unwrap(), Some(newer.clone()));
        newer.remove(dir.path()).unwrap();
        newer.remove(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn this_process_is_what_its_record_says() {
        let record = Record::of_this_process(1, 1, "x").unwrap();
        assert_eq!((record.pid, Some(record.started)), (std::process::id(), process::start_time(record.pid)));
    }

    #[test]
    fn what_is_no_record_is_an_error_that_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let long = format!("{}{}", serde_json::to_string(&record(3)).unwrap(), " ".repeat(MAX_BYTES));
        let cases: [(&[u8], &str); 6] = [
            (b"", "not the record"),
            (b"\xff\0garbage", "not the record"),
            (br#"{"pid":-1,"started":1,"slot":3,"generation":1}"#, "not the record"),
            (br#"{"pid":1,"slot":3}"#, "missing field"),
            (br#"{"pid":1,"started":1,"slot":4,"generation":1}"#, "it is of instance 4"),
            (long.as_bytes(), "longer than"),
        ];
        for (bytes, said) in cases {
            fs::write(path(dir.path(), 3), bytes).unwrap();
            let error = Record::read(dir.path(), 3).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains("instance-3.json"), "{error}");
            assert!(record(3).remove(dir.path()).is_err());
        }
        fs::remove_file(path(dir.path(), 3)).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", path(dir.path(), 3)).unwrap();
        assert!(matches!(Record::read(dir.path(), 3), Err(RecordError::Io { .. })));
        fs::remove_file(path(dir.path(), 3)).unwrap();
        fs::create_dir(path(dir.path(), 3)).unwrap();
        assert!(matches!(Record::read(dir.path(), 3), Err(RecordError::Io { .. })));
        // Fields of a later version do no harm.
        let later = br#"{"pid":7,"started":8,"slot":5,"generation":9,"build":"1.2.3","colour":[1]}"#;
        fs::write(path(dir.path(), 5), later).unwrap();
        assert_eq!(Record::read(dir.path(), 5).unwrap(), Some(record(5)));
    }

    #[test]
    fn all_records_are_found_by_their_names() {
        let dir = tempfile::tempdir().unwrap();
        for slot in [10, 2] {
            record(slot).write(dir.path()).unwrap();
        }
        fs::write(path(dir.path(), 4), "garbage").unwrap();
        for other in ["instance-0.json", "instance-03.json", "instance-3.json.new", "instance-x.json", "lock"]
        {
            fs::write(dir.path().join(other), "{}").unwrap();
        }
        let all = all(dir.path());
        assert_eq!(
            all.iter().map(|(slot, read)| (*slot, read.is_ok())).collect::<Vec<_>>(),
            [(2, true), (4, false), (10, true)]
        );
    }
}
