//! Whole requests against real directories.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use http::Request;
use http_body_util::BodyExt;
use proptest::prelude::{prop, prop_assert};
use tempfile::TempDir;
use tokio::time::Instant;

use super::*;
use crate::exchange::{ConnectionInfo, Informational, Peer};
use crate::{BodyError, RequestBody};

/// A route to a directory of its own.
struct Site {
    directory: TempDir,
    config: model::Static,
    path: PathPattern,
    cache: Arc<FileCache>,
    files: Static,
}

impl Site {
    fn new(files: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        fs::create_dir(&root).unwrap();
        let config = model::Static {
            root,
            index: vec!["index.html".to_owned()],
            precompressed: Vec::new(),
            cache_control: None,
        };
        let site = Site::built(directory, config, PathPattern::Prefix("/".to_owned()), Duration::ZERO);
        for (name, content) in files {
            site.write(name, content);
        }
        site
    }

    fn built(directory: TempDir, config: model::Static, path: PathPattern, settle: Duration) -> Self {
        let cache = Arc::new(FileCache::new(1 << 20, settle));
        let files = Static::new(&config, &path, &cache);
        Site { directory, config, path, cache, files }
    }

    fn with(self, change: impl FnOnce(&mut model::Static)) -> Self {
        let Site { directory, mut config, path, .. } = self;
        change(&mut config);
        Site::built(directory, config, path, Duration::ZERO)
    }

    fn at(self, path: PathPattern) -> Self {
        Site::built(self.directory, self.config, path, Duration::ZERO)
    }

    fn settling(self, settle: Duration) -> Self {
        Site::built(self.directory, self.config, self.path, settle)
    }

    fn root(&self, name: &str) -> PathBuf {
        self.config.root.join(name)
    }

    fn write(&self, name: &str, content: &str) {
        let path = self.root(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let changed = |path| fs::metadata(path).map(|file| (file.ctime(), file.ctime_nsec())).ok();
        let before = changed(&path);
        fs::write(&path, content).unwrap();
        // Where the kernel's clock ticks coarsely, the first write may fall into the tick of the last one. Sites wait for
        // files to settle instead; these do not.
        while before.is_some() && changed(&path) == before {
            fs::write(&path, content).unwrap();
        }
    }

    async fn ask(&self, method: &str, uri: &str, fields: &[(&str, &str)]) -> Answer {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let mut exchange = Exchange {
            request: request.body(RequestBody::Empty).unwrap(),
            connection: Arc::new(ConnectionInfo {
                id: 1,
                listener: "http".into(),
                listener_index: 0,
                peer: Peer::Unix,
                local: None,
                tls: None,
            }),
            informational: Informational::Unsupported,
            record: Record::new(Instant::now()),
        };
        let path = NormalisedPath::parse(exchange.request.uri().path()).unwrap();
        path.rewrite(exchange.request.uri_mut()).unwrap();
        let response = self.files.answer(&mut exchange, &path).await;
        let (head, body) = response.into_parts();
        let from_memory = matches!(body, Body::Bytes(_));
        Answer { status: head.status.as_u16(), headers: head.headers, from_memory, body }
    }

    async fn get(&self, uri: &str) -> (u16, String) {
        let answer = self.ask("GET", uri, &[]).await;
        (answer.status, answer.text().await)
    }
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    from_memory: bool,
    body: Body,
}

impl Answer {
    fn field(&self, name: header::HeaderName) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    async fn text(self) -> String {
        String::from_utf8(self.body.collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }
}

fn ok(text: &str) -> (u16, String) {
    (200, text.to_owned())
}

const NOT_FOUND: u16 = 404;

#[tokio::test]
async fn a_file_comes_with_all_that_is_known_of_it() {
    let site = Site::new(&[("a.txt", "hello")]);
    for _ in 0..2 {
        let answer = site.ask("GET", "/a.txt", &[]).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.field(header::CONTENT_TYPE), "text/plain; charset=utf-8");
        assert_eq!(answer.field(header::CONTENT_LENGTH), "5");
        assert_eq!(answer.field(header::ACCEPT_RANGES), "bytes");
        assert!(answer.field(header::ETAG).starts_with('"'));
        assert!(answer.field(header::LAST_MODIFIED).ends_with(" GMT"));
        assert!(!answer.headers.contains_key(header::VARY));
        assert!(!answer.headers.contains_key(header::CACHE_CONTROL));
        assert_eq!(answer.text().await, "hello");
    }
    assert_eq!(site.cache.len(), 1);
}

#[tokio::test]
async fn head_has_the_fields_of_get_and_no_content() {
    let site = Site::new(&[("a.txt", "hello")]);
    let get = site.ask("GET", "/a.txt", &[]).await;
    let head = site.ask("HEAD", "/a.txt", &[("range", "bytes=0-1")]).await;
    assert_eq!((head.status, &head.headers), (200, &get.headers));
    assert_eq!(head.text().await, "");
}

#[tokio::test]
async fn other_methods_are_not_allowed() {
    let site = Site::new(&[("a.txt", "hello")]);
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "get"] {
        let answer = site.ask(method, "/a.txt", &[]).await;
        assert_eq!((answer.status, answer.field(header::ALLOW)), (405, "GET, HEAD"), "{method}");
    }
}

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
async fn nothing_outside_of_the_root_is_ever_opened() {
    let site = Site::new(&[("a.txt", "inside"), ("sub/x", "")]);
    fs::write(site.directory.path().join("secret"), "secret").unwrap();
    fs::create_dir(site.directory.path().join("outer")).unwrap();
    fs::write(site.directory.path().join("outer/index.html"), "secret").unwrap();
    symlink("../secret", site.root("relative")).unwrap();
    symlink("../../secret", site.root("sub/relative")).unwrap();
    symlink(site.directory.path().join("secret"), site.root("absolute")).unwrap();
    symlink(site.root("a.txt"), site.root("absolute-inside")).unwrap();
    symlink("../outer", site.root("directory")).unwrap();
    symlink("loop", site.root("loop")).unwrap();
    symlink("/proc/self/root/etc/passwd", site.root("magic")).unwrap();
    symlink("../a.txt", site.root("sub/inside")).unwrap();
    for uri in [
        "/../secret",
        "/%2e%2e/secret",
        "/sub/../../secret",
        "/sub/%2e%2e/%2E%2e/secret",
        "/secret",
        "//etc/passwd",
        "/etc/passwd",
        "/%2fetc%2fpasswd",
        "/relative",
        "/sub/relative",
        "/absolute",
        "/absolute-inside",
        "/directory",
        "/directory/",
        "/directory/index.html",
        "/loop",
        "/loop/x",
        "/magic",
        "/a.txt/x",
    ] {
        assert_eq!(site.get(uri).await.0, NOT_FOUND, "{uri}");
    }
    assert_eq!(site.get("/sub/inside").await, ok("inside"), "a symlink that stays beneath");
    let name = format!("/{}", "a".repeat(300));
    assert_eq!(site.get(&name).await.0, NOT_FOUND);
}

#[test]
fn no_way_of_writing_a_path_leads_out_of_the_root() {
    let site = Site::new(&[("a", "inside"), ("sub/a", "inside"), ("sub/index.html", "inside")]);
    let outside = site.directory.path();
    fs::create_dir(outside.join("outer")).unwrap();
    for name in ["secret", "outer/a", "outer/index.html"] {
        fs::write(outside.join(name), "secret").unwrap();
    }
    symlink("../outer", site.root("out")).unwrap();
    symlink("../../secret", site.root("sub/out")).unwrap();
    symlink("sub", site.root("in")).unwrap();
    let part = prop::sample::select(vec![
        "/",
        "//",
        "..",
        ".",
        "%2e%2e",
        "%2E.",
        "%2f",
        "%5c",
        "\\",
        "a",
        "sub",
        "in",
        "out",
        "secret",
        "outer",
        "root",
        "%252e",
        "index.html",
        ";",
        "%C0%AE",
        "%20",
        "~",
    ]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut runner = proptest::test_runner::TestRunner::default();
    let parts = prop::collection::vec(part, 0..10);
    runner
        .run(&parts, |parts| {
            let uri = format!("/{}", parts.concat());
            if NormalisedPath::parse(&uri).is_ok() {
                let (status, text) = runtime.block_on(site.get(&uri));
                prop_assert!(matches!(status, 200 | 301 | 404), "{} {}", uri, status);
                prop_assert!(status != 200 || text == "inside", "{}", uri);
            }
            Ok(())
        })
        .unwrap();
}

#[tokio::test]
async fn only_regular_files_are_served() {
    let site = Site::new(&[]);
    rustix::fs::mkfifoat(rustix::fs::CWD, site.root("fifo"), rustix::fs::Mode::RUSR).unwrap();
    let address = rustix::net::SocketAddrUnix::new(site.root("socket")).unwrap();
    let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None);
    rustix::net::bind(socket.unwrap(), &address).unwrap();
    for uri in ["/fifo", "/socket"] {
        assert_eq!(site.get(uri).await.0, NOT_FOUND, "{uri}");
    }
}

#[test]
fn errors_have_their_status() {
    for (error, status, outcome) in [
        (Errno::NOENT, 404, None),
        (Errno::XDEV, 404, None),
        (Errno::ACCESS, 403, None),
        (Errno::MFILE, 503, Some(Outcome::Shed)),
        (Errno::IO, 500, None),
    ] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut record = runtime.block_on(async { Record::new(Instant::now()) });
        let response = failed(&mut record, b"x", error);
        assert_eq!((response.status().as_u16(), record.outcome), (status, outcome), "{error:?}");
    }
}

#[tokio::test]
async fn a_file_that_may_not_be_read_is_forbidden() {
    let site = Site::new(&[("a.txt", "hello")]);
    assert_eq!(site.get("/a.txt").await, ok("hello"));
    fs::set_permissions(site.root("a.txt"), fs::Permissions::from_mode(0o0)).unwrap();
    // The superuser reads it all the same.
    let expected = if rustix::process::geteuid().is_root() { 200 } else { 403 };
    assert_eq!(site.get("/a.txt").await.0, expected);
}

#[tokio::test]
async fn every_change_is_seen_by_the_next_request() {
    let site = Site::new(&[("a.txt", "one")]);
    let warm = async |text: &str| {
        assert_eq!(site.get("/a.txt").await, ok(text));
        assert_eq!(site.get("/a.txt").await, ok(text));
    };
    warm("one").await;
    site.write("a.txt", "two");
    warm("two").await;
    // The same size and mtime: only ctime tells.
    let modified = fs::metadata(site.root("a.txt")).unwrap().modified().unwrap();
    site.write("a.txt", "six");
    let file = fs::File::options().write(true).open(site.root("a.txt")).unwrap();
    file.set_modified(modified).unwrap();
    warm("six").await;
    site.write("b.txt", "new");
    fs::rename(site.root("b.txt"), site.root("a.txt")).unwrap();
    warm("new").await;
    fs::remove_file(site.root("a.txt")).unwrap();
    assert_eq!(site.get("/a.txt").await.0, NOT_FOUND);
    assert!(site.cache.is_empty());
    site.write("a.txt", "back");
    warm("back").await;
    fs::remove_file(site.root("a.txt")).unwrap();
    symlink("../outside", site.root("a.txt")).unwrap();
    fs::write(site.directory.path().join("outside"), "secret").unwrap();
    assert_eq!(site.get("/a.txt").await.0, NOT_FOUND);
}

#[tokio::test]
async fn a_deployment_by_symlink_swap_is_seen_at_once() {
    let site = Site::new(&[]);
    let place = site.directory.path().to_owned();
    let large = "x".repeat(cache::MAX_CACHED + 1);
    for release in ["one", "two"] {
        fs::create_dir(place.join(release)).unwrap();
        fs::write(place.join(release).join("a.txt"), release).unwrap();
        fs::write(place.join(release).join("large"), format!("{release}{large}")).unwrap();
    }
    symlink("one", place.join("current")).unwrap();
    let site = site.with(|config| config.root = place.join("current"));
    for release in ["one", "two", "one"] {
        symlink(release, place.join("next")).unwrap();
        fs::rename(place.join("next"), place.join("current")).unwrap();
        for _ in 0..2 {
            assert_eq!(site.get("/a.txt").await, ok(release));
            assert_eq!(site.get("/large").await, ok(&format!("{release}{large}")));
        }
    }
    fs::remove_file(place.join("current")).unwrap();
    assert_eq!(site.get("/a.txt").await.0, NOT_FOUND);
}

#[tokio::test]
async fn a_file_that_has_just_changed_is_served_and_not_kept() {
    let site = Site::new(&[("a.txt", "hello")]).settling(Duration::from_secs(3600));
    for _ in 0..2 {
        assert_eq!(site.get("/a.txt").await, ok("hello"));
    }
    assert!(site.cache.is_empty());
}

#[tokio::test]
async fn large_files_are_streamed_and_small_ones_come_from_memory() {
    let large = "0123456789".repeat(cache::MAX_CACHED / 10 + 1);
    let site = Site::new(&[("small", &large[..cache::MAX_CACHED]), ("large", &large), ("empty", "")]);
    let answer = site.ask("GET", "/small", &[]).await;
    assert!(answer.from_memory);
    assert_eq!(answer.text().await, large[..cache::MAX_CACHED]);
    let answer = site.ask("GET", "/large", &[]).await;
    assert!(!answer.from_memory);
    assert_eq!(answer.field(header::CONTENT_LENGTH), large.len().to_string());
    assert_eq!(answer.text().await, large);
    let answer = site.ask("GET", "/empty", &[]).await;
    assert_eq!((answer.status, answer.field(header::CONTENT_LENGTH)), (200, "0"));
    assert_eq!(answer.text().await, "");
}

#[tokio::test]
async fn a_file_truncated_while_it_is_sent_breaks_its_answer() {
    let site = Site::new(&[("large", &"x".repeat(1 << 20))]);
    let mut answer = site.ask("GET", "/large", &[]).await;
    let first = answer.body.frame().await.unwrap().unwrap().into_data().unwrap();
    fs::File::options().write(true).open(site.root("large")).unwrap().set_len(first.len() as u64).unwrap();
    assert!(matches!(answer.body.frame().await, Some(Err(BodyError::File(_)))));
}

#[tokio::test]
async fn a_download_goes_on_with_the_file_it_began_with() {
    let site = Site::new(&[("large", &"x".repeat(1 << 20))]);
    let answer = site.ask("GET", "/large", &[]).await;
    site.write("new", "y");
    fs::rename(site.root("new"), site.root("large")).unwrap();
    assert_eq!(answer.text().await, "x".repeat(1 << 20));
}

#[tokio::test]
async fn ranges_are_cut_from_memory_and_from_files() {
    let large = "0123456789".repeat(cache::MAX_CACHED);
    let site = Site::new(&[("small", "0123456789"), ("large", &large)]);
    for (uri, whole) in [("/small", "0123456789"), ("/large", large.as_str())] {
        let size = whole.len();
        let part = site.ask("GET", uri, &[("range", "bytes=2-4")]).await;
        assert_eq!((part.status, part.field(header::CONTENT_LENGTH)), (206, "3"));
        assert_eq!(part.field(header::CONTENT_RANGE), format!("bytes 2-4/{size}"));
        assert!(!part.field(header::ETAG).is_empty());
        assert_eq!(part.text().await, "234");
        let tail = site.ask("GET", uri, &[("range", "bytes=-3")]).await;
        assert_eq!(tail.field(header::CONTENT_RANGE), format!("bytes {}-{}/{size}", size - 3, size - 1));
        assert_eq!(tail.text().await, "789");
        let beyond = site.ask("GET", uri, &[("range", &format!("bytes={size}-"))]).await;
        assert_eq!((beyond.status, beyond.field(header::CONTENT_RANGE)), (416, &*format!("bytes */{size}")));
        let several = site.ask("GET", uri, &[("range", "bytes=0-0,2-2")]).await;
        assert_eq!(several.status, 200);
        assert_eq!(several.text().await.len(), size);
    }
}

#[tokio::test]
async fn a_range_is_resumed_only_while_the_file_is_the_same() {
    let site = Site::new(&[("a", "0123456789")]);
    let tag = site.ask("GET", "/a", &[]).await.field(header::ETAG).to_owned();
    let fields = [("range", "bytes=5-"), ("if-range", tag.as_str())];
    assert_eq!(site.ask("GET", "/a", &fields).await.status, 206);
    site.write("a", "9876543210");
    let answer = site.ask("GET", "/a", &fields).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.text().await, "9876543210");
}

#[tokio::test]
async fn not_modified_has_the_fields_a_cache_needs() {
    let site = Site::new(&[("a.txt", "hello")]).with(|config| {
        config.precompressed = vec![Encoding::Gzip];
        config.cache_control = Some(HeaderValue::from_static("max-age=60"));
    });
    let whole = site.ask("GET", "/a.txt", &[]).await;
    let answer = site.ask("GET", "/a.txt", &[("if-none-match", whole.field(header::ETAG))]).await;
    assert_eq!(answer.status, 304);
    for name in [header::ETAG, header::LAST_MODIFIED, header::VARY, header::CACHE_CONTROL] {
        assert_eq!(answer.field(name.clone()), whole.field(name));
    }
    assert_eq!(answer.headers.len(), 4);
    assert_eq!(answer.text().await, "");
    let failed = site.ask("GET", "/a.txt", &[("if-match", "\"other\""), ("range", "bytes=0-1")]).await;
    assert_eq!(failed.status, 412);
    let since = whole.field(header::LAST_MODIFIED);
    assert_eq!(site.ask("HEAD", "/a.txt", &[("if-modified-since", since)]).await.status, 304);
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

#[tokio::test]
async fn an_unchanged_configuration_keeps_its_files_in_memory_over_a_reload() {
    let mut site = Site::new(&[("a", "hello")]);
    assert_eq!(site.get("/a").await, ok("hello"));
    site.files = Static::new(&site.config, &site.path, &site.cache);
    assert_eq!(site.get("/a").await, ok("hello"));
    assert_eq!(site.cache.len(), 1);
    site.config.cache_control = Some(HeaderValue::from_static("no-cache"));
    site.files = Static::new(&site.config, &site.path, &site.cache);
    assert_eq!(site.ask("GET", "/a", &[]).await.field(header::CACHE_CONTROL), "no-cache");
    assert_eq!(site.cache.len(), 2);
}

#[tokio::test]
async fn a_missing_root_has_no_files() {
    let site = Site::new(&[]).with(|config| config.root.push("missing"));
    assert_eq!(site.get("/a").await.0, NOT_FOUND);
    fs::create_dir(&site.config.root).unwrap();
    site.write("a", "hello");
    assert_eq!(site.get("/a").await, ok("hello"));
}

#[tokio::test]
async fn a_remote_file_system_is_read_in_the_blocking_pool_only() {
    let large = "x".repeat(cache::MAX_CACHED + 1);
    let site = Site::new(&[("a", "hello"), ("large", &large)]);
    site.files.root.assume_remote();
    for _ in 0..2 {
        assert_eq!(site.get("/a").await, ok("hello"));
        assert_eq!(site.get("/large").await, ok(&large));
    }
    assert_eq!(site.get("/none").await.0, NOT_FOUND);
    assert!(site.cache.is_empty());
}

#[tokio::test]
async fn an_answer_is_of_one_version_while_files_are_replaced() {
    let site = Site::new(&[("a", "0"), ("large", "0")]);
    let version = |n: usize| (n % 10).to_string().repeat(n % 7 + 1);
    let large = |n: usize| (n % 10).to_string().repeat(cache::MAX_CACHED + n % 7 + 1);
    let root = site.config.root.clone();
    let writer = std::thread::spawn(move || {
        for n in 0..300 {
            for (name, content) in [("a", version(n)), ("large", large(n))] {
                fs::write(root.join("next"), content).unwrap();
                fs::rename(root.join("next"), root.join(name)).unwrap();
            }
        }
    });
    while !writer.is_finished() {
        for uri in ["/a", "/large"] {
            let answer = site.ask("GET", uri, &[]).await;
            assert_eq!(answer.status, 200);
            let length: usize = answer.field(header::CONTENT_LENGTH).parse().unwrap();
            let text = answer.text().await;
            assert_eq!(text.len(), length);
            assert_eq!(text, text[..1].repeat(length), "a mixture of two versions");
        }
    }
    writer.join().unwrap();
    assert_eq!(site.get("/a").await, ok(&version(299)));
}
