//! `playhouse stop`

use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::admin::Admin;
use super::output::Output;
use super::target::{Found, Target};

/// Drain and stop a running site.
///
/// It accepts no more, answers what is in flight within the site's drain_timeout, and ends. Returns when it has ended: all
/// of its processes, where it has several, whether their controller is alive or not.
#[derive(Debug, Args)]
pub(super) struct Stop {
    /// Return at once; the site drains on
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    target: Target,
}

impl Stop {
    pub(super) fn execute(self, output: Output) -> anyhow::Result<()> {
        let found = self.target.find()?;
        let (endings, said) = match &found {
            Found::Site(admin) => (stop(admin)?, Vec::new()),
            Found::Orphans(orphans) => orphans.stop()?,
        };
        said.iter().for_each(|line| output.warn(line));
        if !self.no_wait {
            endings.into_iter().try_for_each(Ending::wait)?;
            if let Found::Orphans(orphans) = &found {
                orphans.clean_up();
            }
        }
        let word = if self.no_wait { "stopping" } else { "stopped" };
        if output.is_json() {
            return output.json(&serde_json::json!({word: true}));
        }
        output.text(&format!("{word}\n"))
    }
}

/// Tells a site to stop; gives back all of its processes.
fn stop(admin: &Admin) -> anyhow::Result<Vec<Ending>> {
    let status: Status = admin.read("/v1/status")?;
    let mut pids = vec![status.pid];
    pids.extend(status.instances.iter().map(|instance| instance.pid).filter(|pid| *pid != status.pid));
    // Opened before the end, so that each is of this process and no other's that gets its number.
    let endings = pids.into_iter().map(|pid| {
        let process = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Ending::new(process, admin.clone())
    });
    let endings = endings.collect();
    admin.post("/v1/stop", &serde_json::json!({}))?;
    Ok(endings)
}

/// A process that is to end.
#[derive(Debug)]
pub(super) struct Ending {
    /// `None` where it cannot be seen (another container).
    process: Option<OwnedFd>,
    /// Whoever answers as long as it lives.
    admin: Admin,
}

impl Ending {
    pub(super) fn new(process: Option<OwnedFd>, admin: Admin) -> Self {
        Ending { process, admin }
    }

    /// Until the process has ended; where it cannot be seen, until nobody answers. The site itself sees to it that a drain
    /// ends.
    fn wait(self) -> anyhow::Result<()> {
        let Some(process) = self.process else {
            while self.admin.is_there() {
                thread::sleep(INTERVAL);
            }
            return Ok(());
        };
        let mut silent = Duration::ZERO;
        // The number may be another process's here, if the site runs in a container: then it is not waited for for ever.
        while silent < FLUSH {
            match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&PATIENCE)) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(0) if self.admin.is_there() => {}
                Ok(0) => silent += Duration::from_millis(250),
                result => return result.map(drop).context("waiting for the process to end"),
            }
        }
        Ok(())
    }
}

#[derive(Debug, serde::Deserialize)]
struct Status {
    pid: i32,
    #[serde(default)]
    instances: Vec<Instance>,
}

#[derive(Debug, serde::Deserialize)]
struct Instance {
    pid: i32,
}

/// How long a site may live on after its last answer: it flushes its access log.
const FLUSH: Duration = Duration::from_secs(5);

const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

const INTERVAL: Duration = Duration::from_millis(20);
