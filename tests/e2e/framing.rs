//! Where messages begin and end, whatever stands in them and however they arrive.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::harness::{Running, Scripted, Site, ok};

fn through(upstream: &Scripted) -> Running {
    Site::new()
        .server("up", upstream.address)
        .route(r#"(path: "/up/", to: Proxy("up"))"#)
        .route(r#"(path: "/ok", to: Respond(status: 200, body: "ok"))"#)
        .start()
}

#[test]
fn a_thousand_requests_at_once_are_answered_in_their_order() {
    let upstream = Scripted::answering(|request| ok(&request.target));
    let site = through(&upstream);
    let mut wire = site.wire();
    let requests: String = (0..1000)
        .map(|number| match number % 3 {
            0 => format!("GET /up/{number} HTTP/1.1\r\nHost: x\r\n\r\n"),
            1 => "HEAD /ok HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
            _ => format!("POST /up/{number} HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nGET /"),
        })
        .collect();
    wire.send(requests);
    for number in 0..1000 {
        if number % 3 == 1 {
            assert_eq!(wire.response_to_head().status, 200, "{number}");
        } else {
            assert_eq!(wire.response().text(), format!("/up/{number}"));
        }
    }
    assert_eq!(site.admin.settled_ledger().answered, 1000);
}

#[test]
fn a_request_is_understood_alike_wherever_it_is_cut() {
    let upstream = Scripted::answering(|request| ok(&request.text()));
    let site = through(&upstream);
    let first = "POST /up/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n\
                 3;a=\"b\"\r\nabc\r\n2\r\nde\r\n0\r\nX-Sum: 1\r\n\r\n";
    let both = format!("{first}GET /ok HTTP/1.1\r\nHost: x\r\n\r\n");
    for cut in 1..both.len() {
        let mut wire = site.wire();
        wire.send(&both[..cut]).send(&both[cut..]);
        assert_eq!((wire.response().text(), wire.response().text()), ("abcde".into(), "ok".into()), "{cut}");
    }
    for seen in upstream.requests() {
        assert_eq!(seen.trailers.len(), 1, "{seen:?}");
    }
}

#[test]
fn an_answer_is_understood_alike_wherever_it_is_cut() {
    // A server that fills its chunk sizes up with blanks, too.
    let answer = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
                   HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
                   3  \r\nabc\r\n2;x=y\r\nde\r\n0\r\nX-Sum: 1\r\n\r\n";
    let cut = AtomicUsize::new(0);
    let upstream = Scripted::start(move |mut connection| {
        while connection.request().is_some() {
            // Comes to the whole in one piece at last.
            let cut = cut.fetch_add(1, Ordering::SeqCst) + 1;
            connection.send(&answer[..cut]);
            connection.send(&answer[cut..]);
        }
    });
    let site = through(&upstream);
    let mut wire = site.wire();
    for cut in 1..=answer.len() {
        wire.send("GET /up/ HTTP/1.1\r\nHost: x\r\nTE: trailers\r\n\r\n");
        let response = wire.response();
        assert_eq!((response.status, response.text().as_str()), (200, "abcde"), "{cut}");
        assert_eq!((response.interim.len(), response.trailers.len()), (1, 1), "{cut}: {response:?}");
    }
    assert_eq!(upstream.accepted(), 1, "the connection is kept behind each");
}

/// Every pair of framing fields, each with every body: whatever the site makes of it, a server sees no request that the
/// site has not sent, and what it is sent has one meaning.
#[test]
fn no_pair_of_framing_fields_hides_a_request() {
    const HIDDEN: &str = "GET /up/hidden HTTP/1.1\r\nHost: x\r\n\r\n";
    let fields = [
        "",
        "Content-Length: 5",
        "Content-Length: 0",
        "Content-Length: 36",
        "Content-Length: 41",
        "Content-Length: +5",
        "Content-Length: 5, 5",
        "Content-Length : 5",
        "Content_Length: 5",
        "Content-Length:\t5",
        "Transfer-Encoding: chunked",
        "transfer-encoding:CHUNKED",
        "Transfer-Encoding : chunked",
        "Transfer_Encoding: chunked",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: identity, chunked",
        "Transfer-Encoding: \x0bchunked",
        "Transfer-Encoding:\r\n chunked",
        "X: y\nTransfer-Encoding: chunked",
        "X: y\rTransfer-Encoding: chunked",
        "Connection: Transfer-Encoding",
        "Connection: Content-Length",
        "Connection: Upgrade\r\nUpgrade: h2c",
        "Expect: 100-continue",
    ];
    let bodies = [
        String::new(),
        HIDDEN.to_owned(),
        format!("0\r\n\r\n{HIDDEN}"),
        format!("{:x}\r\n{HIDDEN}\r\n0\r\n\r\n", HIDDEN.len()),
        format!("5\r\nhello\r\n0\r\n{HIDDEN}"),
        format!("5 ;\n\r\nhello\r\n0\r\n\r\n{HIDDEN}"),
    ];
    let upstream = Scripted::saying("ok");
    let site = through(&upstream);
    for (index, first) in fields.iter().enumerate() {
        for second in &fields[..=index] {
            for body in &bodies {
                let lines: String =
                    [first, second].iter().filter(|l| !l.is_empty()).map(|l| format!("{l}\r\n")).collect();
                let mut wire = site.wire();
                let _ = wire.try_send(format!("POST /up/ HTTP/1.1\r\nHost: x\r\n{lines}\r\n{body}"));
                wire.finish();
                wire.rest();
            }
        }
    }
    for seen in upstream.requests() {
        assert!(matches!(seen.target.as_str(), "/up/" | "/up/hidden"), "{seen:?}");
        assert!(seen.header("via").is_some(), "a request that the site has not sent: {seen:?}");
        let framing = seen.headers.iter().filter(|(name, _)| {
            ["content-length", "transfer-encoding"].iter().any(|n| name.eq_ignore_ascii_case(n))
        });
        assert!(framing.count() <= 1, "{seen:?}");
        for gone in ["content_length", "transfer_encoding", "upgrade"] {
            assert_eq!(seen.header(gone), None, "{seen:?}");
        }
    }
    let ledger = site.admin.settled_ledger();
    assert_eq!((ledger.in_flight, ledger.ended()), (0, ledger.accepted), "{ledger:?}");
}
