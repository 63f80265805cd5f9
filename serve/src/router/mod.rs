//! From a request's host and path to the most specific route.
//!
//! [`path`] and [`host`] bring what the client sent into one form; [`Router`] finds the route; [`route`] is what a
//! route needs at run time, compiled once. A lookup allocates nothing and costs O(length of path and host),
//! however many routes there are.

pub mod host;
pub mod path;
pub mod route;
mod tree;

use std::collections::HashMap;
use std::sync::Arc;

use playhouse_config::model::{HostPattern, PathPattern};

pub use self::path::NormalisedPath;
pub use self::route::{Route, Target};
use self::tree::PathTree;

/// Routes of one kind `T`, ordered by how specific they are: a listener's own before those of all, then exact host
/// over wildcard (the longest first) over none, then an exact path over a prefix, then the longest prefix. Of two
/// equal ones the first stands.
#[derive(Debug)]
pub struct Router<T> {
    of_listener: HashMap<Arc<str>, Hosts<T>>,
    of_all: Hosts<T>,
}

impl<T> Default for Router<T> {
    fn default() -> Self {
        Router { of_listener: HashMap::new(), of_all: Hosts::default() }
    }
}

impl<T: Clone> Router<T> {
    /// Adds a route of these listeners; none is all.
    pub fn insert(
        &mut self,
        listeners: &[Arc<str>],
        host: Option<&HostPattern>,
        path: &PathPattern,
        route: T,
    ) {
        if listeners.is_empty() {
            self.of_all.tree(host).insert(path, route);
            return;
        }
        for listener in listeners {
            self.of_listener.entry(listener.clone()).or_default().tree(host).insert(path, route.clone());
        }
    }
}

impl<T> Router<T> {
    /// The most specific route. `host` as [`host::of_request`] gives it, `path` decoded and normalised.
    pub fn find(&self, listener: &str, host: Option<&str>, path: &[u8]) -> Option<&T> {
        // Most sites have no route of a single listener, and pay for no hash.
        if !self.of_listener.is_empty()
            && let Some(hosts) = self.of_listener.get(listener)
            && let Some(route) = hosts.find(host, path)
        {
            return Some(route);
        }
        self.of_all.find(host, path)
    }
}

#[derive(Debug)]
struct Hosts<T> {
    exact: HashMap<Box<str>, PathTree<T>>,
    /// Keyed by what follows the `*`, `.example.org`.
    wildcard: HashMap<Box<str>, PathTree<T>>,
    any: PathTree<T>,
}

impl<T> Default for Hosts<T> {
    fn default() -> Self {
        Hosts { exact: HashMap::new(), wildcard: HashMap::new(), any: PathTree::default() }
    }
}

impl<T> Hosts<T> {
    fn tree(&mut self, host: Option<&HostPattern>) -> &mut PathTree<T> {
        match host {
            None => &mut self.any,
            Some(HostPattern::Exact(name)) => self.exact.entry(host::canonical(name)).or_default(),
            Some(HostPattern::Wildcard(suffix)) => self.wildcard.entry(suffix.as_str().into()).or_default(),
        }
    }

    fn find(&self, host: Option<&str>, path: &[u8]) -> Option<&T> {
        if let Some(host) = host {
            if !self.exact.is_empty()
                && let Some(route) = self.exact.get(host).and_then(|tree| tree.find(path))
            {
                return Some(route);
            }
            if !self.wildcard.is_empty() {
                // From the left, so the longest suffix comes first. At least one label stands before it.
                for (dot, _) in host.match_indices('.').filter(|(dot, _)| *dot > 0) {
                    if let Some(route) = self.wildcard.get(&host[dot..]).and_then(|tree| tree.find(path)) {
                        return Some(route);
                    }
                }
            }
        }
        self.any.find(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn router(routes: &[(&str, &str, &str)]) -> Router<usize> {
        let mut router = Router::default();
        for (number, (listener, host, path)) in routes.iter().enumerate() {
            let listeners: Vec<Arc<str>> = listener.split_terminator(',').map(Arc::from).collect();
            let host = match host.strip_prefix('*') {
                Some(suffix) => Some(HostPattern::Wildcard(suffix.to_owned())),
                None if host.is_empty() => None,
                None => Some(HostPattern::Exact((*host).to_owned())),
            };
            let path = if path.ends_with('/') {
                PathPattern::Prefix((*path).to_owned())
            } else {
                PathPattern::Exact((*path).to_owned())
            };
            router.insert(&listeners, host.as_ref(), &path, number);
        }
        router
    }

    #[test]
    fn the_most_specific_route_wins() {
        let router = router(&[
            ("", "", "/"),
            ("", "", "/docs/"),
            ("", "", "/docs/a"),
            ("", "*.example.org", "/"),
            ("", "*.deep.example.org", "/docs/"),
            ("", "www.example.org", "/docs/"),
            ("edge", "", "/docs/"),
            ("edge", "www.example.org", "/x"),
        ]);
        let cases = [
            ("http", None, "/", 0),
            ("http", None, "/docs", 0),
            ("http", None, "/docs/", 1),
            ("http", None, "/docs/b/c", 1),
            ("http", None, "/docs/a", 2),
            ("http", None, "/docs/a/", 1),
            ("http", Some("example.org"), "/docs/a", 2),
            ("http", Some(".example.org"), "/docs/a", 2),
            ("http", Some("a.example.org"), "/docs/a", 3),
            ("http", Some("a.b.example.org"), "/docs/a", 3),
            ("http", Some("a.deep.example.org"), "/docs/a", 4),
            ("http", Some("a.deep.example.org"), "/other", 3),
            ("http", Some("www.example.org"), "/docs/a", 5),
            ("http", Some("www.example.org"), "/other", 3),
            ("edge", Some("www.example.org"), "/docs/a", 6),
            ("edge", Some("www.example.org"), "/x", 7),
            ("edge", Some("www.example.org"), "/y", 3),
        ];
        for (listener, host, path, expected) in cases {
            assert_eq!(
                router.find(listener, host, path.as_bytes()),
                Some(&expected),
                "{listener} {host:?} {path}"
            );
        }
    }

    #[test]
    fn no_route_is_none() {
        let router = router(&[("edge", "", "/"), ("", "a.example", "/b"), ("", "", "/c/d/")]);
        assert_eq!(router.find("http", None, b"/"), None);
        assert_eq!(router.find("http", Some("a.example"), b"/b/"), None);
        assert_eq!(router.find("http", None, b"/c/"), None);
        assert_eq!(router.find("http", None, b"/c/d"), None);
        assert_eq!(router.find("http", None, b"/c/d/"), Some(&2));
    }

    #[test]
    fn of_two_equal_routes_the_first_stands() {
        assert_eq!(router(&[("", "", "/a"), ("", "", "/a")]).find("l", None, b"/a"), Some(&0));
    }

    #[test]
    fn an_ip_literal_is_matched_in_its_canonical_form() {
        let router = router(&[("", "[2001:DB8:0::1]", "/"), ("", "127.0.0.1", "/")]);
        assert_eq!(router.find("l", Some("2001:db8::1"), b"/"), Some(&0));
        assert_eq!(router.find("l", Some("127.0.0.1"), b"/"), Some(&1));
    }
}
