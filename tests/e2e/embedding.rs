//! Playhouse as a part of another program.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body::Frame;
use playhouse::config::Site;
use playhouse::config::file::Target;
use playhouse::{Body, BodyError, Handlers, Instance, Options, from_fn};
use playhouse_chaos::{Class, Exchange, Expect, Load, Protocol, Report, Stream};
use tokio::runtime::Runtime;

use crate::harness::{PATIENCE, Process, Wire, eventually};

const FINE: &str = "fine\n";
const REQUESTS: u64 = 600;

/// A site in this process whose handlers panic when asked to.
struct Embedded {
    runtime: Runtime,
    instance: Arc<Instance>,
}

impl Embedded {
    fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let answer = from_fn(|exchange| {
            Box::pin(async move {
                match exchange.request.uri().path() {
                    "/panic" => panic_on_purpose(),
                    "/panic-in-body" => Response::new(Body::Stream(Box::pin(PanicsAfterOneFrame::default()))),
                    _ => Response::new(Body::from(FINE)),
                }
            })
        });
        let site = Site::builder("embedded")
            .listener("http", "127.0.0.1:0")
            .route(("/", Target::handler("answer")))
            .build()
            .unwrap();
        let options = Options { handlers: Handlers::from([("answer".into(), answer)]), ..Options::default() };
        let instance = runtime.block_on(async {
            let instance = Instance::open(site, options).unwrap();
            tokio::spawn({
                let instance = instance.clone();
                async move { instance.run().await }
            });
            instance
        });
        eventually("the site is ready", || instance.is_ready());
        Embedded { runtime, instance }
    }

    fn address(&self) -> std::net::SocketAddr {
        self.instance.addresses()[0].1.parse().unwrap()
    }

    /// Sends `path` for every third request and expects `FINE` for the others.
    fn every_third(&self, protocol: Protocol, path: &'static str) -> Report {
        let stream = Stream::generate(protocol, move |id| match id % 3 {
            0 => Exchange::get(path, Expect::status(500)),
            _ => Exchange::get("/", Expect::body(FINE)),
        });
        let load =
            Load::new(self.address()).stream(stream.concurrency(4).requests(REQUESTS)).start().unwrap();
        self.runtime.block_on(load.finished())
    }

    /// Stops it; every request has had an outcome.
    fn stop(self) -> playhouse::Totals {
        self.runtime.block_on(async { tokio::time::timeout(PATIENCE, self.instance.stop()).await }).unwrap();
        let ledger = self.instance.ledger();
        assert_eq!((ledger.in_flight, ledger.accepted), (0, ledger.ended()), "{ledger:?}");
        ledger
    }
}

/// A body whose second frame is a panic, a moment after the first one has gone out.
#[derive(Default)]
struct PanicsAfterOneFrame {
    moment: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl http_body::Body for PanicsAfterOneFrame {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.moment {
            None => {
                self.moment = Some(Box::pin(tokio::time::sleep(Duration::from_millis(5))));
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"the first part")))))
            }
            Some(moment) => {
                std::task::ready!(moment.as_mut().poll(cx));
                panic_on_purpose()
            }
        }
    }
}

/// A panic that does not fill the test's output with its backtrace.
fn panic_on_purpose() -> ! {
    std::panic::resume_unwind(Box::new(PANIC))
}

const PANIC: &str = "a handler that panics on purpose";

#[test]
fn a_handler_that_panics_costs_its_own_request_only() {
    for protocol in [Protocol::Http1KeepAlive, Protocol::Http1NewConnection, Protocol::Http2 { streams: 8 }] {
        let embedded = Embedded::start();
        let report = embedded.every_third(protocol, "/panic");
        assert!(report.is_clean(), "{protocol:?}: {report}");
        let restarts = embedded.instance.tree().root().restarts();
        let ledger = embedded.stop();
        assert_eq!(
            (ledger.answered, ledger.killed),
            (REQUESTS * 2 / 3, REQUESTS / 3),
            "{protocol:?}: {ledger:?}"
        );
        assert_eq!(restarts, 0);
    }
}

#[test]
fn a_body_that_panics_never_looks_whole_and_costs_its_own_stream_only() {
    for protocol in [Protocol::Http1KeepAlive, Protocol::Http2 { streams: 8 }] {
        let embedded = Embedded::start();
        let report = embedded.every_third(protocol, "/panic-in-body");
        for failure in &report.failures {
            let cut = matches!(failure.class, Class::InFlight | Class::InFlightReused);
            assert!(cut && failure.id % 3 == 0, "{protocol:?}: {failure}\n{report}");
        }
        assert_eq!(report.counts.failed(), REQUESTS / 3, "{protocol:?}: {report}");
        let ledger = embedded.stop();
        assert_eq!(
            (ledger.answered, ledger.killed),
            (REQUESTS * 2 / 3, REQUESTS / 3),
            "{protocol:?}: {ledger:?}"
        );
    }
}

#[test]
fn a_panic_before_the_first_byte_is_answered_with_500() {
    let embedded = Embedded::start();
    let mut wire = Wire::connect(embedded.address());
    wire.send("GET /panic HTTP/1.1\r\nHost: x\r\n\r\n");
    let response = wire.response();
    assert_eq!(response.status, 500);
    assert!(!response.text().contains(PANIC), "what it said is for the log, not for clients");
    assert_eq!(embedded.stop().killed, 1);
}

#[test]
fn the_embedding_example_survives_what_it_does_to_itself() {
    // `cargo test` builds examples beside the binary.
    let example =
        std::path::Path::new(env!("CARGO_BIN_EXE_playhouse")).with_file_name("examples").join("embed");
    assert!(example.exists(), "{} is missing: cargo build --profile ci --example embed", example.display());
    let mut process = Process::start("the embedding example", &mut std::process::Command::new(example));
    assert_eq!(process.wait().code(), Some(0), "{}", process.output());
}
