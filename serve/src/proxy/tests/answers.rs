//! Answers of all kinds, good and broken.

use futures_util::future::join;

use super::*;

#[tokio::test]
async fn a_broken_answer_is_a_502() {
    let answers = [
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok",
        "HTTP/1.1 200 OK\ncontent-length: 2\n\nok",
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "SSH-2.0-OpenSSH\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nok",
    ];
    for text in answers {
        let backend = Backend::new();
        let target = target(&settings(&[&backend]));
        let script = async { drop(backend.answer(text).await) };
        let ((answer, outcome), ()) = join(call(&target, get()), script).await;
        assert_eq!((answer.status, outcome), (502, Some(Outcome::UpstreamFailed)), "{text}");
        assert_eq!(target.upstream().status().servers[0].failures, 1, "{text}");
        assert_eq!(target.upstream().status().servers[0].idle, 0, "{text}");
    }
}

#[tokio::test]
async fn a_truncated_answer_is_never_silent() {
    let heads = ["content-length: 100000\r\n\r\nbegin", "transfer-encoding: chunked\r\n\r\n5\r\nbegin\r\n"];
    for head in heads {
        let backend = Backend::new();
        let target = target(&settings(&[&backend]));
        let script = async { drop(backend.answer(&format!("HTTP/1.1 200 OK\r\n{head}")).await) };
        let ((answer, _), ()) = join(call(&target, get()), script).await;
        assert_eq!((answer.status, &answer.content[..]), (200, b"begin".as_slice()));
        assert!(matches!(answer.error, Some(BodyError::Upstream(_))), "{answer:?}");
        assert_eq!(target.upstream().status().servers[0].failures, 1);
    }
}

#[tokio::test]
async fn chunks_and_trailers_come_through_and_the_connection_is_kept() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let text =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\nx-sum: 7\r\n\r\n";
    let wanted = request(Method::GET, &[("te", "trailers")], RequestBody::Empty);
    let ((answer, _), (_, mut peered)) = join(call(&target, wanted), backend.answer(text)).await;
    assert_eq!(answer.content, b"abcdef");
    assert_eq!(answer.trailers.unwrap()["x-sum"], "7");
    assert!(!answer.headers.contains_key(header::TRANSFER_ENCODING));
    let script = async {
        peered.head().await;
        peered.send(text).await;
    };
    let ((answer, _), ()) = join(call(&target, get()), script).await;
    assert_eq!((answer.content, answer.trailers), (b"abcdef".to_vec(), None));
    assert_eq!(target.upstream().status().servers[0].idle, 1);
}

#[tokio::test]
async fn an_answer_that_comes_at_once_has_no_length_where_trailers_follow_it() {
    for (te, length) in [("trailers", None), ("deflate", Some(3))] {
        let backend = Backend::new();
        let target = target(&settings(&[&backend]));
        let text = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx-sum: 7\r\n\r\n";
        let mut exchange = request(Method::GET, &[("te", te)], RequestBody::Empty);
        let (response, (_, _peered)) = join(proxy(&target, &mut exchange), backend.answer(text)).await;
        // A length would take the place from the trailers on HTTP/1.1.
        assert_eq!(http_body::Body::size_hint(response.body()).exact(), length, "{te}");
        let answer = read(response).await;
        assert_eq!((answer.content, answer.trailers.is_some()), (b"abc".to_vec(), length.is_none()), "{te}");
    }
}

#[tokio::test]
async fn a_connection_is_kept_without_being_asked_for_more_behind_the_trailers() {
    let pieces: [&[&str]; 2] = [
        &["HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx-sum: 7\r\n\r\n"],
        &["HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "3\r\nabc\r\n0\r\nx-sum: 7\r\n\r\n"],
    ];
    for pieces in pieces {
        let backend = Backend::new();
        let target = target(&settings(&[&backend]));
        let mut exchange = request(Method::GET, &[("te", "trailers")], RequestBody::Empty);
        let (response, (_, mut peered)) =
            join(proxy(&target, &mut exchange), backend.answer(pieces[0])).await;
        let mut body = response.into_body();
        for piece in &pieces[1..] {
            peered.send(piece).await;
        }
        while !next(&mut body).await.unwrap().unwrap().is_trailers() {}
        assert_eq!(target.upstream().status().servers[0].idle, 1, "{pieces:?}");
    }
}

#[tokio::test]
async fn answers_without_content_end_with_their_head() {
    let cases = [
        (Method::HEAD, "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n", Some("7")),
        (Method::GET, "HTTP/1.1 204 No Content\r\n\r\n", None),
        (Method::GET, "HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n", Some("9")),
    ];
    for (method, text, length) in cases {
        let backend = Backend::new();
        let target = target(&settings(&[&backend]));
        let exchange = request(method, &[], RequestBody::Empty);
        let ((answer, _), _peered) = join(call(&target, exchange), backend.answer(text)).await;
        assert!(answer.content.is_empty() && answer.error.is_none());
        assert_eq!(answer.headers.get(header::CONTENT_LENGTH).map(|v| v.to_str().unwrap()), length);
        assert_eq!(target.upstream().status().servers[0].idle, 1, "{text}");
    }
}

#[tokio::test]
async fn an_answer_may_end_with_its_connection() {
    for version in ["HTTP/1.0", "HTTP/1.1"] {
        let backend = Backend::new();
        let target = target(&settings(&[&backend]));
        let text = format!("{version} 200 OK\r\nserver: old\r\n\r\nall of it");
        let script = async { drop(backend.answer(&text).await) };
        let ((answer, _), ()) = join(call(&target, get()), script).await;
        assert_eq!((answer.status, &answer.content[..]), (200, b"all of it".as_slice()));
        assert!(answer.error.is_none());
        assert_eq!(target.upstream().status().servers[0].idle, 0);
    }
}

#[tokio::test]
async fn bytes_behind_an_answer_are_no_answer_to_the_next_request() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let text = format!("{OK}HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil");
    let ((answer, _), _peered) = join(call(&target, get()), backend.answer(&text)).await;
    assert_eq!(answer.content, b"ok");
    assert_eq!(target.upstream().status().servers[0].idle, 0);
}

#[tokio::test]
async fn a_large_answer_is_streamed_and_its_connection_kept() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let content = "0123456789".repeat(100_000);
    let text = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{content}", content.len());
    let ((answer, _), _peered) = join(call(&target, get()), backend.answer(&text)).await;
    assert_eq!(answer.content, content.as_bytes());
    assert_eq!(target.upstream().status().servers[0].idle, 1);
}

#[tokio::test]
async fn interim_answers_come_before_the_final_one() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let text = format!("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n{OK}");
    let ((answer, _), _peered) = join(call(&target, get()), backend.answer(&text)).await;
    assert_eq!((answer.status, &answer.content[..]), (200, b"ok".as_slice()));
    assert!(!answer.headers.contains_key(header::LINK));
    let flood = "HTTP/1.1 102 Processing\r\n\r\n".repeat(40);
    let script = async { backend.answer(&flood).await };
    let another = ProxyTarget::new(
        &model::Proxy { upstream: "api".into(), strip_prefix: false, preserve_host: true },
        &PathPattern::Prefix("/".into()),
        Upstream::new(&settings(&[&backend]), &Metrics::default()),
    );
    let ((answer, _), _) = join(call(&another, get()), script).await;
    assert_eq!(answer.status, 502);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_is_a_504() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let started = Instant::now();
    let script = async {
        let mut peered = backend.accept().await;
        peered.head().await;
        peered
    };
    let ((answer, outcome), _peered) = join(call(&target, get()), script).await;
    assert_eq!((answer.status, outcome), (504, Some(Outcome::UpstreamFailed)));
    assert_eq!(started.elapsed().as_secs(), 60);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stalls_within_its_answer_cuts_it() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let begun = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n";
    let ((answer, _), _peered) = join(call(&target, get()), backend.answer(begun)).await;
    assert_eq!(answer.content, b"a");
    assert!(matches!(answer.error, Some(BodyError::Upstream(_))));
    assert_eq!(target.upstream().status().servers[0].failures, 1);
}
