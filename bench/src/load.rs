//! The load generators, and what they say.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::peers::Server;
use crate::scenario::{Generator, Scenario};

/// What a generator counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counted {
    /// Requests with a good answer.
    pub requests: u64,
    /// Socket errors, other statuses, timeouts.
    pub errors: u64,
}

/// Runs the scenario's generator for so many seconds, on this thread's CPU.
///
/// # Errors
/// It cannot be started, fails, or says what is not understood.
pub fn generate(scenario: Scenario, server: &Server, seconds: u64) -> Result<Counted> {
    let scheme = if scenario.is_tls() { "https" } else { "http" };
    let url = format!("{scheme}://{}{}", server.address, scenario.path());
    let mut command = match scenario.generator() {
        Generator::Wrk { connections, close } => {
            let mut command = Command::new("wrk");
            command.args(["-t1", &format!("-c{connections}"), &format!("-d{seconds}s")]);
            if close {
                command.args(["-H", "Connection: close"]);
            }
            command
        }
        Generator::H3 => {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["h3-load", &server.address.to_string(), "--seconds", &seconds.to_string()]);
            command.arg("--cert").arg(server.cert());
            command
        }
        Generator::Websocket => {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["websocket-load", &server.address.to_string(), "--seconds", &seconds.to_string()]);
            command.args(["--length", &scenario.length().to_string()]);
            command
        }
        Generator::H2load | Generator::Idle => {
            let mut command = Command::new("h2load");
            command.args(["-t1", "-c8", "-m32", &format!("-D{seconds}")]);
            command
        }
    };
    let output = command
        .arg(match scenario.generator() {
            Generator::H3 | Generator::Websocket => scenario.path(),
            _ => &url,
        })
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {:?}", command.get_program()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}: {error}", output.status);
    let counted = match scenario.generator() {
        Generator::Wrk { .. } => wrk(&text),
        Generator::H2load | Generator::Idle => h2load(&text),
        Generator::H3 | Generator::Websocket => own_load(&text),
    };
    counted.with_context(|| format!("{command:?} said what is not understood:\n{text}{error}"))
}

fn wrk(text: &str) -> Option<Counted> {
    let (before, _) = text.split_once(" requests in ")?;
    let requests: u64 = before.rsplit(char::is_whitespace).next()?.parse().ok()?;
    let mut errors = 0;
    let mut bad = 0;
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("Socket errors:") {
            errors += rest
                .split(',')
                .filter_map(|part| part.trim().split(' ').nth(1)?.parse::<u64>().ok())
                .sum::<u64>();
        } else if let Some(rest) = line.strip_prefix("Non-2xx or 3xx responses:") {
            bad += rest.trim().parse::<u64>().ok()?;
        }
    }
    Some(Counted { requests: requests.saturating_sub(bad), errors: errors + bad })
}

fn h2load(text: &str) -> Option<Counted> {
    let line = text.lines().find_map(|line| line.strip_prefix("requests: "))?;
    let number =
        |name: &str| line.split(", ").find_map(|part| part.strip_suffix(name)?.trim().parse::<u64>().ok());
    let statuses = text.lines().find_map(|line| line.strip_prefix("status codes: "))?;
    let good = statuses.split(", ").find_map(|part| part.strip_suffix(" 2xx")?.parse::<u64>().ok())?;
    let requests = number(" succeeded")?.min(good);
    // Started and not done when the time was up is no error.
    let errors = number(" done")?.saturating_sub(requests) + number(" errored")? + number(" timeout")?;
    Some(Counted { requests, errors })
}

fn own_load(text: &str) -> Option<Counted> {
    let (answered, failed) = text.trim().strip_prefix("requests: ")?.split_once(" answered, ")?;
    let errors = failed.strip_suffix(" failed")?.parse().ok()?;
    Some(Counted { requests: answered.parse().ok()?, errors })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrk_is_understood() {
        let good = "Running 3s test @ http://x\n  1 threads and 64 connections\n  300123 requests in 3.10s, 1.2GB read\n";
        assert_eq!(wrk(good), Some(Counted { requests: 300_123, errors: 0 }));
        let bad = format!(
            "{good}  Socket errors: connect 1, read 2, write 3, timeout 4\n  Non-2xx or 3xx responses: 23\nRequests/sec: 9\n"
        );
        assert_eq!(wrk(&bad), Some(Counted { requests: 300_100, errors: 33 }));
        assert_eq!(wrk("unable to connect"), None);
    }

    #[test]
    fn h2load_is_understood() {
        let text = "finished in 3.00s\nrequests: 1000 total, 1256 started, 1000 done, 990 succeeded, 10 failed, 7 errored, 0 timeout\nstatus codes: 990 2xx, 0 3xx, 0 4xx, 3 5xx\n";
        assert_eq!(h2load(text), Some(Counted { requests: 990, errors: 17 }));
        assert_eq!(h2load("nothing"), None);
    }

    #[test]
    fn our_own_generator_is_understood() {
        let text = "requests: 1000 answered, 3 failed\n";
        assert_eq!(own_load(text), Some(Counted { requests: 1000, errors: 3 }));
        assert_eq!(own_load("nothing"), None);
    }
}
