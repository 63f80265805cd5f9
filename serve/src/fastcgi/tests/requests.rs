//! What a program is told, and when it is told again.

use futures_util::future::join;

use super::*;

#[tokio::test]
async fn a_script_is_told_what_php_applications_expect() {
    let program = Program::new();
    let root = root(&["index.php", "sub/page.php"]);
    let mut config = config(root.path());
    config.params = vec![("APP_ENV".into(), "test".into()), ("SERVER_SOFTWARE".into(), "ours".into())];
    config.script_root = "/srv/in container".into();
    let target = target_of(&config, "/my app/", &settings(&[&program]));
    let fields = [
        ("accept", "a"),
        ("accept", "b"),
        ("authorization", "Basic eDp5"),
        ("content-type", "text/x"),
        ("cookie", "a=1"),
        ("cookie", "b=2"),
        ("x-forwarded-for", "203.0.113.9"),
        ("x_forwarded_for", "203.0.113.9"),
        ("forwarded", "for=203.0.113.9"),
        ("proxy", "http://evil.example/"),
        ("connection", "close, x-listed"),
        ("x-listed", "1"),
        ("x-odd.name", "1"),
        ("te", "trailers"),
        ("content-length", "5"),
    ];
    let body = RequestBody::Bytes(Bytes::from_static(b"hello"));
    let exchange = request(Method::PUT, "/my%20app/sub/page.php/in%66o/x%2Fy?a=b%20c", &fields, body);
    let (answer, (asked, _)) = join(call(&target, exchange), program.answer(&says("ok"))).await;
    assert_eq!((answer.status, &*answer.text()), (200, "ok"));
    assert_eq!((asked.keep, &*asked.content), (true, &b"hello"[..]));
    let told: Vec<(&str, &str)> = asked.params.iter().map(|(name, value)| (&**name, &**value)).collect();
    let expected = [
        ("APP_ENV", "test"),
        ("CONTENT_LENGTH", "5"),
        ("CONTENT_TYPE", "text/x"),
        ("DOCUMENT_ROOT", "/srv/in container"),
        ("DOCUMENT_URI", "/my app/sub/page.php/info/x%2Fy"),
        ("GATEWAY_INTERFACE", "CGI/1.1"),
        ("HTTP_ACCEPT", "a, b"),
        ("HTTP_AUTHORIZATION", "Basic eDp5"),
        ("HTTP_COOKIE", "a=1; b=2"),
        ("HTTP_HOST", "Shop.test:8080"),
        ("PATH_INFO", "/info/x%2Fy"),
        ("PATH_TRANSLATED", "/srv/in container/info/x%2Fy"),
        ("QUERY_STRING", "a=b%20c"),
        ("REDIRECT_STATUS", "200"),
        ("REMOTE_ADDR", "192.0.2.7"),
        ("REMOTE_PORT", "4000"),
        ("REQUEST_METHOD", "PUT"),
        ("REQUEST_SCHEME", "http"),
        ("REQUEST_URI", "/my%20app/sub/page.php/info/x%2Fy?a=b%20c"),
        ("SCRIPT_FILENAME", "/srv/in container/sub/page.php"),
        ("SCRIPT_NAME", "/my app/sub/page.php"),
        ("SERVER_ADDR", "198.51.100.7"),
        ("SERVER_NAME", "shop.test"),
        ("SERVER_PORT", "8080"),
        ("SERVER_PROTOCOL", "HTTP/1.1"),
        ("SERVER_SOFTWARE", "ours"),
    ];
    assert_eq!(told, expected);
}

#[tokio::test]
async fn tls_makes_https_wherever_it_ends() {
    let program = Program::new();
    let (target, _root) = target(&[&program]);
    let mut exchange = get("/");
    let mut info = request(Method::GET, "/", &[], RequestBody::Empty).connection;
    let connection = Arc::get_mut(&mut info).unwrap();
    connection.proxied =
        Some(Box::new(crate::Proxied { by: Peer::Unix, tls: true, tls_version: None, server_name: None }));
    exchange.connection = info;
    let (_, (asked, _)) = join(call(&target, exchange), program.answer(&says(""))).await;
    assert_eq!((&*asked.params["HTTPS"], &*asked.params["REQUEST_SCHEME"]), ("on", "https"));
    assert!(!asked.params.contains_key("CONTENT_LENGTH") && !asked.params.contains_key("PATH_INFO"));
}

#[tokio::test]
async fn large_content_goes_in_records_and_chunks_are_held_for_their_length() {
    let program = Program::new();
    let (target, _root) = target(&[&program]);
    let content: &'static [u8] = Box::leak((0..200_000u32).map(|n| n as u8).collect::<Box<[u8]>>());
    let (_, (asked, _)) = join(call(&target, post(content)), program.answer(&says(""))).await;
    assert!(asked.content == content);
    assert_eq!(asked.params["CONTENT_LENGTH"], "200000");

    let chunks = |sizes: &'static [usize]| {
        let frames = sizes.iter().map(|size| {
            Ok::<_, crate::RequestBodyError>(http_body::Frame::data(Bytes::from(vec![b'x'; *size])))
        });
        let body = http_body_util::StreamBody::new(futures_util::stream::iter(frames));
        request(Method::POST, "/", &[], RequestBody::Stream(Box::pin(body)))
    };
    let (_, (asked, _)) = join(call(&target, chunks(&[400, 0, 600])), program.answer(&says(""))).await;
    assert_eq!((&*asked.params["CONTENT_LENGTH"], asked.content.len()), ("1000", 1000));
    let answer = call(&target, chunks(&[400, 601])).await;
    assert_eq!((answer.status, answer.outcome), (411, Some(Outcome::Rejected)));
}

#[tokio::test]
async fn a_connection_is_kept_for_what_may_be_sent_twice_and_given_up_for_the_rest() {
    let program = Program::new();
    let (target, _root) = target(&[&program]);
    let (_, (_, mut first)) = join(call(&target, get("/")), program.answer(&says("1"))).await;
    let again = async {
        first.request().await;
        first.send(&says("2")).await;
        first
    };
    let (answer, first) = join(call(&target, get("/")), again).await;
    assert_eq!(answer.text(), "2");
    let (answer, (_, second)) = join(call(&target, post(b"x")), program.answer(&says("3"))).await;
    assert_eq!(answer.text(), "3");
    // Its process is free for others.
    first.closed().await;
    // One that dies idle costs nothing.
    drop(second);
    let (answer, _) = join(call(&target, get("/")), program.answer(&says("4"))).await;
    assert_eq!((answer.status, &*answer.text()), (200, "4"));
}

#[tokio::test]
async fn a_connection_that_ends_without_an_answer_is_no_second_request_unless_it_was_idle() {
    let program = Program::new();
    let (target, _root) = target(&[&program]);
    let die = async {
        let mut peered = program.accept().await;
        peered.request().await;
    };
    let (answer, ()) = join(call(&target, get("/")), die).await;
    assert_eq!((answer.status, answer.outcome), (502, Some(Outcome::UpstreamFailed)));

    let (_, (_, mut kept)) = join(call(&target, get("/")), program.answer(&says("1"))).await;
    let dies_idle = async {
        kept.request().await;
        drop(kept);
        program.answer(&says("2")).await
    };
    let (answer, _) = join(call(&target, get("/")), dies_idle).await;
    assert_eq!((answer.status, &*answer.text()), (200, "2"));
}

#[tokio::test]
async fn a_server_that_refuses_is_followed_by_the_next_with_the_whole_content() {
    for status in [1, 2, 3] {
        let (first, second) = (Program::new(), Program::new());
        let (target, _root) = target(&[&first, &second]);
        let (refusal, answer) = (end(status), says("second"));
        let scripts = join(first.answer(&refusal), second.answer(&answer));
        let (answer, (_, (asked, _))) = join(call(&target, post(b"content")), scripts).await;
        assert_eq!((answer.status, &*answer.text()), (200, "second"));
        assert_eq!(asked.content, b"content");
    }
}

#[tokio::test]
async fn nobody_to_ask_is_502_and_a_silent_one_504() {
    let gone = Program::new();
    let address = gone.address();
    let (target, _root) = target(&[&gone]);
    drop(gone);
    assert_eq!(call(&target, get("/")).await.status, 502, "{address}");

    let program = Program::new();
    let root = root(&["index.php"]);
    let mut settings = settings(&[&program]);
    settings.timeouts.first_byte = std::time::Duration::from_millis(50);
    let target = target_of(&config(root.path()), "/", &settings);
    let silent = async {
        let mut peered = program.accept().await;
        peered.request().await;
        peered.closed().await;
    };
    let (answer, ()) = join(call(&target, get("/")), silent).await;
    assert_eq!((answer.status, answer.outcome), (504, Some(Outcome::UpstreamFailed)));
}

#[tokio::test]
async fn servers_that_are_all_overloaded_are_503() {
    let programs = [Program::new(), Program::new()];
    let [first, second] = &programs;
    let root = root(&["index.php"]);
    let settings = model::Upstream { retries: 1, ..settings(&[first, second]) };
    let target = target_of(&config(root.path()), "/", &settings);
    let asked = async { join(first.answer(&end(2)), second.answer(&end(2))).await };
    let (answer, _) = join(call(&target, get("/")), asked).await;
    assert_eq!((answer.status, answer.outcome), (503, Some(Outcome::UpstreamFailed)));
}
