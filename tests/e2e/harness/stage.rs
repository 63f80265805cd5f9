//! A site under a load of every kind, whose every answer is checked, and the accounts to be made afterwards.

use std::future::Future;
use std::time::Duration;

use playhouse_chaos::{
    Body, Counts, Exchange, Expect, Load, Protocol, Report, Stream, Target, Tls, Upstream,
};

use super::admin::Ledger;
use super::certificates::{Algorithm, Authority};
use super::pattern;
use super::site::{Running, Site};
use super::wait::{PATIENCE, eventually_some};

/// A site with everything that a fault may hit, and what stands behind it.
pub struct Stage {
    pub site: Running,
    pub authority: Authority,
    pub upstream: Upstream,
}

impl Stage {
    /// In one process.
    pub fn new() -> Self {
        Stage::with(|site| site)
    }

    /// With whatever `change` adds to the site.
    pub fn with(change: impl FnOnce(Site) -> Site) -> Self {
        let upstream = Upstream::start().expect("an upstream starts");
        let authority = Authority::new();
        let site = Site::new();
        authority.write(&site.path("."), "site", &["site.test"], Algorithm::Ecdsa);
        let site = site
            .field(r#"access_log: (to: "access.log")"#)
            .listener("http", r#"(bind: "127.0.0.1:0")"#)
            .listener("https", r#"(bind: "127.0.0.1:0", tls: [(cert: "site.pem", key: "site.key")])"#)
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
            .route(r#"(path: "/up/", to: Proxy(upstream: "up", strip_prefix: true))"#);
        Stage { site: change(site).start(), authority, upstream }
    }

    /// Files and proxied requests, kept and new connections, HTTP/1.1 and HTTP/2, with and without TLS.
    pub fn load(&self) -> playhouse_chaos::Running {
        use rustls::pki_types::{CertificateDer, pem::PemObject};
        let root = CertificateDer::from_pem_slice(self.authority.pem().as_bytes()).expect("our own PEM");
        let tls = Tls::trusting("site.test", [root]).expect("a name and a root");
        let secure = Target::Tcp(self.site.address("https"));
        let hello = || Expect::body("hello\n");
        let kept = Protocol::Http1KeepAlive;
        Load::new(self.site.address("http"))
            .stream(Stream::get(kept, "/hello.txt", hello()).name("files").concurrency(2))
            .stream(Stream::get(kept, "/large", Expect::body(pattern(LARGE))).name("large file").rate(20.0))
            .stream(
                Stream::get(Protocol::Http1NewConnection, "/hello.txt", hello()).name("new").concurrency(2),
            )
            .stream(Stream::get(Protocol::Http2 { streams: 4 }, "/hello.txt", hello()).name("h2 files"))
            .stream(Stream::echo_id(kept, "/up/id/").name("proxied").concurrency(2))
            .stream(Stream::repeat(kept, slow_upload()).name("slow upload").deadline(PATIENCE))
            .stream(
                Stream::repeat(Protocol::Http2 { streams: 1 }, slow_upload())
                    .name("h2 slow upload")
                    .deadline(PATIENCE),
            )
            .stream(Stream::echo_id(Protocol::Http2 { streams: 4 }, "/up/id/").name("h2 proxied"))
            .stream(
                Stream::get(Protocol::Http1NewConnection, "/hello.txt", hello())
                    .name("new over tls")
                    .target(secure.clone())
                    .tls(tls.clone())
                    .rate(50.0),
            )
            .stream(
                Stream::echo_id(Protocol::Http2 { streams: 4 }, "/up/id/")
                    .name("h2 over tls")
                    .target(secure)
                    .tls(tls),
            )
            .start()
            .expect("the load starts")
    }
}

/// The requests that [`Stage::load`] has in flight at most.
pub const IN_FLIGHT: u64 = 2 + 1 + 2 + 4 + 2 + 1 + 1 + 4 + 1 + 4;
const LARGE: usize = 1 << 20;

/// Content that takes a quarter of a second to send, and comes back as it was.
fn slow_upload() -> Exchange {
    let body = Body::Pattern { seed: 7, length: 5 * (16 << 10) };
    let length = body.length();
    Exchange::post("/up/echo", body, Expect::pattern(7, length)).pause(Duration::from_millis(50))
}

/// Waits for that many more answers.
#[track_caller]
pub fn moves(load: &playhouse_chaos::Running, answers: u64) -> Counts {
    block_on(load.answers(answers, PATIENCE)).unwrap_or_else(|error| panic!("{error}"))
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
    assert!(spent.killed + spent.client_gone <= counts.failed(), "{how}: {spent:?}\n{report}");
    spent
}

/// Runs a future on a runtime of its own.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(future)
}
