//! Which script or file answers a path.

use std::os::unix::fs::symlink;

use super::*;

/// `script path+info`, `file path`, `directory`, or the status.
async fn resolved(target: &FastCgiTarget, path: &str) -> String {
    match target.resolve(path.as_bytes()).await {
        Ok(Resolved::Script(script)) => {
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            format!("script {}+{}", text(script.path), text(script.info))
        }
        Ok(Resolved::File(path)) => format!("file {}", String::from_utf8(path).unwrap()),
        Ok(Resolved::Directory) => "directory".to_owned(),
        Err(error) => format!("{:?}", error.kind()),
    }
}

fn unreachable(config: &model::FastCgi) -> FastCgiTarget {
    target_of(config, "/", &settings(&[]))
}

#[tokio::test]
async fn scripts_files_directories_and_the_front_controller_come_in_this_order() {
    let files =
        ["index.php", "about.php", "style.css", "a/index.html", "b/index.php", "b.php/c.php", "d/e.txt"];
    let root = root(&files);
    let target = unreachable(&config(root.path()));
    for (path, expected) in [
        ("", "script index.php+"),
        ("about.php", "script about.php+"),
        ("about.php/x/y.php", "script about.php+/x/y.php"),
        ("about.php/", "script about.php+/"),
        ("style.css", "file style.css"),
        ("a/", "file a/index.html"),
        ("a", "directory"),
        ("b/", "script b/index.php+"),
        ("b.php/c.php/info", "script b.php/c.php+/info"),
        ("b.php", "directory"),
        // Without an index, and without anything.
        ("d/", "script index.php+"),
        ("nothing", "script index.php+"),
        ("nothing.php", "script index.php+"),
        ("d/e.txt/", "script index.php+"),
    ] {
        assert_eq!(resolved(&target, path).await, expected, "{path}");
    }
}

#[tokio::test]
async fn a_file_that_is_no_script_is_never_run_and_a_script_is_never_sent() {
    let files = [
        "index.php",
        "up/x.jpg",
        "old.php~",
        "old.php.bak",
        "OLD.PHP",
        "x.phps",
        ".git/config",
        ".env",
        "s/.htaccess",
        ".well-known/acme-challenge/token",
    ];
    let root = root(&files);
    let target = unreachable(&config(root.path()));
    for path in [
        "up/x.jpg/y.php",
        "up/x.jpg/.php",
        "old.php~",
        "old.php.bak",
        "OLD.PHP",
        "x.phps",
        ".git/config",
        ".env",
        "s/.htaccess",
        ".git",
    ] {
        assert_eq!(resolved(&target, path).await, "script index.php+", "{path}");
    }
    let token = ".well-known/acme-challenge/token";
    assert_eq!(resolved(&target, token).await, format!("file {token}"));
    assert_eq!(resolved(&target, "up/x.jpg").await, "file up/x.jpg");
}

#[tokio::test]
async fn nothing_out_of_the_root_is_run() {
    let outside = root(&["evil.php"]);
    let root = root(&["index.php", "real/in.php"]);
    symlink(outside.path(), root.path().join("out")).unwrap();
    symlink(outside.path().join("evil.php"), root.path().join("evil.php")).unwrap();
    symlink("real", root.path().join("in")).unwrap();
    let target = unreachable(&config(root.path()));
    assert_eq!(resolved(&target, "out/evil.php").await, "script index.php+");
    assert_eq!(resolved(&target, "evil.php").await, "script index.php+");
    assert_eq!(resolved(&target, "in/in.php").await, "script in/in.php+");
}

#[tokio::test]
async fn without_a_front_controller_what_is_missing_is_missing() {
    let root = root(&["index.php"]);
    let mut config = config(root.path());
    config.front_controller = false;
    let target = unreachable(&config);
    assert_eq!(resolved(&target, "nothing").await, "NotFound");
    assert_eq!(resolved(&target, "nothing.php/x").await, "NotFound");
    assert_eq!(resolved(&target, "").await, "script index.php+");
    let answer = call(&target, get("/nothing")).await;
    assert_eq!((answer.status, answer.outcome), (404, None));
}

#[tokio::test]
async fn files_are_sent_by_us() {
    let root = root(&["index.php", "style.css", "d/index.html"]);
    let target = target_of(&config(root.path()), "/app/", &settings(&[]));
    let answer = call(&target, get("/app/style.css")).await;
    assert_eq!((answer.status, &*answer.text()), (200, "style.css"));
    assert_eq!(call(&target, get("/app/d/")).await.text(), "d/index.html");
    let answer = call(&target, get("/app/d?x=1")).await;
    assert_eq!((answer.status, &answer.headers["location"]), (301, &"/app/d/?x=1".parse().unwrap()));
    let answer = call(&target, request(Method::POST, "/app/style.css", &[], RequestBody::Empty)).await;
    assert_eq!(answer.status, 405);
}
