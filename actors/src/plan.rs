//! What a reload would do, told without doing it.

use playhouse_config::changes::{self, Change, Kind, Part};
use playhouse_config::model::{Listener, Site};
use playhouse_serve::sockets::{BindError, BindErrorKind, Place, Source, sources};
use playhouse_serve::tls::Certificates;
use serde::Serialize;

use crate::instance::{LISTENERS, UPSTREAMS};
use crate::reload::ReloadError;
use crate::{admin, apps};

/// What a reload would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The site's name.
    pub site: String,
    /// Why the reload would be refused as a whole; `None` where it would not.
    pub refused: Option<String>,
    /// Each part that differs from what is in force. Empty where nothing does.
    pub changes: Vec<Planned>,
}

/// What becomes of one part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Planned {
    /// The part, as in messages about the site file.
    pub part: String,
    /// `added`, `removed` or `changed`.
    pub change: &'static str,
    /// Which of its fields are different, where it is changed.
    pub fields: Vec<&'static str>,
    /// What that does, and to whom.
    pub effect: String,
    /// Actors of each process that serves which are started.
    pub starts: Vec<String>,
    /// Actors that end.
    pub ends: Vec<String>,
    /// Actors that end and are started anew; `instance-*` is every instance, one after another.
    pub restarts: Vec<String>,
}

/// How the site runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processes {
    /// One process, without a controller.
    One,
    /// A controller and its instances.
    Several,
}

impl Plan {
    /// What it would do to put `after` into force where `before` is.
    pub fn new(before: &Site, after: &Site, processes: Processes) -> Self {
        let refused = cannot_change(before, after).map(|field| ReloadError::NeedsRestart(field).to_string());
        let sharing = match processes {
            Processes::One => None,
            Processes::Several => before.listeners.iter().find_map(|old| {
                let new = after.listeners.iter().find(|new| new.name == old.name && new.bind == old.bind)?;
                (new.sharing != old.sharing).then(|| BindError::new(new, BindErrorKind::Sharing).to_string())
            }),
        };
        let plan = |change| planned(change, before, after, processes);
        Plan {
            site: after.name.clone(),
            refused: refused.or(sharing),
            changes: changes::between(before, after).into_iter().map(plan).collect(),
        }
    }
}

/// What only a new start of the site can change, and is different.
pub(crate) fn cannot_change(before: &Site, after: &Site) -> Option<&'static str> {
    let fixed = [
        ("name", before.name != after.name),
        ("state_dir", before.state_dir != after.state_dir),
        ("instances", before.instances.is_some() != after.instances.is_some()),
    ];
    fixed.iter().find(|(_, differs)| *differs).map(|(field, _)| *field)
}

/// What can be wrong with a valid site on this machine, apart from what only shows when a socket is bound. Blocking.
pub(crate) fn check_files(site: &Site) -> Result<(), ReloadError> {
    admin::read_token(&site.admin)?;
    let certificates = Certificates::default();
    for listener in &site.listeners {
        certificates
            .load(listener)
            .map_err(|error| ReloadError::Bind(vec![BindError::new(listener, BindErrorKind::Tls(error))]))?;
    }
    Ok(())
}

fn planned(change: Change, before: &Site, after: &Site, processes: Processes) -> Planned {
    let mut planned = Planned {
        part: change.part.to_string(),
        change: match change.kind {
            Kind::Added => "added",
            Kind::Removed => "removed",
            Kind::Changed => "changed",
        },
        fields: change.fields.clone(),
        effect: String::new(),
        starts: Vec::new(),
        ends: Vec::new(),
        restarts: Vec::new(),
    };
    planned.effect = match (&change.part, change.kind) {
        (Part::Site("threads"), _) if processes == Processes::Several => {
            planned.restarts.push("instance-*".to_owned());
            "every instance is replaced, one after another; each drains".to_owned()
        }
        (Part::Site("threads"), _) => "none before the next start".to_owned(),
        (Part::Site("drain_timeout"), _) => "for drains that begin from now on".to_owned(),
        (Part::Site(_), _) => "refused: needs a new start".to_owned(),
        (Part::Instances, Kind::Changed) => "the number of instances follows".to_owned(),
        (Part::Instances, _) => "refused: needs a new start".to_owned(),
        (Part::Admin, _) if change.fields.contains(&"bind") => {
            "the admin interface's listener is replaced; admin.sock stays".to_owned()
        }
        (Part::Admin, _) => "from the next admin request on".to_owned(),
        (Part::AccessLog, Kind::Removed) => "the log is closed".to_owned(),
        (Part::AccessLog, _) => "the log is opened; earlier lines stay where they are".to_owned(),
        (Part::Listener(name), kind) => {
            let actor = format!("{LISTENERS}/{name}");
            match (kind, source(name, before, after)) {
                (Kind::Removed, _) => {
                    planned.ends.push(actor);
                    match successor(name, before, after) {
                        Some(new) => format!("its socket goes on as {new:?}"),
                        None => "its socket is closed; its connections finish their requests".to_owned(),
                    }
                }
                (Kind::Added, Some(Source::Succeeds(old))) => {
                    planned.starts.push(actor);
                    format!("goes on with the socket of {:?}", before.listeners[old].name)
                }
                (Kind::Added, _) => {
                    planned.starts.push(actor);
                    "a socket is opened".to_owned()
                }
                (Kind::Changed, Some(Source::Kept(_))) => "for new connections".to_owned(),
                (Kind::Changed, _) => {
                    planned.restarts.push(actor);
                    "another socket is opened, and its old one closed; connections there finish their requests"
                        .to_owned()
                }
            }
        }
        (Part::Upstream(name), kind) => {
            let actor = format!("{UPSTREAMS}/{name}");
            match kind {
                Kind::Added => planned.starts.push(actor),
                Kind::Removed => planned.ends.push(actor),
                Kind::Changed if is_checked(before, name) != is_checked(after, name) => {
                    planned.restarts.push(actor);
                }
                Kind::Changed => {}
            }
            match kind {
                Kind::Added => "its pool is opened",
                Kind::Removed => "its idle connections are closed; requests in flight finish",
                Kind::Changed => "from the next request on; health, counters and idle connections stay",
            }
            .to_owned()
        }
        (Part::App(name), kind) => {
            let actor = format!("{}/{name}", apps::NAME);
            let app = |site: &Site| site.apps.iter().find(|app| *app.name == **name).cloned();
            let is_rolled = || app(before).zip(app(after)).is_some_and(|(old, new)| !new.same_process(&old));
            match kind {
                Kind::Added => {
                    planned.starts.push(actor);
                    "its processes are started".to_owned()
                }
                Kind::Removed => {
                    planned.ends.push(actor);
                    "its processes finish their requests and end".to_owned()
                }
                Kind::Changed if is_rolled() => {
                    planned.restarts.push(format!("{actor}/place-*"));
                    "its processes are replaced, one after another, each once another is ready".to_owned()
                }
                Kind::Changed => "at once; its processes go on".to_owned(),
            }
        }
        (Part::Route(..), _) => {
            "from the next request on; requests in flight finish as they began".to_owned()
        }
    };
    planned
}

/// Where a listener of the new version has its socket from.
fn source(name: &str, before: &Site, after: &Site) -> Option<Source> {
    let place = after.listeners.iter().position(|listener| *listener.name == *name)?;
    all_sources(before, after).get(place).copied()
}

/// The listener that goes on with the socket of an old one.
fn successor<'a>(name: &str, before: &Site, after: &'a Site) -> Option<&'a str> {
    let old = before.listeners.iter().position(|listener| *listener.name == *name)?;
    let new = all_sources(before, after).iter().position(|source| *source == Source::Succeeds(old))?;
    Some(&after.listeners[new].name)
}

fn all_sources(before: &Site, after: &Site) -> Vec<Source> {
    let place = |listener: &'_ Listener| (listener.name.clone(), listener.bind.clone());
    let running: Vec<_> = before.listeners.iter().map(place).collect();
    let running: Vec<_> = running.iter().map(|(name, bind)| Place { name, bind }).collect();
    sources(&after.listeners, &running)
}

fn is_checked(site: &Site, upstream: &str) -> bool {
    site.upstreams.iter().any(|known| *known.name == *upstream && known.health.is_some())
}
