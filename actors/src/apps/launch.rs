//! How a process of an app is started.

use std::ffi::CString;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use playhouse_config::model::{Address, App, Listen, ProcessLimits, Values};
use playhouse_sys::exec::{Before, SpawnError, Step, spawn};
use rustix::process::{Gid, Resource, Rlimit, Uid};

use super::account::Account;
use super::output::Output;
use super::record;
use crate::control::descriptors;
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
    let account = Account::find(app.user.as_deref(), app.group.as_deref())?;
    let mut command = command(app, place, address, &account)?;
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
    let limits = limits(&app.limits);
    let before = Before {
        limits: limits.iter().map(|(_, resource, limit)| (*resource, *limit)).collect(),
        groups: account.groups.map(|groups| groups.into_iter().map(Gid::from_raw).collect()),
        group: account.gid.map(Gid::from_raw),
        user: account.uid.map(Uid::from_raw),
        directory: Some(CString::new(app.dir.as_os_str().as_bytes()).map_err(|error| error.to_string())?),
    };
    let failed = |SpawnError { step, error }| match step {
        Step::Limit(index) => format!("limits.{}: {error}", limits[index].0),
        Step::Groups => format!("the groups of its user: {error}"),
        Step::Group => format!("its group: {error}"),
        Step::User => format!("its user: {error}"),
        Step::Directory => format!("{}: {error}", app.dir.display()),
        Step::Program => format!("{program}: {error}"),
    };
    let mut child = small_pages::as_found(|| spawn(command, before)).map_err(failed)?;
    launched(&mut child).inspect_err(|_| {
        // It has done nothing yet that anybody would miss.
        super::group::signal(child.id(), rustix::process::Signal::KILL);
        let _ = child.wait();
    })
}

fn launched(child: &mut Child) -> Result<Launched, String> {
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

fn command(app: &App, place: u32, address: &Address, account: &Account) -> Result<Command, String> {
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
    command.args(words).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // What the service manager has said is for this process alone.
    for name in OURS {
        command.env_remove(name);
    }
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
    Ok(command)
}

/// What it may have, with the name of each in the site file. Soft and hard limits alike; but of descriptors it may have as
/// many as it would without us, unless the site file says otherwise.
fn limits(limits: &ProcessLimits) -> Vec<(&'static str, Resource, Rlimit)> {
    let each = [
        ("open_files", Resource::Nofile, limits.open_files),
        ("address_space", Resource::As, limits.address_space),
        ("processes", Resource::Nproc, limits.processes),
        ("core", Resource::Core, limits.core),
    ];
    let both = |value| Rlimit { current: Some(value), maximum: Some(value) };
    let set = each.into_iter().filter_map(|(name, resource, value)| Some((name, resource, both(value?))));
    let mut all: Vec<_> = set.collect();
    if limits.open_files.is_none()
        && let Some(found) = descriptors::limit_as_found()
    {
        all.push(("open_files", Resource::Nofile, found));
    }
    all
}

/// Variables of a process that are not its children's.
const OURS: [&str; 8] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    crate::control::crash::VARIABLE,
    descriptors::VARIABLE,
];

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn app(fields: &str) -> App {
        let text = format!(r#"(name: "s", listeners: {{"h": "127.0.0.1:0"}}, apps: {{"blog": ({fields})}})"#);
        playhouse_config::parse(&text, Path::new("/usr/site.ron")).unwrap().apps.remove(0)
    }

    async fn said(app: &App) -> String {
        let address = Address::Tcp((Ipv4Addr::LOCALHOST, 1).into());
        let launched = launch(app, 1, &address, Path::new("/nowhere")).unwrap();
        launched.process.ended().await;
        launched.process.wait().await;
        let [stdout, _] = launched.pipes;
        let mut said = String::new();
        std::fs::File::from(stdout).read_to_string(&mut said).unwrap();
        said
    }

    #[tokio::test]
    async fn limits_are_in_force_when_the_program_begins() {
        let app = app(r#"command: ["sh", "-c", "ulimit -Sn; ulimit -Hn; pwd"], limits: (open_files: 333)"#);
        for _ in 0..20 {
            assert_eq!(said(&app).await, "333\n333\n/usr\n");
        }
    }

    #[tokio::test]
    async fn what_cannot_be_done_before_a_program_begins_is_told() {
        let address = Address::Tcp((Ipv4Addr::LOCALHOST, 1).into());
        let why = |fields: &str| {
            let path = Path::new("/nowhere");
            launch(&app(fields), 1, &address, path).map(|launched| launched.process.pid()).unwrap_err()
        };
        assert!(why(r#"command: ["true"], dir: "/not/there""#).starts_with("/not/there: "));
        assert!(why(r#"command: ["no-such-program-here"]"#).starts_with("no-such-program-here: "));
        let limited = why(r#"command: ["true"], limits: (open_files: 1099511627776)"#);
        assert!(limited.starts_with("limits.open_files: "), "{limited}");
    }
}
