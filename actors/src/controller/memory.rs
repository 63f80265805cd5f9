//! How much memory could still be used: of the host, and of the control groups that this process is in.

use std::path::Path;

use super::cgroup;

/// What is left, in bytes. What cannot be read is not there, and limits nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Memory {
    /// `MemAvailable` of the host.
    #[serde(default)]
    pub host: Option<u64>,
    /// What is left below the nearest limit of the process's control group and of those above it. Cached files that are
    /// not in use count as free, since the kernel gives them up first.
    #[serde(default)]
    pub group: Option<u64>,
}

impl Memory {
    /// Reads it. `root` is `/`, but in tests. Reads a few files of `/proc` and `/sys/fs/cgroup`, which the kernel
    /// answers from memory.
    pub fn read(root: &Path) -> Memory {
        let host =
            cgroup::named(&root.join("proc/meminfo"), "MemAvailable:").map(|kib| kib.saturating_mul(1024));
        let groups = cgroup::unified(root).into_iter().filter_map(|group| left(&group));
        let first_version = cgroup::first_version(root, "memory")
            .into_iter()
            .filter_map(|group| left_of_first_version(&group));
        Memory { host, group: groups.chain(first_version).min() }
    }

    /// What can be used before one of the limits is met; `None` where nothing can be known.
    pub fn available(&self) -> Option<u64> {
        self.host.into_iter().chain(self.group).min()
    }
}

/// Beneath `memory.max`, where the kernel kills, and `memory.high`, where it slows down.
fn left(group: &Path) -> Option<u64> {
    let limits = [cgroup::number(&group.join("memory.max")), cgroup::number(&group.join("memory.high"))];
    let limit = limits.into_iter().flatten().min()?;
    let idle = cgroup::named(&group.join("memory.stat"), "inactive_file").unwrap_or(0);
    let used = cgroup::number(&group.join("memory.current"))?.saturating_sub(idle);
    Some(limit.saturating_sub(used))
}

fn left_of_first_version(group: &Path) -> Option<u64> {
    let limit = cgroup::number(&group.join("memory.limit_in_bytes")).filter(|&limit| limit < NO_LIMIT)?;
    let idle = cgroup::named(&group.join("memory.stat"), "total_inactive_file").unwrap_or(0);
    let used = cgroup::number(&group.join("memory.usage_in_bytes"))?.saturating_sub(idle);
    Some(limit.saturating_sub(used))
}

/// The first version has no word for "none": it says the largest number of whole pages.
const NO_LIMIT: u64 = 1 << 60;

#[cfg(test)]
mod tests {
    use super::super::cgroup::tests::root;
    use super::*;

    const MEMINFO: (&str, &str) =
        ("proc/meminfo", "MemTotal:       1000 kB\nMemFree:  10 kB\nMemAvailable:    800 kB\n");

    fn read(files: &[(&str, &str)]) -> Memory {
        Memory::read(root(files).path())
    }

    #[test]
    fn a_host_without_groups_has_what_it_says() {
        let memory = read(&[MEMINFO]);
        assert_eq!(memory, Memory { host: Some(800 << 10), group: None });
        assert_eq!(memory.available(), Some(800 << 10));
    }

    #[test]
    fn the_strictest_group_above_counts_and_idle_cache_is_free() {
        let memory = read(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/cgroup.controllers", "memory\n"),
            ("sys/fs/cgroup/a/b/memory.max", "500000\n"),
            ("sys/fs/cgroup/a/b/memory.current", "100000\n"),
            ("sys/fs/cgroup/a/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.high", "300000\n"),
            ("sys/fs/cgroup/a/memory.current", "250000\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 50000\nactive_file 7\n"),
        ]);
        assert_eq!(memory.group, Some(100_000));
        assert_eq!(memory.available(), Some(100_000));
    }

    #[test]
    fn a_group_over_its_limit_has_nothing_left() {
        let memory = read(&[
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/cgroup.controllers", "memory\n"),
            ("sys/fs/cgroup/memory.max", "1000\n"),
            ("sys/fs/cgroup/memory.current", "2000\n"),
        ]);
        assert_eq!(memory.available(), Some(0));
    }

    #[test]
    fn groups_of_the_first_version_are_read_too() {
        let group = |limit| {
            read(&[
                ("proc/self/cgroup", "4:memory:/docker/1\n0::/\n"),
                // A container shows its own group as the root.
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", limit),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "3000\n"),
                ("sys/fs/cgroup/memory/memory.stat", "inactive_file 5\ntotal_inactive_file 1000\n"),
            ])
            .group
        };
        assert_eq!(group("10000\n"), Some(8_000));
        assert_eq!(group("9223372036854771712\n"), None);
    }

    #[test]
    fn where_nothing_can_be_read_nothing_is_known() {
        assert_eq!(read(&[]).available(), None);
        assert_eq!(read(&[("proc/meminfo", "MemAvailable: many kB\n")]).available(), None);
    }

    #[test]
    fn this_host_has_some() {
        assert!(Memory::read(Path::new("/")).available().is_some_and(|bytes| bytes > 0));
    }
}
