//! WebSockets and other tunnels, through a proxied route.

use std::process::Command;

use serde_json::Value;

use crate::harness::websocket::{BINARY, CLOSE, HANDSHAKE, PING, PONG, SWITCHED, TEXT};
use crate::harness::{
    Algorithm, Authority, Process, Real, Running, Scripted, Site, WebSocket, Wire, eventually,
    eventually_some, javascript, pattern, python,
};

/// A site whose `/ws` is a proxied route, with this as its `tunnel`.
fn through(address: std::net::SocketAddr, tunnel: &str) -> Site {
    Site::new()
        .field(r#"access_log: (to: "access.log")"#)
        .server("up", address)
        .route(format!(r#"(path: "/ws/", to: Proxy("up"), tunnel: ({tunnel}))"#))
        .route(r#"(path: "/plain", to: Respond("plain\n"))"#)
}

/// An upstream server that echoes frames until a Close, which it answers.
fn echo() -> Scripted {
    Scripted::start(|connection| {
        let Some((mut socket, _)) = WebSocket::accept(connection.wire) else { return };
        while let Ok((first, payload)) = socket.try_read() {
            let echo = socket.frame(first, &payload);
            if socket.wire.try_send(echo).is_err() || first == CLOSE {
                return;
            }
        }
    })
}

fn client(mode: &str, url: &str, more: &[&str]) -> Command {
    let mut command = python("websocket_client.py");
    command.args([mode, url]).args(more);
    command
}

/// The line of JSON that a client prints at its end.
#[track_caller]
fn said(process: &mut Process) -> Value {
    assert!(process.wait().success(), "{}", process.output());
    let last = process.stdout().pop().expect("a line");
    serde_json::from_str(&last).unwrap_or_else(|error| panic!("{error}: {last}"))
}

/// The access log's lines about tunnels, once there are so many.
#[track_caller]
fn logged(site: &Running, count: usize) -> Vec<Value> {
    eventually_some("the tunnels are in the log", || {
        let text = std::fs::read_to_string(site.path("access.log")).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let tunnels: Vec<Value> = lines.filter(|line| line.get("tunnel").is_some()).collect();
        (tunnels.len() >= count).then_some(tunnels)
    })
}

fn metric(site: &Running, line: &str) -> bool {
    site.admin.get("/metrics").text().lines().any(|known| known == line)
}

#[test]
fn a_foreign_client_and_server_exchange_messages_of_every_kind() {
    let upstream = Real::websockets();
    let site = through(upstream.address, "").start();
    let url = format!("ws://{}/ws/echo", site.address("http"));
    let mut process = Process::start("a client", &mut client("echo", &url, &[]));
    assert_eq!(said(&mut process), serde_json::json!({"seen": 34, "code": 1000}));
    let ledger = site.admin.settled_ledger();
    assert_eq!((ledger.accepted, ledger.answered), (2, 2), "{ledger:?}");
    for line in logged(&site, 2) {
        assert_eq!((&line["status"], &line["outcome"]), (&101.into(), &"answered".into()), "{line}");
        assert_eq!(line["tunnel"]["reason"], "client", "{line}");
        assert!(line["tunnel"]["bytes_to_client"].as_u64() == line["bytes"].as_u64(), "{line}");
        assert!(line["tunnel"]["frames_from_client"].as_u64() > Some(20), "{line}");
    }
    let route = "listener=\"http\",route=\"/ws/\"";
    assert!(metric(&site, &format!("playhouse_tunnels{{{route}}} 0")));
    assert!(metric(&site, &format!("playhouse_tunnels_closed_total{{{route},reason=\"client\"}} 2")));
}

#[test]
fn over_tls_it_is_the_same() {
    let upstream = Real::websockets();
    let authority = Authority::new();
    let site = through(upstream.address, "")
        .listener("https", r#"(bind: "127.0.0.1:0", tls: [(cert: "site.pem", key: "site.key")])"#)
        .file("authority.pem", authority.pem());
    authority.write(&site.path("."), "site", &["localhost"], Algorithm::Ecdsa);
    let site = site.start();
    let url = format!("wss://localhost:{}/ws/echo", site.address("https").port());
    let mut command = client("echo", &url, &[]);
    command.env("SSL_CERT_FILE", site.path("authority.pem"));
    let mut process = Process::start("a client", &mut command);
    assert_eq!(said(&mut process), serde_json::json!({"seen": 34, "code": 1000}));
    assert_eq!(site.admin.settled_ledger().answered, 2);
}

#[test]
fn uvicorn_serves_websockets_through_it() {
    let upstream = Real::uvicorn();
    let site = through(upstream.address, "").start();
    let mut socket = WebSocket::open(site.address("http"), "/ws/any");
    let large = pattern(300_000);
    for payload in [b"hello".as_slice(), b"", &large] {
        socket.send(BINARY, payload);
        let mut got = Vec::new();
        while got.len() < payload.len() || payload.is_empty() {
            got.extend(socket.read().1);
            if payload.is_empty() {
                break;
            }
        }
        assert!(got == payload);
    }
    socket.close(1000);
    assert_eq!(socket.read_close(), 1000);
    assert_eq!(site.admin.settled_ledger().answered, 1);
}

#[test]
fn what_comes_right_behind_either_head_is_not_lost() {
    let upstream = Scripted::start(|mut connection| {
        if connection.request_head().is_some() {
            let early = crate::harness::websocket::frame(TEXT, b"early", false);
            connection.send([SWITCHED.as_bytes(), b"\r\n", &early].concat());
            let mut socket = WebSocket::of_server(connection.wire);
            while let Ok((first, payload)) = socket.try_read() {
                socket.send(first, payload);
            }
        }
    });
    let site = through(upstream.address, "").start();
    let mut wire = site.wire();
    let early = crate::harness::websocket::frame(TEXT, b"sent at once", true);
    wire.send([format!("GET /ws/ HTTP/1.1\r\n{HANDSHAKE}").as_bytes(), &early].concat());
    assert_eq!(wire.response_head().unwrap().status, 101);
    let mut socket = WebSocket::of_client(wire);
    assert_eq!(socket.read(), (TEXT, b"early".to_vec()));
    assert_eq!(socket.read(), (TEXT, b"sent at once".to_vec()));
    let request = &upstream.requests()[0];
    assert_eq!(request.header("upgrade"), Some("websocket"));
    assert_eq!(request.header("connection"), Some("upgrade"));
    assert_eq!(request.header("x-forwarded-for"), Some("127.0.0.1"));
}

#[test]
fn another_answer_is_an_ordinary_one_and_the_connection_goes_on() {
    let upstream = Scripted::answering(|request| {
        assert!(!request.target.contains("secret"), "bytes behind a head were taken for a tunnel");
        b"HTTP/1.1 426 Upgrade Required\r\nSec-WebSocket-Version: 13\r\nContent-Length: 3\r\n\r\nno\n"
            .to_vec()
    });
    let site = through(upstream.address, "").start();
    let mut wire = site.wire();
    wire.send(format!("GET /ws/ HTTP/1.1\r\n{HANDSHAKE}"));
    let response = wire.response();
    assert_eq!((response.status, response.text().as_str()), (426, "no\n"));
    assert_eq!(response.header("sec-websocket-version"), Some("13"));
    wire.send("GET /plain HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(wire.response().text(), "plain\n");
    // What follows a handshake that was refused is HTTP, and goes through the routes.
    wire.send(format!("GET /ws/ HTTP/1.1\r\n{HANDSHAKE}GET /plain HTTP/1.1\r\nHost: x\r\n\r\n"));
    assert_eq!((wire.response().status, wire.response().text()), (426, "plain\n".to_owned()));
    assert_eq!(upstream.accepted(), 2, "a connection that was asked to switch is used for nothing else");
}

#[test]
fn a_server_that_switches_to_something_else_is_a_bad_gateway() {
    let answers = [
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: AAAAAAAAAAAAAAAAAAAAAAAAAAA=\r\n\r\n",
    ];
    for answer in answers {
        let upstream = Scripted::start(move |mut connection| {
            if connection.request().is_some() {
                connection.send(answer);
                let _ = connection.wire.fill();
            }
        });
        let site = through(upstream.address, "").start();
        assert_eq!(WebSocket::ask(site.address("http"), "/ws/").1.status, 502, "{answer}");
        // Nor may it switch where it was not asked to.
        let mut wire = site.wire();
        wire.send("GET /ws/ HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(wire.response().status, 502, "{answer}");
        let ledger = site.admin.settled_ledger();
        assert_eq!((ledger.upstream_failed, ledger.accepted), (2, 2));
    }
}

#[test]
fn what_is_no_valid_wish_to_switch_is_an_ordinary_request() {
    let upstream = Scripted::saying("ordinary");
    let site = through(upstream.address, "").start();
    let key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let cases = [
        "GET /ws/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n"
            .to_owned(),
        format!(
            "GET /ws/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{key}Content-Length: 3\r\n\r\nabc"
        ),
        format!(
            "GET /ws/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{key}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        ),
        format!("GET /ws/ HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n{key}\r\n"),
        "GET /ws/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n".to_owned(),
        format!("POST /ws/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{key}\r\n"),
        format!("GET /ws/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n{key}\r\n"),
    ];
    let mut wire = site.wire();
    for case in &cases {
        wire.send(case);
        let response = wire.response();
        assert_eq!((response.status, response.text().as_str()), (200, "ordinary"), "{case}");
    }
    for request in upstream.requests() {
        assert_eq!(request.header("upgrade"), None);
        assert!(request.header("connection").is_none_or(|value| !value.to_lowercase().contains("upgrade")));
        assert_eq!(request.header("http2-settings"), None);
    }
    // HTTP/1.0 has no such thing (RFC 9110 §7.8).
    let mut wire = site.wire();
    wire.send(format!("GET /ws/ HTTP/1.0\r\n{HANDSHAKE}"));
    assert_eq!(wire.response().status, 200);
}

#[test]
fn other_protocols_are_for_routes_that_name_them_and_each_half_ends_by_itself() {
    let upstream = Scripted::start(|mut connection| {
        if connection.request().is_some() {
            connection
                .send("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo/1\r\n\r\n");
            let all = connection.wire.rest();
            connection.send([b"got ", all.as_slice()].concat());
        }
    });
    let site = through(upstream.address, r#"protocols: ["echo/1"]"#).start();
    let mut wire = site.wire();
    let content = pattern(2 << 20);
    wire.send("POST /ws/ HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: Echo/1\r\nContent-Length: 0\r\n\r\n");
    let response = wire.response_head().unwrap();
    assert_eq!((response.status, response.header("upgrade")), (101, Some("Echo/1")));
    wire.send(&content);
    wire.finish();
    assert!(wire.rest() == [b"got ", content.as_slice()].concat());
    let line = logged(&site, 1).remove(0);
    assert_eq!(
        (&line["outcome"], &line["tunnel"]["protocol"]),
        (&"answered".into(), &"echo/1".into()),
        "{line}"
    );
    assert_eq!(WebSocket::ask(site.address("http"), "/ws/").1.status, 502, "the server thinks it is echo/1");
}

#[test]
fn how_a_tunnel_ends_is_in_the_ledger_and_the_log() {
    let upstream = Scripted::start(|connection| {
        let Some((mut socket, request)) = WebSocket::accept(connection.wire) else { return };
        match request.target.as_str() {
            // Goes without a word.
            "/ws/dies" => {}
            "/ws/nonsense" => drop(socket.wire.try_send(b"\xff\xff\xff\xff")),
            _ => while socket.try_read().is_ok() {},
        }
    });
    let site = through(upstream.address, "").start();
    let address = site.address("http");

    drop(WebSocket::open(address, "/ws/client_gone"));
    assert_eq!(logged(&site, 1)[0]["tunnel"]["reason"], "client_gone");

    WebSocket::open(address, "/ws/dies").wire.expect_closed();
    assert_eq!(logged(&site, 2)[1]["tunnel"]["reason"], "upstream_failed");

    let mut socket = WebSocket::open(address, "/ws/nonsense");
    assert_eq!(socket.read_close(), 1002);
    socket.close(1002);
    let line = logged(&site, 3).remove(2);
    assert_eq!(
        (&line["tunnel"]["reason"], &line["outcome"]),
        (&"protocol".into(), &"upstream_failed".into())
    );

    let mut socket = WebSocket::open(address, "/ws/stays");
    // A client's frame without a mask.
    socket.wire.send(b"\x81\x01a");
    assert_eq!(socket.read_close(), 1002);
    drop(socket);
    let line = logged(&site, 4).remove(3);
    assert_eq!((&line["tunnel"]["reason"], &line["outcome"]), (&"protocol".into(), &"rejected".into()));

    let ledger = site.admin.settled_ledger();
    assert_eq!((ledger.client_gone, ledger.upstream_failed, ledger.rejected), (1, 2, 1), "{ledger:?}");
}

#[test]
fn a_silent_client_is_pinged_and_an_idle_tunnel_is_closed() {
    let upstream = echo();
    let site = through(upstream.address, r#"ping: "200ms", idle: "1s""#).start();
    let mut socket = WebSocket::open(site.address("http"), "/ws/");
    let mut pings = 0;
    let code = loop {
        match socket.read() {
            (PING, payload) => {
                pings += 1;
                socket.send(PONG, payload);
            }
            (CLOSE, payload) => break u16::from_be_bytes([payload[0], payload[1]]),
            // The server echoes whatever reaches it.
            other => panic!("{other:?} went on to the server"),
        }
    };
    assert!(pings > 0);
    assert_eq!(code, 1001);
    socket.close(code);
    socket.wire.expect_closed();
    assert_eq!(logged(&site, 1)[0]["tunnel"]["reason"], "idle");
}

#[test]
fn drained_websockets_all_see_1001_and_no_frame_is_cut() {
    // What is pushed as fast as it is read stands in buffers, and has to be read first.
    for (mode, count) in [("hold", 200), ("push", 50)] {
        let upstream = Real::websockets();
        let mut site = through(upstream.address, "").field("drain_timeout: \"30s\"").start();
        let url = format!("ws://{}/ws/{mode}", site.address("http"));
        let mut process = Process::start("a client", &mut client(mode, &url, &[&count.to_string()]));
        process.line("open", |line| (line == "open").then_some(()));
        site.stop();
        let seen = said(&mut process);
        assert_eq!(seen["codes"], serde_json::json!({"1001": count}), "{seen}");
        // On each one message may have been on its way.
        assert!(seen["unanswered"].as_u64() <= Some(count), "{seen}");
        assert_eq!(site.process.wait().code(), Some(0), "{}", site.process.output());
        for line in logged(&site, count as usize) {
            assert_eq!((&line["tunnel"]["reason"], &line["outcome"]), (&"drain".into(), &"answered".into()));
        }
        let closed: Vec<String> = eventually_some("the server has seen them all end", || {
            let lines = upstream.process.stdout();
            let closed: Vec<String> = lines.into_iter().filter(|line| line.starts_with("closed")).collect();
            (closed.len() == count as usize).then_some(closed)
        });
        assert!(closed.iter().all(|line| line == "closed 1001"), "{closed:?}");
    }
}

#[test]
fn reloads_that_do_not_concern_it_and_deaths_of_others_touch_no_tunnel() {
    let upstream = Real::websockets();
    let mut site = through(upstream.address, "on_reload: Close").start();
    let url = format!("ws://{}/ws/hold", site.address("http"));
    let mut process = Process::start("a client", &mut client("hold", &url, &["200"]));
    process.line("open", |line| (line == "open").then_some(()));
    for number in 0..10 {
        let route = format!(r#"(path: "/other{number}", to: Respond("x"))"#);
        site.edit(|site| site.route(route));
        site.reload();
    }
    for path in
        ["listeners/http", "listeners", "upstreams/up/pool", "upstreams", "reload", "metrics", "access-log"]
    {
        site.admin.kill_and_see_it_back(&format!("instance-1/{path}"), "kill");
    }
    let open = "playhouse_tunnels{listener=\"http\",route=\"/ws/\"} 200";
    assert!(metric(&site, open), "{}", site.admin.get("/metrics").text());
    site.edit(|site| site.server("up", "127.0.0.1:9"));
    site.reload();
    let seen = said(&mut process);
    assert_eq!(seen["codes"], serde_json::json!({"1001": 200}), "{seen}");
    for line in logged(&site, 200) {
        assert_eq!(line["tunnel"]["reason"], "reload", "{line}");
    }
    let ledger = site.admin.settled_ledger();
    assert_eq!((ledger.accepted, ledger.answered), (200, 200), "{ledger:?}");
}

#[test]
fn a_killed_connection_takes_its_own_tunnel_alone() {
    let upstream = echo();
    let site = through(upstream.address, "").start();
    let address = site.address("http");
    let mut one = WebSocket::open(address, "/ws/");
    let is_connection =
        |path: &String| path.starts_with("instance-1/connections/shard-") && path.matches('/').count() == 3;
    let path = site.admin.paths().into_iter().find(is_connection).expect("a connection");
    let mut other = WebSocket::open(address, "/ws/");
    for socket in [&mut one, &mut other] {
        socket.send(TEXT, "before");
        assert_eq!(socket.read(), (TEXT, b"before".to_vec()));
    }
    site.admin.kill(&path, "kill");
    one.wire.expect_closed();
    other.send(TEXT, "after");
    assert_eq!(other.read(), (TEXT, b"after".to_vec()));
    assert_eq!(logged(&site, 1)[0]["outcome"], "killed");
}

#[test]
fn tunnels_are_connections_and_count_as_such() {
    let upstream = echo();
    let site = through(upstream.address, "")
        .listener("http", r#"(bind: "127.0.0.1:0", limits: (connections_per_address: 2))"#)
        .start();
    let address = site.address("http");
    let mut first = WebSocket::open(address, "/ws/");
    let _second = WebSocket::open(address, "/ws/");
    Wire::connect(address).expect_closed();
    first.close(1000);
    assert_eq!(first.read_close(), 1000);
    drop(first);
    eventually("the place is free again", || {
        let mut wire = Wire::connect(address);
        wire.try_send("GET /plain HTTP/1.1\r\nHost: x\r\n\r\n").is_ok() && wire.try_response(false).is_ok()
    });
}

#[test]
fn websockets_go_over_http2_too() {
    let upstream = Real::websockets();
    let site = through(upstream.address, "").start();
    let mut command = python("websocket_h2_client.py");
    command.args([&site.address("http").to_string(), "/ws/echo"]);
    let seen = said(&mut Process::start("an HTTP/2 client", &mut command));
    assert_eq!(seen["enabled"], 1);
    assert_eq!(seen["statuses"], serde_json::json!(["200", "200", "200"]));
    assert_eq!((&seen["subprotocol"], &seen["accept"]), (&"chat".into(), &Value::Null));
    assert_eq!((&seen["close"], &seen["plain"]), (&1000.into(), &"200".into()));
    assert_eq!((&seen["unknown"], &seen["elsewhere"]), (&"501".into(), &"501".into()));
    let reasons: Vec<_> = logged(&site, 3).iter().map(|line| line["tunnel"]["reason"].clone()).collect();
    for reason in ["client", "client_gone"] {
        assert!(reasons.contains(&reason.into()), "{reasons:?}");
    }
    assert!(!reasons.contains(&"killed".into()), "{reasons:?}");
    let ledger = site.admin.settled_ledger();
    assert_eq!((ledger.client_gone, ledger.rejected), (2, 2), "{ledger:?}");
}

#[test]
fn a_client_that_drops_the_connection_behind_its_close_has_closed_in_order() {
    let upstream = Real::websockets();
    let site = through(upstream.address, "").start();
    for (closes, outcome, reason) in [(true, "answered", "client"), (false, "client_gone", "client_gone")] {
        tokio::runtime::Runtime::new().expect("a runtime").block_on(talk_over_http2(&site, closes));
        let line =
            eventually_some("it is in the log", || logged(&site, 1).into_iter().nth(usize::from(!closes)));
        assert_eq!(
            (&line["outcome"], &line["tunnel"]["reason"]),
            (&outcome.into(), &reason.into()),
            "{line}"
        );
    }
    let ledger = site.admin.settled_ledger();
    assert_eq!((ledger.answered, ledger.client_gone), (1, 1), "{ledger:?}");
}

/// One message over a WebSocket, the closing handshake where it is to be, and nothing behind that: the stream is not ended, and
/// the connection is dropped with the runtime.
async fn talk_over_http2(site: &Running, closes: bool) {
    let socket = tokio::net::TcpStream::connect(site.address("http")).await.expect("a connection");
    let (mut send, mut connection) = h2::client::handshake(socket).await.expect("a preface");
    let mut ping = connection.ping_pong().expect("not taken yet");
    tokio::spawn(connection);
    // Behind the server's SETTINGS, which allow an extended CONNECT.
    ping.ping(h2::Ping::opaque()).await.expect("a PING is answered");
    let request = http::Request::connect("http://site.test/ws/echo")
        .header("sec-websocket-version", "13")
        .extension(h2::ext::Protocol::from_static("websocket"));
    let request = request.body(()).expect("a request");
    let (response, mut to) = send.send_request(request, false).expect("a stream");
    let mut from = response.await.expect("an answer").into_body();
    let close = closes.then_some((CLOSE, 1000u16.to_be_bytes().to_vec()));
    for (first, payload) in [(TEXT, b"hello".to_vec())].into_iter().chain(close) {
        let frame = crate::harness::websocket::frame(first, &payload, true);
        to.send_data(frame.into(), false).expect("the stream is open");
        let expected = crate::harness::websocket::frame(first, &payload, false);
        let mut got = Vec::new();
        while got.len() < expected.len() {
            got.extend_from_slice(&from.data().await.expect("more").expect("data"));
        }
        assert_eq!(got, expected);
    }
}

#[test]
fn a_drained_stream_sees_1001_and_the_connection_ends_behind_it() {
    let upstream = Real::websockets();
    let mut site = through(upstream.address, "").start();
    let mut command = javascript("websocket_h2_client.js");
    command.args([&site.address("http").to_string(), "/ws/echo"]);
    let mut process = Process::start("an HTTP/2 client", &mut command);
    process.line("open", |line| (line == "open").then_some(()));
    site.stop();
    let seen = said(&mut process);
    assert_eq!(seen, serde_json::json!({"code": 1001, "reset": 0}));
    assert_eq!(site.process.wait().code(), Some(0));
    let line = logged(&site, 1).remove(0);
    assert_eq!(
        (&line["tunnel"]["reason"], &line["outcome"]),
        (&"drain".into(), &"answered".into()),
        "{line}"
    );
    assert_eq!((&line["method"], &line["status"]), (&"GET".into(), &200.into()), "{line}");
}
