//! `playhouse run`, and what the quick modes have in common with it.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{panic, thread};

use anyhow::{Context, bail};
use clap::Args;
use playhouse::config::model::{LogDestination, Site};
use playhouse::control::descriptors::raise_descriptor_limit;
use playhouse::{
    Controller, Exit, Handlers, Instance, Options, ReloadError, Reloaded, ServiceManager, config, state_dir,
};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::activation;
use super::build::build;
use super::children;
use super::init::{self, Init};
use super::log;
use super::output::{Output, safe};

/// Run a site until it is stopped.
///
/// TERM, INT and `playhouse stop` drain it and end it; a second INT ends it at once. HUP and `playhouse reload` read the
/// site file again, USR2 and `playhouse upgrade` put another build in the place of the one that runs. The log goes to standard error, filtered by $RUST_LOG (default: info,ractor=warn); where to look goes
/// to standard output.
#[derive(Debug, Args)]
pub(super) struct Run {
    /// The site file
    site: PathBuf,
    /// Where the admin socket and the lock are, in place of the site file's state_dir
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Run it as a child that is started again when it is killed, and reap orphans; process 1 does so by itself
    #[arg(long)]
    init: bool,
    /// The child of the init whose place this one takes
    #[arg(long, value_name = "PID", hide = true, requires = "init")]
    controller: Option<i32>,
}

impl Run {
    pub(super) fn execute(self, output: Output) -> anyhow::Result<ExitCode> {
        if self.init || process::id() == 1 {
            return self.init(output);
        }
        self.run(output).map(|()| ExitCode::SUCCESS)
    }

    /// As the parent of the process that runs the site.
    fn init(self, output: Output) -> anyhow::Result<ExitCode> {
        log::to_standard_error(None);
        let mut arguments: Vec<OsString> = vec!["run".into(), self.site.clone().into()];
        if let Some(directory) = &self.state_dir {
            arguments.extend(["--state-dir".into(), directory.clone().into()]);
        }
        if output.is_json() {
            arguments.push("--json".into());
        }
        // Of a file that is not valid the child says what is wrong with it.
        let state_dir = self.state_dir.or_else(|| match config::load(&self.site) {
            Ok(site) => site.state_dir.or_else(|| state_dir::default_for(&site.name).ok()),
            Err(_) => state_dir::from_environment(),
        });
        let init = Init { arguments, state_dir, controller: self.controller };
        init.run().map(ExitCode::from)
    }

    fn run(self, output: Output) -> anyhow::Result<()> {
        let site_file = std::path::absolute(&self.site).context("the site file's path")?;
        let site = match config::load(&self.site) {
            Ok(site) if site.instances.is_some() => {
                let state_dir = state_dir_of(&site, self.state_dir)?;
                return control(&site_file, state_dir, output);
            }
            Ok(site) => site,
            Err(errors) => match self.state_dir.or_else(state_dir::from_environment) {
                // They serve, and need a controller more than a new configuration.
                Some(state_dir) if playhouse::controller::has_instances(&state_dir) => {
                    return control(&site_file, state_dir, output);
                }
                // One a line, each with its place.
                _ => bail!("{}: not a valid site\n{errors}", self.site.display()),
            },
        };
        start(
            site,
            Start {
                state_dir: self.state_dir,
                site_file: Some(site_file),
                handlers: super::echo::handlers(),
                ..Start::default()
            },
            output,
        )
    }
}

/// How a site is started.
#[derive(Default)]
pub(super) struct Start {
    /// In place of the site's own.
    pub(super) state_dir: Option<PathBuf>,
    /// What a reload reads.
    pub(super) site_file: Option<PathBuf>,
    /// Answers for `Handler` routes.
    pub(super) handlers: Handlers,
    /// No state directory, and so no admin socket.
    pub(super) stateless: bool,
}

/// Runs a site to its end.
pub(super) fn start(site: Site, start: Start, output: Output) -> anyhow::Result<()> {
    prepare_process();
    // While this is the only thread, and before it opens anything.
    let mut given = activation::given();
    warn_of_roots(&site);
    let state_dir = match start.stateless {
        true => None,
        false => Some(state_dir_of(&site, start.state_dir)?),
    };
    let options = Options {
        state_dir,
        site_file: start.site_file,
        handlers: start.handlers,
        build: build().to_owned(),
        service_manager: ServiceManager::from_environment(),
        ..Options::default()
    };
    let runtime = runtime(&site)?;
    let result = runtime.block_on(async {
        // Before anything is open, so that no signal meets its default action from then on.
        let signals = Signals::install().context("signal handlers")?;
        let instance = Instance::open_with(site, options, &mut given)?;
        activation::warn_of_unused(&given);
        drop(given);
        let state_dir = instance.options().state_dir.clone();
        announce(&instance.config(), instance.addresses(), &instance.admin_addresses(), state_dir, output)?;
        tokio::spawn(signals.follow(Running::Instance(instance.clone())));
        match instance.run().await? {
            Exit::Stopped => Ok(()),
            Exit::Failed(cause) => bail!("the site has failed, and what it could drain is drained: {cause}"),
        }
    });
    // What still blocks on a file system is not waited for.
    runtime.shutdown_timeout(SHUTDOWN);
    result
}

/// Runs the controller of a site with several instances to its end.
fn control(site_file: &Path, state_dir: PathBuf, output: Output) -> anyhow::Result<()> {
    playhouse::controller::use_small_pages();
    prepare_process();
    // While this is the only thread, and before it opens anything.
    let given = activation::given();
    let options = playhouse::controller::Options {
        state_dir,
        given,
        build: build().to_owned(),
        handlers: super::echo::handlers(),
        service_manager: ServiceManager::from_environment(),
        program: std::env::current_exe().context("the path of this program")?,
    };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let signals = Signals::install().context("signal handlers")?;
        let controller = Controller::open(site_file, options).await?;
        children::reap_strangers(&controller);
        let site = controller.fleet().in_force();
        warn_of_roots(&site.site);
        let state_dir = Some(controller.options().state_dir.clone());
        announce(&site.site, controller.addresses(), &controller.admin_addresses(), state_dir, output)?;
        init::tell_parent();
        tokio::spawn(signals.follow(Running::Controller(controller.clone())));
        match controller.run().await? {
            Exit::Stopped => Ok(()),
            Exit::Failed(cause) => bail!(
                "the controller has failed; its instances serve on, and the next one adopts them: {cause}"
            ),
        }
    });
    runtime.shutdown_timeout(SHUTDOWN);
    result
}

fn state_dir_of(site: &Site, argument: Option<PathBuf>) -> io::Result<PathBuf> {
    match argument.or_else(|| site.state_dir.clone()) {
        Some(directory) => Ok(directory),
        None => state_dir::default_for(&site.name),
    }
}

/// What every process that runs a site, or a part of it, does first.
pub(super) fn prepare_process() {
    log::to_standard_error(None);
    log_panics();
    raise_descriptor_limit();
}

fn warn_of_roots(site: &Site) {
    for (root, error) in super::check::roots(site) {
        // It may come later, a mount say; until then its routes answer 404 or 403.
        tracing::warn!(root = %root.display(), %error, "a root cannot be read");
    }
}

/// What signals are about.
enum Running {
    Instance(Arc<Instance>),
    Controller(Arc<Controller>),
}

impl Running {
    async fn stop(&self) {
        match self {
            Running::Instance(instance) => instance.stop().await,
            Running::Controller(controller) => controller.stop().await,
        }
    }

    /// An event and the log say what has come of it; on success this process is another build's.
    async fn upgrade(&self) {
        match self {
            Running::Instance(_) => {
                tracing::warn!("USR2: a site in one process is upgraded by a stop and a start")
            }
            Running::Controller(controller) => {
                if let Ok(successor) = controller.prepare_upgrade(None).await {
                    let _ = controller.become_successor(&successor);
                }
            }
        }
    }

    /// For the end of this process without any delay: nobody else would end what it has started.
    fn kill_apps(&self) {
        match self {
            Running::Instance(instance) => instance.apps().kill_all(),
            Running::Controller(controller) => controller.fleet().apps().kill_all(),
        }
    }

    async fn reload(&self) -> Result<Reloaded, ReloadError> {
        match self {
            Running::Instance(instance) => instance.reload_file(None).await,
            Running::Controller(controller) => controller.reload_file(None).await,
        }
    }
}

fn runtime(site: &Site) -> io::Result<Runtime> {
    let threads = match site.threads {
        Some(threads) => threads.get(),
        None => std::thread::available_parallelism().map_or(1, |cpus| cpus.get()),
    };
    runtime_of(threads)
}

/// A runtime with this many threads that serve.
pub(super) fn runtime_of(threads: usize) -> io::Result<Runtime> {
    let mut builder = if threads == 1 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    if threads > 1 {
        builder.worker_threads(threads);
    }
    builder.thread_name("playhouse").enable_all().build()
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    upgrade: Signal,
}

impl Signals {
    fn install() -> io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            upgrade: signal(SignalKind::user_defined2())?,
        })
    }

    async fn follow(mut self, running: Running) {
        let running = Arc::new(running);
        let mut interrupted = false;
        loop {
            tokio::select! {
                Some(()) = self.terminate.recv() => stop(&running, "TERM"),
                Some(()) = self.interrupt.recv() => {
                    if std::mem::replace(&mut interrupted, true) {
                        tracing::warn!("a second INT: ending at once");
                        running.kill_apps();
                        process::exit(INTERRUPTED);
                    }
                    stop(&running, "INT");
                }
                Some(()) = self.hangup.recv() => {
                    let running = running.clone();
                    tokio::spawn(async move {
                        match running.reload().await {
                            Ok(_) => tracing::info!("reloaded"),
                            Err(error) => tracing::error!(%error, "the reload was refused, nothing has changed"),
                        }
                    });
                }
                Some(()) = self.upgrade.recv() => {
                    let running = running.clone();
                    tokio::spawn(async move { running.upgrade().await });
                }
                else => return,
            }
        }
    }
}

fn stop(running: &Arc<Running>, signal: &str) {
    tracing::info!(signal, "draining");
    let running = running.clone();
    tokio::spawn(async move { running.stop().await });
}

/// Says where to look: for people on a terminal, else as one line of JSON, unless that line would be in an access log.
fn announce(
    config: &Site,
    addresses: Vec<(Arc<str>, String)>,
    admin: &[String],
    state_dir: Option<PathBuf>,
    output: Output,
) -> anyhow::Result<()> {
    let listeners: Vec<Address> = addresses
        .into_iter()
        .map(|(name, address)| {
            let listener = config.listeners.iter().find(|listener| listener.name == name);
            let tls = listener.is_some_and(|listener| !listener.tls.is_empty());
            Address { url: url(&address, tls), name: name.to_string(), address }
        })
        .collect();
    let state_dir = state_dir.map(|directory| directory.display().to_string());
    let log_on_stdout = config.access_log.as_ref().is_some_and(|log| log.to == LogDestination::Stdout);
    if output.is_json() {
        for Address { name, address, .. } in &listeners {
            tracing::info!(listener = %name, %address, "listening");
        }
        if log_on_stdout {
            return Ok(());
        }
        return output.json(&serde_json::json!({
            "site": config.name,
            "pid": process::id(),
            "listeners": listeners,
            "admin": admin,
            "state_dir": state_dir,
        }));
    }
    let mut text = format!("{} runs as process {}\n", safe(&config.name), process::id());
    for Address { name, url, address } in &listeners {
        text += &format!("  {:<12} {}\n", safe(name), url.as_deref().unwrap_or(address));
    }
    for address in admin.iter().filter(|address| !address.starts_with("unix:")) {
        text += &format!("  {:<12} http://{address}/ (dashboard, /metrics)\n", "admin");
    }
    if let Some(directory) = &state_dir {
        let is_default =
            state_dir::default_for(&config.name).is_ok_and(|default| default.as_os_str() == &**directory);
        let site = if is_default { String::new() } else { format!(" --state-dir {directory}") };
        text += &format!("  {:<12} {directory}\n\n", "state");
        text +=
            &format!("See its actors: playhouse tree{site}    Stop it: Ctrl-C, or playhouse stop{site}\n");
    }
    output.text(&text)
}

#[derive(serde::Serialize)]
struct Address {
    name: String,
    /// `None` for a Unix socket.
    url: Option<String>,
    address: String,
}

fn url(address: &str, tls: bool) -> Option<String> {
    let scheme = if tls { "https" } else { "http" };
    let socket: std::net::SocketAddr = address.parse().ok()?;
    // A wildcard is no address to go to.
    Some(match socket.ip().is_unspecified() {
        true => format!("{scheme}://localhost:{}", socket.port()),
        false => format!("{scheme}://{socket}"),
    })
}

/// A panic is a line of the log like any other, and costs the runtime's thread no more than that: the default hook would
/// write text between lines of JSON, and look up the names of a backtrace (half a second, and the debug information
/// stays in memory) before the actor's supervisor hears of it.
pub(super) fn log_panics() {
    static LOOKING_UP: AtomicBool = AtomicBool::new(false);
    panic::set_hook(Box::new(|info| {
        let message = info.payload_as_str().unwrap_or("(no text)");
        let location = info.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(panic = message, location, "a part has panicked");
        // One at a time: capturing waits for whoever looks names up. Empty unless $RUST_BACKTRACE asks for it.
        if LOOKING_UP.swap(true, Ordering::AcqRel) {
            return;
        }
        let backtrace = Backtrace::capture();
        if backtrace.status() != BacktraceStatus::Captured {
            LOOKING_UP.store(false, Ordering::Release);
            return;
        }
        let report = move || {
            tracing::error!(location, %backtrace, "the panic's backtrace");
            LOOKING_UP.store(false, Ordering::Release);
        };
        if thread::Builder::new().name("backtrace".into()).spawn(report).is_err() {
            LOOKING_UP.store(false, Ordering::Release);
        }
    }));
}

pub(super) const SHUTDOWN: Duration = Duration::from_secs(1);

/// As a shell says of a command that INT has ended.
const INTERRUPTED: i32 = 130;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_is_shown_as_localhost() {
        assert_eq!(url("0.0.0.0:80", false).unwrap(), "http://localhost:80");
        assert_eq!(url("[::]:443", true).unwrap(), "https://localhost:443");
        assert_eq!(url("127.0.0.1:1", false).unwrap(), "http://127.0.0.1:1");
        assert_eq!(url("unix:/run/x.sock", false), None);
    }
}
