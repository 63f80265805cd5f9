//! A request costs no message: what it needs it reads, and asks no actor.

use crate::harness::{Scripted, Site};

#[test]
fn ten_thousand_requests_send_next_to_no_messages() {
    const REQUESTS: usize = 10_000;
    let upstream = Scripted::saying("from the upstream\n");
    let site = Site::new()
        .file("public/hello.txt", "hello\n")
        .server("up", upstream.address)
        .route(r#"(path: "/", to: Static(root: "public"))"#)
        .route(r#"(path: "/up/", to: Proxy("up"))"#)
        .start();
    let mut wire = site.wire();
    let mut ask = |target: &str, text: &str| {
        wire.send(format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n"));
        assert_eq!(wire.response().text(), text);
    };
    // What is made once is made now: the client's connection, the upstream's, the file's entry.
    ask("/hello.txt", "hello\n");
    ask("/up/", "from the upstream\n");
    let before = site.admin.metric("playhouse_actor_messages_total", &[]);
    assert!(before > 0.0, "messages are counted");
    for _ in 0..REQUESTS / 2 {
        ask("/hello.txt", "hello\n");
        ask("/up/", "from the upstream\n");
    }
    let spent = site.admin.metric("playhouse_actor_messages_total", &[]) - before;
    // Timers of actors tick on, and asking for the metrics is itself a connection.
    assert!(spent < REQUESTS as f64 / 50.0, "{spent} messages for {REQUESTS} requests");
    assert_eq!(site.admin.settled_ledger().answered, REQUESTS as u64 + 2);
}
