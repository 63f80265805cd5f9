//! The content of requests, and clients that go.

use futures_util::future::join;

use super::*;

#[tokio::test]
async fn content_of_unknown_length_is_sent_in_chunks_with_its_trailers() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let (client, body) = streamed(None);
    client.send(data("first")).unwrap();
    let script = async {
        let mut peered = backend.accept().await;
        let begin = peered.until("first\r\n").await;
        client.send(data("second")).unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", HeaderValue::from_static("1"));
        client.send(Ok(Frame::trailers(trailers))).unwrap();
        let end = peered.until("\r\n\r\n").await;
        peered.send(OK).await;
        (begin, end, peered)
    };
    let exchange = request(Method::POST, &[], body);
    let ((answer, _), (begin, end, _peered)) = join(call(&target, exchange), script).await;
    assert_eq!(answer.status, 200);
    assert!(begin.contains("transfer-encoding: chunked\r\n") && begin.ends_with("\r\n\r\n5\r\nfirst\r\n"));
    assert_eq!(end, "6\r\nsecond\r\n0\r\nx-sum: 1\r\n\r\n");
    assert_eq!(target.upstream().status().servers[0].idle, 1);
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_request_is_delivered() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let (client, body) = streamed(Some(1 << 30));
    client.send(data("some")).unwrap();
    let text = "HTTP/1.1 413 Content Too Large\r\ncontent-length: 3\r\nconnection: close\r\n\r\nno\n";
    let script = async { drop(backend.answer(text).await) };
    let exchange = request(Method::POST, &[], body);
    let ((answer, outcome), ()) = join(call(&target, exchange), script).await;
    assert_eq!((answer.status, &answer.content[..], outcome), (413, b"no\n".as_slice(), None));
    assert_eq!(target.upstream().status().servers[0].idle, 0);
}

#[tokio::test]
async fn content_flows_both_ways_at_once() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let (client, body) = streamed(None);
    let script = async {
        let mut peered = backend.accept().await;
        peered.head().await;
        peered.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
        for _ in 0..3 {
            peered.until("ping\r\n").await;
            peered.send("4\r\npong\r\n").await;
        }
        peered.until("0\r\n\r\n").await;
        peered.send("0\r\n\r\n").await;
        peered
    };
    let talk = async {
        let mut exchange = request(Method::POST, &[], body);
        let mut body = proxy(&target, &mut exchange).await.into_body();
        for _ in 0..3 {
            client.send(data("ping")).unwrap();
            assert_eq!(next(&mut body).await.unwrap().unwrap().into_data().unwrap(), "pong");
        }
        drop(client);
        assert!(next(&mut body).await.is_none());
    };
    let ((), _peered) = join(talk, script).await;
    assert_eq!(target.upstream().status().servers[0].idle, 1);
}

#[tokio::test]
async fn a_client_that_goes_closes_the_connection_to_the_server() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    // While the answer is waited for.
    let mut exchange = get();
    let mut waiting = Box::pin(proxy(&target, &mut exchange));
    let mut peered = tokio::select! {
        _ = &mut waiting => unreachable!("nothing was answered"),
        peered = backend.accept() => peered,
    };
    tokio::select! {
        _ = &mut waiting => unreachable!("nothing was answered"),
        _ = peered.head() => {}
    }
    assert_eq!(target.upstream().status().servers[0].in_flight, 1);
    drop(waiting);
    peered.closed().await;
    assert_eq!(target.upstream().status().servers[0].in_flight, 0);
    // In the middle of it.
    let begun = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n";
    let mut exchange = get();
    let (response, (_, peered)) = join(proxy(&target, &mut exchange), backend.answer(begun)).await;
    let mut body = response.into_body();
    assert!(next(&mut body).await.unwrap().is_ok());
    drop(body);
    peered.closed().await;
    let status = target.upstream().status();
    assert_eq!((status.servers[0].in_flight, status.servers[0].idle, status.servers[0].failures), (0, 0, 0));
}

#[tokio::test]
async fn a_client_that_fails_is_answered_and_the_server_learns_it() {
    let cases = [
        (RequestBodyError::TooLarge, 413, Outcome::Rejected),
        (RequestBodyError::Timeout, 408, Outcome::Rejected),
        (RequestBodyError::Gone, 400, Outcome::ClientGone),
    ];
    for (error, status, outcome) in cases {
        let backend = Backend::new();
        let target = target(&settings(&[&backend]));
        let (client, body) = streamed(None);
        let script = async {
            let mut peered = backend.accept().await;
            peered.head().await;
            client.send(data("a")).unwrap();
            client.send(Err(error)).unwrap();
            peered.closed().await
        };
        let exchange = request(Method::POST, &[], body);
        let ((answer, ended), sent) = join(call(&target, exchange), script).await;
        assert_eq!((answer.status, ended), (status, Some(outcome)));
        assert!(!sent.ends_with(b"0\r\n\r\n"), "the content must not look complete");
        assert_eq!(target.upstream().status().servers[0].failures, 0);
    }
}

#[tokio::test]
async fn a_content_shorter_than_announced_is_not_passed_off_as_whole() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let (client, body) = streamed(Some(10));
    client.send(data("five!")).unwrap();
    drop(client);
    let script = async { backend.accept().await.closed().await };
    let exchange = request(Method::POST, &[], body);
    let ((answer, _), _) = join(call(&target, exchange), script).await;
    assert_eq!(answer.status, 400);
}

#[tokio::test(start_paused = true)]
async fn expected_content_waits_for_the_server_but_not_for_ever() {
    for says_continue in [true, false] {
        let backend = Backend::new();
        let target = target(&settings(&[&backend]));
        let (client, body) = streamed(Some(7));
        client.send(data("content")).unwrap();
        drop(client);
        let exchange = request(Method::PUT, &[("expect", "100-continue")], body);
        let script = async {
            let mut peered = backend.accept().await;
            let head = peered.head().await;
            assert!(head.contains("\r\nexpect: 100-continue\r\n"), "{head}");
            assert!(peered.input.is_empty());
            if says_continue {
                peered.send("HTTP/1.1 100 Continue\r\n\r\n").await;
            }
            peered.until("content").await;
            peered.send(OK).await;
            peered
        };
        let ((answer, _), _peered) = join(call(&target, exchange), script).await;
        assert_eq!(answer.status, 200);
        assert_eq!(target.upstream().status().servers[0].idle, 1);
    }
}

#[tokio::test]
async fn content_that_has_come_already_is_not_announced_first() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let body = RequestBody::Bytes(Bytes::from_static(b"content"));
    let exchange = request(Method::PUT, &[("expect", "100-continue")], body);
    let script = async {
        let mut peered = backend.accept().await;
        let sent = peered.until("content").await;
        assert!(!sent.contains("expect"), "{sent}");
        peered.send(OK).await;
        peered
    };
    let ((answer, _), _peered) = join(call(&target, exchange), script).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn expected_content_that_is_refused_is_never_read() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let (client, body) = streamed(Some(4));
    client.send(Err(RequestBodyError::Gone)).unwrap();
    let exchange = request(Method::PUT, &[("expect", "100-continue")], body);
    let text = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n";
    let ((answer, _), (_, peered)) = join(call(&target, exchange), backend.answer(text)).await;
    assert_eq!(answer.status, 401);
    // The server would take the next request for the content.
    assert_eq!(target.upstream().status().servers[0].idle, 0);
    peered.closed().await;
}
