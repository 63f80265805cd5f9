//! Static files, as curl gets them.

use std::os::unix::fs::symlink;

use crate::harness::{Running, Site, curl, pattern};

const HELLO: &str = "hello, world\n";

fn site() -> Running {
    Site::new()
        .file("public/hello.txt", HELLO)
        .file("public/index.html", "<h1>home</h1>\n")
        .file("public/sub/index.html", "<h1>sub</h1>\n")
        .file("public/with space.txt", "space\n")
        .file("public/style.css", "plain css\n")
        .file("public/style.css.gz", "pretend gzip\n")
        .file("public/style.css.br", "pretend br\n")
        .file("public/empty", "")
        .file("secret.txt", "secret\n")
        .route(r#"(path: "/", to: Static(root: "public", precompressed: [Br, Gzip]))"#)
        .start()
}

#[test]
fn curl_gets_a_file_over_each_version_of_http() {
    let site = site();
    for (option, version) in [("--http1.0", "1.1"), ("--http1.1", "1.1"), ("--http2-prior-knowledge", "2")] {
        let answer = curl([option, &site.url("http", "/hello.txt")]).expect(200);
        assert_eq!(answer.text(), HELLO, "{option}");
        assert_eq!(answer.version, version, "{option}");
        assert_eq!(answer.header("content-type").split(';').next(), Some("text/plain"));
        assert_eq!(answer.header("content-length"), "13");
    }
}

#[test]
fn a_connection_is_kept_and_used_again() {
    let site = site();
    let url = site.url("http", "/hello.txt");
    let last = curl(["-o", "/dev/null", &url, &url]).expect(200);
    assert_eq!(last.connects, 0, "the second request opens no connection: {last:?}");
    let mut wire = site.wire();
    for _ in 0..100 {
        wire.send("GET /hello.txt HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(wire.response().text(), HELLO);
    }
    assert_eq!(site.admin.settled_ledger().answered, 102);
}

#[test]
fn pipelined_requests_are_answered_in_their_order() {
    let site = site();
    let mut wire = site.wire();
    wire.send("GET /hello.txt HTTP/1.1\r\nHost: x\r\n\r\nGET /empty HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(wire.response().text(), HELLO);
    assert_eq!(wire.response().text(), "");
    assert_eq!(wire.response().text(), "<h1>home</h1>\n");
}

#[test]
fn head_says_what_get_would_send() {
    let site = site();
    for option in ["--http1.1", "--http2-prior-knowledge"] {
        let got = curl([option, &site.url("http", "/hello.txt")]).expect(200);
        let head = curl([option, "-I", &site.url("http", "/hello.txt")]).expect(200);
        for name in ["content-length", "content-type", "etag", "last-modified", "accept-ranges"] {
            assert_eq!(head.header(name), got.header(name), "{name}");
        }
    }
    let mut wire = site.wire();
    wire.send("HEAD /hello.txt HTTP/1.1\r\nHost: x\r\n\r\nGET /hello.txt HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(wire.response_to_head().header("content-length"), Some("13"));
    assert_eq!(wire.response().text(), HELLO);
}

#[test]
fn a_single_range_is_served_and_a_hopeless_one_refused() {
    let site = site();
    let url = site.url("http", "/hello.txt");
    let part = |range: &str| curl(["-H", &format!("Range: {range}"), &url]);
    let middle = part("bytes=7-11").expect(206);
    assert_eq!(middle.text(), "world");
    assert_eq!(middle.header("content-range"), "bytes 7-11/13");
    assert_eq!(part("bytes=-6").expect(206).text(), "world\n");
    assert_eq!(part("bytes=7-").expect(206).text(), "world\n");
    assert_eq!(part("bytes=0-99999").expect(206).text(), HELLO);
    let beyond = part("bytes=13-").expect(416);
    assert_eq!(beyond.header("content-range"), "bytes */13");
    // Not a range of bytes, or not a valid one: as if it were not there (RFC 9110 §14.2).
    for ignored in ["lines=1-2", "bytes=5-2", "bytes=a-b", "bytes=99999999999999999999-"] {
        let answer = part(ignored);
        assert!(matches!(answer.status, 200 | 416), "{ignored}: {answer:?}");
    }
    let many = format!("bytes={}", vec!["0-0"; 1000].join(","));
    let answer = part(&many);
    assert!(answer.body.len() <= HELLO.len(), "ranges do not multiply a file: {} bytes", answer.body.len());
}

#[test]
fn conditional_requests_are_answered_by_etag_and_date() {
    let site = site();
    let url = site.url("http", "/hello.txt");
    let first = curl([&url]).expect(200);
    let (etag, modified) = (first.header("etag"), first.header("last-modified"));
    let with = |fields: &[&str]| {
        let mut arguments = vec![url.as_str()];
        fields.iter().for_each(|field| arguments.extend(["-H", field]));
        curl(arguments)
    };
    let same = with(&[&format!("If-None-Match: {etag}")]).expect(304);
    assert_eq!(same.header("etag"), etag);
    assert!(same.body.is_empty());
    with(&["If-None-Match: \"other\""]).expect(200);
    with(&["If-None-Match: *"]).expect(304);
    with(&[&format!("If-Modified-Since: {modified}")]).expect(304);
    with(&["If-Modified-Since: Mon, 01 Jan 2001 00:00:00 GMT"]).expect(200);
    with(&["If-Match: \"other\""]).expect(412);
    with(&[&format!("If-Match: {etag}")]).expect(200);
    with(&["If-Unmodified-Since: Mon, 01 Jan 2001 00:00:00 GMT"]).expect(412);
    // The entity tag wins over the date (RFC 9110 §13.2.2).
    with(&["If-None-Match: \"other\"", &format!("If-Modified-Since: {modified}")]).expect(200);
    with(&["Range: bytes=0-4", &format!("If-Range: {etag}")]).expect(206);
    assert_eq!(with(&["Range: bytes=0-4", "If-Range: \"other\""]).expect(200).text(), HELLO);
}

#[test]
fn a_changed_file_is_served_at_once() {
    let site = site();
    let url = site.url("http", "/hello.txt");
    let mut last = curl([&url]).expect(200).header("etag").to_owned();
    for round in 0..20 {
        let content = format!("round {round}\n");
        // As deploys do it: the new file takes the old one's place.
        site.write("public/hello.new", &content);
        std::fs::rename(site.path("public/hello.new"), site.path("public/hello.txt")).unwrap();
        let answer = curl([&url]).expect(200);
        assert_eq!(answer.text(), content);
        assert_ne!(answer.header("etag"), last);
        last = answer.header("etag").to_owned();
    }
    std::fs::remove_file(site.path("public/hello.txt")).unwrap();
    curl([&url]).expect(404);
}

#[test]
fn a_folder_is_its_index_and_without_a_slash_leads_there() {
    let site = site();
    assert_eq!(curl([&site.url("http", "/sub/")]).expect(200).text(), "<h1>sub</h1>\n");
    let folder = curl([&site.url("http", "/sub?q=1")]);
    assert!(matches!(folder.status, 301 | 307 | 308), "{folder:?}");
    assert!(folder.header("location").ends_with("/sub/?q=1"), "{folder:?}");
    // No redirect to another host by way of an empty first segment.
    let hostile = curl(["--path-as-is", &site.url("http", "//sub")]);
    assert!(!hostile.headers.get("location").is_some_and(|to| to.starts_with("//")), "{hostile:?}");
}

#[test]
fn precompressed_siblings_go_to_who_accepts_them() {
    let site = site();
    let url = site.url("http", "/style.css");
    let accepting = |codings: &str| curl(["-H", &format!("Accept-Encoding: {codings}"), &url]).expect(200);
    assert_eq!(accepting("identity").text(), "plain css\n");
    let gzip = accepting("gzip");
    assert_eq!((gzip.text().as_str(), gzip.header("content-encoding")), ("pretend gzip\n", "gzip"));
    assert_eq!(gzip.header("content-type").split(';').next(), Some("text/css"));
    assert!(gzip.header("vary").eq_ignore_ascii_case("accept-encoding"));
    assert_eq!(accepting("gzip, br").header("content-encoding"), "br");
    assert_eq!(accepting("br;q=0.1, gzip").header("content-encoding"), "gzip");
    assert_eq!(accepting("br;q=0, gzip;q=0").text(), "plain css\n");
    assert_ne!(accepting("identity").header("etag"), gzip.header("etag"));
}

#[test]
fn nothing_outside_of_the_root_is_served() {
    let site = site();
    symlink(site.path("secret.txt"), site.path("public/link.txt")).unwrap();
    symlink(site.path("."), site.path("public/up")).unwrap();
    std::fs::create_dir(site.path("public/dir")).unwrap();
    let hostile = [
        "/../secret.txt",
        "/sub/../../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/%2e%2e%2fsecret.txt",
        "/sub/%2e%2e/%2e%2e/secret.txt",
        "/..%5csecret.txt",
        "/..;/secret.txt",
        "/link.txt",
        "/up/secret.txt",
        "/hello.txt%00.html",
        "/%252e%252e/secret.txt",
        "/hello.txt/",
        "/hello.txt/x",
        "/dir/",
    ];
    for target in hostile {
        for option in ["--http1.1", "--http2-prior-knowledge"] {
            let answer = curl([option, "--path-as-is", &site.url("http", target)]);
            assert!(matches!(answer.status, 400 | 403 | 404), "{target}: {answer:?}");
            assert!(!answer.text().contains("secret\n"), "{target}");
        }
    }
}

#[test]
fn what_is_not_get_or_head_is_refused_with_allow() {
    let site = site();
    let answer = curl(["-X", "DELETE", &site.url("http", "/hello.txt")]).expect(405);
    assert!(answer.header("allow").contains("GET"), "{answer:?}");
    assert_eq!(curl([&site.url("http", "/with%20space.txt")]).expect(200).text(), "space\n");
}

#[test]
fn a_big_file_arrives_whole_over_each_version_and_in_parts() {
    let site = site();
    let content = pattern(48 << 20);
    site.write("public/big", &content);
    let url = site.url("http", "/big");
    for option in ["--http1.0", "--http1.1", "--http2-prior-knowledge"] {
        let answer = curl([option, &url]).expect(200);
        assert!(answer.body == content, "{option}: {} bytes of {}", answer.body.len(), content.len());
    }
    let (from, to) = (30_000_001, 40_000_000);
    let part = curl(["-r", &format!("{from}-{to}"), &url]).expect(206);
    assert!(part.body == content[from..=to]);
}

#[test]
fn a_file_that_shrinks_while_it_is_sent_never_looks_whole() {
    let site = site();
    let content = pattern(64 << 20);
    site.write("public/shrinks", &content);
    let mut wire = site.wire();
    wire.send("GET /shrinks HTTP/1.1\r\nHost: x\r\n\r\n");
    let mut response = wire.response_head().unwrap();
    assert_eq!(response.header("content-length"), Some("67108864"));
    std::fs::OpenOptions::new()
        .write(true)
        .open(site.path("public/shrinks"))
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    // Either the rest was in the kernel already, or the connection breaks: never a short body that looks complete.
    if wire.body_of(&mut response).is_ok() {
        assert!(response.body == content);
    }
}
