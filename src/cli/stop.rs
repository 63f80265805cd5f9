//! `playhouse stop`

use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use playhouse::state_dir::{StateDir, StateDirError};
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
        let Told { endings, said, directory } = self.tell()?;
        said.iter().for_each(|line| output.warn(line));
        if !self.no_wait {
            endings.into_iter().try_for_each(Ending::wait)?;
            if let Some(directory) = &directory {
                // Everything has ended; what stays if it cannot be removed, the next start replaces.
                let _ = playhouse::controller::clean_up(directory);
            }
        }
        let word = if self.no_wait { "stopping" } else { "stopped" };
        if output.is_json() {
            return output.json(&serde_json::json!({word: true}));
        }
        output.text(&format!("{word}\n"))
    }
}

/// What was told to stop.
struct Told {
    /// What is to be waited for.
    endings: Vec<Ending>,
    /// For people.
    said: Vec<String>,
    /// Where no controller was there: until all have ended nobody else begins anything in it, a controller least of all that
    /// would start others in their place.
    directory: Option<StateDir>,
}

impl Stop {
    /// Tells whoever runs the site; whom that is may change while it is asked.
    fn tell(&self) -> anyhow::Result<Told> {
        for _ in 1..ATTEMPTS {
            if let Some(told) = self.tell_once().transpose() {
                return told;
            }
        }
        self.tell_once()?.context("the site changes hands again and again; nobody could be told to stop")
    }

    /// `None` where somebody has come meanwhile, or has gone.
    fn tell_once(&self) -> anyhow::Result<Option<Told>> {
        let orphans = match self.target.find()? {
            Found::Site(admin) => {
                let was_there = !admin.is_absent();
                return match stop(&admin) {
                    Ok(endings) => Ok(Some(Told { endings, said: Vec::new(), directory: None })),
                    // Killed, or becoming another program.
                    Err(_) if was_there && admin.is_absent() => Ok(None),
                    Err(error) => Err(error),
                };
            }
            Found::Orphans(orphans) => orphans,
        };
        let directory = match StateDir::take(orphans.directory()) {
            Ok(directory) => directory,
            Err(StateDirError::Taken { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let (endings, said) = orphans.stop()?;
        Ok(Some(Told { endings, said, directory: Some(directory) }))
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

/// How often somebody else may be found in a site's place.
const ATTEMPTS: usize = 5;

/// How long a site may live on after its last answer: it flushes its access log.
const FLUSH: Duration = Duration::from_secs(5);

const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

const INTERVAL: Duration = Duration::from_millis(20);
