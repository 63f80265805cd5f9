//! What changes is seen by the next request.

use super::*;

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
