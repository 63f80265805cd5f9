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
use tokio::time::Instant;

use super::member::Member;
use super::{Controller, Fleet, small_pages};
use crate::supervision::EventKind;

/// How a controller becomes another build.
#[derive(Clone, Debug)]
pub struct Successor {
    /// The new binary.
    pub program: PathBuf,
    /// How this process was started, without the program: the new one is started so too.
    pub arguments: Vec<OsString>,
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

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        self.member.kill("the trial of its build is over");
        self.fleet.notify();
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
        let Ok(_one_at_a_time) = self.upgrading.try_lock() else { return Err(UpgradeError::Busy) };
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
        fleet.remember(|memo| memo.roll_before = memo.generation + 1).map_err(UpgradeError::StateDir)?;
        Ok(Successor { program, arguments: std::env::args_os().skip(1).collect() })
    }

    async fn try_build(&self, program: &Path) -> Result<(), UpgradeError> {
        let fleet = self.fleet();
        let not_ready = |why: String| UpgradeError::NotReady { program: program.to_owned(), why };
        let member = fleet
            .start_on_trial(program)
            .map_err(|error| UpgradeError::Start { program: program.to_owned(), error })?;
        let trial = Trial { fleet, member };
        let member = &trial.member;
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
        fleet.emit(
            EventKind::Lifecycle,
            format!("upgrade: the controller becomes {}", successor.program.display()),
        );
        // Nothing of what is open here is inherited; the instances hold the sockets.
        let mut command = std::process::Command::new(&successor.program);
        command.args(&successor.arguments);
        let error = small_pages::as_found(|| command.exec());
        if let Err(error) = fleet.remember(|memo| memo.roll_before = 0) {
            tracing::warn!(%error, "the next controller will replace all instances");
        }
        let error = UpgradeError::Exec { program: successor.program.clone(), error };
        fleet.emit(EventKind::Lifecycle, error.to_string());
        Err(error)
    }
}

/// A look without a cause, should a cause have been missed.
const LOOK: Duration = Duration::from_millis(100);
