//! Apps as requests see them: an upstream whose servers are processes that come and go, and a queue before it for those who
//! come while there is none.
//!
//! Who starts and ends the processes is not known here. It says which of them serve ([`App::serve_by`]) and, while none
//! does, whether one is on its way ([`App::expect`]); it is told when somebody waits ([`App::wanted`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use dashmap::DashMap;
use parking_lot::Mutex;
use playhouse_config::model;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout, timeout_at};

use crate::metrics::Metrics;
use crate::upstream::{Server, Upstream};

/// All apps of a site, by name. Empty until [`Apps::apply`].
#[derive(Debug, Default)]
pub struct Apps {
    by_name: DashMap<Arc<str>, Arc<App>>,
    /// Told when somebody waits for any app.
    wanted: Arc<Notify>,
    /// Held while a site file is applied, so that two do not mix.
    applying: Mutex<()>,
}

/// One app.
#[derive(Debug)]
pub struct App {
    name: Arc<str>,
    settings: ArcSwap<model::App>,
    upstream: Arc<Upstream>,
    state: watch::Sender<State>,
    waiting: AtomicUsize,
    wanted: Notify,
    /// The same of all apps of the table.
    any_wanted: Arc<Notify>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    expected: Expected,
    /// Counts the changes of its servers.
    revision: u64,
}

/// What those who come while no process serves are to expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// One will, soon.
    Soon,
    /// The last ones have failed, and the next try is not yet.
    Nothing,
}

/// Why a request has found no process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// The last processes have failed.
    #[error("none of the app's processes is ready: the last have failed")]
    Failing,
    /// None has become ready in time.
    #[error("none of the app's processes has become ready in time")]
    TooLate,
    /// Too many wait already.
    #[error("too many requests wait for the app to be ready")]
    QueueFull,
}

impl Apps {
    /// Makes the table what the site file says. An app that keeps its name keeps its processes, for now; one that is gone is
    /// still there for the requests that it has.
    pub fn apply(&self, models: &[model::App], metrics: &Metrics) {
        let _applying = self.applying.lock();
        self.by_name.retain(|name, _| models.iter().any(|model| model.name == *name));
        for model in models {
            let known = self.by_name.get(&model.name).map(|entry| entry.value().clone());
            match known {
                Some(app) => app.apply(model),
                None => {
                    let app = App { any_wanted: self.wanted.clone(), ..App::new(model, metrics) };
                    self.by_name.insert(model.name.clone(), Arc::new(app));
                }
            }
        }
    }

    /// Puts an app in again that was taken out, so that the next file that has its name finds it.
    pub fn put_back(&self, app: &Arc<App>) {
        let _applying = self.applying.lock();
        self.by_name.entry(app.name.clone()).or_insert_with(|| app.clone());
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<App>> {
        self.by_name.iter().map(|entry| entry.value().clone()).collect()
    }

    /// Completes when somebody has come while no process of some app served; for the one that tells of it.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// The app of this name.
    pub fn get(&self, name: &str) -> Option<Arc<App>> {
        self.by_name.get(name).map(|entry| entry.value().clone())
    }
}

impl App {
    /// An app without a process.
    pub fn new(model: &model::App, metrics: &Metrics) -> Self {
        App {
            name: model.name.clone(),
            settings: ArcSwap::from_pointee(model.clone()),
            upstream: Upstream::new(&model.upstream(), metrics),
            state: watch::Sender::new(State { expected: Expected::Soon, revision: 0 }),
            waiting: AtomicUsize::new(0),
            wanted: Notify::new(),
            any_wanted: Arc::default(),
        }
    }

    fn apply(&self, model: &model::App) {
        self.settings.store(Arc::new(model.clone()));
        self.upstream.set_settings(&model.upstream());
    }

    /// Its name in the site file.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The app as the site file has it.
    pub fn settings(&self) -> Arc<model::App> {
        self.settings.load_full()
    }

    /// Its processes, as requests see them.
    pub fn upstream(&self) -> &Arc<Upstream> {
        &self.upstream
    }

    /// Makes these the ones that requests go to. Those that are left out finish what they have.
    pub fn serve_by(&self, servers: &[Arc<Server>]) {
        self.upstream.serve_by(servers);
        self.state.send_modify(|state| state.revision += 1);
    }

    /// What is to be expected while no process serves.
    pub fn expected(&self) -> Expected {
        self.state.borrow().expected
    }

    /// Sets what is to be expected while no process serves.
    pub fn expect(&self, expected: Expected) {
        self.state.send_if_modified(|state| {
            let differs = state.expected != expected;
            state.expected = expected;
            differs
        });
    }

    /// Completes when somebody has come while no process served; for the one that starts them.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Requests that wait for a process.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Whether a process serves.
    pub fn is_served(&self) -> bool {
        !self.upstream.snapshot().all.is_empty()
    }

    /// Waits until a process serves, at most until `deadline`.
    pub(crate) async fn served(&self, deadline: Instant) -> Result<(), NotReady> {
        if self.is_served() {
            return Ok(());
        }
        let Some(_waiting) = Waiting::begin(&self.waiting) else { return Err(NotReady::QueueFull) };
        let mut state = self.state.subscribe();
        self.wanted.notify_one();
        self.any_wanted.notify_one();
        let waiting = async {
            loop {
                let expected = state.borrow_and_update().expected;
                if self.is_served() {
                    return Ok(());
                }
                if expected == Expected::Nothing {
                    return Err(NotReady::Failing);
                }
                // The sender is in `self`.
                if state.changed().await.is_err() {
                    return Err(NotReady::Failing);
                }
            }
        };
        timeout_at(deadline, waiting).await.unwrap_or(Err(NotReady::TooLate))
    }

    /// For one whom this server has refused: whether others serve in its place, once it is known to have ended. False where
    /// that is not known after a moment, as it lives then and refuses for another reason.
    pub(crate) async fn succeeded(&self, server: &Server, deadline: Instant) -> bool {
        let mut state = self.state.subscribe();
        let ended = async { while !server.is_retired() && state.changed().await.is_ok() {} };
        if timeout(NOTICE, ended).await.is_err() {
            return false;
        }
        self.served(deadline).await.is_ok()
    }
}

/// A place in the queue.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn begin(count: &'a AtomicUsize) -> Option<Self> {
        let waiting = Waiting(count);
        (count.fetch_add(1, Ordering::Relaxed) < MOST_WAITING).then_some(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Requests that may wait for one app. More would not find room in the queue of the process's own socket either.
const MOST_WAITING: usize = 1024;

/// From the end of a process to its being known; a matter of milliseconds.
const NOTICE: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use std::path::Path;

    use playhouse_config::model::Address;

    use super::*;

    fn app() -> App {
        let text = r#"(name: "s", listeners: {"h": "127.0.0.1:0"}, apps: {"blog": (command: ["x"])})"#;
        let site = playhouse_config::parse(text, Path::new("/srv/site.ron")).unwrap();
        App::new(&site.apps[0], &Metrics::default())
    }

    fn server(app: &App) -> Arc<Server> {
        let address = Address::Unix("/nowhere".into());
        Server::named(app.upstream().name(), address, "blog-1", &Metrics::default())
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_while_there_is_no_process_waits_for_one_and_says_so() {
        let app = app();
        let serve = async {
            app.wanted().await;
            assert_eq!(app.waiting(), 1);
            tokio::time::sleep(Duration::from_secs(2)).await;
            app.serve_by(&[server(&app)]);
        };
        let (served, ()) = futures_util::future::join(app.served(soon()), serve).await;
        assert_eq!((served, app.waiting()), (Ok(()), 0));
        app.serve_by(&[]);
        assert_eq!(app.served(soon()).await, Err(NotReady::TooLate));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_what_has_failed() {
        let app = app();
        let begun = Instant::now();
        let fail = async {
            app.wanted().await;
            app.expect(Expected::Nothing);
        };
        let (served, ()) = futures_util::future::join(app.served(soon()), fail).await;
        assert_eq!((served, begun.elapsed()), (Err(NotReady::Failing), Duration::ZERO));
        app.expect(Expected::Soon);
        app.waiting.store(MOST_WAITING, Ordering::Relaxed);
        assert_eq!(app.served(soon()).await, Err(NotReady::QueueFull));
        assert_eq!(app.waiting(), MOST_WAITING, "who was refused is not counted");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_has_ended_is_succeeded_and_one_that_lives_is_not() {
        let app = app();
        let (old, new) = (server(&app), server(&app));
        app.serve_by(std::slice::from_ref(&old));
        assert!(!app.succeeded(&old, soon()).await, "it has not ended");
        let replace = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            app.serve_by(&[]);
            tokio::time::sleep(Duration::from_secs(1)).await;
            app.serve_by(std::slice::from_ref(&new));
        };
        assert!(futures_util::future::join(app.succeeded(&old, soon()), replace).await.0);
        assert!(old.is_retired() && !new.is_retired());
    }
}
