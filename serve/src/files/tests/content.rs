//! What of a file is sent, and what is said of it.

use super::*;

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
