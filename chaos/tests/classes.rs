//! Servers that misbehave in each way, and the class that the generator finds for it.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::time::Duration;

use bytes::Bytes;
use http::{Method, header};
use playhouse_chaos::{
    Body, Class, Exchange, Expect, Load, Mode, Protocol, Report, Sent, Stream, Target, Upstream, pattern,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const LONG: Duration = Duration::from_secs(20);

/// One request of `exchange` against a normal upstream.
async fn once(upstream: &Upstream, exchange: Exchange) -> Report {
    let stream = Stream::repeat(Protocol::Http1KeepAlive, exchange).requests(1).deadline(LONG);
    run(upstream.target(), stream).await
}

async fn run(target: impl Into<Target>, stream: Stream) -> Report {
    Load::new(target).stream(stream).start().unwrap().finished().await
}

fn get(path: &str, expect: Expect) -> Exchange {
    Exchange::get(path, expect)
}

/// The only failure of a report.
fn class(report: &Report) -> Class {
    assert_eq!(report.counts.failed(), 1, "{report}");
    assert_eq!(report.counts.begun, report.counts.answered + 1, "{report}");
    report.failures[0].class
}

/// A server whose every connection is handled by `script`.
async fn scripted<F: Future<Output = ()> + Send + 'static>(
    script: impl Fn(u64, TcpStream) -> F + Send + 'static,
) -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        for n in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(script(n, stream));
        }
    });
    Target::Tcp(address)
}

#[tokio::test]
async fn well_behaved_answers_are_clean_over_http1() {
    let upstream = Upstream::start().unwrap();
    let big = pattern::bytes(5, 300_000);
    for exchange in [
        get("/bytes/100000?seed=3", Expect::pattern(3, 100_000)),
        get("/chunked/12345", Expect::pattern(0, 12_345)),
        get("/trailers/0", Expect::body("")),
        get("/until-close/5000", Expect::pattern(0, 5000)),
        get("/hints", Expect::body("ok\n")),
        get("/status/404", Expect::body("404").with_status(404)),
        get("/status/204", Expect::body("").with_status(204)),
        get("/drip/10/1", Expect::pattern(0, 10)),
        get("/slow/1", Expect::body("ok\n")),
        Exchange { method: Method::HEAD, ..get("/bytes/100", Expect::body("ignored")) },
        Exchange::post("/echo", Body::Fixed(big), Expect::pattern(5, 300_000)),
        Exchange::post("/echo", Body::Pattern { seed: 6, length: 50_000 }, Expect::pattern(6, 50_000)),
        Exchange::post("/echo", Body::Streamed { seed: 7, length: 50_000 }, Expect::pattern(7, 50_000))
            .header(header::EXPECT, "100-continue".parse().unwrap()),
        get("/head", Expect::body("GET /head HTTP/1.1\r\nhost: a.example\r\n\r\n"))
            .header(header::HOST, "a.example".parse().unwrap()),
        get("/", Expect::body("ok\n").with_header(header::CONTENT_TYPE, "text/plain".parse().unwrap())),
    ] {
        for protocol in [Protocol::Http1KeepAlive, Protocol::Http1NewConnection] {
            if protocol == Protocol::Http1NewConnection && exchange.path == "/head" {
                continue;
            }
            let stream = Stream::repeat(protocol, exchange.clone()).requests(3).deadline(LONG);
            let report = run(upstream.target(), stream).await;
            assert!(report.is_clean() && report.counts.answered == 3, "{report}");
            let kept = protocol == Protocol::Http1KeepAlive && !exchange.path.starts_with("/until-close");
            assert_eq!(report.counts.connections, if kept { 1 } else { 3 }, "{report}");
        }
    }
}

#[tokio::test]
async fn each_answer_belongs_to_its_request() {
    let upstream = Upstream::start().unwrap();
    let load = Load::new(upstream.target())
        .stream(Stream::echo_id(Protocol::Http1KeepAlive, "/id/").concurrency(5).requests(500))
        .stream(Stream::echo_id(Protocol::Http1NewConnection, "/id/").concurrency(2).requests(100));
    let report = load.start().unwrap().finished().await;
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.counts.answered, 600);
    assert_eq!(report.counts.connections, 105);
    assert_eq!(report.latency.count(), 600);
    assert_eq!(report.windows.iter().map(|w| w.answered).sum::<u32>(), 600);
    assert_eq!(report.first_answers.len(), 105);
    let swapped = run(
        upstream.target(),
        Stream::generate(Protocol::Http1KeepAlive, |id| {
            get(&format!("/id/{}", id ^ 1), Expect::body(id.to_string()))
        })
        .requests(2),
    );
    assert_eq!(swapped.await.counts.wrong, 2);
}

#[tokio::test]
async fn unix_sockets_are_loaded_like_tcp() {
    let dir = tempfile::tempdir().unwrap();
    let mut upstream = Upstream::unix(dir.path().join("sock")).unwrap();
    assert!(once(&upstream, get("/bytes/10", Expect::pattern(0, 10))).await.is_clean());
    upstream.stop();
    assert_eq!(class(&once(&upstream, get("/", Expect::status(200))).await), Class::Refused);
}

#[tokio::test]
async fn a_connection_refused_is_refused_and_a_restart_recovers() {
    let mut upstream = Upstream::start().unwrap();
    let target = upstream.target();
    let stream = Stream::get(Protocol::Http1KeepAlive, "/", Expect::body("ok\n")).deadline(LONG);
    let running = Load::new(target).stream(stream).start().unwrap();
    running.answers(10, LONG).await.unwrap();
    let stopping = running.elapsed();
    upstream.stop();
    let stopped = running.elapsed();
    running.until("a refusal", LONG, |counts| counts.refused >= 3).await.unwrap();
    upstream.restart().unwrap();
    let restarted = running.elapsed();
    running.recovery(stopped, LONG).await.unwrap();
    running.answered_after(restarted, LONG).await.unwrap();
    running.pause().await;
    let paused = running.counts();
    assert_eq!(paused.pending(), 0);
    running.resume();
    running.answers(1, LONG).await.unwrap();
    let report = running.stop().await;
    assert!(report.recovery(stopped).is_some());
    assert_eq!(report.counts.wrong + report.counts.lost + report.counts.status, 0, "{report}");
    assert!(report.of(Class::Refused).all(|failure| failure.at >= stopping && failure.sent == Sent::None));
    assert!(report.counts.in_flight + report.counts.in_flight_reused + report.counts.unsent <= 1, "{report}");
}

#[tokio::test]
async fn an_end_without_a_byte_of_answer_is_in_flight() {
    let upstream = Upstream::start().unwrap();
    for path in ["/close", "/reset"] {
        let report = once(&upstream, get(path, Expect::status(200))).await;
        assert_eq!(class(&report), Class::InFlight, "{report}");
        assert_eq!((report.failures[0].sent, report.failures[0].answered), (Sent::All, 0));
    }
}

#[tokio::test]
async fn an_end_without_a_byte_of_answer_on_a_reused_connection_is_told_apart() {
    let upstream = Upstream::start().unwrap();
    let stream = Stream::generate(Protocol::Http1KeepAlive, |id| {
        get(if id == 0 { "/" } else { "/close" }, Expect::body("ok\n"))
    });
    let report = run(upstream.target(), stream.requests(2)).await;
    assert_eq!(class(&report), Class::InFlightReused, "{report}");
}

#[tokio::test]
async fn an_answer_that_is_cut_is_in_flight() {
    let upstream = Upstream::start().unwrap();
    for path in ["/cut/1000", "/cut-chunked/9000"] {
        let report =
            once(&upstream, get(path, Expect::pattern(0, if path.len() < 10 { 1000 } else { 9000 }))).await;
        assert_eq!(class(&report), Class::InFlight, "{report}");
        assert!(report.failures[0].answered > 500, "{report}");
    }
}

#[tokio::test]
async fn a_complete_answer_that_is_short_long_or_changed_is_wrong() {
    let upstream = Upstream::start().unwrap();
    for exchange in [
        get("/short/5000", Expect::pattern(0, 5000)),
        get("/flipped/5000", Expect::pattern(0, 5000)),
        get("/bytes/5001", Expect::pattern(0, 5000)),
        get("/bytes/4999", Expect::pattern(0, 5000)),
        get("/until-close/4999", Expect::pattern(0, 5000)),
        get("/garbage", Expect::pattern(0, 5000)),
        get("/", Expect::status(200).with_header(header::ETAG, "\"x\"".parse().unwrap())),
    ] {
        let report = once(&upstream, exchange.clone()).await;
        assert_eq!(class(&report), Class::Wrong, "{}: {report}", exchange.path);
    }
}

#[tokio::test]
async fn another_status_is_counted_by_status() {
    let upstream = Upstream::start().unwrap();
    upstream.mode(Mode::Fail);
    let stream = Stream::get(Protocol::Http1KeepAlive, "/", Expect::body("ok\n")).requests(3);
    let report = run(upstream.target(), stream).await;
    assert_eq!(report.statuses.iter().collect::<Vec<_>>(), [(&500, &3)], "{report}");
    assert_eq!((report.counts.status, report.counts.wrong, report.counts.connections), (3, 0, 1));
}

#[tokio::test]
async fn no_answer_on_an_open_connection_is_lost() {
    let upstream = Upstream::start().unwrap();
    let stream = Stream::get(Protocol::Http1KeepAlive, "/hang", Expect::status(200));
    let report = run(upstream.target(), stream.requests(1).deadline(Duration::from_millis(50))).await;
    assert_eq!(class(&report), Class::Lost);
    let h2 = Stream::get(Protocol::Http2 { streams: 1 }, "/", Expect::status(200));
    let silent =
        scripted(|_, mut stream| async move { while stream.read(&mut [0; 99]).await.unwrap() > 0 {} }).await;
    let report = run(silent, h2.requests(1).deadline(Duration::from_millis(50))).await;
    assert_eq!(class(&report), Class::Lost);
}

#[tokio::test]
async fn an_idle_connection_that_the_server_closed_is_no_failure() {
    let (closed, wait) = std::sync::mpsc::channel();
    let target = scripted(move |_, mut stream| {
        let closed = closed.clone();
        async move {
            let _ = stream.read(&mut [0; 1000]).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            drop(stream);
            closed.send(()).unwrap();
        }
    })
    .await;
    // Each request but the first is made after the server has closed the connection of the one before.
    let wait = std::sync::Mutex::new(wait);
    let stream = Stream::generate(Protocol::Http1KeepAlive, move |id| {
        if id > 0 {
            wait.lock().unwrap().recv().unwrap();
        }
        get("/", Expect::body(""))
    });
    let running = Load::new(target).stream(stream.requests(3)).start().unwrap();
    let report = running.finished().await;
    assert!(report.is_clean(), "{report}");
    assert_eq!((report.counts.connections, report.counts.idle_closes), (3, 2));
}

#[tokio::test]
async fn bytes_that_nobody_asked_for_are_wrong() {
    let target = scripted(|_, mut stream| async move {
        let _ = stream.read(&mut [0; 1000]).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab").await.unwrap();
    })
    .await;
    let stream = Stream::get(Protocol::Http1KeepAlive, "/", Expect::body("a")).requests(1);
    assert_eq!(class(&run(target, stream).await), Class::Wrong);
}

#[tokio::test]
async fn an_early_refusal_is_read_though_the_body_cannot_be_sent() {
    let target = scripted(|_, mut stream| async move {
        let _ = stream.read(&mut [0; 1000]).await;
        stream
            .write_all(b"HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            .await
            .unwrap();
        // Neither read on nor close: only the answer ends this.
        std::future::pending::<()>().await;
    })
    .await;
    let body = Body::Pattern { seed: 0, length: 100 << 20 };
    let exchange = Exchange::post("/", body, Expect::status(413));
    let report =
        run(target, Stream::repeat(Protocol::Http1KeepAlive, exchange).requests(2).deadline(LONG)).await;
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.counts.connections, 2);
}

#[tokio::test]
async fn a_request_cut_while_it_is_sent_is_in_flight_in_part() {
    let target = scripted(|_, mut stream| async move {
        let _ = stream.read(&mut [0; 1000]).await;
    })
    .await;
    let body = Body::Pattern { seed: 0, length: 100 << 20 };
    let exchange = Exchange::post("/", body, Expect::body(Bytes::new()));
    let report =
        run(target, Stream::repeat(Protocol::Http1KeepAlive, exchange).requests(1).deadline(LONG)).await;
    assert_eq!(class(&report), Class::InFlight);
    assert_eq!(report.failures[0].sent, Sent::Part);
}

#[tokio::test]
async fn an_upstream_can_race_with_keep_alive() {
    let upstream = Upstream::start().unwrap();
    upstream.close_silently_after(2);
    let stream = Stream::get(Protocol::Http1KeepAlive, "/", Expect::body("ok\n")).requests(100);
    let report = run(upstream.target(), stream).await;
    let Report { counts, .. } = &report;
    assert_eq!(counts.answered + counts.in_flight_reused + counts.unsent, 100, "{report}");
    assert!(counts.connections >= 33, "{report}");
}
