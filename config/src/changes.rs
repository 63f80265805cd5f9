//! How two versions of a site differ, part by part.

use std::fmt;
use std::sync::Arc;

use crate::model::{AccessLog, Admin, App, Instances, Listener, Route, Site, Upstream};

/// One part of a site that is not the same in both versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What is different.
    pub part: Part,
    /// How.
    pub kind: Kind,
    /// Names of the fields that differ, as in the model; empty unless the part was changed.
    pub fields: Vec<&'static str>,
}

/// A part of a site. Displays as in the messages about the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A field of the site itself: `threads`.
    Site(&'static str),
    /// `admin`
    Admin,
    /// `access_log`
    AccessLog,
    /// `instances`
    Instances,
    /// A listener, by its name.
    Listener(Arc<str>),
    /// An upstream, by its name.
    Upstream(Arc<str>),
    /// An app, by its name.
    App(Arc<str>),
    /// A route, by its label and its place in the version that has it, the newer one if both do.
    Route(String, usize),
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Site(field) => f.write_str(field),
            Part::Admin => f.write_str("admin"),
            Part::AccessLog => f.write_str("access_log"),
            Part::Instances => f.write_str("instances"),
            Part::Listener(name) => write!(f, "listeners.{name}"),
            Part::Upstream(name) => write!(f, "upstreams.{name}"),
            Part::App(name) => write!(f, "apps.{name}"),
            Part::Route(label, place) => write!(f, "routes[{place}] {label}"),
        }
    }
}

/// How a part differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only the newer version has it.
    Added,
    /// Only the older version has it.
    Removed,
    /// Both have it, not the same.
    Changed,
}

/// The names of the fields in which two records differ. Every field has to be named: a new one cannot be forgotten.
macro_rules! differing {
    ($before:expr, $after:expr, $record:ident { $($field:ident),+ $(; $($other:ident),+)? }) => {{
        let (before, after): (&$record, &$record) = ($before, $after);
        let $record { $($field: _,)+ $($($other: _,)+)? } = before;
        let mut names: Vec<&'static str> = Vec::new();
        $(if before.$field != after.$field {
            names.push(stringify!($field));
        })+
        names
    }};
}

/// Every part in which `after` is not `before`: first the site's own fields, then listeners, upstreams, apps and routes, each in
/// the order of `after` and then those that only `before` has. The order of parts in a file makes no difference.
pub fn between(before: &Site, after: &Site) -> Vec<Change> {
    let own = differing!(before, after, Site {
        name, threads, state_dir, drain_timeout; instances, admin, access_log, listeners, upstreams, apps, routes
    });
    let mut changes: Vec<_> = own.into_iter().map(|field| changed(Part::Site(field), Vec::new())).collect();
    let admin = differing!(&before.admin, &after.admin, Admin { bind, token_file, hosts });
    if !admin.is_empty() {
        changes.push(changed(Part::Admin, admin));
    }
    changes.extend(optional(
        Part::AccessLog,
        before.access_log.as_ref(),
        after.access_log.as_ref(),
        access_log,
    ));
    changes.extend(optional(Part::Instances, before.instances.as_ref(), after.instances.as_ref(), instances));
    each(
        &before.listeners,
        &after.listeners,
        |listener| listener.name.clone(),
        &mut changes,
        |listener, _| Part::Listener(listener.name.clone()),
        listener,
    );
    each(
        &before.upstreams,
        &after.upstreams,
        |upstream| upstream.name.clone(),
        &mut changes,
        |upstream, _| Part::Upstream(upstream.name.clone()),
        upstream,
    );
    each(
        &before.apps,
        &after.apps,
        |app| app.name.clone(),
        &mut changes,
        |app, _| Part::App(app.name.clone()),
        app,
    );
    each(
        &before.routes,
        &after.routes,
        matched,
        &mut changes,
        |route, place| Part::Route(route.label(), place),
        route,
    );
    changes
}

fn changed(part: Part, fields: Vec<&'static str>) -> Change {
    Change { part, kind: Kind::Changed, fields }
}

fn optional<T>(
    part: Part,
    before: Option<&T>,
    after: Option<&T>,
    fields: fn(&T, &T) -> Vec<&'static str>,
) -> Option<Change> {
    let (kind, fields) = match (before, after) {
        (None, None) => return None,
        (None, Some(_)) => (Kind::Added, Vec::new()),
        (Some(_), None) => (Kind::Removed, Vec::new()),
        (Some(before), Some(after)) => (Kind::Changed, fields(before, after)),
    };
    (kind != Kind::Changed || !fields.is_empty()).then_some(Change { part, kind, fields })
}

/// The changes of one list, whose entries are known by a key.
fn each<T, K: PartialEq>(
    before: &[T],
    after: &[T],
    key: impl Fn(&T) -> K,
    changes: &mut Vec<Change>,
    part: impl Fn(&T, usize) -> Part,
    fields: impl Fn(&T, &T) -> Vec<&'static str>,
) {
    for (place, new) in after.iter().enumerate() {
        let old = before.iter().find(|old| key(old) == key(new));
        let (kind, fields) = match old {
            None => (Kind::Added, Vec::new()),
            Some(old) => (Kind::Changed, fields(old, new)),
        };
        if kind == Kind::Added || !fields.is_empty() {
            changes.push(Change { part: part(new, place), kind, fields });
        }
    }
    for (place, old) in before.iter().enumerate() {
        if !after.iter().any(|new| key(new) == key(old)) {
            changes.push(Change { part: part(old, place), kind: Kind::Removed, fields: Vec::new() });
        }
    }
}

/// What a route is known by: which requests it matches.
fn matched(route: &Route) -> impl PartialEq + use<> {
    (route.listeners.clone(), route.host.clone(), route.path.clone())
}

fn access_log(before: &AccessLog, after: &AccessLog) -> Vec<&'static str> {
    differing!(before, after, AccessLog { to, format })
}

fn instances(before: &Instances, after: &Instances) -> Vec<&'static str> {
    differing!(
        before,
        after,
        Instances { min, max, ready_timeout, heartbeat_timeout, min_free_memory, scaling }
    )
}

fn listener(before: &Listener, after: &Listener) -> Vec<&'static str> {
    differing!(before, after, Listener { bind, tls, http2, http3, early_data, proxy_protocol, sharing, limits, timeouts; name })
}

fn upstream(before: &Upstream, after: &Upstream) -> Vec<&'static str> {
    differing!(before, after, Upstream { servers, protocol, proxy_protocol, balance, health, ejection, timeouts, keep_alive, retries; name })
}

fn app(before: &App, after: &App) -> Vec<&'static str> {
    differing!(
        before,
        after,
        App {
            command, dir, env, protocol, listen, processes, busy_at, user, group, ready_timeout, stop_timeout, health, max_memory,
            max_requests, idle_stop, limits, timeouts, keep_alive; name
        }
    )
}

fn route(before: &Route, after: &Route) -> Vec<&'static str> {
    differing!(before, after, Route { to, max_body, headers, tunnel; listeners, host, path })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const BEFORE: &str = r#"(
        name: "shop",
        listeners: { "http": (bind: "127.0.0.1:80"), "old": (bind: "127.0.0.1:81") },
        upstreams: { "api": (servers: ["127.0.0.1:9000"]) },
        routes: [
            (path: "/", to: Respond(status: 200, body: "hello")),
            (path: "/api/", to: Proxy("api")),
            (path: "/gone", to: Respond(status: 404, body: "")),
        ],
    )"#;

    fn site(text: &str) -> Site {
        crate::parse(text, Path::new("/etc/shop/site.ron")).unwrap()
    }

    fn told(before: &str, after: &str) -> Vec<String> {
        let tell = |change: Change| format!("{} {:?} {}", change.part, change.kind, change.fields.join(" "));
        between(&site(before), &site(after)).into_iter().map(tell).collect()
    }

    #[test]
    fn a_site_does_not_differ_from_itself() {
        assert!(told(BEFORE, BEFORE).is_empty());
    }

    #[test]
    fn the_order_of_parts_makes_no_difference() {
        let after = BEFORE
            .replace(r#"(path: "/gone", to: Respond(status: 404, body: "")),"#, "")
            .replace("routes: [", r#"routes: [ (path: "/gone", to: Respond(status: 404, body: "")),"#);
        assert_ne!(after, BEFORE);
        assert!(told(BEFORE, &after).is_empty());
    }

    #[test]
    fn each_part_that_differs_is_told_with_its_fields() {
        let after = r#"(
            name: "shop",
            threads: 2,
            instances: (max: 4),
            drain_timeout: "5s",
            admin: "127.0.0.1:9900",
            access_log: "-",
            listeners: {
                "http": (bind: "127.0.0.1:80", http2: false, limits: (streams: 7)),
                "new": (bind: "127.0.0.1:82"),
            },
            upstreams: { "api": (servers: ["127.0.0.1:9000"], health: (path: "/healthz")) },
            routes: [
                (path: "/", host: "shop.example", to: Respond(status: 200, body: "hello")),
                (path: "/", to: Respond(status: 200, body: "welcome")),
                (path: "/api/", to: Proxy("api")),
            ],
        )"#;
        assert_eq!(
            told(BEFORE, after),
            [
                "threads Changed ",
                "drain_timeout Changed ",
                "admin Changed bind",
                "access_log Added ",
                "instances Added ",
                "listeners.http Changed http2 limits",
                "listeners.new Added ",
                "listeners.old Removed ",
                "upstreams.api Changed health",
                "routes[0] shop.example/ Added ",
                "routes[1] / Changed to",
                "routes[2] /gone Removed ",
            ]
        );
    }

    #[test]
    fn an_app_that_differs_is_told_with_its_fields() {
        let with = |apps: &str| BEFORE.replace("routes: [", &format!("apps: {{ {apps} }}, routes: ["));
        let before = with(r#""blog": (command: ["node", "a.js"]), "old": (command: ["a"])"#);
        let after = with(r#""new": (command: ["b"]), "blog": (command: ["node", "b.js"], processes: 2)"#);
        assert_eq!(
            told(&before, &after),
            ["apps.new Added ", "apps.blog Changed command processes", "apps.old Removed "]
        );
    }
}
