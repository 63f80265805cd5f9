//! Which routes give tunnels, on which terms, and what a reload does to those that are open.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use playhouse_config::model::{self, HostPattern, OnReload, PathPattern, Target};

use super::signal::Signal;
use crate::random::Random;

/// On which terms a route gives tunnels. A tunnel keeps those that it was opened on.
#[derive(Debug)]
pub struct Terms {
    pub(super) settings: model::Tunnel,
    /// A reload has changed or removed the route.
    pub(super) replaced: Arc<Signal>,
    /// For masks and keys.
    pub(super) random: Arc<Random>,
    drain: Arc<DrainTimeout>,
}

/// How long a drain of the site waits, as the site file that is in force says.
#[derive(Debug, Default)]
pub(super) struct DrainTimeout(AtomicU64);

impl Terms {
    pub(super) fn new(settings: model::Tunnel, random: Arc<Random>, drain: Arc<DrainTimeout>) -> Self {
        Terms { settings, replaced: Arc::default(), random, drain }
    }

    /// How long a drain waits that begins now.
    pub(super) fn drain(&self) -> Duration {
        Duration::from_millis(self.drain.0.load(Ordering::Relaxed))
    }

    pub(super) fn gives(&self, protocol: &str) -> bool {
        self.settings.protocols.iter().any(|given| given == protocol)
    }
}

impl DrainTimeout {
    pub(super) fn set(&self, timeout: Duration) {
        // Durations of a site file have less than a year.
        self.0.store(timeout.as_millis() as u64, Ordering::Relaxed);
    }
}

/// The terms of all routes in force.
#[derive(Debug, Default)]
pub struct Tunnels {
    known: Mutex<HashMap<Match, Known>>,
    drain: Arc<DrainTimeout>,
}

/// The terms of all routes of a site to be: those of a route that stays as it is are the same as before.
#[derive(Debug, Default)]
pub struct Plan {
    /// In the order of the routes; `None` for those that give no tunnels.
    terms: Vec<Option<Arc<Terms>>>,
    known: HashMap<Match, Known>,
    drain: Duration,
}

/// What a route matches: by that it is the same after a reload.
type Match = (Vec<Arc<str>>, Option<HostPattern>, PathPattern);

#[derive(Clone, Debug)]
struct Known {
    route: model::Route,
    upstream: Option<model::Upstream>,
    terms: Arc<Terms>,
}

impl Tunnels {
    /// The terms of a site's routes. Changes nothing yet.
    pub fn plan(&self, site: &model::Site, random: &Arc<Random>) -> Plan {
        let before = self.known.lock();
        let mut plan = Plan { drain: site.drain_timeout, ..Plan::default() };
        for route in &site.routes {
            let upstream = match &route.to {
                Target::Proxy(proxy) => {
                    site.upstreams.iter().find(|known| known.name == proxy.upstream).cloned()
                }
                Target::App(to) => {
                    site.apps.iter().find(|known| known.name == to.app).map(model::App::upstream)
                }
                Target::Handler(_) => None,
                _ => {
                    plan.terms.push(None);
                    continue;
                }
            };
            let place = (route.listeners.clone(), route.host.clone(), route.path.clone());
            let same = before.get(&place).filter(|known| known.route == *route && known.upstream == upstream);
            let terms = match same {
                Some(known) => known.terms.clone(),
                None => Arc::new(Terms::new(route.tunnel.clone(), random.clone(), self.drain.clone())),
            };
            plan.terms.push(Some(terms.clone()));
            let known = Known { route: route.clone(), upstream, terms };
            // Of two equal routes the first stands.
            plan.known.entry(place).or_insert(known);
        }
        plan
    }

    /// Puts a plan into force. Tunnels of routes that are not the same any more are told, as their terms say.
    pub fn commit(&self, plan: Plan) {
        self.drain.set(plan.drain);
        let before = std::mem::replace(&mut *self.known.lock(), plan.known.clone());
        for (place, known) in before {
            let stays = plan.known.get(&place).is_some_and(|after| Arc::ptr_eq(&after.terms, &known.terms));
            if !stays && known.terms.settings.on_reload != OnReload::Keep {
                known.terms.replaced.raise();
            }
        }
    }
}

impl Plan {
    /// The terms of the route at this place of the site's list.
    pub fn terms(&self, route: usize) -> Option<Arc<Terms>> {
        self.terms.get(route).cloned().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::tests_model;

    fn site(routes: &[(&str, &str, OnReload)], servers: &[&str]) -> model::Site {
        let routes = routes.iter().map(|(path, upstream, on_reload)| model::Route {
            listeners: Vec::new(),
            host: None,
            path: PathPattern::Exact((*path).to_owned()),
            to: Target::Proxy(model::Proxy {
                upstream: (*upstream).into(),
                strip_prefix: false,
                preserve_host: true,
            }),
            max_body: None,
            headers: Vec::new(),
            tunnel: model::Tunnel { on_reload: *on_reload, ..model::Tunnel::default() },
        });
        let mut site = crate::site::tests_config(routes.collect());
        site.upstreams = vec![tests_model("a", &["127.0.0.1:1"]), tests_model("b", servers)];
        site
    }

    #[test]
    fn a_reload_tells_the_tunnels_of_those_routes_alone_that_it_changes() {
        let random = Arc::new(Random::seeded(1));
        let tunnels = Tunnels::default();
        let close = OnReload::Close;
        let apply = |site: &model::Site| {
            let plan = tunnels.plan(site, &random);
            let terms: Vec<_> = (0..site.routes.len()).map(|route| plan.terms(route).unwrap()).collect();
            tunnels.commit(plan);
            terms
        };
        let told = |terms: &Arc<Terms>| terms.replaced.since().is_some();
        let routes = [("/a", "a", close), ("/b", "b", close), ("/k", "b", OnReload::Keep)];
        let first = apply(&site(&routes, &["127.0.0.1:2"]));
        let second = apply(&site(&routes, &["127.0.0.1:2"]));
        assert!(first.iter().zip(&second).all(|(one, other)| Arc::ptr_eq(one, other)));
        assert!(!first.iter().any(told));

        let third = apply(&site(&routes, &["127.0.0.1:3"]));
        assert_eq!(first.iter().map(told).collect::<Vec<_>>(), [false, true, false]);
        assert!(Arc::ptr_eq(&first[0], &third[0]) && !Arc::ptr_eq(&first[1], &third[1]));

        apply(&site(&routes[1..], &["127.0.0.1:3"]));
        assert!(told(&first[0]) && !told(&third[1]));
    }
}
