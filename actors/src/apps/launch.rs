//! How a process of an app is started.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use playhouse_config::model::{Address, App, Listen, ProcessLimits, Values};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use super::account::Account;
use super::output::Output;
use super::record;
use crate::control::process::Process;
use crate::controller::small_pages;

/// A process that was started.
#[derive(Debug)]
pub struct Launched {
    pub process: Process,
    pub output: Output,
    /// Duplicates of the read ends of its standard output and error, for others to hold.
    pub pipes: [OwnedFd; 2],
}

/// Where a process in this place is to listen: its socket beneath `directory`, or a port that is free now.
///
/// # Errors
/// No port is free.
pub fn address(app: &App, place: u32, directory: &Path) -> io::Result<Address> {
    match app.listen {
        Listen::Socket => Ok(Address::Unix(socket_path(directory, &app.name, place))),
        // The program that is started can be given no listening socket that it would know; so this one is closed again, and
        // another process may take the port before it. It fails then, and is started again with another.
        Listen::Port => Ok(Address::Tcp(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)),
    }
}

/// The Unix socket of the process in this place.
pub fn socket_path(directory: &Path, app: &str, place: u32) -> PathBuf {
    directory.join(format!("{app}-{place}.sock"))
}

/// Starts the process, as the leader of a process group of its own. Blocking; to be called within a runtime.
///
/// # Errors
/// For people: what cannot be done, and why.
pub fn launch(app: &App, place: u32, address: &Address, directory: &Path) -> Result<Launched, String> {
    let mut command = command(app, place, address)?;
    command.env(record::DIRECTORY_VARIABLE, directory);
    if let Address::Unix(path) = address {
        // A program that was killed leaves its socket's file, and few start over it.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(format!("{}: {error}", path.display()));
            }
            _ => {}
        }
    }
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = small_pages::as_found(|| command.spawn()).map_err(|error| {
        if app.dir.is_dir() {
            format!("{program}: {error}")
        } else {
            format!("{}: no such directory", app.dir.display())
        }
    })?;
    launched(&mut child, &app.limits).inspect_err(|_| {
        // It has done nothing yet that anybody would miss.
        super::group::signal(child.id(), rustix::process::Signal::KILL);
        let _ = child.wait();
    })
}

fn launched(child: &mut Child, limits: &ProcessLimits) -> Result<Launched, String> {
    limit(child.id(), limits)?;
    let io = |error: io::Error| error.to_string();
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err("its output cannot be read".to_owned());
    };
    let (stdout, stderr) = (OwnedFd::from(stdout), OwnedFd::from(stderr));
    let pipes = [stdout.try_clone().map_err(io)?, stderr.try_clone().map_err(io)?];
    let output = Output::new(stdout, stderr).map_err(io)?;
    let process = Process::of_child(child).map_err(io)?;
    Ok(Launched { process, output, pipes })
}

fn command(app: &App, place: u32, address: &Address) -> Result<Command, String> {
    let socket = match address {
        Address::Unix(path) => path.to_str().ok_or("the state directory's path is not UTF-8")?,
        _ => "",
    };
    let port = match address {
        Address::Tcp(address) => Some(address.port()),
        _ => None,
    };
    let values = Values { socket, port, name: &app.name, place };
    let mut words = app.command.iter().map(|word| word.fill(&values));
    let program = words.next().unwrap_or_default();
    // A path is relative to where the program is started, as in a shell there; a lone name is looked for in PATH.
    let program = if program.contains('/') { app.dir.join(program) } else { program.into() };
    let mut command = Command::new(program);
    command.args(words).current_dir(&app.dir).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // What the service manager has said is for this process alone.
    for name in OURS {
        command.env_remove(name);
    }
    let account = Account::find(app.user.as_deref(), app.group.as_deref())?;
    if let Some((name, home)) = &account.home {
        command.env("USER", name).env("LOGNAME", name).env("HOME", home);
    }
    command.env("PLAYHOUSE_APP", &*app.name).env("PLAYHOUSE_PLACE", place.to_string());
    match port {
        Some(port) => command.env("HOST", "127.0.0.1").env("PORT", port.to_string()),
        None => command.env("PLAYHOUSE_SOCKET", socket),
    };
    for (name, value) in &app.env {
        command.env(name, value.fill(&values));
    }
    // The standard library gives up root's other groups with the first of these.
    if let Some(uid) = account.uid {
        command.uid(uid);
    }
    if let Some(gid) = account.gid {
        command.gid(gid);
    }
    Ok(command)
}

/// Soft and hard limits alike, so that what the program has read of them before counts for nothing.
fn limit(pid: u32, limits: &ProcessLimits) -> Result<(), String> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let each = [
        ("open_files", Resource::Nofile, limits.open_files),
        ("address_space", Resource::As, limits.address_space),
        ("processes", Resource::Nproc, limits.processes),
        ("core", Resource::Core, limits.core),
    ];
    for (name, resource, value) in each {
        if value.is_some() {
            prlimit(pid, resource, Rlimit { current: value, maximum: value })
                .map_err(|error| format!("limits.{name}: {}", io::Error::from(error)))?;
        }
    }
    Ok(())
}

/// Variables of a process that are not its children's.
const OURS: [&str; 7] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    crate::control::crash::VARIABLE,
];
