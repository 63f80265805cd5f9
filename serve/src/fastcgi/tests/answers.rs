//! What becomes of an answer, well-formed or not.

use futures_util::future::join;

use super::*;

/// What becomes of these bytes and then the end of the connection.
async fn answered(exchange: Exchange, bytes: &[u8]) -> Answer {
    let program = Program::new();
    let (target, _root) = target(&[&program]);
    let script = async {
        drop(program.answer(bytes).await);
    };
    join(call(&target, exchange), script).await.0
}

#[tokio::test]
async fn status_fields_and_content_are_passed_on_and_framing_is_not() {
    let head =
        "Status: 404 Not Found\r\nX-A: 1\nX-A: 2\r\nTransfer-Encoding: chunked\r\nConnection: x-a\r\n\r\n";
    let answer = answered(get("/"), &[stdout(head), stdout("con"), stdout("tent"), end(0)].concat()).await;
    assert_eq!((answer.status, &*answer.text()), (404, "content"));
    assert_eq!(answer.headers.get_all("x-a").iter().count(), 2);
    assert_eq!(answer.headers.len(), 2, "{:?}", answer.headers);
    let answer = answered(get("/"), &[stdout("Location: /there\r\n\r\n"), end(0)].concat()).await;
    assert_eq!((answer.status, &answer.headers["location"]), (302, &"/there".parse().unwrap()));
}

#[tokio::test]
async fn a_length_is_kept_to() {
    let head = stdout("Content-Length: 4\r\n\r\nab");
    let whole = answered(get("/"), &[head.clone(), stdout("cd"), end(0)].concat()).await;
    assert_eq!((&*whole.text(), whole.error.is_none()), ("abcd", true));
    let more = answered(get("/"), &[head.clone(), stdout("cdHTTP/1.1 200 OK"), end(0)].concat()).await;
    assert_eq!((&*more.text(), more.error.is_none()), ("abcd", true));
    // As long as nothing has gone out, a failure has a status.
    let less = answered(get("/"), &[head.clone(), end(0)].concat()).await;
    assert_eq!((less.status, less.outcome), (502, Some(Outcome::UpstreamFailed)));
    let cut = answered(get("/"), &head).await;
    assert_eq!(cut.status, 502);
    // Behind that it is cut, and never looks whole.
    let large = stdout(&format!("Content-Length: 40000\r\n\r\n{}", "x".repeat(20_000)));
    for tail in [end(0), Vec::new()] {
        let cut = answered(get("/"), &[large.clone(), tail].concat()).await;
        assert_eq!((cut.status, cut.content.len()), (200, 20_000));
        assert!(matches!(cut.error, Some(BodyError::Upstream(_))), "{:?}", cut.error);
    }
}

#[tokio::test]
async fn an_answer_without_a_length_ends_with_its_record_and_not_with_the_connection() {
    let large = stdout(&format!("A: b\r\n\r\n{}", "x".repeat(20_000)));
    let whole = answered(get("/"), &[large.clone(), end(0)].concat()).await;
    assert_eq!((whole.content.len(), whole.error.is_none()), (20_000, true));
    let cut = answered(get("/"), &large).await;
    assert!(matches!(cut.error, Some(BodyError::Upstream(_))), "{:?}", cut.error);
}

#[tokio::test]
async fn head_and_304_have_no_content() {
    let bytes = [stdout("Content-Length: 7\r\n\r\ncontent"), end(0)].concat();
    let answer = answered(request(Method::HEAD, "/", &[], RequestBody::Empty), &bytes).await;
    assert_eq!((answer.status, answer.content.len()), (200, 0));
    assert_eq!(answer.headers["content-length"], "7");
    let bytes = [stdout("Status: 304\r\nETag: \"a\"\r\nContent-Length: 7\r\n\r\n"), end(0)].concat();
    let answer = answered(get("/"), &bytes).await;
    assert_eq!((answer.status, answer.content.len(), answer.headers.len()), (304, 0, 1));
}

#[tokio::test]
async fn error_output_is_no_part_of_the_answer() {
    let noise = record(7, &[b'e'; 60_000]);
    let bytes = [noise.clone(), stdout("A: b\r\n"), noise.clone(), stdout("\r\nok"), noise, end(0)].concat();
    let answer = answered(get("/"), &bytes).await;
    assert_eq!((answer.status, &*answer.text()), (200, "ok"));
}

#[tokio::test]
async fn a_program_that_breaks_the_protocol_is_502() {
    let mut other_request = stdout("A: b\r\n\r\nok");
    other_request[3] = 2;
    let hostile: Vec<Vec<u8>> = vec![
        b"HTTP/1.1 200 OK\r\n\r\n".to_vec(),
        other_request,
        record(11, &[0; 8]),
        record(3, &[0; 7]),
        end(0),
        [stdout("no head at all"), end(0)].concat(),
        [stdout("\r\nno field"), end(0)].concat(),
        [stdout("Status: 100\r\n\r\n"), end(0)].concat(),
        [stdout("Content-Length: 1, 2\r\n\r\n"), end(0)].concat(),
        [stdout(&"x: y\r\n".repeat(300)), end(0)].concat(),
        [stdout("A: b\r\n"), record(6, b""), stdout("\r\n")].concat(),
    ];
    for bytes in hostile {
        let answer = answered(get("/"), &bytes).await;
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
        assert_eq!((answer.status, answer.outcome), (502, Some(Outcome::UpstreamFailed)), "{shown:?}");
    }
}

#[tokio::test]
async fn a_client_that_goes_away_ends_the_script() {
    let program = Program::new();
    let (target, _root) = target(&[&program]);
    let large = stdout(&format!("A: b\r\n\r\n{}", "x".repeat(30_000)));
    let mut exchange = get("/");
    let path = NormalisedPath::parse("/").unwrap();
    let (response, (_, peered)) = join(fastcgi(&target, &mut exchange, &path), program.answer(&large)).await;
    assert_eq!(response.status(), 200);
    drop(response);
    peered.closed().await;
}

#[tokio::test]
async fn a_script_may_have_a_file_of_one_directory_sent_where_that_is_allowed() {
    let program = Program::new();
    let (root, private) = (root(&["index.php"]), root(&["a b.txt", "d/c.txt"]));
    let mut config = config(root.path());
    let named = |field: &str, path: &str| {
        let head =
            format!("{field}: {path}\r\nContent-Type: text/x\r\nSet-Cookie: a=b\r\nETag: \"no\"\r\n\r\nno");
        [stdout(&head), end(0)].concat()
    };
    let target = target_of(&config, "/", &settings(&[&program]));
    let (answer, _) = join(call(&target, get("/")), program.answer(&named("X-Accel-Redirect", "/a"))).await;
    assert_eq!((answer.status, &*answer.text()), (200, "no"), "not unless it is enabled");
    assert!(!answer.headers.contains_key("x-accel-redirect"), "and it is nobody's business then");

    config.sendfile = Some(private.path().to_owned());
    let target = target_of(&config, "/", &settings(&[&program]));
    let whole = private.path().join("d/c.txt").display().to_string();
    for (field, path, content) in [
        ("X-Accel-Redirect", "/a%20b.txt", "a b.txt"),
        ("X-Accel-Redirect", "/x/../d/c.txt?y", "d/c.txt"),
        ("X-Sendfile", &*whole, "d/c.txt"),
    ] {
        let (answer, _) = join(call(&target, get("/")), program.answer(&named(field, path))).await;
        assert_eq!((answer.status, &*answer.text()), (200, content), "{path}");
        assert_eq!(
            (&answer.headers["content-type"], &answer.headers["set-cookie"]),
            (&"text/x".parse().unwrap(), &"a=b".parse().unwrap())
        );
        assert_ne!(answer.headers["etag"], "\"no\"");
    }
    let range = request(Method::GET, "/", &[("range", "bytes=0-1")], RequestBody::Empty);
    let (answer, _) =
        join(call(&target, range), program.answer(&named("X-Accel-Redirect", "/d/c.txt"))).await;
    assert_eq!((answer.status, &*answer.text()), (206, "d/"));
    // A form that is sent for a download.
    let form = [("range", "bytes=0-1"), ("if-none-match", "*")];
    let form = request(Method::POST, "/", &form, RequestBody::Empty);
    let (answer, _) = join(call(&target, form), program.answer(&named("X-Accel-Redirect", "/d/c.txt"))).await;
    assert_eq!((answer.status, &*answer.text()), (200, "d/c.txt"));
    let script = root.path().join("index.php").display().to_string();
    let escape = format!("{}/../index.php", private.path().display());
    for (field, path, status) in [
        ("X-Sendfile", &*script, 502),
        ("X-Sendfile", "d/c.txt", 502),
        ("X-Sendfile", &*escape, 404),
        ("X-Accel-Redirect", "d/c.txt", 502),
        ("X-Accel-Redirect", "/none", 404),
    ] {
        let (answer, _) = join(call(&target, get("/")), program.answer(&named(field, path))).await;
        assert_eq!(answer.status, status, "{path}");
    }
}
