//! All apps of a site with their processes: what outlives every actor that decides about them.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use indexmap::IndexMap;
use parking_lot::Mutex;
use playhouse_config::model::{self, Listen};
use playhouse_protocol::control::{AppProcess, AppsLoad};
use playhouse_serve::apps::Apps;
use playhouse_serve::metrics::Metrics;
use rustix::process::{Signal, geteuid};

use super::account::Account;
use super::audience::Audience;
use super::launch;
use super::managed::Managed;
use super::place::{Place, Surroundings};
use super::record::{self, Stage};

/// All apps of a site.
#[derive(Debug)]
pub struct Table {
    by_name: Mutex<IndexMap<Arc<str>, Arc<Managed>>>,
    /// Where sockets and records are.
    directory: PathBuf,
    /// The directory is in a state directory, where whoever comes next finds it.
    is_kept: bool,
    stopping: AtomicBool,
    elsewhere: Option<Elsewhere>,
}

/// Of apps whose requests come from other processes.
#[derive(Debug)]
struct Elsewhere {
    audience: Arc<Audience>,
    /// The apps as requests would see them here.
    apps: Apps,
    metrics: Arc<Metrics>,
}

/// What is read from a process: standard output and error.
pub type Pipes = [OwnedFd; 2];

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
            record::end_all(&directory)
                .map_err(|error| AppError::Directory { path: directory.clone(), error })?;
        }
        Ok(Table {
            by_name: Mutex::default(),
            directory,
            is_kept: state_dir.is_some(),
            stopping: AtomicBool::new(false),
            elsewhere: None,
        })
    }

    /// An empty table in a controller, which runs apps for its instances, and goes on with the processes that a controller
    /// before it has left: see [`Table::adopt`].
    pub fn for_instances(state_dir: &Path) -> Self {
        // More than any controller before can have counted to, one at a time.
        let first = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
        Table {
            by_name: Mutex::default(),
            directory: state_dir.join(DIRECTORY),
            is_kept: true,
            stopping: AtomicBool::new(false),
            elsewhere: Some(Elsewhere {
                audience: Arc::new(Audience::new(first)),
                apps: Apps::default(),
                metrics: Arc::default(),
            }),
        }
    }

    /// Those who send requests from other processes; `None` where nobody does.
    pub fn audience(&self) -> Option<&Arc<Audience>> {
        self.elsewhere.as_ref().map(|elsewhere| &elsewhere.audience)
    }

    pub(super) fn surroundings(&self) -> Surroundings<'_> {
        Surroundings { directory: &self.directory, is_kept: self.is_kept, audience: self.audience() }
    }

    /// Duplicates of what a process writes to, for others to hold.
    pub fn pipes(&self, process: &AppProcess) -> Option<Vec<OwnedFd>> {
        let managed = self.by_name.lock().get(&*process.app).cloned()?;
        let places = managed.places();
        places.iter().find(|place| place.identity().as_ref() == Some(process))?.pipes()
    }

    /// Takes what an instance says of the apps.
    pub fn hears(&self, slot: u32, load: AppsLoad) {
        let Some(audience) = self.audience() else { return };
        for name in audience.hears(slot, load) {
            if let Some(managed) = self.get(&name) {
                managed.is_wanted_elsewhere();
            }
        }
    }

    /// Goes on with the processes that a controller before this has left, as far as the apps of the table are theirs;
    /// ends the others, and removes what is left of them. `outputs` is what the instances hold. To be called once, after
    /// [`Table::apply_elsewhere`], within a runtime. Says what has become of them.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn adopt(&self, outputs: Vec<(AppProcess, Pipes)>) -> Result<Vec<String>, AppError> {
        let io = |error| AppError::Directory { path: self.directory.clone(), error };
        let mut outputs: HashMap<AppProcess, Pipes> = outputs.into_iter().collect();
        let (mut told, mut files) = (Vec::new(), Vec::new());
        for record in record::all(&self.directory).map_err(io)? {
            let output = outputs.remove(&record.identity());
            let managed = self.get(&record.app);
            let process = record.process();
            let name = format!("{}, process {}", record.app, record.pid);
            let (Some(managed), Some(process)) = (managed, process) else {
                record::end(&record, &self.directory);
                told.push(format!("{name}: not adopted"));
                continue;
            };
            // Who serves nobody yet, and whose output nobody holds, is better started again.
            if output.is_none() && record.stage != Stage::Serving {
                record::end(&record, &self.directory);
                told.push(format!("{name}: nobody holds its output; it is ended"));
                continue;
            }
            let server = managed.server(record.place, record.address());
            let settings = managed.app.settings();
            let place = Place::adopt(&record, process, output, settings, server, &self.surroundings());
            files.push(record::path(&self.directory, &record.app, record.place));
            files.extend(record.socket);
            managed.adopt(place);
            told.push(format!("{name}: adopted"));
        }
        record::remove_files(&self.directory, &files).map_err(io)?;
        for managed in self.all() {
            let generation = managed.publish();
            managed.places().iter().filter(|place| place.asked().is_some()).for_each(|place| {
                place.note_left(generation);
            });
        }
        Ok(told)
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
    pub fn apply(&self, apps: &[model::App], known: &Apps, metrics: &Arc<Metrics>) {
        let mut by_name = self.by_name.lock();
        by_name.values().for_each(|managed| known.put_back(&managed.app));
        known.apply(apps, metrics);
        for (name, managed) in by_name.iter() {
            managed.set_removed(!apps.iter().any(|app| app.name == *name));
        }
        for app in apps {
            if let Some(known) = known.get(&app.name)
                && !by_name.contains_key(&app.name)
            {
                let managed = Managed::new(known, metrics.clone(), self.audience().cloned());
                by_name.insert(app.name.clone(), Arc::new(managed));
            }
        }
    }

    /// The same for requests that come from other processes. With `keep`, apps that are gone stay for now: there may be
    /// instances that go by what was before.
    pub fn apply_elsewhere(&self, apps: &[model::App], keep: bool) {
        let Some(elsewhere) = &self.elsewhere else { return };
        let mut apps = apps.to_vec();
        if keep {
            for managed in self.all().iter().filter(|managed| !managed.is_removed()) {
                if !apps.iter().any(|app| app.name == *managed.app.name()) {
                    apps.push(model::App::clone(&managed.app.settings()));
                }
            }
        }
        self.apply(&apps, &elsewhere.apps, &elsewhere.metrics);
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
            if let Some(audience) = self.audience() {
                audience.say(name, None);
            }
            and();
        }
    }

    /// Kills the process of an app by the path of what keeps it, `apps/blog/place-1` beneath the root, as an operator asks.
    /// `None` where that is no such path; an error, for people, where there is no process.
    pub fn kill_by_operator(&self, path: &str) -> Option<Result<u32, String>> {
        let (app, place) = path.strip_prefix(super::NAME)?.strip_prefix('/')?.split_once('/')?;
        let number: u32 = place.strip_prefix("place-")?.parse().ok()?;
        let places = self.get(app).map(|managed| managed.places()).unwrap_or_default();
        let place = places.iter().find(|place| place.number == number);
        let killed = place.and_then(|place| place.kill_by_operator());
        Some(killed.ok_or_else(|| format!("{path} has no process just now")))
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
        // A lock, say; nothing else is there any more.
        let _ = record::remove_files(&self.directory, &[]);
        if let Err(error) = std::fs::remove_dir(&self.directory)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::debug!(path = %self.directory.display(), %error, "not removed");
        }
    }
}

/// Ends what is left of apps in the state directory of a site that has ended: first asks them to. To be called within a
/// runtime, by whoever has its lock.
///
/// # Errors
/// The directory cannot be read.
pub async fn end_leftovers(state_dir: &Path) -> io::Result<()> {
    let directory = state_dir.join(DIRECTORY);
    let records = record::all(&directory)?;
    let processes: Vec<_> = records.iter().filter_map(record::Record::process).collect();
    for process in &processes {
        super::group::signal(process.pid(), Signal::TERM);
    }
    let all = futures_util::future::join_all(processes.iter().map(|process| process.ended()));
    // Those that take longer are ended with what is left.
    let _ = tokio::time::timeout(PATIENCE, all).await;
    record::end_all(&directory)?;
    match std::fs::remove_dir(&directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// For programs that nobody sends anything any more.
const PATIENCE: Duration = Duration::from_secs(5);

/// Of a Unix socket, without the final NUL (unix(7)).
const LONGEST_PATH: usize = 107;

/// Beneath the state directory.
pub(crate) const DIRECTORY: &str = "apps";
