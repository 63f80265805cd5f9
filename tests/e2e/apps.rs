//! Upstream servers that people run, through Playhouse.

use std::process::Command;

use serde_json::Value;

use crate::harness::{Answer, Real, Running, Site, curl, eventually, eventually_some, pattern, tool};

const VERSIONS: [&str; 2] = ["--http1.1", "--http2-prior-knowledge"];

fn through(upstream: &Real) -> Running {
    Site::new().server("up", upstream.address).route(r#"(path: "/", to: Proxy("up"))"#).start()
}

fn json(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
}

fn sha256(path: &std::path::Path) -> String {
    let output = Command::new(tool("sha256sum", "coreutils")).arg(path).output().unwrap();
    String::from_utf8_lossy(&output.stdout).split(' ').next().unwrap_or_default().to_owned()
}

#[test]
fn nginx_behind_playhouse_is_nginx() {
    let nginx = Real::nginx();
    let content = pattern(5 << 20);
    std::fs::write(nginx.folder.path().join("big.bin"), &content).unwrap();
    std::fs::write(nginx.folder.path().join("page.html"), "<h1>page</h1>\n").unwrap();
    let site = through(&nginx);
    for option in VERSIONS {
        let page = curl([option, &site.url("http", "/page.html")]).expect(200);
        assert_eq!(page.text(), "<h1>page</h1>\n");
        assert_eq!(page.header("content-type"), "text/html");
        let etag = page.header("etag").to_owned();
        curl([option, "-H", &format!("If-None-Match: {etag}"), &site.url("http", "/page.html")]).expect(304);
        assert!(curl([option, &site.url("http", "/big.bin")]).expect(200).body == content);
        let part = curl([option, "-r", "1000000-1999999", &site.url("http", "/big.bin")]).expect(206);
        assert!(part.body == content[1_000_000..2_000_000]);
        curl([option, &site.url("http", "/missing")]).expect(404);
        curl([option, &site.url("http", "/forbidden")]).expect(403);
        curl([option, &site.url("http", "/empty")]).expect(204);
        assert!(
            curl([option, &site.url("http", "/moved")])
                .expect(302)
                .header("location")
                .ends_with("/elsewhere")
        );
    }
    let ledger = site.admin.settled_ledger();
    assert_eq!(ledger.answered, ledger.accepted, "{ledger:?}");
}

#[test]
fn nginx_on_a_unix_socket_is_an_upstream_too() {
    let nginx = Real::nginx();
    std::fs::write(nginx.folder.path().join("page.html"), "<h1>page</h1>\n").unwrap();
    let socket = nginx.folder.path().join("nginx.sock");
    let site = Site::new()
        .server("up", format!("unix:{}", socket.display()))
        .route(r#"(path: "/", to: Proxy("up"))"#)
        .start();
    for option in VERSIONS {
        assert_eq!(curl([option, &site.url("http", "/page.html")]).expect(200).text(), "<h1>page</h1>\n");
    }
}

#[test]
fn node_streams_in_both_directions() {
    let node = Real::node();
    let site = through(&node).writing("upload", pattern(8 << 20));
    let upload = site.path("upload");
    let data = format!("@{}", upload.display());
    let lines: String = (0..100).map(|number| format!("line {number}\n")).collect();
    for option in VERSIONS {
        assert_eq!(curl([option, &site.url("http", "/hello")]).expect(200).text(), "hello from node\n");
        assert_eq!(curl([option, &site.url("http", "/chunks")]).expect(200).text(), lines);
        let echo = json(&curl([option, "--data-binary", &data, &site.url("http", "/echo?a=b")]).expect(200));
        assert_eq!(
            (&echo["method"], &echo["url"], &echo["length"]),
            (&"POST".into(), &"/echo?a=b".into(), &(8 << 20).into())
        );
        assert_eq!(echo["sha256"], sha256(&upload));
        let mirrored = curl([option, "-T", &data[1..], &site.url("http", "/mirror")]).expect(200);
        assert!(mirrored.body == pattern(8 << 20), "{option}: {} bytes", mirrored.body.len());
        assert_eq!(
            curl([option, &site.url("http", "/no-length")]).expect(200).text(),
            "until the end of the connection"
        );
        let broken = curl([option, &site.url("http", "/broken")]);
        assert!(broken.exit != 0 || broken.status == 502, "{broken:?}");
    }
}

#[test]
fn nodes_trailers_and_early_hints_arrive() {
    let node = Real::node();
    let site = through(&node);
    let mut wire = site.wire();
    wire.send("GET /trailers HTTP/1.1\r\nHost: x\r\nTE: trailers\r\n\r\n");
    let response = wire.response();
    assert_eq!(response.text(), "with trailers\n");
    assert_eq!(response.trailers.len(), 1, "{response:?}");
    assert_eq!(response.trailers[0].1, "abc123");
    wire.send("GET /hints HTTP/1.1\r\nHost: x\r\n\r\n");
    let response = wire.response();
    assert_eq!((response.text().as_str(), response.interim[0].0), ("after hints\n", 103));
    let over_h2 = curl(["--http2-prior-knowledge", &site.url("http", "/trailers")]).expect(200);
    assert!(over_h2.heads.to_lowercase().contains("x-checksum: abc123"), "{}", over_h2.heads);
}

#[test]
fn node_decides_about_100_continue() {
    let node = Real::node();
    let site = through(&node).writing("upload", pattern(16 << 20));
    let upload = site.path("upload");
    for option in VERSIONS {
        let taken = curl([
            option,
            "-H",
            "Expect: 100-continue",
            "-T",
            upload.to_str().unwrap(),
            &site.url("http", "/echo"),
        ]);
        assert_eq!(json(&taken.expect(200))["sha256"], sha256(&upload));
        let refused = curl([
            option,
            "-H",
            "Expect: 100-continue",
            "-T",
            upload.to_str().unwrap(),
            &site.url("http", "/refuse"),
        ]);
        // curl 7.88 loses an answer over HTTP/2 that comes before it has sent everything, and sees only the reset.
        let lost = refused.exit == 92 && option != "--http1.1";
        assert!(lost || (refused.status, refused.text().as_str()) == (403, "refused\n"), "{refused:?}");
    }
}

#[test]
fn node_sees_that_an_event_streams_client_has_gone() {
    let node = Real::node();
    let site = through(&node);
    for option in VERSIONS {
        let answer = curl([option, "-N", "--max-time", "1", &site.url("http", "/events")]);
        assert_eq!((answer.exit, answer.text().as_str()), (28, "data: first\n\n"), "{answer:?}");
    }
    eventually("node has seen both go", || curl([&site.url("http", "/cancelled")]).expect(200).text() == "2");
}

#[test]
fn uvicorn_serves_its_app() {
    let uvicorn = Real::uvicorn();
    let site = through(&uvicorn).writing("upload", pattern(4 << 20));
    let upload = site.path("upload");
    let numbers: String = (0..1000).map(|number| format!("{number}\n")).collect();
    for option in VERSIONS {
        assert_eq!(curl([option, &site.url("http", "/hello")]).expect(200).text(), "hello from uvicorn\n");
        assert_eq!(curl([option, &site.url("http", "/numbers")]).expect(200).text(), numbers);
        let echo = curl([
            option,
            "-H",
            "Host: shop.test",
            "-T",
            upload.to_str().unwrap(),
            &site.url("http", "/echo?x=%20y"),
        ]);
        let echo = json(&echo.expect(200));
        assert_eq!((&echo["method"], &echo["query"]), (&"PUT".into(), &"x=%20y".into()));
        assert_eq!(echo["sha256"], sha256(&upload));
        assert_eq!(echo["headers"]["host"], "shop.test");
        assert_eq!(echo["headers"]["x-forwarded-for"], "127.0.0.1");
        curl([option, &site.url("http", "/fails")]).expect(500);
        curl([option, &site.url("http", "/unknown")]).expect(404);
    }
}

#[test]
fn django_under_gunicorn_serves_forms_sessions_and_uploads() {
    let django = Real::django();
    let site = through(&django).writing("upload", pattern(4 << 20));
    let upload = site.path("upload");
    for option in VERSIONS {
        assert_eq!(curl([option, &site.url("http", "/hello/")]).expect(200).text(), "hello from django\n");
        // Without its final slash Django redirects.
        let redirect = curl([option, "-H", "Host: shop.test", &site.url("http", "/hello")]).expect(301);
        assert!(redirect.header("location").ends_with("/hello/"), "{redirect:?}");

        let jar = site.path("cookies");
        let jar = jar.to_str().unwrap();
        let _ = std::fs::remove_file(jar);
        let form = curl([option, "-b", jar, "-c", jar, &site.url("http", "/form/")]).expect(200).text();
        let token = form.split("value=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a token");
        let fields = format!("csrfmiddlewaretoken={token}&name=Ada%20%26%20Bob");
        let posted = curl([option, "-b", jar, "-c", jar, "--data", &fields, &site.url("http", "/form/")]);
        assert_eq!(posted.expect(302).header("location"), "/greeting/");
        let greeting = curl([option, "-b", jar, &site.url("http", "/greeting/")]).expect(200);
        assert_eq!(greeting.text(), "hello, Ada & Bob\n");
        curl([option, "--data", "name=x", &site.url("http", "/form/")]).expect(403);

        let file = format!("file=@{}", upload.display());
        let sent =
            curl([option, "-F", &file, "-F", "comment=by hand", &site.url("http", "/upload/")]).expect(200);
        let sent = json(&sent);
        assert_eq!((&sent["length"], &sent["comment"]), (&(4 << 20).into(), &"by hand".into()));
        assert_eq!(sent["sha256"], sha256(&upload));

        let told = json(&curl([option, "-H", "Host: shop.test", &site.url("http", "/where/")]).expect(200));
        assert_eq!(told["uri"], "http://shop.test/where/");
        assert_eq!((&told["secure"], &told["for"]), (&false.into(), &"127.0.0.1".into()));
        assert_eq!(curl([option, &site.url("http", "/stream/")]).expect(200).text().lines().count(), 1000);
        curl([option, &site.url("http", "/fails/")]).expect(500);
    }
}

#[test]
fn an_upstream_that_dies_is_502_until_it_is_back() {
    let mut node = Real::node();
    let site = through(&node);
    curl([&site.url("http", "/hello")]).expect(200);
    node.kill();
    curl([&site.url("http", "/hello")]).expect(502);
    node.start_again();
    eventually_some("it is used again", || {
        let answer = curl([&site.url("http", "/hello")]);
        (answer.status == 200).then_some(())
    });
    let ledger = site.admin.settled_ledger();
    assert!(ledger.upstream_failed >= 1 && ledger.killed == 0, "{ledger:?}");
}
