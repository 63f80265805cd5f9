//! wrk and h2load: load from other people's clients, and what they counted.

use std::process::{Child, Command, Stdio};

use super::process::tool;

/// What wrk has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wrk {
    pub requests: u64,
    /// Answers with another status than 2xx or 3xx.
    pub refused: u64,
    pub connect: u64,
    pub read: u64,
    pub write: u64,
    pub timeout: u64,
}

impl Wrk {
    /// Starts wrk on `url` for so many seconds.
    #[track_caller]
    pub fn start(url: &str, connections: u32, seconds: u32) -> Load<Wrk> {
        let mut command = Command::new(tool("wrk", "wrk"));
        command.args([
            "-t",
            "1",
            "-c",
            &connections.to_string(),
            "-d",
            &format!("{seconds}s"),
            "--timeout",
            "20s",
            url,
        ]);
        Load::start(command, Wrk::parse)
    }

    /// Everything that was not answered well.
    pub fn failures(&self) -> u64 {
        self.refused + self.connect + self.read + self.write + self.timeout
    }

    fn parse(output: &str) -> Self {
        let mut counted = Wrk::default();
        for line in output.lines().map(str::trim) {
            if let Some(numbers) = line.strip_prefix("Socket errors: ") {
                for part in numbers.split(", ") {
                    let (what, count) = part.split_once(' ').expect("wrk counts by kind");
                    let count = count.parse().expect("wrk counts in numbers");
                    match what {
                        "connect" => counted.connect = count,
                        "read" => counted.read = count,
                        "write" => counted.write = count,
                        _ => counted.timeout = count,
                    }
                }
            } else if let Some(count) = line.strip_prefix("Non-2xx or 3xx responses: ") {
                counted.refused = count.parse().expect("wrk counts in numbers");
            } else if let Some((count, _)) = line.split_once(" requests in ") {
                counted.requests = count.parse().expect("wrk counts in numbers");
            }
        }
        assert!(counted.requests > 0, "wrk has done nothing: {output}");
        counted
    }
}

/// What h2load has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct H2load {
    pub total: u64,
    pub done: u64,
    pub succeeded: u64,
    pub failed: u64,
    pub errored: u64,
    pub timeout: u64,
    /// Answers with a status of 200 to 299.
    pub ok: u64,
}

impl H2load {
    /// Starts h2load with so many requests over so many connections with so many streams each. Further arguments go
    /// to h2load as they are.
    #[track_caller]
    pub fn start(url: &str, requests: u32, connections: u32, streams: u32, more: &[&str]) -> Load<H2load> {
        let mut command = Command::new(tool("h2load", "nghttp2-client"));
        command
            .args(["-n", &requests.to_string(), "-c", &connections.to_string(), "-m", &streams.to_string()])
            .args(more)
            .arg(url);
        Load::start(command, H2load::parse)
    }

    /// Starts h2load for so many seconds.
    #[track_caller]
    pub fn start_for(url: &str, seconds: u32, connections: u32, streams: u32) -> Load<H2load> {
        let mut command = Command::new(tool("h2load", "nghttp2-client"));
        command
            .args(["-D", &seconds.to_string(), "-c", &connections.to_string(), "-m", &streams.to_string()])
            .arg(url);
        Load::start(command, H2load::parse)
    }

    fn parse(output: &str) -> Self {
        let mut counted = H2load::default();
        for line in output.lines().map(str::trim) {
            let numbers = line.strip_prefix("requests: ").or_else(|| line.strip_prefix("status codes: "));
            for (count, what) in
                numbers.into_iter().flat_map(|all| all.split(", ")).filter_map(|n| n.split_once(' '))
            {
                let count = count.parse().expect("h2load counts in numbers");
                match what {
                    "total" => counted.total = count,
                    "done" => counted.done = count,
                    "succeeded" => counted.succeeded = count,
                    "failed" => counted.failed = count,
                    "errored" => counted.errored = count,
                    "timeout" => counted.timeout = count,
                    "2xx" => counted.ok = count,
                    _ => {}
                }
            }
        }
        assert!(counted.done > 0, "h2load has done nothing: {output}");
        counted
    }
}

/// A running load generator.
pub struct Load<T> {
    child: Option<Child>,
    parse: fn(&str) -> T,
}

impl<T> Load<T> {
    fn start(mut command: Command, parse: fn(&str) -> T) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Load { child: Some(child), parse }
    }

    pub fn running(&mut self) -> bool {
        let child = self.child.as_mut().expect("a load is finished once");
        matches!(child.try_wait(), Ok(None))
    }

    /// Waits for its end.
    #[track_caller]
    pub fn finish(mut self) -> T {
        let child = self.child.take().expect("a load is finished once");
        let output = child.wait_with_output().expect("our own child can be waited for");
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {text}", output.status);
        (self.parse)(&text)
    }
}

impl<T> Drop for Load<T> {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
