//! Instances that no record names, found among all processes.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::process::{self, Process};

/// The instances of the site in this state directory, by their arguments. To be called within a runtime.
///
/// A directory of the same path that is another one (a container's) has others, and so has another user. What cannot be
/// seen is not found.
pub fn instances_of(directory: &Path) -> Vec<Process> {
    let Some(own) = identity(directory) else { return Vec::new() };
    let user = rustix::process::geteuid().as_raw();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // Of others not even the arguments are asked for.
        if pid == std::process::id() || !entry.metadata().is_ok_and(|process| process.uid() == user) {
            continue;
        }
        let Some(started) = process::start_time(pid) else { continue };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let Some(theirs) = state_dir_of(&line) else { continue };
        if identity(&as_seen_by(pid, theirs)) == Some(own)
            && let Some(process) = Process::open(pid, started)
        {
            found.push(process);
        }
    }
    found
}

/// Device and inode.
type Identity = (u64, u64);

fn identity(directory: &Path) -> Option<Identity> {
    fs::metadata(directory).ok().as_ref().map(|directory: &Metadata| (directory.dev(), directory.ino()))
}

/// A path of another process, which may have another root.
fn as_seen_by(pid: u32, path: &Path) -> PathBuf {
    match path.strip_prefix("/") {
        Ok(below) => Path::new(&format!("/proc/{pid}/root")).join(below),
        Err(_) => Path::new(&format!("/proc/{pid}/cwd")).join(path),
    }
}

/// The state directory of an instance, from its command line; `None` where it is none.
fn state_dir_of(command_line: &[u8]) -> Option<&Path> {
    let arguments: Vec<_> = command_line.split(|byte| *byte == 0).collect();
    let value = |option: &[u8]| arguments.windows(2).find(|pair| pair[0] == option).map(|pair| pair[1]);
    value(b"--slot").filter(|_| arguments.get(1) == Some(&&b"instance"[..]))?;
    value(b"--state-dir").map(|directory| Path::new(OsStr::from_bytes(directory)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    /// A process with the arguments of an instance.
    fn child(directory: &Path) -> Child {
        // `$0` and what follows are arguments of no meaning to it; it stays a shell, and so keeps them.
        let mut command = Command::new("sh");
        command.arg0("playhouse").args(["-c", "read line", "x"]).stdin(std::process::Stdio::piped());
        command.arg("--state-dir").arg(directory).args(["--slot", "1"]);
        command.spawn().unwrap()
    }

    #[test]
    fn an_instance_is_known_by_its_arguments_and_its_directory_read_from_them() {
        let line = b"playhouse\0instance\0--state-dir\0/run/shop\0--site\0shop\0--slot\x002\0";
        assert_eq!(state_dir_of(line), Some(Path::new("/run/shop")));
        for other in [
            &b""[..],
            b"playhouse\0run\0--state-dir\0/run/shop\0--slot\x002\0",
            b"playhouse\0instance\0--state-dir\0/run/shop\0",
            b"playhouse\0instance\0--slot\x002\0",
            b"vi\0--slot\0--state-dir\0instance\0",
        ] {
            assert_eq!(state_dir_of(other), None);
        }
    }

    #[tokio::test]
    async fn what_only_has_such_arguments_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = child(dir.path());
        assert!(instances_of(dir.path()).is_empty());
        assert!(instances_of(Path::new("/no/such/directory")).is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_path_is_looked_at_as_the_other_process_sees_it() {
        let own = std::process::id();
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(identity(&as_seen_by(own, dir.path())), identity(dir.path()));
        assert_eq!(identity(&as_seen_by(own, Path::new("."))), identity(Path::new(".")));
        assert!(identity(dir.path()).is_some());
        assert_eq!(identity(&as_seen_by(own, Path::new("/no/such"))), None);
    }
}
