//! Routes: what they match, and that no two match the same.

use std::collections::HashMap;
use std::sync::Arc;

use http::{HeaderName, HeaderValue};

use super::Resolver;
use super::value::shown;
use crate::error::{At, unknown};
use crate::file::{self, Named};
use crate::model::{HostPattern, PathPattern, Route, Target};

/// Fields that belong to a connection or to the framing of a message; the server alone writes them.
const FORBIDDEN_FIELDS: [&str; 8] = [
    "connection",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What a route matches beside its listeners.
#[derive(Clone, Eq, Hash, PartialEq)]
struct Match {
    host: Option<HostPattern>,
    path: PathPattern,
}

/// Names of listeners; empty is all.
type Listeners = Vec<Arc<str>>;

impl Resolver<'_, '_> {
    pub(super) fn routes(&mut self, site: &file::Site, at: &At) -> Option<Vec<Route>> {
        let raw = site.routes.as_deref().unwrap_or_default();
        // By host and path, so that many routes do not cost their square.
        let mut claims: HashMap<Match, Vec<(usize, Listeners)>> = HashMap::new();
        let mut routes = Vec::with_capacity(raw.len());
        for (index, raw) in raw.iter().enumerate() {
            let at = at.index(index);
            let (matched, route) = self.route(raw, site, &at);
            routes.push(route);
            let Some((matched, listeners)) = matched else { continue };
            let label = label(&matched);
            let alike = claims.entry(matched).or_default();
            if let Some((first, _)) = alike.iter().find(|(_, other)| share_a_listener(other, &listeners)) {
                let message = format!(
                    "matches the same as routes[{first}], {label} on {}; no request would reach one of them",
                    if listeners.is_empty() { "all listeners" } else { "a listener of both" },
                );
                self.report.error(&at, message);
            }
            alike.push((index, listeners));
        }
        routes.into_iter().collect()
    }

    /// What a route matches on which listeners, if that much is valid, and the route.
    fn route(
        &mut self,
        raw: &file::Route,
        site: &file::Site,
        at: &At,
    ) -> (Option<(Match, Listeners)>, Option<Route>) {
        let unread = self.report.failed_itself(at);
        let path_at = at.field("path");
        let path = if self.report.failed(&path_at) {
            None
        } else {
            self.path_pattern(raw.path.as_deref().unwrap_or("/"), &path_at)
        };
        let host_at = at.field("host");
        let host = match raw.host.as_deref() {
            Some(host) => self.host_pattern(host, &host_at).map(Some),
            None if self.report.failed(&host_at) => None,
            None => Some(None),
        };
        let listeners = self.route_listeners(raw.listeners.as_deref(), site, &at.field("listeners"));
        let headers = self.headers(raw.headers.as_ref(), &at.field("headers"));
        let to_at = at.field("to");
        let to = self
            .required(
                raw.to.as_ref(),
                &to_at,
                "missing; say what answers: Respond, Redirect, Static, Proxy, FastCgi, App or Handler",
            )
            .and_then(|to| self.target(to, path.as_ref(), site, &to_at));
        let tunnel_at = at.field("tunnel");
        if raw.tunnel.is_some()
            && !matches!(to, None | Some(Target::Proxy(_) | Target::App(_) | Target::Handler(_)))
        {
            let message = "only a route to Proxy, App or Handler can have tunnels; leave it out";
            self.report.error(&tunnel_at, message);
        }
        let tunnel = self.tunnel(raw.tunnel.as_ref(), &tunnel_at);
        let matched = match (&listeners, &host, &path) {
            (Some(listeners), Some(host), Some(path)) if !unread => {
                Some((Match { host: host.clone(), path: path.clone() }, listeners.clone()))
            }
            _ => None,
        };
        let route = || {
            Some(Route {
                listeners: listeners?,
                host: host?,
                path: path?,
                to: to?,
                max_body: raw.max_body.map(|size| size.0),
                headers: headers?,
                tunnel: tunnel?,
            })
        };
        (matched, route())
    }

    fn route_listeners(&mut self, raw: Option<&[String]>, site: &file::Site, at: &At) -> Option<Listeners> {
        let Some(raw) = raw else {
            return if self.report.failed(at) { None } else { Some(Vec::new()) };
        };
        if raw.is_empty() {
            return self.refuse(at, "is empty, so no request would match; leave it out for all listeners");
        }
        let known =
            || site.listeners.iter().flat_map(|listeners| &listeners.0).map(|(name, _)| name.as_str());
        let map_unread = self.report.failed_itself(&At::root().field("listeners"));
        let mut names: Vec<Arc<str>> = Vec::with_capacity(raw.len());
        let mut valid = Some(());
        for (index, name) in raw.iter().enumerate() {
            let at = at.index(index);
            if !known().any(|known| known == name) && !map_unread {
                valid = self.refuse(&at, unknown("no listener", name, known()));
            } else if names.iter().any(|other| **other == **name) {
                valid = self.refuse(&at, format!("{} stands here twice; leave one out", shown(name)));
            } else {
                names.push(name.as_str().into());
            }
        }
        valid.map(|()| names)
    }

    fn headers(&mut self, raw: Option<&Named<String>>, at: &At) -> Option<Vec<(HeaderName, HeaderValue)>> {
        let mut fields: Vec<Option<(HeaderName, HeaderValue)>> = Vec::new();
        for (name, value) in raw.iter().flat_map(|raw| &raw.0) {
            let at = at.key(name);
            if self.report.failed(&at) {
                continue;
            }
            let valid_name = match HeaderName::from_bytes(name.as_bytes()) {
                Ok(name) if FORBIDDEN_FIELDS.contains(&name.as_str()) => {
                    self.refuse(&at, format!("the server itself writes {name}; leave it out"))
                }
                Ok(name) if fields.iter().flatten().any(|(other, _)| *other == name) => {
                    self.refuse(&at, format!("{name} stands here twice (case does not matter); keep one"))
                }
                Ok(name) => Some(name),
                Err(_) => {
                    self.refuse(&at, format!("{} is no field name; use letters, digits and '-'", shown(name)))
                }
            };
            let value = self.header_value(value, &at);
            fields.push(valid_name.zip(value));
        }
        fields.into_iter().collect()
    }
}

/// A route of a listener stands before one of all listeners, so only like is compared with like.
fn share_a_listener(one: &[Arc<str>], other: &[Arc<str>]) -> bool {
    match (one, other) {
        ([], []) => true,
        ([], _) | (_, []) => false,
        (one, other) => one.iter().any(|name| other.contains(name)),
    }
}

fn label(matched: &Match) -> String {
    match &matched.host {
        Some(host) => shown(&format!("{host}{}", matched.path)),
        None => shown(&matched.path.to_string()),
    }
}
