//! What an application does on a good day.

use serde_json::Value;

use super::{KEEPING, fpm, root, site};
use crate::harness::{Fpm, Running, Site, curl, eventually, pattern};

fn told(site: &Running, target: &str) -> Value {
    let text = curl([site.url("http", target)]).expect(200).text();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn scripts_path_info_directories_files_and_the_front_controller_are_found() {
    let fpm = fpm();
    for server in [fpm.unix(), fpm.tcp()] {
        let site = site(&server, "");
        let front = told(&site, "/some/page?a=b");
        assert_eq!(front["SCRIPT_NAME"], "/index.php");
        assert_eq!(front["SCRIPT_FILENAME"], format!("{}/index.php", root()));
        assert_eq!(front["REQUEST_URI"], "/some/page?a=b");
        assert_eq!(front["DOCUMENT_ROOT"], root());
        assert_eq!((&front["REMOTE_ADDR"], &front["QUERY_STRING"]), (&"127.0.0.1".into(), &"a=b".into()));
        assert_eq!(front["SERVER_PORT"], site.address("http").port().to_string());
        let info = told(&site, "/index.php/in/fo");
        assert_eq!((&info["PATH_INFO"], &info["PHP_SELF"]), (&"/in/fo".into(), &"/index.php/in/fo".into()));
        assert_eq!(curl([site.url("http", "/sub/")]).expect(200).text(), "sub /sub/index.php -\n");
        assert_eq!(curl([site.url("http", "/sub")]).expect(301).header("location"), "/sub/");
        // No file becomes a script, whatever PHP itself would make of the path.
        assert_eq!(told(&site, "/assets/style.css/x.php")["SCRIPT_NAME"], "/index.php");
    }
}

#[test]
fn a_site_under_a_path_has_its_names_from_there() {
    let fpm = fpm();
    let site = Site::new()
        .server("php", fpm.unix())
        .route(format!(
            "(path: \"/app/\", to: FastCgi(upstream: \"php\", root: \"{}\", params: {{\"APP_ENV\": \"test\"}}))",
            root()
        ))
        .start();
    let front = told(&site, "/app/x");
    assert_eq!(front["SCRIPT_NAME"], "/app/index.php");
    assert_eq!(front["SCRIPT_FILENAME"], format!("{}/index.php", root()));
    assert_eq!(front["APP_ENV"], "test");
    assert_eq!(curl([site.url("http", "/app/sub/")]).expect(200).text(), "sub /app/sub/index.php -\n");
    curl([site.url("http", "/other")]).expect(404);
}

#[test]
fn files_of_the_root_are_served_and_sources_never() {
    let fpm = fpm();
    let site = site(&fpm.unix(), "");
    let url = site.url("http", "/assets/style.css");
    let file = curl([&url]).expect(200);
    assert_eq!(
        (file.text().as_str(), file.header("content-type")),
        ("body { color: teal }\n", "text/css; charset=utf-8")
    );
    assert_eq!(curl(["-I", &url]).expect(200).header("content-length"), "21");
    assert_eq!(curl(["-r", "0-3", &url]).expect(206).text(), "body");
    curl(["-H", &format!("If-None-Match: {}", file.header("etag")), &url]).expect(304);
    for path in
        ["/form.php", "/form.PHP", "/form.php~", "/FORM.php", "/.form.php", "/form.php%20", "/form.php."]
    {
        let answer = curl([site.url("http", path)]);
        assert!(!answer.text().contains("<?php"), "{path}: {answer:?}");
    }
}

#[test]
fn forms_uploads_and_sessions_work() {
    let fpm = fpm();
    for more in ["", KEEPING] {
        let site = site(&fpm.tcp(), more);
        let form = site.url("http", "/form.php");
        assert_eq!(curl(["-d", "a=1&b=%C3%A4", &form]).expect(200).text(), "a=1\nb=ä\n");
        site.write("large.bin", pattern(10 << 20));
        let upload = format!("file=@{};filename=x.bin", site.path("large.bin").display());
        for version in ["--http1.1", "--http2-prior-knowledge"] {
            let answer = curl([version, "-F", &upload, "-F", "note=hi", &form]).expect(200).text();
            let output = std::process::Command::new("md5sum").arg(site.path("large.bin")).output().unwrap();
            let sum = String::from_utf8(output.stdout).unwrap();
            let sum = sum.split(' ').next().unwrap();
            assert_eq!(answer, format!("file x.bin {} {sum}\nnote=hi\n", 10 << 20));
        }
        let jar = site.path("jar").display().to_string();
        for count in 1..=4 {
            let answer = curl(["-b", &jar, "-c", &jar, &site.url("http", "/session.php")]).expect(200);
            assert_eq!(answer.text(), count.to_string());
        }
        assert_eq!(site.admin.settled_ledger().upstream_failed, 0);
    }
}

#[test]
fn content_without_a_length_is_held_for_it() {
    let fpm = fpm();
    let site = Site::new()
        .server("php", fpm.unix())
        .route(format!(
            "(path: \"/\", to: FastCgi(upstream: \"php\", root: \"{}\", buffer: \"64KiB\"))",
            root()
        ))
        .start();
    let url = site.url("http", "/form.php");
    let chunked = ["-H", "Transfer-Encoding: chunked", "-d", "a=chunked", &url];
    assert_eq!(curl(chunked).expect(200).text(), "a=chunked\n");
    site.write("large", pattern(70_000));
    let large = format!("@{}", site.path("large").display());
    let answer = curl(["-H", "Transfer-Encoding: chunked", "--data-binary", &large, &url]);
    assert_eq!(answer.status, 411, "{answer:?}");
}

#[test]
fn an_answer_is_passed_on_as_it_comes() {
    let fpm = fpm();
    let site = site(&fpm.unix(), "");
    let go = site.path("go");
    let mut wire = site.wire();
    wire.send(format!("GET /wait.php?for={} HTTP/1.1\r\nHost: x\r\n\r\n", go.display()));
    let mut response = wire.response_head().unwrap();
    assert_eq!(wire.chunk().unwrap(), b"begun\n", "before the script has ended");
    std::fs::write(&go, "").unwrap();
    wire.body_of(&mut response).unwrap();
    assert_eq!(response.body, b"done\n");

    let expected = |length: usize| -> Vec<u8> { (0..=255u8).cycle().take(length).collect() };
    let bytes = 20_000_000;
    for target in [format!("/download.php?bytes={bytes}"), format!("/download.php?length&bytes={bytes}")] {
        for version in ["--http1.1", "--http2-prior-knowledge"] {
            let answer = curl([version, "--limit-rate", "80M", &site.url("http", &target)]).expect(200);
            assert!(answer.body == expected(bytes), "{} bytes", answer.body.len());
        }
    }
    let before = site.process.resident();
    let mut stalled = site.wire();
    stalled.send("GET /download.php?bytes=200000000 HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(stalled.response_head().unwrap().status, 200);
    curl([site.url("http", "/session.php")]).expect(200);
    assert!(site.process.resident() < before + (30 << 20), "what the client does not read is not read");
}

#[test]
fn statuses_redirects_and_head_are_what_the_script_says() {
    let fpm = fpm();
    for more in ["", KEEPING] {
        let site = site(&fpm.unix(), more);
        let url = |target: &str| site.url("http", target);
        assert_eq!(curl([url("/status.php?status=404")]).expect(404).text(), "content");
        assert_eq!(curl([url("/status.php?status=500")]).expect(500).text(), "content");
        curl([url("/status.php?status=204")]).expect(204);
        assert_eq!(curl([url("/status.php?status=304")]).expect(304).header("etag"), "\"x\"");
        assert_eq!(curl([url("/status.php?location=/x")]).expect(302).header("location"), "/x");
        let head = curl(["-I", &url("/status.php?status=200")]).expect(200);
        assert_eq!(head.header("etag"), "\"x\"");
        // The connections are good for the next one.
        let mut wire = site.wire();
        for _ in 0..10 {
            wire.send("HEAD /status.php?status=200 HTTP/1.1\r\nHost: x\r\n\r\n");
            assert_eq!(wire.response_to_head().status, 200);
            wire.send("GET /session.php HTTP/1.1\r\nHost: x\r\n\r\n");
            assert_eq!(wire.response().text(), "1");
        }
        // PHP's own errors are answers, not failures of the upstream.
        assert_eq!(site.admin.settled_ledger().upstream_failed, 0);
        assert!(site.admin.metric("playhouse_upstream_responses_total", &["status=\"4xx\""]) >= 1.0);
    }
}

#[test]
fn what_a_script_logs_is_in_the_log_with_its_route() {
    let fpm = fpm();
    let mut site = site(&fpm.unix(), "");
    let text = "%0A%1b%5B31mforged";
    assert_eq!(curl([site.url("http", &format!("/log.php?what={text}"))]).expect(200).text(), "said");
    let line = site
        .process
        .line("the script's words", |line| line.contains("something odd").then(|| line.to_owned()));
    assert!(
        line.contains("forged") && line.contains("\"route\":\"/\"") && !line.contains('\u{1b}'),
        "{line}"
    );
}

#[test]
fn its_health_is_checked_by_its_ping() {
    let mut fpm = Fpm::start(2, "");
    let more = "health: (path: \"/ping\", interval: \"50ms\", unhealthy_after: 1)";
    let site = site(&fpm.tcp(), more);
    let healthy = || site.admin.metric("playhouse_upstream_healthy", &["upstream=\"php\""]);
    assert_eq!(healthy(), 1.0);
    fpm.kill();
    eventually("it is found out", || healthy() == 0.0);
    fpm.start_again();
    eventually("it is healthy again", || healthy() == 1.0);
    curl([site.url("http", "/session.php")]).expect(200);
}
