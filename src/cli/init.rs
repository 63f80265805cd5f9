//! `playhouse run` as process 1, of a container say: a parent for whoever has none, and a controller that is started again.
//!
//! It opens nothing and decides nothing about the site. What it starts is `playhouse run` as anywhere else; when that is
//! killed, the next one adopts the instances, which live because this process does. After an upgrade it becomes the new
//! build once a controller of that runs: until then what it would start again is the build before.

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::time::Duration;

use anyhow::{Context, bail};
use playhouse::control::descriptors::tell_descriptor_limit;
use playhouse::service_manager;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process, set_child_subreaper, wait,
};
use tokio::runtime::Builder;
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::time::Instant;

use super::children::children;

/// What is run, and how.
pub(super) struct Init {
    /// The arguments of `playhouse` for the child.
    pub(super) arguments: Vec<std::ffi::OsString>,
    /// Where the site's state is; `None` where that is not known, because its file is not valid.
    pub(super) state_dir: Option<PathBuf>,
    /// A controller that runs already: this process was the init of another build until now.
    pub(super) controller: Option<i32>,
}

/// Tells the init that has started this process, if one has, that the site runs. Where this is another build than the
/// init, which is so after an upgrade, the init becomes one of this build too.
pub(super) fn tell_parent() {
    let init = env::var(INIT).ok().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
    if let Some(init) = init.filter(|init| getppid() == Some(*init)) {
        tell(init, Signal::USR1);
    }
}

impl Init {
    /// Runs until the site has ended, and gives the status to exit with.
    pub(super) fn run(self) -> anyhow::Result<u8> {
        // Without it, as another process than 1, orphans would go past us.
        set_child_subreaper(Some(getpid())).context("cannot become a parent of orphans")?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut signals = Signals::install().context("signal handlers")?;
            let controller = match self.controller {
                Some(pid) => Pid::from_raw(pid).context("no process")?,
                None => self.start()?,
            };
            let mut watch = Watch { init: self, controller, backoff: Backoff::default(), leaving: None };
            loop {
                if let Some(status) = watch.reap().await? {
                    return Ok(status);
                }
                tokio::select! {
                    signal = signals.next() => match signal {
                        Signal::CHILD => {}
                        Signal::USR1 => watch.controller_runs(),
                        signal => watch.pass_on(signal),
                    },
                    () = watch.patience_ends() => {}
                }
            }
        })
    }

    fn start(&self) -> anyhow::Result<Pid> {
        // The file that this process was started from, even where it has been replaced.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("playhouse").args(&self.arguments).process_group(0);
        command.env(INIT, process::id().to_string());
        tell_descriptor_limit(&mut command);
        for variable in service_manager::own_variables() {
            command.env_remove(variable);
        }
        let child = command.spawn().context("the controller does not start")?;
        // It is reaped with all others, not through this value.
        Ok(Pid::from_child(&child))
    }

    fn has_instances(&self) -> bool {
        self.state_dir.as_deref().is_some_and(|directory| {
            let files = fs::read_dir(directory).into_iter().flatten().flatten();
            files.map(|file| file.file_name()).any(|name| {
                let name = name.to_string_lossy();
                name.starts_with("instance-") && name.ends_with(".json")
            })
        })
    }

    /// Becomes an init of the controller's build, in this process and with all children. Returns where it is that build, or
    /// where it cannot be another.
    fn follow(&self, controller: Pid) {
        let path = format!("/proc/{}/exe", controller.as_raw_nonzero());
        let identity = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
        let theirs = identity(Path::new(&path));
        if theirs.is_none() || theirs == identity(Path::new("/proc/self/exe")) {
            return;
        }
        // By its name, unless that is another file's by now.
        let named = fs::read_link(&path).ok().filter(|named| identity(named) == theirs);
        let binary = named.unwrap_or_else(|| path.into());
        tracing::info!(binary = %binary.display(), "the init becomes the controller's build");
        let mut command = Command::new(&binary);
        command
            .arg0("playhouse")
            .args(&self.arguments)
            .arg("--init")
            .arg("--controller")
            .arg(controller.as_raw_nonzero().to_string());
        tell_descriptor_limit(&mut command);
        let error = command.exec();
        tracing::warn!(binary = %binary.display(), %error, "the init stays what it was, its controller is another build");
    }
}

/// What goes on.
struct Watch {
    init: Init,
    controller: Pid,
    backoff: Backoff,
    leaving: Option<Leaving>,
}

/// The site is to end, or its controller has ended for good: the rest are instances that drain.
struct Leaving {
    status: Option<u8>,
    until: Instant,
}

impl Watch {
    /// Reaps all that has ended; gives a status when this is the end.
    async fn reap(&mut self) -> anyhow::Result<Option<u8>> {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.controller => self.ended(status).await?,
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(rustix::io::Errno::CHILD) => {
                    return match &self.leaving {
                        Some(Leaving { status: Some(status), .. }) => Ok(Some(*status)),
                        _ => bail!("no process is left"),
                    };
                }
                Err(error) => return Err(error).context("waiting for processes"),
            }
        }
        let over = self.leaving.as_ref().filter(|leaving| leaving.until <= Instant::now());
        Ok(over.and_then(|leaving| leaving.status))
    }

    /// The controller has ended: another one is to have its place, or the site has ended.
    async fn ended(&mut self, status: WaitStatus) -> anyhow::Result<()> {
        let code = exit_code(status);
        let ended = status.exited() && (code == 0 || !self.init.has_instances());
        if ended || self.leaving.is_some() {
            // What it has not told to drain hears it now; the others know.
            if !ended {
                children().into_iter().for_each(|child| tell(child, Signal::TERM));
            }
            let until =
                self.leaving.as_ref().map_or_else(|| Instant::now() + PATIENCE, |leaving| leaving.until);
            self.leaving =
                Some(Leaving { status: Some(code), until: if code == 0 { Instant::now() } else { until } });
            return Ok(());
        }
        let delay = self.backoff.next(Instant::now());
        tracing::error!(status = code, again_in = ?delay, "the site's first process has ended; started again");
        tokio::time::sleep(delay).await;
        self.controller = self.init.start()?;
        Ok(())
    }

    fn controller_runs(&self) {
        if self.leaving.is_none() {
            self.init.follow(self.controller);
        }
    }

    fn pass_on(&mut self, what: Signal) {
        if matches!(what, Signal::TERM | Signal::INT) && self.leaving.is_none() {
            self.leaving = Some(Leaving { status: None, until: Instant::now() + PATIENCE });
        }
        tell(self.controller, what);
    }

    async fn patience_ends(&self) {
        match &self.leaving {
            Some(Leaving { status: Some(_), until }) => tokio::time::sleep_until(*until).await,
            _ => std::future::pending().await,
        }
    }
}

fn tell(process: Pid, what: Signal) {
    // A child that we have not reaped; it may have ended already.
    let _ = kill_process(process, what);
}

fn exit_code(status: WaitStatus) -> u8 {
    // As a shell says it.
    let code = status.exit_status().or_else(|| Some(128 + status.terminating_signal()?)).unwrap_or(1);
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// A first end is nothing, a series of them is not to burn a CPU.
#[derive(Default)]
struct Backoff {
    last: Option<Instant>,
    in_a_row: u32,
}

impl Backoff {
    fn next(&mut self, now: Instant) -> Duration {
        let again = self.last.is_some_and(|last| now - last < STABLE);
        self.in_a_row = if again { self.in_a_row + 1 } else { 0 };
        self.last = Some(now);
        match self.in_a_row {
            0 => Duration::ZERO,
            n => FIRST_BACKOFF.saturating_mul(1 << (n - 1).min(10)).min(LONGEST_BACKOFF),
        }
    }
}

struct Signals([(Signal, unix::Signal); 6]);

impl Signals {
    fn install() -> std::io::Result<Self> {
        Ok(Signals([
            (Signal::CHILD, signal(SignalKind::child())?),
            (Signal::TERM, signal(SignalKind::terminate())?),
            (Signal::INT, signal(SignalKind::interrupt())?),
            (Signal::HUP, signal(SignalKind::hangup())?),
            (Signal::USR1, signal(SignalKind::user_defined1())?),
            (Signal::USR2, signal(SignalKind::user_defined2())?),
        ]))
    }

    async fn next(&mut self) -> Signal {
        std::future::poll_fn(|cx| {
            for (signal, stream) in &mut self.0 {
                if stream.poll_recv(cx).is_ready() {
                    return std::task::Poll::Ready(*signal);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}

/// Says in the environment of its child which process is the init.
const INIT: &str = "PLAYHOUSE_INIT";

/// For instances that drain without a controller; what is beyond a `drain_timeout` ends with this process.
const PATIENCE: Duration = Duration::from_secs(60);
const STABLE: Duration = Duration::from_secs(10);
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_end_costs_no_time_and_a_series_a_bounded_one() {
        let (mut backoff, now) = (Backoff::default(), Instant::now());
        let series: Vec<_> = (0..9).map(|_| backoff.next(now).as_millis()).collect();
        assert_eq!(series, [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(backoff.next(now + STABLE), Duration::ZERO);
    }
}
