//! Connections that are used again, and requests that are sent again.

use futures_util::future::join;

use super::*;

#[tokio::test]
async fn a_request_is_forwarded_and_its_connection_used_again() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let ((answer, outcome), (head, mut peered)) = join(call(&target, get()), backend.answer(OK)).await;
    assert_eq!((answer.status, &answer.content[..], outcome), (200, b"ok".as_slice(), None));
    assert!(head.starts_with("GET /x?y=1 HTTP/1.1\r\nhost: example.org\r\n"), "{head}");
    let status = target.upstream().status();
    assert_eq!((status.servers[0].idle, status.servers[0].in_flight), (1, 0));
    let script = async {
        let head = peered.until("abc").await;
        peered.send(OK).await;
        head
    };
    let ((answer, _), head) = join(call(&target, post("abc")), script).await;
    assert_eq!(answer.status, 200);
    assert!(head.contains("\r\ncontent-length: 3\r\n"), "{head}");
}

#[tokio::test]
async fn a_server_that_closes_idle_connections_at_the_worst_moment_costs_no_idempotent_request() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let server = async {
        loop {
            // Answers one request of each connection and closes it without a word, at once or after the next request.
            let (_, mut peered) = backend.answer(OK).await;
            drop(peered);
            (_, peered) = backend.answer(OK).await;
            let _ = peered.stream.read_buf(&mut peered.input).await;
        }
    };
    let client = async {
        for round in 0..200 {
            let (answer, _) = call(&target, get()).await;
            assert_eq!(answer.status, 200, "round {round}");
        }
    };
    tokio::select! {
        () = client => {}
        () = server => {}
    }
    assert_eq!(target.upstream().status().servers[0].failures, 0, "nobody's fault");
}

#[tokio::test]
async fn what_a_server_may_have_acted_on_is_not_sent_again() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let (_, (_, mut peered)) = join(call(&target, get()), backend.answer(OK)).await;
    let script = async {
        peered.until("pay").await;
        drop(peered);
    };
    let ((answer, outcome), ()) = join(call(&target, post("pay")), script).await;
    assert_eq!((answer.status, outcome), (502, Some(Outcome::UpstreamFailed)));
    // Nobody has connected a second time.
    assert!(futures_util::FutureExt::now_or_never(backend.accept()).is_none());
}

#[tokio::test]
async fn on_a_new_connection_not_even_an_idempotent_request_is_sent_again() {
    let (first, second) = (Backend::new(), Backend::new());
    let target = target(&settings(&[&first, &second]));
    let script = async {
        let mut peered = first.accept().await;
        peered.head().await;
    };
    let ((answer, _), ()) = join(call(&target, get()), script).await;
    assert_eq!(answer.status, 502);
    assert_eq!(target.upstream().status().servers[0].failures, 1);
    assert_eq!(target.upstream().status().servers[1].requests, 0);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_was_idle_for_long_gets_no_request_that_cannot_be_repeated() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let (_, (_, _peered)) = join(call(&target, get()), backend.answer(OK)).await;
    tokio::time::advance(FRESH * 2).await;
    let ((answer, _), _) = join(call(&target, post("x")), backend.answer(OK)).await;
    assert_eq!(answer.status, 200);
    assert_eq!(target.upstream().status().servers[0].idle, 2);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_was_idle_for_long_gets_no_content_that_is_too_large_to_be_kept() {
    for (size, connections) in [(64 << 10, 1), (65 << 10, 2)] {
        let backend = Backend::new();
        let target = target(&settings(&[&backend]));
        let (_, (_, mut peered)) = join(call(&target, get()), backend.answer(OK)).await;
        tokio::time::advance(FRESH * 2).await;
        let content = RequestBody::Bytes(Bytes::from(vec![b'x'; size]));
        let script = async {
            if connections == 2 {
                peered = backend.accept().await;
            }
            peered.until(&"x".repeat(size)).await;
            peered.send(OK).await;
            peered
        };
        let ((answer, _), _peered) = join(call(&target, request(Method::PUT, &[], content)), script).await;
        assert_eq!(answer.status, 200, "{size}");
        assert_eq!(target.upstream().status().servers[0].idle, connections, "{size}");
    }
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_passed_over() {
    let gone = Backend::new().address();
    let backend = Backend::new();
    let target = target(&settings_of(&[gone, backend.address()]));
    let ((answer, _), (head, _)) = join(call(&target, post("abc")), backend.answer(OK)).await;
    assert_eq!(answer.status, 200);
    assert!(head.starts_with("POST "));
    assert_eq!(target.upstream().status().servers[0].failures, 1);
}

#[tokio::test]
async fn retries_are_counted() {
    let gone: Vec<_> = (0..4).map(|_| Backend::new()).collect();
    let addresses: Vec<_> = gone.iter().map(Backend::address).collect();
    drop(gone);
    let target = target(&settings_of(&addresses));
    let (answer, outcome) = call(&target, get()).await;
    assert_eq!((answer.status, outcome), (502, Some(Outcome::UpstreamFailed)));
    let failures: u64 = target.upstream().status().servers.iter().map(|server| server.failures).sum();
    assert_eq!(failures, 3);
}

#[tokio::test]
async fn a_server_that_says_how_long_it_keeps_a_connection_is_believed() {
    let backend = Backend::new();
    let target = target(&settings(&[&backend]));
    let text = "HTTP/1.1 200 OK\r\nkeep-alive: timeout=5\r\ncontent-length: 0\r\n\r\n";
    let ((answer, _), _peered) = join(call(&target, get()), backend.answer(text)).await;
    assert!(!answer.headers.contains_key("keep-alive"));
    let epoch = target.upstream().claim();
    tokio::time::pause();
    tokio::time::advance(Duration::from_millis(3_900)).await;
    assert_eq!(target.upstream().decide(epoch).unwrap().closed, 0);
    tokio::time::advance(Duration::from_millis(200)).await;
    assert_eq!(target.upstream().decide(epoch).unwrap().closed, 1);
}
