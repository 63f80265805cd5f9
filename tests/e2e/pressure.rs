//! A client or a server that is slow holds the other side back, and memory does not grow with it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use crate::harness::{Running, Scripted, Site, Wire, Wrk, eventually_some, pattern};

const MIB: usize = 1 << 20;

/// Polls a number until it has not changed for a while: whoever drives it is held back.
fn comes_to_rest(what: &str, mut look: impl FnMut() -> usize) -> usize {
    let (mut last, mut unchanged) = (look(), 0);
    eventually_some(what, || {
        let now = look();
        unchanged = if now == last { unchanged + 1 } else { 0 };
        last = now;
        (unchanged == 50).then_some(now)
    })
}

fn grown(site: &Running, before: u64) -> usize {
    (site.process.resident().saturating_sub(before)) as usize / MIB
}

#[test]
fn a_client_that_reads_slowly_holds_the_upstream_back() {
    let sent = Arc::new(AtomicUsize::new(0));
    let upstream = {
        let sent = sent.clone();
        Scripted::start(move |mut connection| {
            if connection.request().is_none() {
                return;
            }
            let piece = pattern(64 << 10);
            connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 512 * MIB));
            for _ in 0..512 * MIB / piece.len() {
                if !connection.send(&piece) {
                    return;
                }
                sent.fetch_add(piece.len(), Ordering::SeqCst);
            }
        })
    };
    let site = Site::new().server("up", upstream.address).route(r#"(path: "/", to: Proxy("up"))"#).start();
    let before = site.process.resident();
    for start in ["GET / HTTP/1.1\r\nHost: x\r\n\r\n".as_bytes(), H2_GET] {
        sent.store(0, Ordering::SeqCst);
        let mut wire = site.wire();
        wire.send(start);
        eventually_some("the upstream sends", || (sent.load(Ordering::SeqCst) > 0).then_some(()));
        let held_at = comes_to_rest("the upstream is held back", || sent.load(Ordering::SeqCst));
        // What the kernel's buffers between three processes take, and a little of ours.
        assert!(held_at < 64 * MIB, "{} MiB were taken from the upstream", held_at / MIB);
        assert!(grown(&site, before) < 32, "{} MiB more", grown(&site, before));
    }
}

#[test]
fn an_upstream_that_reads_slowly_holds_the_client_back() {
    let (over, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let upstream = Scripted::start(move |mut connection| {
        // Reads the head and no more, until the test is over.
        if connection.request_head().is_some() {
            let _ = wait.lock().unwrap().recv();
        }
    });
    let site = Site::new().server("up", upstream.address).route(r#"(path: "/", to: Proxy("up"))"#).start();
    let before = site.process.resident();
    let mut wire = site.wire();
    wire.send(format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", 512 * MIB));
    let sent = Arc::new(AtomicUsize::new(0));
    let writer = {
        let sent = sent.clone();
        std::thread::spawn(move || {
            let piece = pattern(64 << 10);
            wire.patience(std::time::Duration::from_secs(5));
            while wire.try_send(&piece).is_ok() {
                sent.fetch_add(piece.len(), Ordering::SeqCst);
            }
        })
    };
    let held_at = comes_to_rest("the client is held back", || sent.load(Ordering::SeqCst));
    assert!(held_at < 64 * MIB, "{} MiB were taken from the client", held_at / MIB);
    assert!(grown(&site, before) < 32, "{} MiB more", grown(&site, before));
    drop(over);
    writer.join().unwrap();
}

#[test]
fn a_hundred_clients_that_do_not_read_a_file_cost_little() {
    let site = Site::new()
        .file("public/big", pattern(64 * MIB))
        .route(r#"(path: "/", to: Static(root: "public"))"#)
        .start();
    let before = site.process.resident();
    let wires: Vec<Wire> = (0..100)
        .map(|_| {
            let mut wire = site.wire();
            wire.send("GET /big HTTP/1.1\r\nHost: x\r\n\r\n");
            wire.response_head().unwrap();
            wire
        })
        .collect();
    let rest = comes_to_rest("memory comes to rest", || grown(&site, before));
    assert!(rest < 64, "{rest} MiB for {} clients", wires.len());
    drop(wires);
    assert_eq!(site.admin.settled_ledger().client_gone, 100);
}

#[test]
fn wrk_sees_no_failure_on_files_and_through_a_proxy() {
    let nginx = crate::harness::Real::nginx();
    std::fs::write(nginx.folder.path().join("hello.txt"), "hello\n").unwrap();
    let site = Site::new()
        .file("public/hello.txt", "hello\n")
        .server("up", nginx.address)
        .route(r#"(path: "/", to: Static(root: "public"))"#)
        .route(r#"(path: "/up/", to: Proxy(upstream: "up", strip_prefix: true))"#)
        .start();
    for target in ["/hello.txt", "/up/hello.txt"] {
        let counted = Wrk::start(&site.url("http", target), 64, 3).finish();
        assert_eq!(counted.failures(), 0, "{target}: {counted:?}");
    }
    let ledger = site.admin.settled_ledger();
    // wrk walks away from what is in flight when its time is over.
    assert!(ledger.client_gone <= 128 && ledger.upstream_failed == 0 && ledger.killed == 0, "{ledger:?}");
}

/// The preface, SETTINGS, and HEADERS of `GET /` on stream 1.
const H2_GET: &[u8] =
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x06\x01\x05\0\0\0\x01\x82\x86\x84\x41\x01x";
