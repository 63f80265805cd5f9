//! All apps of a site with their processes: what outlives every actor that decides about them.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indexmap::IndexMap;
use parking_lot::Mutex;
use playhouse_config::model::{self, Listen};
use playhouse_serve::Site;
use rustix::process::{Signal, geteuid};

use super::account::Account;
use super::managed::Managed;
use super::{launch, leftovers};

/// All apps of a site.
#[derive(Debug)]
pub struct Table {
    by_name: Mutex<IndexMap<Arc<str>, Arc<Managed>>>,
    /// Where sockets and records are.
    directory: PathBuf,
    /// The directory is in a state directory, where whoever comes next finds it.
    is_kept: bool,
    stopping: AtomicBool,
}

/// Why apps cannot be as the site file has them.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// An app cannot be started like that here.
    #[error("apps.{app}: {message}")]
    Refused {
        /// Its name.
        app: Arc<str>,
        /// For people.
        message: String,
    },
    /// The directory of sockets and records.
    #[error("{}: {error}", .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
}

impl Table {
    /// An empty table. With a state directory, whose lock the caller has, ends what a site before has left behind there;
    /// without one, sockets are beneath the directory of temporary files. Must be called within a runtime.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn open(state_dir: Option<&Path>, unique: u64) -> Result<Self, AppError> {
        let directory = match state_dir {
            Some(state_dir) => state_dir.join(DIRECTORY),
            None => std::env::temp_dir().join(format!("playhouse-{}-{unique:016x}", std::process::id())),
        };
        if state_dir.is_some() {
            leftovers::end_all(&directory)
                .map_err(|error| AppError::Directory { path: directory.clone(), error })?;
        }
        Ok(Table {
            by_name: Mutex::default(),
            directory,
            is_kept: state_dir.is_some(),
            stopping: AtomicBool::new(false),
        })
    }

    /// Whether these apps could be started here, as far as that can be known before.
    ///
    /// # Errors
    /// The first that could not.
    pub fn check(&self, apps: &[model::App]) -> Result<(), AppError> {
        for app in apps {
            let refuse = |message: String| AppError::Refused { app: app.name.clone(), message };
            if (app.user.is_some() || app.group.is_some()) && !geteuid().is_root() {
                return Err(refuse("only root can start it as another user or group".to_owned()));
            }
            Account::find(app.user.as_deref(), app.group.as_deref()).map_err(refuse)?;
            let longest = launch::socket_path(&self.directory, &app.name, 99);
            let length = longest.as_os_str().len();
            if app.listen == Listen::Socket && length > LONGEST_PATH {
                return Err(refuse(format!(
                    "the path of its sockets would have {length} bytes, and may have {LONGEST_PATH}; write \
                     listen: Port, or choose a shorter state_dir"
                )));
            }
        }
        Ok(())
    }

    /// The same, and makes what they need.
    ///
    /// # Errors
    /// The first that could not be started, or the directory.
    pub fn prepare(&self, apps: &[model::App]) -> Result<(), AppError> {
        self.check(apps)?;
        if apps.is_empty() {
            return Ok(());
        }
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory);
        made.map_err(|error| AppError::Directory { path: self.directory.clone(), error })
    }

    /// Makes the table, and that of the site, what the site file says. Apps that are new have no process yet, and of those
    /// that are gone the processes go on until their actors have ended them; one that comes back before that is the same.
    pub fn apply(&self, apps: &[model::App], site: &Site) {
        let mut by_name = self.by_name.lock();
        by_name.values().for_each(|managed| site.apps.put_back(&managed.app));
        site.apps.apply(apps, &site.metrics);
        for (name, managed) in by_name.iter() {
            managed.set_removed(!apps.iter().any(|app| app.name == *name));
        }
        for app in apps {
            if let Some(known) = site.apps.get(&app.name)
                && !by_name.contains_key(&app.name)
            {
                by_name.insert(app.name.clone(), Arc::new(Managed::new(known, site.metrics.clone())));
            }
        }
    }

    /// The apps, in the order in which they have come.
    pub fn all(&self) -> Vec<Arc<Managed>> {
        self.by_name.lock().values().cloned().collect()
    }

    /// The app of this name, unless the site file no longer has it.
    pub fn get(&self, name: &str) -> Option<Arc<Managed>> {
        self.by_name.lock().get(name).filter(|managed| !managed.is_removed()).cloned()
    }

    /// Takes out an app that nothing is left of, and does this before anybody can put in another of its name.
    pub(super) fn forget(&self, managed: &Arc<Managed>, and: impl FnOnce()) {
        let mut by_name = self.by_name.lock();
        let name = managed.app.name();
        let is_same = by_name.get(name).is_some_and(|known| Arc::ptr_eq(known, managed));
        if is_same && managed.is_removed() {
            by_name.shift_remove(name);
            and();
        }
    }

    /// Where sockets and records are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether processes are to be written down there.
    pub fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// From here on a process ends with its actor.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Whether the site ends.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Kills every process that is left, at once and without waiting.
    pub fn kill_all(&self) {
        self.stop();
        self.all().iter().flat_map(|managed| managed.places()).for_each(|place| place.signal(Signal::KILL));
    }

    /// Ends every process that is left, all at the same time, each within its `stop_timeout`.
    pub async fn end_all(&self) {
        self.stop();
        let places: Vec<_> = self.all().iter().flat_map(|managed| managed.places()).collect();
        futures_util::future::join_all(places.iter().map(|place| place.end())).await;
        if let Err(error) = std::fs::remove_dir(&self.directory)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::debug!(path = %self.directory.display(), %error, "not removed");
        }
    }
}

/// Of a Unix socket, without the final NUL (unix(7)).
const LONGEST_PATH: usize = 107;

/// Beneath the state directory.
const DIRECTORY: &str = "apps";
