//! A site under a load of every kind, whose every answer is checked, and the accounts to be made afterwards.

use std::future::Future;
use std::time::Duration;

use playhouse_chaos::{
    Body, Counts, Exchange, Expect, Load, Messages, Protocol, Report, Stream, Target, Tls, Upstream,
};

use super::admin::Ledger;
use super::certificates::{Algorithm, Authority};
use super::pattern;
use super::real::Real;
use super::site::{Running, Site};
use super::wait::{PATIENCE, eventually_some};

/// A site with everything that a fault may hit, and what stands behind it.
pub struct Stage {
    pub site: Running,
    pub authority: Authority,
    pub upstream: Upstream,
    _websockets: Real,
}

impl Stage {
    /// In one process.
    pub fn new() -> Self {
        Stage::with(|site| site)
    }

    /// With whatever `change` adds to the site.
    pub fn with(change: impl FnOnce(Site) -> Site) -> Self {
        let upstream = Upstream::start().expect("an upstream starts");
        let websockets = Real::websockets();
        let authority = Authority::new();
        let site = Site::new();
        authority.write(&site.path("."), "site", &["site.test"], Algorithm::Ecdsa);
        let site = site
            .field(r#"access_log: (to: "access.log")"#)
            .listener("http", r#"(bind: "127.0.0.1:0")"#)
            .listener(
                "https",
                r#"(bind: "127.0.0.1:0", tls: [(cert: "site.pem", key: "site.key")], http3: true)"#,
            )
            .upstream(
                "up",
                format!(
                    r#"(servers: ["{}"], health: (path: "/health", interval: "100ms", timeout: "10s"))"#,
                    upstream.server()
                ),
            )
            .file("public/hello.txt", "hello\n")
            .file("public/large", pattern(LARGE))
            .route(r#"(path: "/", to: Static(root: "public"))"#)
            .route(r#"(path: "/up/", to: Proxy(upstream: "up", strip_prefix: true))"#)
            .server("websockets", websockets.address)
            .route(r#"(path: "/ws/", to: Proxy("websockets"))"#);
        Stage { site: change(site).start(), authority, upstream, _websockets: websockets }
    }

    /// Files and proxied requests, kept and new connections, WebSockets that live long and that do not, HTTP/1.1, HTTP/2 and
    /// HTTP/3, with and without TLS.
    pub fn load(&self) -> playhouse_chaos::Running {
        self.load_of(|stream| stream, Duration::from_millis(50))
    }

    /// The same, but far from what keeps an instance busy.
    pub fn calm_load(&self) -> playhouse_chaos::Running {
        self.load_of(|stream| stream.rate(5.0), Duration::from_millis(500))
    }

    /// With requests as `paced`, and such a pause between the messages of a WebSocket.
    fn load_of(&self, paced: impl Fn(Stream) -> Stream, pause: Duration) -> playhouse_chaos::Running {
        use rustls::pki_types::{CertificateDer, pem::PemObject};
        let root = CertificateDer::from_pem_slice(self.authority.pem().as_bytes()).expect("our own PEM");
        let tls = Tls::trusting("site.test", [root]).expect("a name and a root");
        let secure = Target::Tcp(self.site.address("https"));
        let over_tls = |stream: Stream| stream.target(secure.clone()).tls(tls.clone());
        let hello = || Expect::body("hello\n");
        let (kept, new) = (Protocol::Http1KeepAlive, Protocol::Http1NewConnection);
        let h2 = |streams| Protocol::Http2 { streams };
        let h3 = |streams| Protocol::Http3 { streams };
        let requests = [
            Stream::get(kept, "/hello.txt", hello()).name("files").concurrency(2),
            Stream::get(kept, "/large", Expect::body(pattern(LARGE))).name("large file").rate(20.0),
            Stream::get(new, "/hello.txt", hello()).name("new").concurrency(2),
            Stream::get(h2(4), "/hello.txt", hello()).name("h2 files"),
            Stream::echo_id(kept, "/up/id/").name("proxied").concurrency(2),
            Stream::repeat(kept, slow_upload()).name("slow upload").deadline(PATIENCE),
            Stream::repeat(h2(1), slow_upload()).name("h2 slow upload").deadline(PATIENCE),
            Stream::echo_id(h2(4), "/up/id/").name("h2 proxied"),
            over_tls(Stream::get(new, "/hello.txt", hello()).name("new over tls").rate(50.0)),
            over_tls(Stream::echo_id(h2(4), "/up/id/").name("h2 over tls")),
            over_tls(Stream::get(h3(4), "/hello.txt", hello()).name("h3 files").rate(100.0)),
            over_tls(Stream::echo_id(h3(4), "/up/id/").name("h3 proxied").rate(100.0)),
            over_tls(Stream::repeat(h3(1), slow_upload()).name("h3 slow upload").deadline(PATIENCE)),
        ];
        let messages = || Messages::default().pause(pause);
        let tunnels = |protocol| Stream::websockets(protocol, "/ws/echo", messages());
        let websockets = [
            tunnels(kept).name("tunnels").concurrency(12),
            tunnels(h2(4)).name("h2 tunnels").concurrency(2),
            over_tls(Stream::websockets(kept, "/ws/fragments", messages()).name("tunnels over tls"))
                .concurrency(2),
            over_tls(tunnels(h2(2)).name("h2 tunnels over tls")),
            Stream::websockets(kept, "/ws/fragments", messages().each(8)).name(SHORT).concurrency(2),
        ];
        let load = requests.into_iter().map(paced).chain(websockets);
        let load = load.fold(Load::new(self.site.address("http")), Load::stream);
        let load = load.start().expect("the load starts");
        let all: u64 = WEBSOCKETS.iter().map(|(_, count)| count).sum();
        let open = load.until("all WebSockets are open", PATIENCE, |counts| counts.opened >= all);
        block_on(open).unwrap_or_else(|error| panic!("{error}"));
        load
    }
}

/// The requests that each stream of [`Stage::load`] has in flight at most.
const REQUESTS: [(&str, u64); 13] = [
    ("files", 2),
    ("large file", 1),
    ("new", 2),
    ("h2 files", 4),
    ("proxied", 2),
    ("slow upload", 1),
    ("h2 slow upload", 1),
    ("h2 proxied", 4),
    ("new over tls", 1),
    ("h2 over tls", 4),
    ("h3 files", 4),
    ("h3 proxied", 4),
    ("h3 slow upload", 1),
];
/// The WebSockets that each has. They are in flight for as long as they live.
const WEBSOCKETS: [(&str, u64); 5] =
    [("tunnels", 12), ("h2 tunnels", 8), ("tunnels over tls", 2), ("h2 tunnels over tls", 2), (SHORT, 2)];
/// Those that are closed and opened all the time.
const SHORT: &str = "short tunnels";
const LARGE: usize = 1 << 20;

/// Every request was answered, no connection that was kept was closed, and the very WebSockets that were opened at first have
/// lived on.
#[track_caller]
pub fn untouched(report: &Report, how: &str) {
    assert!(report.is_clean(), "{how}: {report}");
    assert_eq!(report.counts.drained, 0, "{how}: WebSockets were told to go\n{report}");
    assert_eq!(report.counts.idle_closes, 0, "{how}: kept connections were closed\n{report}");
    for (name, count) in WEBSOCKETS.iter().filter(|(name, _)| *name != SHORT) {
        let opened =
            report.streams.iter().find(|stream| stream.name == *name).map(|stream| stream.counts.opened);
        assert_eq!(opened, Some(*count), "{how}: {name}\n{report}");
    }
}

/// Of every kind of WebSocket that lives long, some were told to go, and others were opened in their place.
#[track_caller]
pub fn told_to_go(report: &Report) {
    for (name, count) in WEBSOCKETS.iter().filter(|(name, _)| *name != SHORT) {
        let counts = report.streams.iter().find(|stream| stream.name == *name).expect("a stream").counts;
        assert!(counts.drained > 0 && counts.opened > *count, "{name}\n{report}");
    }
}

/// What so many deaths may cost: of each stream what was in flight, every time, and no answer that is wrong.
#[track_caller]
pub fn lost_what_was_in_flight(report: &Report, deaths: u64, how: &str) {
    for stream in &report.streams {
        let in_flight = REQUESTS.iter().chain(&WEBSOCKETS).find(|(name, _)| *name == stream.name);
        let most = deaths * in_flight.expect("a stream of the load").1;
        let failed = stream.counts.failed();
        assert!(failed <= most, "{how}: {}: {failed} of {most}\n{report}", stream.name);
    }
    let counts = report.counts;
    assert_eq!((counts.refused, counts.status, counts.wrong), (0, 0, 0), "{how}: {report}");
}

/// Content that takes a quarter of a second to send, and comes back as it was.
fn slow_upload() -> Exchange {
    let body = Body::Pattern { seed: 7, length: 5 * (16 << 10) };
    let length = body.length();
    Exchange::post("/up/echo", body, Expect::pattern(7, length)).pause(Duration::from_millis(50))
}

/// Waits for that many more answers, and for WebSockets, where there are any, to talk on meanwhile.
#[track_caller]
pub fn moves(load: &playhouse_chaos::Running, answers: u64) -> Counts {
    let before = load.counts();
    let moved = |now: &Counts| {
        let talked = before.opened == 0 || now.messages >= before.messages + answers / 5;
        talked && now.answered >= before.answered + answers
    };
    let what = format!("{answers} more answers, and messages");
    block_on(load.until(&what, PATIENCE, moved)).unwrap_or_else(|error| panic!("{error}"))
}

/// Ends a load, and says what has come of it.
pub fn stop(load: playhouse_chaos::Running) -> Report {
    block_on(load.stop())
}

/// The ledger says what the clients saw; gives what it counted since `before`.
#[track_caller]
pub fn balances(site: &Running, before: Ledger, report: &Report, how: &str) -> Ledger {
    let now =
        eventually_some("nothing is in flight", || Some(site.admin.ledger()).filter(|l| l.in_flight == 0));
    assert_eq!(now.accepted, now.ended(), "{how}: {now:?}");
    let spent = Ledger {
        accepted: now.accepted - before.accepted,
        in_flight: 0,
        answered: now.answered - before.answered,
        rejected: now.rejected - before.rejected,
        shed: now.shed - before.shed,
        client_gone: now.client_gone - before.client_gone,
        upstream_failed: now.upstream_failed - before.upstream_failed,
        killed: now.killed - before.killed,
    };
    let counts = report.counts;
    assert!(spent.accepted <= counts.begun, "{how}: {spent:?}\n{report}");
    // The bytes of a failed request may never have arrived.
    assert!(spent.accepted + counts.failed() >= counts.begun, "{how}: {spent:?}\n{report}");
    // An answer that was written whole may still be lost on its way when its connection is killed.
    assert!(spent.answered <= counts.answered + counts.failed(), "{how}: {spent:?}\n{report}");
    let most = counts.failed() + unacknowledged(report);
    assert!(spent.killed + spent.client_gone <= most, "{how}: {spent:?}\n{report}");
    spent
}

/// Over HTTP/3 a request is answered when its client has acknowledged the answer: one that the client has had counts as killed
/// where its connection died before. At most what the connections had in flight that were followed by others.
fn unacknowledged(report: &Report) -> u64 {
    if report.is_clean() {
        return 0;
    }
    let of = |name: &str| report.streams.iter().find(|stream| stream.name == name);
    let streams = REQUESTS.iter().filter(|(name, _)| name.starts_with("h3 "));
    streams
        .filter_map(|(name, in_flight)| Some((of(name)?.counts.connections.saturating_sub(1)) * in_flight))
        .sum()
}

/// Runs a future on a runtime of its own.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(future)
}
