//! What a client may send, and how much of it.

use std::time::Duration;

use crate::harness::{Scripted, Site, curl, eventually, pattern};

#[test]
fn a_body_over_the_limit_is_answered_with_413() {
    let upstream = Scripted::saying("taken\n");
    let site = Site::new()
        .listener("http", r#"(bind: "127.0.0.1:0", limits: (body_bytes: "1KiB"))"#)
        .server("up", upstream.address)
        .route(r#"(path: "/", to: Proxy("up"))"#)
        .route(r#"(path: "/large/", to: Proxy("up"), max_body: "4KiB")"#)
        .start();
    let (fits, exceeds, far) = (pattern(1024), pattern(1025), pattern(4097));
    let send = |target: &str, body: &[u8], chunked: bool| {
        let mut wire = site.wire();
        let framed = if chunked {
            let mut framed = format!("{:x}\r\n", body.len()).into_bytes();
            framed.extend_from_slice(body);
            framed.extend_from_slice(b"\r\n0\r\n\r\n");
            framed
        } else {
            body.to_vec()
        };
        let field = if chunked {
            "Transfer-Encoding: chunked".into()
        } else {
            format!("Content-Length: {}", body.len())
        };
        let mut bytes = format!("POST {target} HTTP/1.1\r\nHost: x\r\n{field}\r\n\r\n").into_bytes();
        bytes.extend_from_slice(&framed);
        let _ = wire.try_send(bytes);
        wire.response().status
    };
    for chunked in [false, true] {
        assert_eq!(send("/", &fits, chunked), 200, "chunked: {chunked}");
        assert_eq!(send("/", &exceeds, chunked), 413, "chunked: {chunked}");
        assert_eq!(send("/large/", &exceeds, chunked), 200, "chunked: {chunked}");
        assert_eq!(send("/large/", &far, chunked), 413, "chunked: {chunked}");
    }
    let ledger = site.admin.settled_ledger();
    assert_eq!((ledger.answered, ledger.rejected), (4, 4), "{ledger:?}");
    // A length that is too large is refused before the upstream server hears of it, and before 100 (Continue).
    let before = upstream.accepted();
    let mut wire = site.wire();
    wire.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\nExpect: 100-continue\r\n\r\n");
    let response = wire.response();
    assert_eq!((response.status, response.interim.len()), (413, 0));
    assert_eq!(upstream.accepted(), before);
}

#[test]
fn a_body_over_the_limit_is_refused_over_http2_too() {
    let upstream = Scripted::saying("taken\n");
    let site = Site::new()
        .listener("http", r#"(bind: "127.0.0.1:0", limits: (body_bytes: "1KiB"))"#)
        .server("up", upstream.address)
        .route(r#"(path: "/", to: Proxy("up"))"#)
        .file("small", pattern(1024))
        .file("large", pattern(100_000))
        .start();
    let send = |file: &str| {
        let data = format!("@{}", site.path(file).display());
        curl(["--http2-prior-knowledge", "--data-binary", &data, &site.url("http", "/")])
    };
    send("small").expect(200);
    // curl 7.88 loses an answer that comes before it has sent everything, so that it may see only the reset.
    let large = send("large");
    assert!(large.status == 413 || large.exit == 92, "{large:?}");
    let ledger = site.admin.settled_ledger();
    assert_eq!((ledger.answered, ledger.rejected), (1, 1), "{ledger:?}");
}

#[test]
fn a_connection_over_the_limit_waits_its_turn() {
    let site = Site::new()
        .listener("http", r#"(bind: "127.0.0.1:0", limits: (connections: 2))"#)
        .route(r#"(path: "/", to: Respond(status: 200, body: "hello\n"))"#)
        .start();
    let request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    let (mut first, mut second) = (site.wire(), site.wire());
    for wire in [&mut first, &mut second] {
        wire.send(request);
        assert_eq!(wire.response().status, 200);
    }
    let mut third = site.wire();
    third.send(request).patience(Duration::from_millis(300));
    assert!(third.fill().is_err(), "it waits in the kernel's queue");
    drop(first);
    third.patience(crate::harness::PATIENCE);
    assert_eq!(third.response().status, 200);
    drop((second, third));
    eventually("all connections are gone", || site.admin.connections() == 0);
}

#[test]
fn running_out_of_descriptors_neither_spins_nor_loses_the_listener() {
    use std::process::Command;
    // With 64 descriptors the process soon cannot accept any more.
    let site = Site::new().route(r#"(path: "/", to: Respond(status: 200, body: "hello\n"))"#);
    let command = site.command();
    let mut limited = Command::new("prlimit");
    limited.arg("--nofile=64:64").arg(command.get_program()).args(command.get_args());
    limited.current_dir(command.get_current_dir().unwrap());
    let mut process = crate::harness::Process::start("playhouse with few descriptors", &mut limited);
    let admin = crate::harness::Admin::new(site.path("state/admin.sock"));
    eventually("the site is ready", || {
        if let Some(status) = process.ended() {
            panic!("it has ended at once: {status}\n{}", process.output());
        }
        admin.ready()
    });
    let address = admin.listener("http").unwrap().parse().unwrap();
    let mut held: Vec<_> = (0..100).map(|_| crate::harness::Wire::connect(address)).collect();
    let busy = cpu_time(&process);
    eventually("it is seen that descriptors have run out", || {
        process.output().contains("EMFILE") || {
            process.output().to_lowercase().contains("too many open files")
        }
    });
    held.clear();
    eventually("a new client is served", || {
        let mut wire = crate::harness::Wire::connect(address);
        wire.patience(Duration::from_secs(1));
        wire.try_send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").is_ok() && wire.try_response(false).is_ok()
    });
    let spent = cpu_time(&process) - busy;
    assert!(spent < 1.0, "{spent} seconds of CPU were spent on accepting in vain");
}

/// Seconds of CPU that the process has used.
fn cpu_time(process: &crate::harness::Process) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid().as_raw_nonzero())).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    // Fields 14 and 15 of proc(5), counted behind the name; the clock ticks a hundred times a second everywhere.
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

#[test]
fn an_address_over_its_rate_is_told_to_come_later_and_others_are_served() {
    let site = Site::new()
        .listener("http", r#"(bind: "127.0.0.1:0", limits: (rate: (per_second: 1, burst: 3)))"#)
        .listener("free", r#"(bind: "127.0.0.1:0")"#)
        .route(r#"(path: "/", to: Respond(status: 200, body: "hello\n"))"#)
        .start();
    let started = std::time::Instant::now();
    let mut wire = site.wire();
    wire.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(50));
    let answers: Vec<_> = (0..50).map(|_| wire.response()).collect();
    let served = answers.iter().filter(|answer| answer.status == 200).count();
    // A slow machine has given it some more.
    assert!(served >= 3 && served <= 3 + 1 + started.elapsed().as_secs() as usize, "{served}");
    assert!(answers[..3].iter().all(|answer| answer.status == 200), "the burst");
    for answer in answers.iter().filter(|answer| answer.status != 200) {
        assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")));
        assert_eq!(answer.text(), "429 Too Many Requests\n");
    }
    // Over HTTP/2 and another connection it is the same client; from another address it is another.
    let url = site.url("http", "/");
    for _ in 0..10 {
        let answer = curl(["--http2-prior-knowledge", &url]);
        assert!(answer.status == 429 || answer.status == 200, "{answer:?}");
    }
    curl(["--interface", "127.0.0.2", &url]).expect(200);
    for _ in 0..10 {
        curl([site.url("free", "/")]).expect(200);
    }
    let ledger = site.admin.settled_ledger();
    assert_eq!((ledger.accepted, ledger.shed + ledger.answered), (71, 71), "{ledger:?}");
    assert!(ledger.shed + 4 + started.elapsed().as_secs() >= 60, "{ledger:?}");
    assert!(site.admin.metric("playhouse_requests_total", &["outcome=\"shed\"", "listener=\"http\""]) > 0.0);
    let counted = site.admin.metric("playhouse_rate_limited_requests_total", &["listener=\"http\""]);
    assert_eq!(counted, ledger.shed as f64);
    assert_eq!(site.admin.metric("playhouse_address_table_full_total", &[]), 0.0);
}

#[test]
fn an_address_with_too_many_connections_gets_no_other_and_others_do() {
    let site = Site::new()
        .listener("http", r#"(bind: "127.0.0.1:0", limits: (connections_per_address: 2))"#)
        .route(r#"(path: "/", to: Respond(status: 200, body: "hello\n"))"#)
        .start();
    let request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    let (mut first, mut second) = (site.wire(), site.wire());
    for wire in [&mut first, &mut second] {
        wire.send(request);
        assert_eq!(wire.response().status, 200);
    }
    for _ in 0..10 {
        site.wire().expect_closed();
    }
    curl(["--interface", "127.0.0.2", &site.url("http", "/")]).expect(200);
    let refused = |site: &crate::harness::Running| {
        site.admin.metric("playhouse_connections_refused_total", &["listener=\"http\""])
    };
    assert_eq!(refused(&site), 10.0);
    // Acceptors and connections that are killed give back what they had.
    site.admin.kill("instance-1/listeners/http", "kill");
    site.wire().expect_closed();
    drop(first);
    eventually("the place of a closed connection is free", || {
        let mut wire = site.wire();
        wire.try_send(request).is_ok() && wire.try_response(false).is_ok_and(|answer| answer.status == 200)
    });
    for shard in 0..16 {
        site.admin.kill(&format!("instance-1/connections/shard-{shard}"), "kill");
    }
    second.expect_closed();
    let (mut third, mut fourth) = (site.wire(), site.wire());
    eventually("the places of killed connections are free", || {
        (third, fourth) = (site.wire(), site.wire());
        [&mut third, &mut fourth].into_iter().all(|wire| {
            wire.try_send(request).is_ok()
                && wire.try_response(false).is_ok_and(|answer| answer.status == 200)
        })
    });
    third.send(request);
    assert_eq!(third.response().status, 200);
    assert_eq!(site.admin.settled_ledger().shed, 0);
}
