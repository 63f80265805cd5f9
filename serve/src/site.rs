//! A site: all tables that outlive an actor, and the application that routes.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::{HeaderValue, Method, Response, StatusCode, header};
use playhouse_config::model;
use tokio::time::Instant;

use crate::access_log::AccessLog;
use crate::application::{Application, End};
use crate::apps::Apps;
use crate::fastcgi::fastcgi;
use crate::files::FileCache;
use crate::handler::Handler;
use crate::metrics::{ListenerMetrics, Metrics, RouteMetrics};
use crate::proxy::proxy;
use crate::published::Published;
use crate::random::Random;
use crate::router::route::{RouteError, Tables};
use crate::router::{NormalisedPath, Route, Router, Target, host};
use crate::shared::{Addresses, Place, Shared};
use crate::sockets::Sockets;
use crate::tls::Certificates;
use crate::tunnel::{ExtendedConnect, Offer, Tunnels};
use crate::upstream::Upstreams;
use crate::{Body, CachedAnswer, ConnectionInfo, Exchange, Ledger, Outcome, respond};

/// Handlers of the embedding program, by the name that routes give.
pub type Handlers = HashMap<Arc<str>, Arc<dyn Handler>>;

/// All tables of one site. Whoever runs it holds it by `Arc`; an actor is handed it and decides, a request reads.
pub struct Site {
    /// As in the site file.
    pub name: Arc<str>,
    /// When it was made.
    pub started: Instant,
    /// The routes in force.
    pub router: Published<Router<Arc<Route>>>,
    /// What is counted where there is no route.
    counters: ArcSwap<Counters>,
    /// Listening sockets, and what was accepted from them.
    pub sockets: Sockets,
    /// Certificates by listener.
    pub certificates: Certificates,
    /// Upstream servers and their idle connections.
    pub upstreams: Upstreams,
    /// Apps and their processes, as requests see them.
    pub apps: Apps,
    /// Every request's outcome.
    pub ledger: Arc<Ledger>,
    /// This process's place among those that accept from the same sockets; `None` where there are no others.
    pub place: Option<Place>,
    /// What each client address has.
    pub addresses: Arc<Addresses>,
    /// Counters and histograms.
    pub metrics: Arc<Metrics>,
    /// The access log.
    pub access_log: AccessLog,
    /// On which terms routes give tunnels.
    pub tunnels: Tunnels,
    /// Small files in memory.
    pub files: Arc<FileCache>,
    /// Handlers of the embedding program.
    pub handlers: Handlers,
    /// The only source of randomness.
    pub random: Arc<Random>,
}

impl Site {
    /// Builds the tables of a site in one process. Binds no socket, starts nothing.
    pub fn new(config: &model::Site, handlers: Handlers, random: Random) -> Result<Arc<Self>, RouteError> {
        Self::sharing(config, handlers, random, Shared::default())
    }

    /// Builds the tables of one process of a site, beside what it shares with the others. Where there are others, its
    /// sockets are held until they are [activated](Sockets::activate).
    pub fn sharing(
        config: &model::Site,
        handlers: Handlers,
        random: Random,
        shared: Shared,
    ) -> Result<Arc<Self>, RouteError> {
        let addresses = shared.addresses.unwrap_or_else(|| {
            // Address space alone, until somebody writes to it.
            Arc::new(Addresses::anonymous(&random).expect("address space for the table of addresses"))
        });
        let site = Site {
            name: config.name.as_str().into(),
            started: Instant::now(),
            router: Published::default(),
            counters: ArcSwap::default(),
            sockets: Sockets::default(),
            certificates: Certificates::default(),
            upstreams: Upstreams::default(),
            apps: Apps::default(),
            ledger: shared.ledger,
            place: shared.place,
            addresses,
            metrics: Arc::default(),
            access_log: AccessLog::default(),
            tunnels: Tunnels::default(),
            files: Arc::default(),
            handlers,
            random: Arc::new(random),
        };
        site.sockets.limit_by(site.addresses.clone());
        site.sockets.take_keys_from(shared.quic, site.place.clone());
        if let Some(place) = &site.place {
            site.sockets.hold();
            site.sockets.share_with(Arc::new(place.clone()));
        }
        site.upstreams.apply(&config.upstreams, &site.metrics);
        site.apps.apply(&config.apps, &site.metrics);
        site.apply_routes(config)?;
        Ok(Arc::new(site))
    }

    /// Replaces all routes at once, or none on an error. Requests in flight keep the route they were given. Upstreams
    /// and apps that routes name are applied before.
    pub fn apply_routes(&self, config: &model::Site) -> Result<(), RouteError> {
        let tunnels = self.tunnels.plan(config, &self.random);
        let tables = Tables {
            metrics: &self.metrics,
            sockets: &self.sockets,
            upstreams: &self.upstreams,
            apps: &self.apps,
            files: &self.files,
            tunnels: &tunnels,
            handlers: &self.handlers,
        };
        let router = Router::build(config, &tables)?;
        self.counters.store(Arc::new(Counters::new(config, &tables)));
        self.router.store(Arc::new(router));
        self.tunnels.commit(tunnels);
        Ok(())
    }

    /// The route of a request, and its path, which has been normalised in the request's URI too.
    fn route<'a>(
        routes: &'a Router<Arc<Route>>,
        exchange: &mut Exchange,
    ) -> Result<(&'a Arc<Route>, NormalisedPath), Unrouted> {
        let method = exchange.request.method();
        if *method == Method::CONNECT || *method == Method::TRACE {
            return Err(Unrouted::Method);
        }
        if exchange.request.uri().path() == "*" && *method == Method::OPTIONS {
            return Err(Unrouted::Options);
        }
        let path = NormalisedPath::parse(exchange.request.uri().path()).map_err(|_| Unrouted::Malformed)?;
        path.rewrite(exchange.request.uri_mut()).map_err(|_| Unrouted::TooLong)?;
        let uri = exchange.request.uri();
        let host = host::of_request(uri, exchange.request.headers()).map_err(|_| Unrouted::Malformed)?;
        if let (Some(tls), Some(host)) = (&exchange.connection.tls, host.as_deref())
            && !tls.is_for(host)
        {
            return Err(Unrouted::Misdirected);
        }
        match routes.find(&exchange.connection.listener, host.as_deref(), path.decoded(uri)) {
            Some(route) => Ok((route, path)),
            None => Err(Unrouted::NotFound),
        }
    }
}

impl Application for Site {
    async fn handle(&self, exchange: &mut Exchange) -> Response<Body> {
        exchange.record.log = self.access_log.capture(exchange);
        if let Some(rate) = &exchange.connection.rate
            && let Err(wait) = rate.take(exchange.record.started)
        {
            exchange.record.outcome = Some(Outcome::Shed);
            return respond::too_many_requests(wait);
        }
        let routes = self.router.refreshed(exchange.record.kept.routes.take());
        let mut response = match Self::route(&routes, exchange) {
            Ok((route, path)) => {
                exchange.record.take_route(&route.metrics);
                let mut response = match exchange.request.body_mut().limit(route.max_body) {
                    Ok(()) => match at_hand(route, &path, exchange) {
                        Some(answer) => Response::new(Body::Cached(answer)),
                        None => answer(route, &path, exchange).await,
                    },
                    Err(error) => rejected(exchange, error.status()),
                };
                set_fields(route, &mut response);
                response
            }
            Err(unrouted) => unrouted.answer(exchange),
        };
        exchange.record.kept.routes = Some(routes);
        if let Some(alternative) = &exchange.connection.alternative {
            alternative.advertise(response.headers_mut());
        }
        response
    }

    fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    fn ended(&self, exchange: &Exchange, end: &End) {
        let listener = exchange.connection.listener_index;
        match &exchange.record.route {
            Some(route) => route.observe(listener, end),
            None => {
                if let Some(unrouted) = &self.counters.load().unrouted {
                    unrouted.observe(listener, end);
                }
            }
        }
        let too_early = end.status == Some(StatusCode::TOO_EARLY);
        if (exchange.record.early || too_early)
            && let Some(listener) = self.counters.load().listener(&exchange.connection)
        {
            if exchange.record.early {
                listener.early();
            }
            if too_early {
                listener.too_early();
            }
        }
        self.access_log.write(exchange, end);
    }

    fn refused(&self, connection: &ConnectionInfo, status: Option<StatusCode>) {
        if let Some(listener) = self.counters.load().listener(connection) {
            listener.refused(status);
        }
        self.access_log.refused(connection, status);
    }

    fn panicked(&self, connection: &ConnectionInfo, message: &str) {
        if let Some(listener) = self.counters.load().listener(connection) {
            listener.panicked();
        }
        tracing::error!(
            listener = %connection.listener,
            client = %connection.peer,
            panic = ?message,
            "a request's handler has panicked; that request is lost"
        );
    }
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Site").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Handles of what is counted where there is no route.
#[derive(Debug, Default)]
struct Counters {
    unrouted: Option<Arc<RouteMetrics>>,
    /// By the listener's number.
    listeners: Vec<Option<Arc<ListenerMetrics>>>,
}

impl Counters {
    fn new(config: &model::Site, tables: &Tables<'_>) -> Self {
        let names = config.listeners.iter().map(|listener| &listener.name);
        let numbered: Vec<_> = names.map(|name| (tables.sockets.index(name), name.clone())).collect();
        let mut listeners = Vec::new();
        for (index, name) in &numbered {
            if listeners.len() <= *index {
                listeners.resize(index + 1, None);
            }
            listeners[*index] = Some(tables.metrics.listener(name));
        }
        Counters { unrouted: Some(tables.metrics.route(UNROUTED, &numbered)), listeners }
    }

    fn listener(&self, connection: &ConnectionInfo) -> Option<&ListenerMetrics> {
        self.listeners.get(connection.listener_index)?.as_deref()
    }
}

/// The answer where it is in memory, as those of most requests for files are: that needs no future.
fn at_hand(route: &Route, path: &NormalisedPath, exchange: &Exchange) -> Option<Arc<CachedAnswer>> {
    match &route.target {
        Target::Static(files) => files.at_hand(&exchange.request, path),
        _ => None,
    }
}

async fn answer(route: &Route, path: &NormalisedPath, exchange: &mut Exchange) -> Response<Body> {
    let offer = route.tunnels.as_ref().and_then(|terms| Offer::find(&exchange.request, terms));
    match offer {
        Some(offer) => drop(exchange.request.extensions_mut().insert(offer)),
        // Whatever else answers: a success would be taken for a tunnel (RFC 8441 §4).
        None if exchange.request.extensions().get::<ExtendedConnect>().is_some() => {
            return rejected(exchange, StatusCode::NOT_IMPLEMENTED);
        }
        None => {}
    }
    match &route.target {
        Target::Respond(respond) => respond.answer(),
        Target::Redirect(redirect) => redirect.answer(exchange.request.uri(), exchange.request.headers()),
        // Boxed: it is by far the largest, and every request's future would be as large.
        Target::Proxy(target) => Box::pin(proxy(target, exchange)).await,
        Target::FastCgi(target) => Box::pin(fastcgi(target, exchange, path)).await,
        Target::Static(files) => files.answer(exchange, path).await,
        Target::Handler(handler) => handler.handle(exchange).await,
    }
}

/// Sets the fields that every answer of the route has.
fn set_fields(route: &Route, response: &mut Response<Body>) {
    if route.headers.is_empty() {
        return;
    }
    CachedAnswer::spread(response);
    for (name, value) in &route.headers {
        response.headers_mut().insert(name.clone(), value.clone());
    }
}

fn rejected(exchange: &mut Exchange, status: StatusCode) -> Response<Body> {
    exchange.record.outcome = Some(Outcome::Rejected);
    respond::error(status)
}

/// Why a request comes to no route.
enum Unrouted {
    /// A method that no route may have.
    Method,
    /// `OPTIONS *` (RFC 9110 §9.3.7): what the server as a whole can do.
    Options,
    /// Its path or host is.
    Malformed,
    /// The TLS connection was made for another host.
    Misdirected,
    /// Its path is too long once normalised.
    TooLong,
    /// No route matches.
    NotFound,
}

impl Unrouted {
    fn answer(self, exchange: &mut Exchange) -> Response<Body> {
        match self {
            Unrouted::Method => respond::method_not_allowed(METHODS),
            Unrouted::Options => {
                let mut response = Response::new(Body::Empty);
                *response.status_mut() = StatusCode::NO_CONTENT;
                response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(METHODS));
                response
            }
            Unrouted::Malformed => rejected(exchange, StatusCode::BAD_REQUEST),
            Unrouted::Misdirected => rejected(exchange, StatusCode::MISDIRECTED_REQUEST),
            Unrouted::TooLong => rejected(exchange, StatusCode::URI_TOO_LONG),
            Unrouted::NotFound => respond::error(StatusCode::NOT_FOUND),
        }
    }
}

/// The route's label of requests that match none; no route of a site file can have it.
const UNROUTED: &str = "(none)";

/// Any method goes through to handlers and upstreams; these are the ones that RFC 9110 §9.3 and RFC 5789 define, without
/// CONNECT (this is no forward proxy) and TRACE (it reflects credentials).
const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::config as tests_config;
