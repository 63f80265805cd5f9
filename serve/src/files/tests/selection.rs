//! Which file is meant.

use super::*;

#[tokio::test]
async fn a_prefix_is_taken_off_and_an_exact_path_is_not() {
    let site = Site::new(&[("a.txt", "outer"), ("docs/a.txt", "inner"), ("docs/index.html", "index")]);
    assert_eq!(site.get("/docs/a.txt").await, ok("inner"));
    let site = site.at(PathPattern::Prefix("/docs/".to_owned()));
    assert_eq!(site.get("/docs/a.txt").await, ok("outer"));
    let site = site.at(PathPattern::Exact("/docs/a.txt".to_owned()));
    assert_eq!(site.get("/docs/a.txt").await, ok("inner"));
}

#[tokio::test]
async fn names_are_decoded() {
    let site = Site::new(&[("a b+é%.txt", "odd"), ("a%2Fb", "percent")]);
    assert_eq!(site.get("/a%20b+%c3%a9%25.txt").await, ok("odd"));
    assert_eq!(site.get("/a%252Fb").await, ok("percent"));
    assert_eq!(site.get("/a%2Fb").await.0, NOT_FOUND, "an encoded slash is in no name");
}

#[tokio::test]
async fn a_directory_is_its_first_index_that_exists() {
    let site = Site::new(&[("d/b.html", "b"), ("d/a.html/x", ""), ("e/x", "")]);
    let site = site.with(|config| config.index = vec!["a.html".into(), "b.html".into(), "c.html".into()]);
    assert_eq!(site.get("/d/").await, ok("b"));
    site.write("d/c.html", "c");
    assert_eq!(site.get("/d/").await, ok("b"));
    assert_eq!(site.get("/e/").await.0, NOT_FOUND);
    assert_eq!(site.get("/none/").await.0, NOT_FOUND);
    assert_eq!(site.get("/d/b.html/").await.0, NOT_FOUND);
}

#[tokio::test]
async fn a_directory_without_its_slash_is_redirected_to_itself() {
    let site = Site::new(&[("d/e f/index.html", "x")]);
    for (uri, location) in [
        ("/d", "/d/"),
        ("/d?a=//b", "/d/?a=//b"),
        ("//d", "/d/"),
        ("/d/e%20f", "/d/e%20f/"),
        ("http://other.example/d", "/d/"),
    ] {
        let answer = site.ask("GET", uri, &[]).await;
        assert_eq!((answer.status, answer.field(header::LOCATION)), (301, location), "{uri}");
    }
    fs::create_dir(site.root("evil.example")).unwrap();
    for uri in ["//evil.example", "//evil.example/..//evil.example", "/%2e/evil.example"] {
        assert_eq!(site.ask("GET", uri, &[]).await.field(header::LOCATION), "/evil.example/", "{uri}");
    }
}

#[tokio::test]
async fn a_precompressed_sibling_is_a_representation_of_its_own() {
    let site = Site::new(&[("a.css", "plain"), ("a.css.br", "brotli"), ("a.css.gz", "gzip")])
        .with(|config| config.precompressed = vec![Encoding::Br, Encoding::Zstd, Encoding::Gzip]);
    let plain = site.ask("GET", "/a.css", &[]).await;
    for (accept, coding, text) in [
        ("", "", "plain"),
        ("gzip, br, zstd", "br", "brotli"),
        ("gzip", "gzip", "gzip"),
        ("zstd", "", "plain"),
        ("zstd, gzip;q=0.5", "gzip", "gzip"),
        ("identity, br;q=0.5", "", "plain"),
    ] {
        let answer = site.ask("GET", "/a.css", &[("accept-encoding", accept)]).await;
        assert_eq!(answer.field(header::CONTENT_ENCODING), coding, "{accept}");
        assert_eq!(answer.field(header::CONTENT_TYPE), "text/css; charset=utf-8");
        assert_eq!(answer.field(header::VARY), "accept-encoding");
        assert_eq!(answer.field(header::ETAG) == plain.field(header::ETAG), coding.is_empty());
        assert_eq!(answer.text().await, text, "{accept}");
    }
    let part = site.ask("GET", "/a.css", &[("accept-encoding", "br"), ("range", "bytes=0-1")]).await;
    assert_eq!((part.status, part.field(header::CONTENT_RANGE)), (206, "bytes 0-1/6"));
    assert_eq!(part.text().await, "br");
    let direct = site.ask("GET", "/a.css.gz", &[("accept-encoding", "br")]).await;
    assert_eq!(direct.field(header::CONTENT_ENCODING), "");
    assert_eq!(direct.field(header::CONTENT_TYPE), "application/gzip");
}

#[tokio::test]
async fn a_sibling_that_is_older_or_escapes_is_ignored() {
    let site = Site::new(&[("a", "plain"), ("a.gz", "gzip"), ("b.gz", "gzip"), ("c", "plain")])
        .with(|config| config.precompressed = vec![Encoding::Gzip]);
    let accept = [("accept-encoding", "gzip")];
    assert_eq!(site.ask("GET", "/a", &accept).await.text().await, "gzip");
    let file = fs::File::options().write(true).open(site.root("a.gz")).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(10)).unwrap();
    assert_eq!(site.ask("GET", "/a", &accept).await.text().await, "plain");
    assert_eq!(site.ask("GET", "/b", &accept).await.status, NOT_FOUND, "a sibling of nothing");
    fs::write(site.directory.path().join("secret.gz"), "secret").unwrap();
    symlink("../secret.gz", site.root("c.gz")).unwrap();
    assert_eq!(site.ask("GET", "/c", &accept).await.text().await, "plain");
}
