//! Where the limits of the control groups that this process is in are to be read.

use std::fs;
use std::path::{Path, PathBuf};

/// The directories of the process's group in the unified hierarchy and of all groups above it, innermost first. Those
/// that a container does not show are missing on disk.
pub(super) fn unified(root: &Path) -> Vec<PathBuf> {
    let mount = root.join("sys/fs/cgroup");
    // Beside hierarchies of the first version it is mounted below them.
    let mount = if mount.join("cgroup.controllers").exists() { mount } else { mount.join("unified") };
    match membership(root, |controllers| controllers.is_empty()) {
        Some(path) => upwards(&mount, &path),
        None => Vec::new(),
    }
}

/// The same for a controller's hierarchy of the first version.
pub(super) fn first_version(root: &Path, controller: &str) -> Vec<PathBuf> {
    let mount = root.join("sys/fs/cgroup").join(controller);
    match membership(root, |controllers| controllers.split(',').any(|name| name == controller)) {
        Some(path) => upwards(&mount, &path),
        None => Vec::new(),
    }
}

/// A file that holds one number. `max`, a negative number and a missing file are none.
pub(super) fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// A value of a file of names and numbers; a unit after the number is passed over.
pub(super) fn named(file: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    value.split_ascii_whitespace().next()?.parse().ok()
}

/// The process's path in the hierarchy whose controllers are these.
fn membership(root: &Path, is_it: impl Fn(&str) -> bool) -> Option<String> {
    let text = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    text.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        is_it(controllers).then(|| path.to_owned())
    })
}

fn upwards(mount: &Path, path: &str) -> Vec<PathBuf> {
    let path = path.trim_matches('/');
    // A process that was moved out of its namespace's root; what is beneath the mount is all that it may know of.
    if path.is_empty() || path.split('/').any(|name| name == "..") {
        return vec![mount.to_path_buf()];
    }
    let group = mount.join(path);
    group.ancestors().take_while(|above| above.starts_with(mount)).map(Path::to_path_buf).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A directory that looks like `/`, with these files.
    pub(in crate::controller) fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    #[test]
    fn groups_are_listed_from_the_process_up_to_the_mount() {
        let root = root(&[
            ("proc/self/cgroup", "3:cpu,cpuacct:/a\n0::/system.slice/playhouse.service\n"),
            ("sys/fs/cgroup/cgroup.controllers", "cpu memory\n"),
        ]);
        let mount = root.path().join("sys/fs/cgroup");
        let expected =
            [mount.join("system.slice/playhouse.service"), mount.join("system.slice"), mount.clone()];
        assert_eq!(unified(root.path()), expected);
        assert_eq!(first_version(root.path(), "cpu"), [mount.join("cpu/a"), mount.join("cpu")]);
        assert!(first_version(root.path(), "memory").is_empty());
    }

    #[test]
    fn a_group_outside_of_the_namespace_is_looked_for_nowhere_else() {
        let root = root(&[("proc/self/cgroup", "0::/../../other\n")]);
        assert_eq!(unified(root.path()), [root.path().join("sys/fs/cgroup/unified")]);
    }

    #[test]
    fn without_files_there_are_no_groups() {
        let root = tempfile::tempdir().unwrap();
        assert!(unified(root.path()).is_empty() && first_version(root.path(), "cpu").is_empty());
    }

    #[test]
    fn what_is_no_number_is_none() {
        let root = root(&[("max", "max\n"), ("minus", "-1\n"), ("n", "7\n"), ("stat", "a 1\nab 2\n")]);
        assert_eq!(number(&root.path().join("max")), None);
        assert_eq!(number(&root.path().join("minus")), None);
        assert_eq!(number(&root.path().join("n")), Some(7));
        assert_eq!(named(&root.path().join("stat"), "ab"), Some(2));
        assert_eq!(named(&root.path().join("stat"), "b"), None);
    }
}
