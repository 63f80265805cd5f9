//! A site: all tables that outlive an actor, and the application that routes.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::{HeaderValue, Method, Response, StatusCode, header};
use playhouse_config::model;
use tokio::time::Instant;

use crate::access_log::AccessLog;
use crate::application::{Application, End};
use crate::files::FileCache;
use crate::handler::Handler;
use crate::metrics::{ListenerMetrics, Metrics, RouteMetrics};
use crate::proxy::proxy;
use crate::random::Random;
use crate::router::route::{RouteError, Tables};
use crate::router::{NormalisedPath, Route, Router, Target, host};
use crate::sockets::Sockets;
use crate::tls::Certificates;
use crate::upstream::Upstreams;
use crate::{Body, ConnectionInfo, Exchange, Ledger, Outcome, respond};

/// Handlers of the embedding program, by the name that routes give.
pub type Handlers = HashMap<Arc<str>, Arc<dyn Handler>>;

/// All tables of one site. Whoever runs it holds it by `Arc`; an actor is handed it and decides, a request reads.
pub struct Site {
    /// As in the site file.
    pub name: Arc<str>,
    /// When it was made.
    pub started: Instant,
    /// The routes in force.
    pub router: ArcSwap<Router<Arc<Route>>>,
    /// What is counted where there is no route.
    counters: ArcSwap<Counters>,
    /// Listening sockets, and what was accepted from them.
    pub sockets: Sockets,
    /// Certificates by listener.
    pub certificates: Certificates,
    /// Upstream servers and their idle connections.
    pub upstreams: Upstreams,
    /// Every request's outcome.
    pub ledger: Arc<Ledger>,
    /// Counters and histograms.
    pub metrics: Arc<Metrics>,
    /// The access log.
    pub access_log: AccessLog,
    /// Small files in memory.
    pub files: Arc<FileCache>,
    /// Handlers of the embedding program.
    pub handlers: Handlers,
    /// The only source of randomness.
    pub random: Arc<Random>,
}

impl Site {
    /// Builds the tables. Binds no socket, starts nothing.
    pub fn new(config: &model::Site, handlers: Handlers, random: Random) -> Result<Arc<Self>, RouteError> {
        let site = Site {
            name: config.name.as_str().into(),
            started: Instant::now(),
            router: ArcSwap::default(),
            counters: ArcSwap::default(),
            sockets: Sockets::default(),
            certificates: Certificates::default(),
            upstreams: Upstreams::default(),
            ledger: Arc::default(),
            metrics: Arc::default(),
            access_log: AccessLog::default(),
            files: Arc::default(),
            handlers,
            random: Arc::new(random),
        };
        site.upstreams.apply(&config.upstreams, &site.metrics);
        site.apply_routes(config)?;
        Ok(Arc::new(site))
    }

    /// Replaces all routes at once, or none on an error. Requests in flight keep the route they were given. Upstreams
    /// that routes name are applied before.
    pub fn apply_routes(&self, config: &model::Site) -> Result<(), RouteError> {
        let tables = Tables {
            metrics: &self.metrics,
            sockets: &self.sockets,
            upstreams: &self.upstreams,
            files: &self.files,
            handlers: &self.handlers,
        };
        let router = Router::build(config, &tables)?;
        self.counters.store(Arc::new(Counters::new(config, &tables)));
        self.router.store(Arc::new(router));
        Ok(())
    }

    /// The route of a request, and its path, which has been normalised in the request's URI too.
    fn route(&self, exchange: &mut Exchange) -> Result<(Arc<Route>, NormalisedPath), Unrouted> {
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
        let router = self.router.load();
        match router.find(&exchange.connection.listener, host.as_deref(), path.decoded(uri)) {
            Some(route) => Ok((route.clone(), path)),
            None => Err(Unrouted::NotFound),
        }
    }
}

impl Application for Site {
    async fn handle(&self, exchange: &mut Exchange) -> Response<Body> {
        exchange.record.log = self.access_log.capture(exchange);
        let (route, path) = match self.route(exchange) {
            Ok(found) => found,
            Err(unrouted) => return unrouted.answer(exchange),
        };
        exchange.record.route = Some(route.metrics.clone());
        let mut response = match exchange.request.body_mut().limit(route.max_body) {
            Ok(()) => answer(&route, &path, exchange).await,
            Err(error) => rejected(exchange, error.status()),
        };
        for (name, value) in &route.headers {
            response.headers_mut().insert(name.clone(), value.clone());
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

async fn answer(route: &Route, path: &NormalisedPath, exchange: &mut Exchange) -> Response<Body> {
    match &route.target {
        Target::Respond(respond) => respond.answer(),
        Target::Redirect(redirect) => redirect.answer(exchange.request.uri(), exchange.request.headers()),
        Target::Proxy(target) => proxy(target, exchange).await,
        Target::Static(files) => files.answer(exchange, path).await,
        Target::Handler(handler) => handler.handle(exchange).await,
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
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;
    use http::Request;
    use playhouse_config::model::{PathPattern, Route, Target};

    use super::*;
    use crate::RequestBody;
    use crate::exchange::{Informational, Peer, Record};

    fn config(routes: Vec<Route>) -> model::Site {
        model::Site {
            name: "test".to_owned(),
            threads: None,
            state_dir: None,
            drain_timeout: Duration::from_secs(30),
            admin: model::Admin::default(),
            access_log: None,
            listeners: Vec::new(),
            upstreams: Vec::new(),
            routes,
        }
    }

    fn route(path: &str, to: Target) -> Route {
        Route {
            listeners: Vec::new(),
            host: None,
            path: if path.ends_with('/') {
                PathPattern::Prefix(path.to_owned())
            } else {
                PathPattern::Exact(path.to_owned())
            },
            to,
            max_body: None,
            headers: Vec::new(),
        }
    }

    fn respond(status: u16) -> Target {
        Target::Respond(model::Respond {
            status: StatusCode::from_u16(status).unwrap(),
            body: "x".to_owned(),
        })
    }

    fn echo(exchange: &mut Exchange) -> BoxFuture<'_, Response<Body>> {
        std::future::ready(Response::new(Body::from(exchange.request.uri().to_string()))).boxed()
    }

    fn site(routes: Vec<Route>) -> Arc<Site> {
        let handlers = HashMap::from([("echo".into(), Arc::new(echo) as Arc<dyn Handler>)]);
        Site::new(&config(routes), handlers, Random::seeded(1)).unwrap()
    }

    fn exchange(method: &str, uri: &str, body: RequestBody) -> Exchange {
        Exchange {
            request: Request::builder().method(method).uri(uri).body(body).unwrap(),
            connection: Arc::new(ConnectionInfo {
                id: 1,
                listener: "http".into(),
                listener_index: 0,
                peer: Peer::Unix,
                local: None,
                tls: None,
            }),
            informational: Informational::Unsupported,
            record: Record::new(Instant::now()),
        }
    }

    fn ask(site: &Site, method: &str, uri: &str) -> (Response<Body>, Option<Outcome>) {
        let mut exchange = exchange(method, uri, RequestBody::Empty);
        let response = site.handle(&mut exchange).now_or_never().unwrap();
        (response, exchange.record.outcome)
    }

    #[tokio::test]
    async fn requests_find_their_route_by_the_normalised_path() {
        let site = site(vec![route("/a/", respond(201)), route("/b", respond(202))]);
        for (uri, status, outcome) in [
            ("/a/x", 201, None),
            ("/b", 202, None),
            ("/a/../b", 202, None),
            ("//a/%2e%2e/%62", 202, None),
            ("http://any.example/b?q", 202, None),
            ("/", 404, None),
            ("/a%2fx", 404, None),
            ("/%00", 400, Some(Outcome::Rejected)),
            ("/..%2fb", 400, Some(Outcome::Rejected)),
            ("*", 400, Some(Outcome::Rejected)),
            ("http://user@h.example/b", 400, Some(Outcome::Rejected)),
        ] {
            let (response, ended) = ask(&site, "GET", uri);
            assert_eq!((response.status().as_u16(), ended), (status, outcome), "{uri}");
        }
    }

    #[tokio::test]
    async fn a_handler_sees_the_normalised_uri() {
        let site = site(vec![route("/", Target::Handler("echo".into()))]);
        let (response, _) = ask(&site, "GET", "/x/../%7eme//?a=%2e");
        let Body::Bytes(body) = response.into_body() else { panic!("no content") };
        assert_eq!(body, "/~me/?a=%2e");
    }

    #[tokio::test]
    async fn methods_for_the_whole_server_are_answered_without_a_route() {
        let site = site(vec![route("/", respond(200))]);
        let (response, _) = ask(&site, "OPTIONS", "*");
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
        assert_eq!(response.headers()[header::ALLOW], METHODS);
        for (method, uri) in [("CONNECT", "h.example:443"), ("TRACE", "/")] {
            let (response, _) = ask(&site, method, uri);
            assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
            assert_eq!(response.headers()[header::ALLOW], METHODS);
        }
    }

    #[tokio::test]
    async fn a_routes_fields_are_on_every_answer_and_its_limit_on_every_body() {
        let mut limited = route("/", respond(200));
        limited.max_body = Some(3);
        limited.headers = vec![(header::SERVER, HeaderValue::from_static("here"))];
        let site = site(vec![limited]);
        for (length, status, outcome) in [(3, 200, None), (4, 413, Some(Outcome::Rejected))] {
            let mut exchange = exchange("POST", "/", RequestBody::Bytes(vec![0; length].into()));
            let response = site.handle(&mut exchange).await;
            assert_eq!((response.status().as_u16(), exchange.record.outcome), (status, outcome));
            assert_eq!(response.headers()[header::SERVER], "here");
        }
    }

    #[tokio::test]
    async fn every_end_is_counted_with_its_route_or_without_one() {
        let mut config = config(vec![route("/a", respond(201))]);
        config.listeners = vec![model::Listener {
            name: "http".into(),
            bind: model::Bind::Tcp { address: ([127, 0, 0, 1], 0).into(), only_v6: false },
            tls: Vec::new(),
            http2: true,
            limits: model::Limits::default(),
            timeouts: model::ClientTimeouts::default(),
        }];
        let site = Site::new(&config, Handlers::new(), Random::seeded(1)).unwrap();
        for (uri, status) in [("/a", 201), ("/b", 404)] {
            let mut exchange = exchange("GET", uri, RequestBody::Empty);
            let status = StatusCode::from_u16(status).ok();
            assert_eq!(Some(site.handle(&mut exchange).await.status()), status);
            assert!(exchange.record.log.is_none(), "there is no access log");
            let duration = Duration::from_millis(1);
            site.ended(&exchange, &End { outcome: Outcome::Answered, status, bytes_sent: 1, duration });
        }
        let connection = exchange("GET", "/", RequestBody::Empty).connection;
        site.refused(&connection, Some(StatusCode::BAD_REQUEST));
        site.panicked(&connection, "boom");
        let text = site.metrics.scrape().render();
        for line in [
            "playhouse_requests_total{listener=\"http\",route=\"/a\",status=\"2xx\",outcome=\"answered\"} 1\n",
            "playhouse_requests_total{listener=\"http\",route=\"(none)\",status=\"4xx\",outcome=\"answered\"} 1\n",
            "playhouse_requests_refused_total{listener=\"http\",status=\"4xx\"} 1\n",
            "playhouse_panics_total{listener=\"http\"} 1\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    }

    #[tokio::test]
    async fn new_routes_replace_the_old_ones_all_at_once_or_not_at_all() {
        let site = site(vec![route("/", respond(201))]);
        let broken = config(vec![route("/", respond(202)), route("/x", Target::Handler("none".into()))]);
        let error = site.apply_routes(&broken).unwrap_err();
        assert_eq!(error.to_string(), "route /x: no handler is registered by the name \"none\"");
        assert_eq!(ask(&site, "GET", "/").0.status(), StatusCode::CREATED);
        site.apply_routes(&config(vec![route("/", respond(202))])).unwrap();
        assert_eq!(ask(&site, "GET", "/").0.status(), StatusCode::ACCEPTED);
    }
}
