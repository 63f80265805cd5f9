//! A site whose controller is gone: its instances serve on, and each is asked for itself.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use playhouse::state_dir;
use playhouse_actors::admin::{InstanceStatus, Status};
use playhouse_actors::control::process;
use playhouse_actors::control::record::{self, Record};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::admin::Admin;
use super::stop::Ending;

/// The instances that a controller has left.
#[derive(Debug)]
pub(super) struct Orphans {
    directory: PathBuf,
    instances: Vec<Orphan>,
}

/// One of them.
#[derive(Debug)]
struct Orphan {
    name: String,
    admin: Admin,
    /// `None` where it cannot be read.
    record: Option<Record>,
}

/// What people are told, whatever they have asked for.
pub(super) const NO_CONTROLLER: &str = "no controller runs this site; its instances serve on, and the next `playhouse run` with its site file adopts them";

impl Orphans {
    /// Those with a socket in this state directory behind which somebody listens.
    pub(super) fn of(directory: &Path) -> Option<Orphans> {
        let records = record::all(directory);
        let orphan = |(slot, socket): (u32, PathBuf)| Orphan {
            name: format!("instance-{slot}"),
            admin: Admin::at(socket, DEADLINE),
            record: records
                .iter()
                .find(|(of, _)| *of == slot)
                .and_then(|(_, record)| record.as_ref().ok())
                .cloned(),
        };
        let instances: Vec<_> = state_dir::instance_sockets(directory)
            .into_iter()
            .map(orphan)
            .filter(|orphan| orphan.admin.is_there())
            .collect();
        (!instances.is_empty()).then(|| Orphans { directory: directory.to_owned(), instances })
    }

    /// Their site's state directory.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// What they say together.
    pub(super) fn status(&self) -> Status {
        let mut sum = Status::default();
        for orphan in &self.instances {
            let mut own = match orphan.admin.read::<Status>("/v1/status") {
                Ok(page) => self.add(&mut sum, page),
                Err(error) => InstanceStatus {
                    state: "stuck".to_owned(),
                    unanswered: Some(format!("{error:#}")),
                    ..InstanceStatus::default()
                },
            };
            own.id = orphan.name.clone();
            if let Some(record) = &orphan.record {
                (own.pid, own.generation) = (record.pid, record.generation);
            }
            sum.instances.push(own);
        }
        sum.events.sort_by_key(|event| event.unix_ms);
        sum.ledger = sum.instances.iter().map(|instance| instance.ledger).sum();
        sum
    }

    fn add(&self, sum: &mut Status, mut page: Status) -> InstanceStatus {
        sum.site.clone_from(&page.site);
        sum.build.clone_from(&page.build);
        sum.uptime_ms = sum.uptime_ms.max(page.uptime_ms);
        sum.stopping |= page.stopping;
        sum.events.append(&mut page.events);
        let own = page.instances.drain(..).next().unwrap_or_default();
        sum.add(page);
        own
    }

    /// Their trees, beneath a root that is not there. `page` is the tree's, with its query.
    pub(super) fn tree(&self, page: &str) -> serde_json::Value {
        let tree = |orphan: &Orphan| {
            orphan.admin.get(page).unwrap_or_else(|error| {
                serde_json::json!({
                    "path": orphan.name, "kind": "supervisor", "state": "silent", "restarts": 0,
                    "last_cause": format!("{error:#}"), "mailbox": 0, "age_ms": 0, "children": [],
                })
            })
        };
        serde_json::json!({
            "path": "controller", "kind": "supervisor", "state": "gone", "restarts": 0, "last_cause": null,
            "mailbox": 0, "age_ms": 0, "children": self.instances.iter().map(tree).collect::<Vec<_>>(),
        })
    }

    /// Whom an actor's path belongs to.
    pub(super) fn owner(&self, path: &str) -> anyhow::Result<&Admin> {
        let name = path.trim_matches('/').split('/').next().unwrap_or_default();
        let owner = self.instances.iter().find(|orphan| orphan.name == name).map(|orphan| &orphan.admin);
        owner.ok_or_else(|| {
            let names: Vec<_> = self.instances.iter().map(|orphan| &*orphan.name).collect();
            anyhow!("no actor {path:?}: no controller runs this site, only {}", names.join(", "))
        })
    }

    /// Tells each to drain and to end; gives back what is to be waited for, and what there is to say.
    pub(super) fn stop(&self) -> anyhow::Result<(Vec<Ending>, Vec<String>)> {
        let (mut endings, mut said) = (Vec::new(), Vec::new());
        for orphan in &self.instances {
            // Opened before the end, so that it is of this process and no other's that gets its number.
            let ending = orphan.record.as_ref().and_then(|record| self.open(record));
            if let Err(error) = orphan.admin.post("/v1/stop", &serde_json::json!({})) {
                // Gone between the look and the question is as good.
                if !orphan.admin.is_there() {
                    continue;
                }
                let Some(process) = &ending else {
                    bail!("{}: {error:#}; and which process it is, nobody knows", orphan.name)
                };
                // What a controller does with one that is stuck: it would never drain.
                pidfd_send_signal(process, Signal::KILL).with_context(|| orphan.name.clone())?;
                said.push(format!("{} was killed: {error:#}", orphan.name));
            }
            endings.push(Ending::new(ending, orphan.admin.clone()));
        }
        Ok((endings, said))
    }

    /// The process of a record, if it still is the one that has written it.
    fn open(&self, record: &Record) -> Option<std::os::fd::OwnedFd> {
        let pid = Pid::from_raw(i32::try_from(record.pid).ok()?)?;
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        (process::start_time(record.pid) == Some(record.started)).then_some(process)
    }

    /// Says that a command needs a controller.
    pub(super) fn refuse(&self) -> anyhow::Error {
        anyhow!("{}: {NO_CONTROLLER}", self.directory.display())
    }
}

/// One that is stuck must not hold up the others.
const DEADLINE: Duration = Duration::from_secs(2);
