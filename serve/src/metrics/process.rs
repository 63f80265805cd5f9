//! The process's own figures, from `/proc/self`. What cannot be read is left out.

use std::fs;
use std::sync::OnceLock;

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::Scrape;

pub(super) fn collect(scrape: &mut Scrape<'_>) {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    scrape.set("process_cpu_seconds_total", &[], cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9);
    if let Ok(status) = fs::read_to_string("/proc/self/status") {
        let fields = [
            ("process_resident_memory_bytes", "VmRSS:", 1024.0),
            ("process_virtual_memory_bytes", "VmSize:", 1024.0),
            ("process_threads", "Threads:", 1.0),
        ];
        for (name, key, unit) in fields {
            if let Some(value) = field(&status, key) {
                scrape.set(name, &[], value * unit);
            }
        }
    }
    if let Some(count) = open_descriptors() {
        scrape.set("process_open_fds", &[], count as f64);
    }
    if let Some(limit) = getrlimit(Resource::Nofile).current {
        scrape.set("process_max_fds", &[], limit as f64);
    }
    if let Some(start) = start_time() {
        scrape.set("process_start_time_seconds", &[], start);
    }
}

fn field(status: &str, key: &str) -> Option<f64> {
    status.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace().next()?.parse().ok()
}

fn open_descriptors() -> Option<u64> {
    // Since Linux 6.2 the directory's size is their number; before, they have to be listed.
    match fs::metadata("/proc/self/fd").ok()?.len() {
        0 => Some(fs::read_dir("/proc/self/fd").ok()?.count() as u64),
        count => Some(count),
    }
}

/// In Unix time.
fn start_time() -> Option<f64> {
    static START: OnceLock<Option<f64>> = OnceLock::new();
    *START.get_or_init(|| {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The second field is the program's name, which may hold anything; the start is the 22nd (proc_pid_stat(5)).
        let ticks: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
        let boot = field(&fs::read_to_string("/proc/stat").ok()?, "btime ")?;
        Some(boot + ticks / USER_HZ)
    })
}

/// Ticks a second in `/proc`, the same on every architecture that Rust's standard library supports on Linux.
const USER_HZ: f64 = 100.0;

#[cfg(test)]
mod tests {
    use super::super::Metrics;

    #[test]
    fn the_process_has_figures() {
        let metrics = Metrics::default();
        let text = metrics.scrape().render();
        for name in [
            "process_cpu_seconds_total",
            "process_resident_memory_bytes",
            "process_virtual_memory_bytes",
            "process_open_fds",
            "process_threads",
            "process_start_time_seconds",
        ] {
            let value = text.lines().find_map(|line| line.strip_prefix(name)).expect(name);
            assert!(value.trim().parse::<f64>().unwrap() > 0.0, "{name}{value}");
        }
    }
}
