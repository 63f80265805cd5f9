//! What was measured on, with what, and when.

use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The machine and the programs of a measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Its CPUs.
    pub cpus: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// The kernel's release.
    pub kernel: String,
    /// A line for each program that took part.
    pub programs: Vec<String>,
}

impl Machine {
    /// This machine, with the versions of the usual programs and of these binaries of Playhouse.
    pub fn this(playhouses: &[(String, std::path::PathBuf)]) -> Machine {
        let value = |file: &str, key: &str| {
            let text = fs::read_to_string(file).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(key))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let memory = value("/proc/meminfo", "MemTotal").unwrap_or_default();
        let kib = memory.split(' ').next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0);
        let mut programs: Vec<String> =
            [("nginx", "-v"), ("haproxy", "-v"), ("wrk", "-v"), ("h2load", "--version")]
                .iter()
                .filter_map(|(program, flag)| version(program, flag))
                .collect();
        programs.push(format!("hyper {}", locked("hyper")));
        for (name, path) in playhouses {
            let line =
                version(&path.to_string_lossy(), "--version").unwrap_or_else(|| "unknown version".into());
            programs.push(if *name == "playhouse" { line } else { format!("{name}: {line}") });
        }
        Machine {
            cpu: value("/proc/cpuinfo", "model name").unwrap_or_default(),
            // Not what this thread may use: it is pinned.
            cpus: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            memory_mib: kib >> 10,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            programs,
        }
    }
}

/// The first line that a program says about itself, on either stream.
fn version(program: &str, flag: &str) -> Option<String> {
    let output = Command::new(program).arg(flag).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    let line = String::from_utf8_lossy(&text).lines().next()?.trim().to_owned();
    let end = line.find(" - http").or_else(|| line.find(" Copyright")).unwrap_or(line.len());
    Some(line[..end].to_owned())
}

/// The version of a crate that this was built with.
fn locked(name: &str) -> &'static str {
    const LOCK: &str = include_str!("../../Cargo.lock");
    let entry = format!("name = \"{name}\"\nversion = \"");
    LOCK.split_once(&entry).and_then(|(_, rest)| rest.split_once('"')).map_or("", |(version, _)| version)
}

/// The date in UTC, `YYYY-MM-DD`.
pub fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = civil(seconds / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// The proleptic Gregorian date of a day since 1970-01-01 (Howard Hinnant's `civil_from_days`, days of this era only).
fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + u64::from(month <= 2), month, doy - (153 * mp + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_787), (2026, 11, 30));
        assert_eq!(civil(20_819), (2027, 1, 1));
    }

    #[test]
    fn the_lock_file_knows_hyper() {
        assert!(locked("hyper").starts_with("1."));
    }
}
