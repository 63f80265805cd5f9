//! Managed applications: commands, how many processes, and what they may have.

use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::Resolver;
use super::value::shown;
use crate::error::{At, nearest, unknown};
use crate::file::{self, Named};
use crate::model::{App, Listen, PathPattern, ProcessLimits, Processes, Template, ToApp};

/// Most processes of one app.
const MAX_PROCESSES: u64 = 64;
/// Default of `busy_at`.
const BUSY_AT: u32 = 8;
/// Default of `ready_timeout`.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Default of `stop_timeout`.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Most of anything that the kernel counts.
const MAX_COUNT: u64 = 1 << 40;

const NO_COMMAND: &str =
    "missing; write the program and its arguments, such as command: [\"node\", \"server.js\"]";

impl Resolver<'_, '_> {
    pub(super) fn apps(&mut self, raw: &file::Site, instances: usize, at: &At) -> Option<Vec<App>> {
        let Some(apps) = &raw.apps else { return Some(Vec::new()) };
        self.unique_names(apps, at);
        let apps: Vec<Option<App>> = apps
            .0
            .iter()
            .map(|(name, app)| self.app(name, app, raw.routes.as_deref(), instances, &at.key(name)))
            .collect();
        apps.into_iter().collect()
    }

    fn app(
        &mut self,
        name: &str,
        raw: &file::App,
        routes: Option<&[file::Route]>,
        instances: usize,
        at: &At,
    ) -> Option<App> {
        let valid = self.name(name, at);
        let protocol = self.app_protocol(name, routes, at);
        let command = self.command(raw.command.as_deref(), &at.field("command"));
        let dir = match &raw.dir {
            Some(dir) => self.path(dir, &at.field("dir")),
            None if self.directory.as_os_str().is_empty() => Some(PathBuf::from(".")),
            None => Some(self.directory.to_owned()),
        };
        let env = self.env(raw.env.as_ref(), &at.field("env"));
        let listen = self.listen(raw, &at.field("listen"));
        let processes = self.processes(raw.processes, &at.field("processes"));
        let busy_at = self.count_or(raw.busy_at, BUSY_AT, &at.field("busy_at"), 1..=1_000_000);
        let user = self.account(raw.user.as_deref(), &at.field("user"));
        let group = self.account(raw.group.as_deref(), &at.field("group"));
        if listen == Some(Listen::Socket) && raw.user.is_some() {
            self.report.error(
                &at.field("user"),
                "a user of its own cannot reach sockets in the state directory; write listen: Port",
            );
        }
        let ready_timeout = self.duration(raw.ready_timeout, READY_TIMEOUT, &at.field("ready_timeout"));
        let stop_timeout = self.duration(raw.stop_timeout, STOP_TIMEOUT, &at.field("stop_timeout"));
        let health = match &raw.health {
            Some(health) => self.health(health, &at.field("health")).map(Some),
            None => Some(None),
        };
        let max_memory_at = at.field("max_memory");
        let max_memory =
            self.count(raw.max_memory.map(|size| size.0), &max_memory_at, 1 << 20..=u64::MAX >> 1);
        let max_requests = self.count(raw.max_requests, &at.field("max_requests"), 1..=u64::MAX >> 1);
        let idle_stop = match raw.idle_stop {
            Some(_) => self.duration(raw.idle_stop, READY_TIMEOUT, &at.field("idle_stop")).map(Some),
            None => Some(None),
        };
        let limits = self.process_limits(raw.limits.as_ref(), &at.field("limits"));
        let timeouts = self.upstream_timeouts(raw.timeouts.as_ref(), &at.field("timeouts"));
        let keep_alive =
            self.keep_alive(raw.keep_alive.as_ref(), protocol, instances, &at.field("keep_alive"));
        valid?;
        Some(App {
            name: name.into(),
            command: command?,
            dir: dir?,
            env: env?,
            protocol: protocol?,
            listen: listen?,
            processes: processes?,
            busy_at: NonZeroU32::new(busy_at?)?,
            user: user?,
            group: group?,
            ready_timeout: ready_timeout?,
            stop_timeout: stop_timeout?,
            health: health?,
            max_memory: max_memory?.and_then(NonZeroU64::new),
            max_requests: max_requests?.and_then(NonZeroU64::new),
            idle_stop: idle_stop?,
            limits: limits?,
            timeouts: timeouts?,
            keep_alive: keep_alive?,
        })
    }

    fn command(&mut self, raw: Option<&[String]>, at: &At) -> Option<Vec<Template>> {
        let raw = self.required(raw, at, NO_COMMAND)?;
        if raw.first().is_none_or(String::is_empty) {
            return self.refuse(at, NO_COMMAND);
        }
        let words: Vec<_> =
            raw.iter().enumerate().map(|(index, word)| self.template(word, &at.index(index))).collect();
        words.into_iter().collect()
    }

    fn env(&mut self, raw: Option<&Named<String>>, at: &At) -> Option<Vec<(String, Template)>> {
        let mut valid = Some(());
        let mut env = Vec::new();
        for (name, value) in raw.iter().flat_map(|raw| &raw.0) {
            let at = at.key(name);
            if name.is_empty() || name.contains(['=', '\0']) {
                valid = self.refuse(&at, format!("{} is no name of a variable", shown(name)));
            } else if env.iter().any(|(other, _)| other == name) {
                valid = self.refuse(&at, "this name stands here twice; names are unique");
            }
            match self.template(value, &at) {
                Some(value) => env.push((name.clone(), value)),
                None => valid = None,
            }
        }
        valid.map(|()| env)
    }

    /// A word in braces that is nearly a variable was meant to be one.
    fn template(&mut self, text: &str, at: &At) -> Option<Template> {
        if text.contains('\0') {
            return self.refuse(at, "holds a NUL character");
        }
        for part in text.split('{').skip(1) {
            let Some((word, _)) = part.split_once('}') else { continue };
            let is_word = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase());
            if is_word
                && !Template::VARIABLES.contains(&word)
                && let Some(near) = nearest(word, &Template::VARIABLES)
            {
                return self.refuse(at, format!("no variable {{{word}}}; did you mean {{{near}}}?"));
            }
        }
        Some(Template::new(text))
    }

    fn listen(&mut self, raw: &file::App, at: &At) -> Option<Listen> {
        let texts = || {
            let env = raw.env.iter().flat_map(|env| &env.0).map(|(_, value)| value);
            raw.command.iter().flatten().chain(env)
        };
        let names = |variable: &str| texts().any(|text| Template::new(&**text).names(variable));
        let (socket, port) = (names("socket"), names("port"));
        let listen = raw.listen.unwrap_or(if socket { Listen::Socket } else { Listen::Port });
        match listen {
            Listen::Socket if port => self.refuse(
                at,
                "each process listens on a Unix socket, and has no {port}; write listen: Port, or {socket}",
            ),
            Listen::Port if socket => {
                self.refuse(at, "each process listens on a port, and has no {socket}; leave out listen: Port")
            }
            listen => Some(listen),
        }
    }

    fn processes(&mut self, raw: Option<file::Processes>, at: &At) -> Option<Processes> {
        let (min, max) = match raw {
            Some(file::Processes::Fixed(count)) => (count, count),
            Some(file::Processes::Between(min, max)) => (min, max),
            None => (1, 1),
        };
        if min > max {
            return self.refuse(at, format!("{max} is less than {min}; the fewest come first"));
        }
        let min = self.count_or(Some(min), 1u32, at, 1..=MAX_PROCESSES);
        let max = self.count_or(Some(max), 1u32, at, 1..=MAX_PROCESSES);
        Some(Processes { min: NonZeroU32::new(min?)?, max: NonZeroU32::new(max?)? })
    }

    fn account(&mut self, raw: Option<&str>, at: &At) -> Option<Option<String>> {
        match raw {
            Some(name) if name.is_empty() || name.contains([':', '\n', '\0', '/']) => {
                self.refuse(at, format!("{} is no name or number of an account", shown(name)))
            }
            name => Some(name.map(str::to_owned)),
        }
    }

    fn process_limits(&mut self, raw: Option<&file::ProcessLimits>, at: &At) -> Option<ProcessLimits> {
        let Some(raw) = raw else { return Some(ProcessLimits::default()) };
        let open_files = self.count(raw.open_files, &at.field("open_files"), 8..=MAX_COUNT);
        let address_space_at = at.field("address_space");
        let address_space =
            self.count(raw.address_space.map(|size| size.0), &address_space_at, 1 << 20..=u64::MAX >> 1);
        let processes = self.count(raw.processes, &at.field("processes"), 1..=MAX_COUNT);
        Some(ProcessLimits {
            open_files: open_files?,
            address_space: address_space?,
            processes: processes?,
            core: raw.core.map(|size| size.0),
        })
    }

    pub(super) fn app_target(
        &mut self,
        raw: &file::ToApp,
        path: Option<&PathPattern>,
        apps: Option<&Named<file::App>>,
        at: &At,
    ) -> Option<ToApp> {
        if raw.strip_prefix == Some(true) && matches!(path, Some(PathPattern::Exact(_))) {
            let message = "the route's path is exact and has no prefix to take off; end it with \"/\"";
            self.report.error(&at.field("strip_prefix"), message);
        }
        let name = self.app_name(raw.app.as_deref(), apps, at)?;
        Some(ToApp {
            app: name,
            strip_prefix: raw.strip_prefix.unwrap_or(false),
            preserve_host: raw.preserve_host.unwrap_or(true),
        })
    }

    pub(super) fn app_name(
        &mut self,
        raw: Option<&str>,
        apps: Option<&Named<file::App>>,
        at: &At,
    ) -> Option<Arc<str>> {
        let name = self.required(raw, &at.field("app"), "missing; name an app of the site")?;
        let names = || apps.into_iter().flat_map(|apps| &apps.0).map(|(name, _)| name.as_str());
        if !names().any(|known| known == name) && !self.report.failed_itself(&At::root().field("apps")) {
            return self.refuse(at, unknown("no app", name, names()));
        }
        Some(name.into())
    }
}
