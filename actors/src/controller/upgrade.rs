//! Another build in the place of the one that runs.
//!
//! First the new binary shows what it can: an instance of it is started, given the configuration in force and all sockets,
//! and must become ready; it is never told to serve. Only then does the controller become the new build, by `exec`: it
//! keeps its process, so that who has started it (systemd, an init, a shell) has nothing to learn, and the instances stay
//! its children. The new controller adopts them as after any end of the one before, and replaces them one by one.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use playhouse_protocol::control::State;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use super::member::Member;
use super::{Controller, Fleet, small_pages};
use crate::control::crash::crash_point;
use crate::control::descriptors::tell_descriptor_limit;
use crate::supervision::EventKind;

/// How a controller becomes another build. No other upgrade begins while it lives.
#[derive(Debug)]
pub struct Successor {
    /// The new binary.
    pub program: PathBuf,
    /// How this process was started, without the program: the new one is started so too.
    pub arguments: Vec<OsString>,
    _one_at_a_time: OwnedMutexGuard<()>,
}

/// Why nothing was upgraded. The site goes on as it is.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// Another one is under way.
    #[error("an upgrade is under way already")]
    Busy,
    /// The site is being stopped.
    #[error("the site is being stopped")]
    Stopping,
    /// An instance of the new build could not be started.
    #[error("{}: an instance of it cannot be started: {error}", .program.display())]
    Start {
        /// The binary.
        program: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// An instance of the new build did not become ready.
    #[error("{}: an instance of it did not become ready: {why}", .program.display())]
    NotReady {
        /// The binary.
        program: PathBuf,
        /// What is known.
        why: String,
    },
    /// It cannot be written down that the instances are to be replaced.
    #[error("the state directory: {0}")]
    StateDir(io::Error),
    /// The program could not be executed.
    #[error("{}: {error}", .program.display())]
    Exec {
        /// The binary.
        program: PathBuf,
        /// The cause.
        error: io::Error,
    },
}

/// Takes the trial instance away, whatever the way out.
struct Trial<'a> {
    fleet: &'a Fleet,
    member: Arc<Member>,
}

impl Trial<'_> {
    /// Ends it, and waits until nothing is left of it: a process that is another build's after `exec` reaps no child that
    /// it does not know.
    async fn end(self) {
        let mut changed = self.fleet.changed();
        let deadline = Instant::now() + END;
        self.end_now();
        while self.member.state() != State::Gone && Instant::now() < deadline {
            let _ = tokio::time::timeout(LOOK, changed.changed()).await;
        }
    }

    fn end_now(&self) {
        self.member.kill("the trial of its build is over");
        self.fleet.notify();
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        self.end_now();
    }
}

impl Controller {
    /// Tries the binary (`None`: the file that this controller was started from, as it is now), and notes that all
    /// instances are to be replaced. On success, [`become_successor`](Self::become_successor) is to follow at once.
    ///
    /// # Errors
    /// See [`UpgradeError`]; nothing has changed then.
    pub async fn prepare_upgrade(&self, binary: Option<PathBuf>) -> Result<Successor, UpgradeError> {
        let fleet = self.fleet();
        let Ok(one_at_a_time) = self.upgrading.clone().try_lock_owned() else {
            return Err(UpgradeError::Busy);
        };
        if fleet.is_stopping() {
            return Err(UpgradeError::Stopping);
        }
        let program = binary.unwrap_or_else(|| self.options().program.clone());
        fleet.emit(EventKind::Lifecycle, format!("upgrade: trying {}", program.display()));
        let tried = self.try_build(&program).await;
        if let Err(error) = &tried {
            fleet
                .emit(EventKind::Lifecycle, format!("the upgrade was refused, nothing has changed: {error}"));
        }
        tried?;
        crash_point("upgrade-over");
        // Whoever has asked hears of a full disk; when it is time it is written again.
        fleet.remember(|memo| memo.trial = None).map_err(UpgradeError::StateDir)?;
        let arguments = std::env::args_os().skip(1).collect();
        Ok(Successor { program, arguments, _one_at_a_time: one_at_a_time })
    }

    async fn try_build(&self, program: &Path) -> Result<(), UpgradeError> {
        let fleet = self.fleet();
        let member = fleet
            .start_on_trial(program)
            .map_err(|error| UpgradeError::Start { program: program.to_owned(), error })?;
        let trial = Trial { fleet, member };
        let outcome = self.becomes_ready(program, &trial.member).await;
        if outcome.is_ok() {
            crash_point("upgrade-ready");
        }
        trial.end().await;
        outcome
    }

    async fn becomes_ready(&self, program: &Path, member: &Member) -> Result<(), UpgradeError> {
        let fleet = self.fleet();
        let not_ready = |why: String| UpgradeError::NotReady { program: program.to_owned(), why };
        let mut changed = fleet.changed();
        let deadline = Instant::now() + fleet.settings().ready_timeout;
        loop {
            changed.mark_unchanged();
            match member.state() {
                State::Ready if member.answered().borrow().revision == fleet.in_force().text.revision => {
                    return Ok(());
                }
                State::Gone => {
                    let refused = member.answered().borrow().refused.clone();
                    let why = refused.map_or_else(
                        || {
                            member
                                .killed_for()
                                .unwrap_or_else(|| "it has ended; its log may say why".to_owned())
                        },
                        |(_, error)| format!("it refused the configuration: {error}"),
                    );
                    return Err(not_ready(why));
                }
                _ => {}
            }
            let look = (Instant::now() + LOOK).min(deadline);
            let _ = tokio::time::timeout_at(look, changed.changed()).await;
            if Instant::now() >= deadline {
                let limit = fleet.settings().ready_timeout;
                return Err(not_ready(format!("not within {limit:?} (instances.ready_timeout)")));
            }
        }
    }

    /// Makes this process one of the new build. Returns only where that is refused; the site goes on as it is then.
    pub fn become_successor(&self, successor: &Successor) -> Result<Infallible, UpgradeError> {
        use std::os::unix::process::CommandExt;

        let fleet = self.fleet();
        let refused = |error: UpgradeError| {
            fleet
                .emit(EventKind::Lifecycle, format!("the upgrade was refused, nothing has changed: {error}"));
            Err(error)
        };
        if fleet.is_stopping() {
            return refused(UpgradeError::Stopping);
        }
        let mut before = 0;
        // Only now: what has been started meanwhile is of this build too.
        let noted = fleet.remember(|memo| {
            before = std::mem::replace(&mut memo.roll_before, memo.generation + 1);
        });
        if let Err(error) = noted {
            return refused(UpgradeError::StateDir(error));
        }
        crash_point("upgrade-memo");
        fleet.emit(
            EventKind::Lifecycle,
            format!("upgrade: the controller becomes {}", successor.program.display()),
        );
        crash_point("upgrade-exec");
        // Nothing of what is open here is inherited; the instances hold the sockets.
        let mut command = std::process::Command::new(&successor.program);
        command.args(&successor.arguments);
        tell_descriptor_limit(&mut command);
        let error = small_pages::as_found(|| command.exec());
        if let Err(error) = fleet.remember(|memo| memo.roll_before = before) {
            tracing::warn!(%error, "the next controller will replace all instances");
        }
        refused(UpgradeError::Exec { program: successor.program.clone(), error })
    }
}

/// For a process that is killed to be gone, and for what it leaves.
const END: Duration = Duration::from_secs(10);

/// A look without a cause, should a cause have been missed.
const LOOK: Duration = Duration::from_millis(100);
