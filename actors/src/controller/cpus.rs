//! How many CPUs this process and those that it starts may use.

use std::fs;
use std::path::Path;

use super::cgroup;

/// The CPUs of the process's affinity, or fewer where a control group's quota says so; at least 1. A quota is rounded up
/// (`std::thread::available_parallelism` rounds down): with one and a half CPUs the second instance has work too. `root` is
/// `/`, but in tests.
pub fn usable(root: &Path) -> u32 {
    let allowed = match rustix::thread::sched_getaffinity(None) {
        Ok(set) => set.count(),
        // More CPUs than the set has room for.
        Err(_) => {
            std::thread::available_parallelism().map_or(1, |count| count.get().try_into().unwrap_or(u32::MAX))
        }
    };
    allowed.min(quota(root).unwrap_or(u32::MAX)).max(1)
}

/// The strictest quota of the process's groups, in CPUs.
fn quota(root: &Path) -> Option<u32> {
    let unified = cgroup::unified(root).into_iter().filter_map(|group| {
        let text = fs::read_to_string(group.join("cpu.max")).ok()?;
        let (quota, period) = text.trim().split_once(' ')?;
        cpus(quota.parse().ok()?, period.parse().ok()?)
    });
    let first_version = cgroup::first_version(root, "cpu").into_iter().filter_map(|group| {
        cpus(
            cgroup::number(&group.join("cpu.cfs_quota_us"))?,
            cgroup::number(&group.join("cpu.cfs_period_us"))?,
        )
    });
    unified.chain(first_version).min()
}

fn cpus(quota: u64, period: u64) -> Option<u32> {
    (period > 0).then(|| quota.div_ceil(period).try_into().unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::super::cgroup::tests::root;
    use super::*;

    fn unified(own: &str, above: &str) -> Option<u32> {
        let root = root(&[
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/cgroup.controllers", "cpu\n"),
            ("sys/fs/cgroup/a/b/cpu.max", own),
            ("sys/fs/cgroup/a/cpu.max", above),
        ]);
        quota(root.path())
    }

    #[test]
    fn a_quota_is_rounded_up_and_the_strictest_counts() {
        assert_eq!(unified("150000 100000\n", "max 100000\n"), Some(2));
        assert_eq!(unified("max 100000\n", "10000 100000\n"), Some(1));
        assert_eq!(unified("400000 100000\n", "300000 100000\n"), Some(3));
        assert_eq!(unified("max 100000\n", "max 100000\n"), None);
    }

    #[test]
    fn what_makes_no_sense_limits_nothing() {
        assert_eq!(unified("100000 0\n", "\n"), None);
        assert_eq!(unified("many few\n", "5\n"), None);
        assert_eq!(quota(tempfile::tempdir().unwrap().path()), None);
    }

    #[test]
    fn quotas_of_the_first_version_are_read_too() {
        let group = |quota| {
            let root = root(&[
                ("proc/self/cgroup", "1:cpu,cpuacct:/\n"),
                ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota),
                ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ]);
            super::quota(root.path())
        };
        assert_eq!(group("250000\n"), Some(3));
        assert_eq!(group("-1\n"), None);
    }

    #[test]
    fn there_is_always_one() {
        let empty = tempfile::tempdir().unwrap();
        assert!(usable(empty.path()) >= 1);
        let none = root(&[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/unified/cpu.max", "0 100000\n")]);
        assert_eq!(usable(none.path()), 1);
    }
}
