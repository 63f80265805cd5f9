//! From records to the model: every name resolves, every value is in its range, or there is an error. An error never
//! hides another: each part is resolved on its own, and `None` only says that its errors are in the report.

mod address;
mod app;
mod fastcgi;
mod instances;
mod listener;
mod pattern;
mod route;
mod target;
mod template;
mod tunnel;
mod upstream;
mod value;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{At, Report};
use crate::file::{self, Named};
use crate::model::{AccessLog, Admin, Bind, LogDestination, LogFormat, Site};

/// Most runtime threads.
const MAX_THREADS: u64 = 1024;
/// Default of `drain_timeout`.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// What every part needs: the directory of relative paths and the errors so far.
pub(crate) struct Resolver<'r, 's> {
    directory: &'r Path,
    report: &'r mut Report<'s>,
}

/// Resolves a whole site. `None` if the report has an error.
pub(crate) fn site(raw: &file::Site, directory: &Path, report: &mut Report<'_>) -> Option<Site> {
    let mut resolver = Resolver { directory, report };
    let at = At::root();
    let name = resolver.site_name(raw.name.as_deref(), &at.field("name"));
    let threads = resolver.count(raw.threads, &at.field("threads"), 1..=MAX_THREADS);
    let instances = resolver.instances(raw.instances.as_ref(), &at.field("instances"));
    let state_dir = resolver.optional_path(raw.state_dir.as_deref(), &at.field("state_dir"));
    let drain_timeout = resolver.duration(raw.drain_timeout, DRAIN_TIMEOUT, &at.field("drain_timeout"));
    let admin = resolver.admin(raw.admin.as_ref(), &at.field("admin"));
    let access_log = resolver.access_log(raw.access_log.as_ref(), &at.field("access_log"));
    let admin_bind = raw.admin.as_ref().and_then(|admin| admin.bind.as_ref()?.parse().ok());
    let drain = drain_timeout.unwrap_or(DRAIN_TIMEOUT);
    let listeners = resolver.listeners(raw.listeners.as_ref(), admin_bind, drain, &at.field("listeners"));
    let most =
        instances.as_ref().and_then(Option::as_ref).map_or(1, |instances| instances.max.get() as usize);
    let upstreams =
        resolver.upstreams(raw.upstreams.as_ref(), raw.routes.as_deref(), most, &at.field("upstreams"));
    let apps = resolver.apps(raw, most, &at.field("apps"));
    let routes = resolver.routes(raw, &at.field("routes"));
    Some(Site {
        name: name?,
        threads: match threads? {
            Some(threads) => Some(NonZeroUsize::new(usize::try_from(threads).ok()?)?),
            None => None,
        },
        instances: instances?,
        state_dir: state_dir?,
        drain_timeout: drain_timeout?,
        admin: admin?,
        access_log: access_log?,
        listeners: listeners?,
        upstreams: upstreams?,
        apps: apps?,
        routes: routes?,
    })
}

impl Resolver<'_, '_> {
    fn site_name(&mut self, name: Option<&str>, at: &At) -> Option<String> {
        let name = self.required(name, at, "missing; give the site a name, such as name: \"shop\"")?;
        self.name(name, at)?;
        Some(name.to_owned())
    }

    fn admin(&mut self, raw: Option<&file::Admin>, at: &At) -> Option<Admin> {
        let Some(raw) = raw else { return Some(Admin::default()) };
        let bind = match &raw.bind {
            Some(bind) => self.socket_address(bind, &at.field("bind")).map(Some),
            None => Some(None),
        };
        let token_file = self.optional_path(raw.token_file.as_deref(), &at.field("token_file"));
        if let Some(Some(bind)) = bind
            && !bind.ip().to_canonical().is_loopback()
            && raw.token_file.is_none()
            && !self.report.failed(&at.field("token_file"))
        {
            let message = format!(
                "{bind} can be reached from other hosts, so reads need a token too; add token_file: \"…\" or bind to 127.0.0.1"
            );
            self.report.error(&at.field("bind"), message);
        }
        let hosts_at = at.field("hosts");
        let hosts: Vec<Option<String>> = raw
            .hosts
            .iter()
            .flatten()
            .enumerate()
            .map(|(index, host)| self.host_name(host, &hosts_at.index(index)))
            .collect();
        Some(Admin { bind: bind?, token_file: token_file?, hosts: hosts.into_iter().collect::<Option<_>>()? })
    }

    fn access_log(&mut self, raw: Option<&file::AccessLog>, at: &At) -> Option<Option<AccessLog>> {
        let Some(raw) = raw else { return Some(None) };
        let at = at.field("to");
        let to =
            self.required(raw.to.as_deref(), &at, "missing; write \"-\" for standard output, or a path")?;
        let to = match to {
            "-" => LogDestination::Stdout,
            path => LogDestination::File(self.path(Path::new(path), &at)?),
        };
        Some(Some(AccessLog { to, format: raw.format.unwrap_or(LogFormat::Json) }))
    }

    /// A path joined to the directory.
    fn path(&mut self, path: &Path, at: &At) -> Option<PathBuf> {
        if path.as_os_str().is_empty() {
            return self.refuse(at, "the path is empty; the site's own directory is \".\"");
        }
        if path.as_os_str().as_encoded_bytes().contains(&0) {
            return self.refuse(at, "the path holds a NUL character");
        }
        Some(self.directory.join(path))
    }

    fn optional_path(&mut self, path: Option<&Path>, at: &At) -> Option<Option<PathBuf>> {
        match path {
            Some(path) => self.path(path, at).map(Some),
            None => Some(None),
        }
    }

    fn paths(&mut self, paths: Option<&[PathBuf]>, at: &At) -> Option<Vec<PathBuf>> {
        let mut valid = Some(Vec::new());
        for (position, path) in paths.unwrap_or_default().iter().enumerate() {
            let path = self.path(path, &at.index(position));
            valid = valid.zip(path).map(|(mut paths, path)| {
                paths.push(path);
                paths
            });
        }
        valid
    }

    /// Reports a name that stands twice; the file's reader has done so already, sites built in code come here.
    fn unique_names<T>(&mut self, named: &Named<T>, at: &At) {
        let mut seen = std::collections::HashSet::new();
        for (name, _) in &named.0 {
            if !seen.insert(name) {
                self.report.error(&at.key(name), "this name stands here twice; names are unique");
            }
        }
    }
}

/// Two sockets that cannot both be opened.
fn collide(one: &Bind, other: &Bind) -> bool {
    let (Bind::Tcp { address: a, only_v6: a_only }, Bind::Tcp { address: b, only_v6: b_only }) = (one, other)
    else {
        return one == other
            || matches!((one, other), (Bind::Unix { path: a, .. }, Bind::Unix { path: b, .. }) if a == b);
    };
    if a.port() != b.port() || a.port() == 0 {
        return false;
    }
    // An unspecified address takes all of its family; that of IPv6 takes IPv4 too.
    let takes = |all: &std::net::SocketAddr, only_v6: bool, one: &std::net::SocketAddr| {
        all.ip().is_unspecified() && (all.is_ipv4() == one.is_ipv4() || (all.is_ipv6() && !only_v6))
    };
    a.ip().to_canonical() == b.ip().to_canonical() || takes(a, *a_only, b) || takes(b, *b_only, a)
}
