//! Clients that break the rules, or try what they allow.

use super::*;

/// A client of bytes: sends these frames behind preface and SETTINGS, and returns the reason of the GOAWAY.
async fn goaway(served: &mut Served, frames: &[u8]) -> Option<u32> {
    let (mut reader, mut writer) = tokio::io::split(&mut served.client);
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    bytes.extend(frames);
    let (mut got, write) = (Vec::new(), async {
        let _ = writer.write_all(&bytes).await;
        let _ = writer.shutdown().await;
    });
    futures_util::future::join(write, reader.read_to_end(&mut got)).await.1.unwrap();
    let mut rest = &got[..];
    while let [a, b, c, kind, _, _, _, _, _, tail @ ..] = rest {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        if *kind == 7 {
            return Some(u32::from_be_bytes(tail[4..8].try_into().unwrap()));
        }
        rest = &tail[length..];
    }
    None
}

#[tokio::test]
async fn floods_end_with_enhance_your_calm() {
    let ping = b"\0\0\x08\x06\0\0\0\0\0xxxxxxxx".repeat(5_000);
    let settings_flood = b"\0\0\0\x04\0\0\0\0\0".repeat(5_000);
    let priority = b"\0\0\x05\x02\0\0\0\0\x01\0\0\0\0\x10".repeat(5_000);
    // A request, and empty DATA frames without end.
    let mut empty_data = b"\0\0\x0e\x01\x04\0\0\0\x01\x83\x86\x84\x41\x09a.example".to_vec();
    empty_data[2] = (empty_data.len() - 9) as u8;
    empty_data.extend(b"\0\0\0\0\0\0\0\0\x01".repeat(5_000));
    let mut rapid_reset = Vec::new();
    for stream in (1u32..20_000).step_by(2) {
        let mut head = b"\0\0\x0e\x01\x05\0\0\0\0\x82\x86\x84\x41\x09a.example".to_vec();
        head[2] = (head.len() - 9) as u8;
        head[5..9].copy_from_slice(&stream.to_be_bytes());
        rapid_reset.extend(head);
        rapid_reset.extend(b"\0\0\x04\x03\0");
        rapid_reset.extend(stream.to_be_bytes());
        rapid_reset.extend(8u32.to_be_bytes());
    }
    for frames in [ping, settings_flood, priority, empty_data, rapid_reset] {
        let mut served = served(silent(), settings());
        let reason =
            tokio::time::timeout(Duration::from_secs(30), goaway(&mut served, &frames)).await.unwrap();
        assert_eq!(reason, Some(0xb));
        served.connection.await.unwrap();
        assert_eq!(served.application.totals().in_flight, 0);
    }
}

/// HEADERS of a request for `/` with these further fields, which no table knows.
pub(super) fn head(stream: u32, end: bool, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = b"\x82\x86\x84\x01\x09a.example".to_vec();
    for (name, value) in fields {
        block.extend([0, name.len() as u8]);
        block.extend(name.as_bytes());
        block.push(value.len() as u8);
        block.extend(value.as_bytes());
    }
    let mut frame = vec![0, 0, block.len() as u8, 1, if end { 5 } else { 4 }];
    frame.extend(stream.to_be_bytes());
    frame.extend(block);
    frame
}

#[tokio::test]
async fn what_h2_refuses_by_itself_is_entered_too() {
    let mut served = served(text("fine"), settings());
    let mut frames = head(1, true, &[("te", "gzip")]);
    frames.extend(head(3, true, &[]));
    // The name has an upper-case letter, at which `h2` ends the connection.
    frames.extend(head(5, true, &[("X", "1")]));
    assert_eq!(goaway(&mut served, &frames).await, Some(1));
    served.connection.await.unwrap();
    let totals = served.application.totals();
    assert_eq!((totals.accepted, totals.in_flight), (3, 0));
    // The one between them goes with the connection, unless it was answered before.
    assert_eq!(totals.rejected + totals.answered + totals.client_gone, 3, "{totals:?}");
    assert_eq!(served.application.refusals.lock().len() as u64, totals.rejected);
    assert!(totals.rejected >= 2, "{totals:?}");
}

#[tokio::test]
async fn half_a_head_is_entered_when_its_connection_ends() {
    for kill in [true, false] {
        let mut served = served(text("never"), settings());
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
        let head = head(1, true, &[]);
        bytes.extend(&head[..head.len() - 1]);
        served.client.write_all(&bytes).await.unwrap();
        // SETTINGS and their acknowledgement say that all of it was read.
        served.client.read_exact(&mut [0; 40]).await.unwrap();
        if kill {
            served.connection.abort();
        } else {
            drop(served.client);
        }
        let _ = served.connection.await;
        let totals = served.application.totals();
        let expected = if kill { (1, 1, 0) } else { (1, 0, 1) };
        assert_eq!((totals.accepted, totals.killed, totals.client_gone), expected);
    }
}

#[tokio::test]
async fn tiny_data_frames_that_are_read_are_no_flood() {
    let mut served = served(echo(), settings());
    let mut frames = head(1, false, &[]);
    frames.extend(b"\0\0\x01\0\0\0\0\0\x01a".repeat(30_000));
    frames.extend(b"\0\0\x01\0\x01\0\0\0\x01a");
    assert_eq!(goaway(&mut served, &frames).await, None);
    served.connection.await.unwrap();
    assert_eq!(served.application.totals().answered + served.application.totals().client_gone, 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_before_the_end_of_its_request_is_not_followed_by_a_reset_at_once() {
    let served = served(text("early"), settings());
    let (client, _connection) = client(served.client).await;
    let (response, mut body) = request_with_body(&mut client.clone(), get("/")).await;
    assert_eq!(&answer(response).await.unwrap().2[..], b"early");
    let answered = tokio::time::Instant::now();
    let reason = std::future::poll_fn(|cx| body.poll_reset(cx)).await.unwrap();
    assert_eq!((reason, answered.elapsed().as_secs()), (Reason::NO_ERROR, 1));
    assert_eq!(served.application.totals().answered, 1);
}
