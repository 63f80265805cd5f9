//! Taking over the instances of a controller that is gone.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use playhouse_protocol::control::{AppProcess, Hello, Passed, ServerHealth, State, ToController, ToInstance};

use rustix::process::Signal;

use super::member::{self, Ends, Member};
use crate::apps::Pipes;
use crate::apps::outputs::pair_outputs;
use crate::control;
use crate::control::link::{Link, LinkError};
use crate::control::process::Process;
use crate::control::record::{self, Record};

/// What a state directory had in it.
#[derive(Debug, Default)]
pub struct Found {
    /// Instances that go on.
    pub adopted: Vec<Adopted>,
    /// What was not what its record said, for people. It has been removed.
    pub removed: Vec<String>,
}

/// One instance that goes on.
#[derive(Debug)]
pub struct Adopted {
    /// It, linked to this controller.
    pub member: Member,
    /// What it has said of itself.
    pub hello: Hello,
    /// The listening sockets that it holds.
    pub sockets: Vec<(Passed, OwnedFd)>,
    /// The upstream servers that it leaves out.
    pub ejections: Vec<ServerHealth>,
    /// What processes of apps write to.
    pub outputs: Vec<(AppProcess, Pipes)>,
}

/// Speaks to every process that a record names. None is trusted for its record: the process must be the one that was
/// recorded, its control socket must be answered by that very process, and what it says must agree.
///
/// `hello` is this controller's own. The state directory's lock is held.
pub async fn find(directory: &Path, hello: &Hello) -> Found {
    let mut found = Found::default();
    let mut living = Vec::new();
    for (slot, record) in record::all(directory) {
        match record {
            Ok(record) => living.push(record),
            Err(error) => {
                control::remove_files_of(directory, slot);
                found.removed.push(error.to_string());
            }
        }
    }
    let results =
        futures_util::future::join_all(living.iter().map(|record| adopt(directory, record, hello))).await;
    let mut known = Vec::new();
    for (record, result) in living.iter().zip(results) {
        match result {
            Ok(adopted) => {
                known.push(record.pid);
                found.adopted.push(adopted);
            }
            Err(why) => {
                control::remove_files_of(directory, record.slot);
                found.removed.push(format!("{}: process {}: {why}", member::name(record.slot), record.pid));
            }
        }
    }
    let strays = control::instances_of(directory).into_iter().filter(|stray| !known.contains(&stray.pid()));
    found.removed.extend(futures_util::future::join_all(strays.map(end_stray)).await);
    found
}

/// An instance of this site without a record has not got that far, or has lost it. Either way no controller would ever
/// speak to it, and what it does in its place would be another's.
async fn end_stray(stray: Process) -> String {
    end_gently(&stray).await;
    format!("process {}: an instance without a record; ended", stray.pid())
}

/// Lets a process drain, for as long as a controller that starts can wait, and ends it.
async fn end_gently(process: &Process) {
    // It may be gone.
    let _ = process.kill(Signal::TERM);
    if tokio::time::timeout(PATIENCE, process.wait()).await.is_err() {
        end(process).await;
    }
}

/// Ends a process, and waits until it has: a while, for one that the kernel does not let go.
pub(super) async fn end(process: &Process) {
    // It may be gone.
    let _ = process.kill(Signal::KILL);
    let _ = tokio::time::timeout(PATIENCE, process.wait()).await;
}

async fn adopt(directory: &Path, record: &Record, ours: &Hello) -> Result<Adopted, String> {
    let Some(process) = Process::open(record.pid, record.started) else {
        return Err("has ended, and another may have its number".into());
    };
    let spoken = tokio::time::timeout(PATIENCE, speak(directory, record, ours)).await;
    let answers = spoken.is_ok();
    match spoken.unwrap_or_else(|_| Err(format!("has not answered within {PATIENCE:?}"))) {
        Ok(Spoken { ends, hello, sockets, ejections, outputs }) => {
            let member = Member::new(record.slot, record.generation, process, ends, Some(&hello));
            Ok(Adopted { member, hello, sockets, ejections, outputs })
        }
        Err(why) => {
            // What holds our sockets and speaks to nobody must not stay; what only bears its number must not be harmed.
            if control::is_instance_of(record.pid, directory, record.slot) {
                // One that is only of another opinion (another version of what we speak) may finish what it has.
                match answers {
                    true => end_gently(&process).await,
                    false => end(&process).await,
                }
                return Err(format!("{why}; ended"));
            }
            // A child of this very process that has ended, before `exec`, is reaped so.
            let _ = tokio::time::timeout(Duration::ZERO, process.wait()).await;
            Err(why)
        }
    }
}

/// What was said.
struct Spoken {
    ends: Ends,
    hello: Hello,
    sockets: Vec<(Passed, OwnedFd)>,
    ejections: Vec<ServerHealth>,
    outputs: Vec<(AppProcess, Pipes)>,
}

async fn speak(directory: &Path, record: &Record, ours: &Hello) -> Result<Spoken, String> {
    let path = control::control_path(directory, record.slot);
    let link = Link::connect(&path).await.map_err(|error| format!("{}: {error}", path.display()))?;
    if link.peer().pid != record.pid {
        return Err(format!("its control socket is answered by process {}", link.peer().pid));
    }
    let (sender, receiver): Ends = link.split();
    let say = |error: LinkError| error.to_string();
    sender.send(&ToInstance::Hello(ours.clone()), Vec::new()).map_err(say)?;
    let mut hello = loop {
        match receiver.recv().await.map_err(say)? {
            Some((ToController::Hello(hello), _)) => break hello,
            Some(_) => {}
            None => return Err("has closed its link".into()),
        }
    };
    check(&hello, record, ours)?;
    let (mut sockets, mut ejections, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
    sender.send(&ToInstance::GiveSockets, Vec::new()).map_err(say)?;
    let knows_apps = hello.version.knows_apps();
    if knows_apps {
        sender.send(&ToInstance::GiveAppOutputs, Vec::new()).map_err(say)?;
    }
    let (mut has_sockets, mut has_outputs) = (false, !knows_apps);
    while !(has_sockets && has_outputs) {
        match receiver.recv().await.map_err(say)? {
            Some((ToController::Sockets { sockets: passed, more }, descriptors)) => {
                sockets.extend(control::pair(passed, descriptors)?);
                has_sockets = !more;
            }
            Some((ToController::AppOutputs { processes, more }, descriptors)) => {
                outputs.extend(pair_outputs(processes, descriptors)?);
                if outputs.len() > MOST_OUTPUTS {
                    return Err("holds more than there can be".into());
                }
                has_outputs = !more;
            }
            // It goes on living meanwhile.
            Some((ToController::ServerHealth(health), _)) if ejections.len() < MOST_EJECTIONS => {
                ejections.push(health);
            }
            Some((ToController::State { state }, _)) => hello.state = Some(state),
            Some(_) => {}
            None => return Err("has closed its link".into()),
        }
    }
    Ok(Spoken { ends: (sender, receiver), hello, sockets, ejections, outputs })
}

fn check(hello: &Hello, record: &Record, ours: &Hello) -> Result<(), String> {
    if !hello.version.is_understood() {
        return Err(format!("speaks version {} of the control protocol", hello.version));
    }
    if hello.site != ours.site {
        return Err(format!("serves the site {:?}", hello.site));
    }
    let says = (hello.pid, hello.started, hello.slot, hello.generation);
    if says != (record.pid, record.started, record.slot, record.generation) {
        return Err("says something else than its record".into());
    }
    match hello.state {
        Some(State::Active | State::Draining) => Ok(()),
        // It ends by itself with the link to its first controller.
        _ => Err("was not active yet".into()),
    }
}

/// Of one instance: far more than a site has servers.
const MOST_EJECTIONS: usize = 4096;
/// Of one instance: far more than a site has processes of apps.
const MOST_OUTPUTS: usize = 8192;
/// For one instance to say who it is; a runtime that is stuck never does.
const PATIENCE: Duration = Duration::from_secs(3);
