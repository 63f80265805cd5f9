//! Whole requests against a site of routes that need no files and no upstream.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::Request;
use playhouse_config::model::{PathPattern, Route, Target};

use super::*;
use crate::RequestBody;
use crate::exchange::{Informational, Peer, Record};

pub(crate) fn config(routes: Vec<Route>) -> model::Site {
    model::Site {
        name: "test".to_owned(),
        threads: None,
        instances: None,
        state_dir: None,
        drain_timeout: Duration::from_secs(30),
        admin: model::Admin::default(),
        access_log: None,
        listeners: Vec::new(),
        upstreams: Vec::new(),
        apps: Vec::new(),
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
        tunnel: model::Tunnel::default(),
    }
}

fn respond(status: u16) -> Target {
    Target::Respond(model::Respond { status: StatusCode::from_u16(status).unwrap(), body: "x".to_owned() })
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
            proxied: None,
            tls: None,
            rate: None,
            alternative: None,
        }),
        informational: Informational::Unsupported,
        record: Record::new(Instant::now()),
    }
}

#[test]
fn the_future_of_a_request_is_small() {
    let site = site(vec![route("/", respond(200))]);
    let mut exchange = exchange("GET", "/", RequestBody::Empty);
    let size = std::mem::size_of_val(&site.handle(&mut exchange));
    assert!(size <= 1024, "{size}: it is a part of every connection, what is large belongs into a box");
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
async fn the_next_request_of_a_connection_finds_the_routes_that_are_in_force_then() {
    let site = site(vec![route("/", respond(201))]);
    let mut exchange = exchange("GET", "/", RequestBody::Empty);
    let mut ask = |site: &Site| {
        exchange.record.renew(Instant::now());
        let response = site.handle(&mut exchange).now_or_never().unwrap();
        (response.status().as_u16(), exchange.record.route.clone())
    };
    let (first, second) = (ask(&site), ask(&site));
    assert_eq!((first.0, second.0), (201, 201));
    assert!(Arc::ptr_eq(&first.1.unwrap(), &second.1.unwrap()));
    site.apply_routes(&config(vec![route("/", respond(202))])).unwrap();
    assert_eq!(ask(&site).0, 202);
    site.apply_routes(&config(Vec::new())).unwrap();
    let (status, taken) = ask(&site);
    assert_eq!((status, taken.is_none()), (404, true));
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
        proxy_protocol: None,
        http3: false,
        early_data: false,
        sharing: Default::default(),
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

#[test]
fn the_tables_of_one_process_count_where_the_others_can_read() {
    use crate::shared::{Board, Shared};
    use crate::sockets::Peers;
    let board = Board::anonymous().unwrap();
    let (mine, theirs) = (board.mine(1).unwrap(), board.mine(2).unwrap());
    let shared = Shared { place: Some(mine), ..Shared::default() };
    let ledger = shared.ledger.clone();
    let site = Site::sharing(&config(Vec::new()), Handlers::new(), Random::seeded(1), shared).unwrap();
    assert!(Arc::ptr_eq(&site.ledger, &ledger));
    site.place.as_ref().unwrap().set_active(true);
    assert_eq!(theirs.share().active, 1);
}

#[tokio::test(start_paused = true)]
async fn what_an_address_asks_beyond_its_rate_is_shed_and_told_when_to_come_again() {
    use std::num::NonZeroU32;
    let site = site(vec![route("/", respond(200))]);
    let number = |number| NonZeroU32::new(number).unwrap();
    let rate = model::Rate { per_second: number(1), burst: number(2) };
    let limited = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let ask = |address: [u8; 4]| {
        let mut exchange = exchange("GET", "/", RequestBody::Empty);
        let connection = Arc::get_mut(&mut exchange.connection).unwrap();
        connection.rate = Some(site.addresses.meter("http", address.into(), rate, limited.clone()));
        let response = site.handle(&mut exchange).now_or_never().unwrap();
        let wait = response.headers().get(header::RETRY_AFTER).map(|wait| wait.to_str().unwrap().to_owned());
        (response.status().as_u16(), exchange.record.outcome, wait)
    };
    let (one, two) = ([192, 0, 2, 1], [192, 0, 2, 2]);
    assert_eq!([ask(one), ask(one)], [(200, None, None), (200, None, None)]);
    assert_eq!(ask(one), (429, Some(Outcome::Shed), Some("1".to_owned())));
    assert_eq!(ask(two).0, 200);
    tokio::time::advance(Duration::from_millis(999)).await;
    assert_eq!(ask(one).0, 429);
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(ask(one).0, 200);
    assert_eq!(limited.load(std::sync::atomic::Ordering::Relaxed), 2);
}
