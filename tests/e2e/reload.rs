//! A reload changes what has changed, and nothing else.

use std::sync::Mutex;
use std::sync::mpsc;

use rustix::process::Signal;

use crate::harness::{PATIENCE, Scripted, Site, Wire, curl, eventually, pattern};

fn saying(text: &str) -> String {
    format!(r#"(path: "/", to: Respond(status: 200, body: "{text}"))"#)
}

#[test]
fn a_changed_route_takes_effect() {
    let mut site = Site::new().route(saying("before")).start();
    let mut kept = site.wire();
    let ask = |wire: &mut Wire| {
        wire.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        wire.response().text()
    };
    assert_eq!(ask(&mut kept), "before");
    let address = site.address("http");
    site.edit(|site| site.without_routes().route(saying("after"))).reload();
    assert_eq!(curl([&site.url("http", "/")]).expect(200).text(), "after");
    assert_eq!(ask(&mut kept), "after", "an open connection lives on, and sees the new routes");
    assert_eq!(site.address("http"), address, "an unchanged listener keeps its socket");
    // HUP does the same.
    site.edit(|site| site.without_routes().route(saying("at last")));
    site.process.signal(Signal::HUP);
    eventually("HUP reloads", || curl([&site.url("http", "/")]).text() == "at last");
}

#[test]
fn a_download_lives_through_reloads_that_do_not_concern_it() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let content = pattern(1 << 20);
    let sent = content.clone();
    let upstream = Scripted::start(move |mut connection| {
        if connection.request().is_none() {
            return;
        }
        connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", sent.len()));
        for piece in sent.chunks(sent.len() / 8) {
            connection.send(piece);
            wait.lock().unwrap().recv_timeout(PATIENCE).expect("the test goes on");
        }
    });
    let mut site = Site::new()
        .listener("http", r#"(bind: "127.0.0.1:0")"#)
        .server("up", upstream.address)
        .route(r#"(path: "/download", to: Proxy("up"))"#)
        .route(saying("0"))
        .start();
    let mut wire = site.wire();
    wire.send("GET /download HTTP/1.1\r\nHost: x\r\n\r\n");
    let mut response = wire.response_head().unwrap();
    for round in 1..=8 {
        let say = saying(&round.to_string());
        site.edit(|site| {
            site.without_routes()
                .route(r#"(path: "/download", to: Proxy("up"))"#)
                .route(say)
                .listener(&format!("extra{round}"), r#"(bind: "127.0.0.1:0")"#)
                .upstream(&format!("other{round}"), r#"(servers: ["127.0.0.1:9"])"#)
        })
        .reload();
        assert_eq!(curl([&site.url(&format!("extra{round}"), "/")]).expect(200).text(), round.to_string());
        go.send(()).unwrap();
    }
    wire.body_of(&mut response).unwrap();
    assert!(response.body == content);
    assert_eq!(upstream.requests().len(), 1);
}

#[test]
fn a_new_listener_serves_and_a_removed_one_drains() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let upstream = Scripted::start(move |mut connection| {
        if connection.request().is_some() {
            wait.lock().unwrap().recv_timeout(PATIENCE).expect("the test goes on");
            connection.send(crate::harness::ok("finished"));
        }
    });
    let mut site = Site::new()
        .listener("http", r#"(bind: "127.0.0.1:0")"#)
        .listener("old", r#"(bind: "127.0.0.1:0")"#)
        .server("up", upstream.address)
        .route(saying("hello"))
        .route(r#"(path: "/slow", to: Proxy("up"))"#)
        .start();
    let old = site.address("old");
    let mut idle = Wire::connect(old);
    idle.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(idle.response().text(), "hello");
    let mut busy = Wire::connect(old);
    busy.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
    eventually("the slow request is under way", || upstream.requests().len() == 1);

    site.edit(|site| site.without_listener("old").listener("new", r#"(bind: "127.0.0.1:0")"#)).reload();
    assert_eq!(curl([&site.url("new", "/")]).expect(200).text(), "hello");
    eventually("the removed listener refuses", || Wire::try_connect(old).is_err());
    idle.expect_closed();
    go.send(()).unwrap();
    let response = busy.response();
    assert_eq!((response.text().as_str(), response.header("connection")), ("finished", Some("close")));
    busy.expect_closed();
    assert_eq!(site.admin.listener("old"), None);
    let ledger = site.admin.settled_ledger();
    assert_eq!((ledger.killed, ledger.client_gone), (0, 0), "{ledger:?}");
}

#[test]
fn a_bad_file_changes_nothing_and_is_told_of_with_its_place() {
    let mut site = Site::new().route(saying("before")).start();
    site.edit(|site| {
        site.without_routes()
            .route(saying("after"))
            .route(r#"(path: "/api/", to: Proxy("apii"))"#)
            .server("api", "127.0.0.1:9")
    });
    let output = site.playhouse(&["reload"]);
    assert_eq!(output.status.code(), Some(1));
    let complaint =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(complaint.contains("site.ron:"), "{complaint}");
    assert!(complaint.contains("apii") && complaint.contains("did you mean \"api\"?"), "{complaint}");
    assert_eq!(curl([&site.url("http", "/")]).expect(200).text(), "before");

    let text = std::fs::read_to_string(site.path("site.ron")).unwrap();
    site.write("site.ron", text.replace("routes: [", "routes: [[["));
    let output = site.playhouse(&["reload"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(curl([&site.url("http", "/")]).expect(200).text(), "before");
    site.process.signal(Signal::HUP);
    eventually("an event tells of it", || site.admin.events().contains("site.ron"));
    assert_eq!(curl([&site.url("http", "/")]).expect(200).text(), "before");
}

#[test]
fn a_reload_that_cannot_bind_changes_nothing() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut site = Site::new().listener("http", r#"(bind: "127.0.0.1:0")"#).route(saying("before")).start();
    let bind = format!("(bind: \"{}\")", taken.local_addr().unwrap());
    site.edit(|site| site.without_routes().route(saying("after")).listener("taken", bind));
    let output = site.playhouse(&["reload"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(curl([&site.url("http", "/")]).expect(200).text(), "before");
    assert_eq!(site.admin.listener("taken"), None);
}

#[test]
fn a_changed_upstream_is_used_and_its_old_connections_finish() {
    let (one, two) = (Scripted::saying("one"), Scripted::saying("two"));
    let mut site = Site::new().server("up", one.address).route(r#"(path: "/", to: Proxy("up"))"#).start();
    assert_eq!(curl([&site.url("http", "/")]).expect(200).text(), "one");
    let address = two.address;
    site.edit(|site| site.server("up", address)).reload();
    for _ in 0..10 {
        assert_eq!(curl([&site.url("http", "/")]).expect(200).text(), "two");
    }
    let ledger = site.admin.settled_ledger();
    assert_eq!((ledger.answered, ledger.accepted), (11, 11), "counters outlive a reload: {ledger:?}");
}

#[test]
fn reloads_under_load_lose_nothing() {
    let mut site = Site::new()
        .listener("http", r#"(bind: "127.0.0.1:0")"#)
        .file("public/hello.txt", "hello\n")
        .route(r#"(path: "/", to: Static(root: "public"))"#)
        .start();
    let load = crate::harness::Wrk::start(&site.url("http", "/hello.txt"), 16, 4);
    let mut load = load;
    let mut rounds = 0;
    while load.running() {
        rounds += 1;
        site.edit(|site| site.route(format!(r#"(path: "/{rounds}", to: Respond(status: 200, body: "x"))"#)))
            .reload();
    }
    let counted = load.finish();
    assert_eq!(counted.failures(), 0, "{counted:?} over {rounds} reloads");
    let ledger = site.admin.settled_ledger();
    assert_eq!((ledger.killed, ledger.upstream_failed, ledger.rejected), (0, 0, 0), "{ledger:?}");
}
