//! Nothing but regular files beneath the root.

use super::*;

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

#[tokio::test]
async fn links_lead_into_the_directories_that_are_named_and_no_further() {
    let site = Site::new(&[("a.txt", "inside"), ("sub/x", "x")]);
    let outside = site.directory.path().to_owned();
    for (path, content) in [
        ("shared/a.js", "a"),
        ("shared/deep/index.html", "index"),
        ("shared-not/a.js", "no"),
        ("secret", "secret"),
    ] {
        let path = outside.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    symlink(outside.join("shared"), site.root("absolute")).unwrap();
    symlink("../shared", site.root("relative")).unwrap();
    symlink("../../shared/a.js", site.root("sub/a.js")).unwrap();
    symlink(site.root("a.txt"), site.root("into-itself.txt")).unwrap();
    symlink(site.root("a.txt"), outside.join("shared/back.txt")).unwrap();
    symlink("../secret", outside.join("shared/secret")).unwrap();
    symlink("../shared-not", site.root("not")).unwrap();
    symlink(outside.join("secret"), site.root("secret")).unwrap();
    symlink("/proc/self/root/etc/passwd", site.root("magic")).unwrap();
    let uris = [
        "/absolute/a.js",
        "/relative/a.js",
        "/sub/a.js",
        "/absolute/deep/",
        "/into-itself.txt",
        "/absolute/back.txt",
    ];
    for uri in uris {
        assert_eq!(site.get(uri).await.0, NOT_FOUND, "{uri}, as long as nothing is named");
    }
    let shared = outside.join("shared");
    let site = site.with(|config| config.follow = vec![shared]);
    // The second time it is in memory.
    for _ in 0..2 {
        for (uri, content) in uris.into_iter().zip(["a", "a", "a", "index", "inside", "inside"]) {
            assert_eq!(site.get(uri).await, ok(content), "{uri}");
        }
    }
    for uri in
        ["/absolute/secret", "/not/a.js", "/secret", "/magic", "/absolute/../secret", "/absolute/missing"]
    {
        assert_eq!(site.get(uri).await.0, NOT_FOUND, "{uri}");
    }
    assert_eq!(site.get("/absolute").await.0, 301);
    // Where it leads is looked at anew for each request.
    fs::remove_file(site.root("relative")).unwrap();
    symlink("../shared-not", site.root("relative")).unwrap();
    assert_eq!(site.get("/relative/a.js").await.0, NOT_FOUND);
    fs::remove_file(outside.join("shared/a.js")).unwrap();
    symlink("../secret", outside.join("shared/a.js")).unwrap();
    assert_eq!(site.get("/absolute/a.js").await.0, NOT_FOUND);
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
