//! A route as requests use it: everything resolved and built once.

use std::collections::HashMap;
use std::sync::Arc;

use http::{HeaderName, HeaderValue};
use playhouse_config::model::{self, ScriptServers};

use super::Router;
use crate::apps::Apps;
use crate::fastcgi::FastCgiTarget;
use crate::files::{FileCache, Static};
use crate::handler::Handler;
use crate::metrics::{Metrics, RouteMetrics};
use crate::proxy::ProxyTarget;
use crate::respond::{Redirect, Respond};
use crate::sockets::Sockets;
use crate::tunnel::{Plan, Terms};
use crate::upstream::Upstreams;

/// A compiled route. A request in flight keeps the one it was given, whatever a reload does.
pub struct Route {
    /// How it is named in metrics, logs and events.
    pub label: Arc<str>,
    /// The path it matches.
    pub path: model::PathPattern,
    /// What answers.
    pub target: Target,
    /// Bytes of a request body, in place of the listener's limit.
    pub max_body: Option<u64>,
    /// Fields set on every answer.
    pub headers: Box<[(HeaderName, HeaderValue)]>,
    /// On which terms it gives tunnels; `None` where it cannot.
    pub tunnels: Option<Arc<Terms>>,
    /// Its metric handles.
    pub metrics: Arc<RouteMetrics>,
}

/// What answers the requests of a route.
pub enum Target {
    /// A fixed answer.
    Respond(Respond),
    /// A redirect.
    Redirect(Redirect),
    /// Files.
    Static(Static),
    /// Requests forwarded to an upstream or an app.
    Proxy(ProxyTarget),
    /// Scripts, and the files beside them.
    FastCgi(FastCgiTarget),
    /// A handler of the embedding program.
    Handler(Arc<dyn Handler>),
}

/// The tables that routes are resolved against.
pub struct Tables<'a> {
    /// Where metric handles come from.
    pub metrics: &'a Metrics,
    /// Where listeners have their numbers.
    pub sockets: &'a Sockets,
    /// Upstreams by name.
    pub upstreams: &'a Upstreams,
    /// Apps by name.
    pub apps: &'a Apps,
    /// What files are remembered in.
    pub files: &'a Arc<FileCache>,
    /// On which terms routes give tunnels.
    pub tunnels: &'a Plan,
    /// Handlers by the name they were registered by.
    pub handlers: &'a HashMap<Arc<str>, Arc<dyn Handler>>,
}

/// A route names what is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// No handler was registered by this name.
    #[error("route {route}: no handler is registered by the name {handler:?}")]
    Handler {
        /// The route's label.
        route: Arc<str>,
        /// The name.
        handler: Arc<str>,
    },
    /// No upstream has this name.
    #[error("route {route}: there is no upstream {upstream:?}")]
    Upstream {
        /// The route's label.
        route: Arc<str>,
        /// The name.
        upstream: Arc<str>,
    },
    /// No app has this name.
    #[error("route {route}: there is no app {app:?}")]
    App {
        /// The route's label.
        route: Arc<str>,
        /// The name.
        app: Arc<str>,
    },
}

impl Router<Arc<Route>> {
    /// Compiles the routes of a site.
    pub fn build(site: &model::Site, tables: &Tables<'_>) -> Result<Self, RouteError> {
        let mut router = Router::default();
        for (index, config) in site.routes.iter().enumerate() {
            let tunnels = tables.tunnels.terms(index);
            let route = Arc::new(Route::new(config, tunnels, site, tables)?);
            router.insert(&config.listeners, config.host.as_ref(), &config.path, route);
        }
        Ok(router)
    }
}

impl Route {
    fn new(
        config: &model::Route,
        tunnels: Option<Arc<Terms>>,
        site: &model::Site,
        tables: &Tables<'_>,
    ) -> Result<Self, RouteError> {
        let label: Arc<str> = config.label().into();
        let target = match &config.to {
            model::Target::Respond(respond) => Target::Respond(Respond::new(respond)),
            model::Target::Redirect(redirect) => Target::Redirect(Redirect::new(redirect)),
            model::Target::Static(files) => Target::Static(Static::new(files, &config.path, tables.files)),
            model::Target::Proxy(proxy) => match tables.upstreams.get(&proxy.upstream) {
                Some(upstream) => Target::Proxy(ProxyTarget::new(proxy, &config.path, upstream)),
                None => return Err(RouteError::Upstream { route: label, upstream: proxy.upstream.clone() }),
            },
            model::Target::FastCgi(fastcgi) => match &fastcgi.servers {
                ScriptServers::Upstream(name) => match tables.upstreams.get(name) {
                    Some(upstream) => Target::FastCgi(FastCgiTarget::new(
                        fastcgi,
                        &label,
                        &config.path,
                        upstream,
                        tables.files,
                    )),
                    None => return Err(RouteError::Upstream { route: label, upstream: name.clone() }),
                },
                ScriptServers::App(name) => match tables.apps.get(name) {
                    Some(app) => Target::FastCgi(FastCgiTarget::to_app(
                        fastcgi,
                        &label,
                        &config.path,
                        app,
                        tables.files,
                    )),
                    None => return Err(RouteError::App { route: label, app: name.clone() }),
                },
            },
            model::Target::App(to) => match tables.apps.get(&to.app) {
                Some(app) => Target::Proxy(ProxyTarget::to_app(to, &config.path, app)),
                None => return Err(RouteError::App { route: label, app: to.app.clone() }),
            },
            model::Target::Handler(name) => match tables.handlers.get(name) {
                Some(handler) => Target::Handler(handler.clone()),
                None => return Err(RouteError::Handler { route: label, handler: name.clone() }),
            },
        };
        let all = || site.listeners.iter().map(|listener| &listener.name).collect();
        let names: Vec<_> =
            if config.listeners.is_empty() { all() } else { config.listeners.iter().collect() };
        let listeners: Vec<_> =
            names.into_iter().map(|name| (tables.sockets.index(name), name.clone())).collect();
        Ok(Route {
            metrics: tables.metrics.route(&label, &listeners),
            label,
            path: config.path.clone(),
            target,
            max_body: config.max_body,
            headers: config.headers.clone().into(),
            tunnels,
        })
    }
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Route").field("label", &self.label).finish_non_exhaustive()
    }
}
