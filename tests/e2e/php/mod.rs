//! PHP under php-fpm: an application as people write them, and what php-fpm does to those who speak with it.

mod application;
mod failures;
mod kills;
mod managed;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::harness::{Fpm, Running, Site, Wire};

fn root() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/php/app").display().to_string()
}

/// A site with the application at `/`; `more` is for the upstream.
fn site(server: &str, more: &str) -> Running {
    Site::new()
        .upstream("php", format!("(servers: [\"{server}\"], {more})"))
        .route(format!("(path: \"/\", to: FastCgi(upstream: \"php\", root: \"{}\"))", root()))
        .start()
}

/// Idle connections are kept.
const KEEPING: &str = "keep_alive: (max_idle: 4)";

/// What became of many requests.
#[derive(Debug, Default)]
struct Counts {
    right: AtomicUsize,
    failed: AtomicUsize,
}

/// Asks by `clients` connections for as long as `meanwhile` runs; every answer that is none of an error must be right.
fn under_load(site: &Running, clients: usize, meanwhile: impl FnOnce()) -> Counts {
    let (counts, stop) = (Counts::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for client in 0..clients {
            let (counts, stop) = (&counts, &stop);
            scope.spawn(move || {
                let mut number = 0;
                let mut wire = site.wire();
                while !stop.load(Ordering::Relaxed) {
                    number += 1;
                    match ask(&mut wire, client, number) {
                        Some(true) => counts.right.fetch_add(1, Ordering::Relaxed),
                        Some(false) => counts.failed.fetch_add(1, Ordering::Relaxed),
                        None => {
                            wire = site.wire();
                            counts.failed.fetch_add(1, Ordering::Relaxed)
                        }
                    };
                }
            });
        }
        let finished = std::panic::catch_unwind(std::panic::AssertUnwindSafe(meanwhile));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = finished {
            std::panic::resume_unwind(panic);
        }
    });
    counts
}

/// One request, every second one with content. Whether it was answered rightly; `None` where the connection ended.
fn ask(wire: &mut Wire, client: usize, number: usize) -> Option<bool> {
    let said = format!("client={client}&number={number}");
    let request = if number.is_multiple_of(2) {
        format!("GET /index.php?{said} HTTP/1.1\r\nHost: x\r\n\r\n")
    } else {
        format!(
            "POST /form.php HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n\
             Content-Length: {}\r\n\r\n{said}",
            said.len()
        )
    };
    wire.try_send(request).ok()?;
    let answer = wire.try_response(false).ok()?;
    if answer.status != 200 {
        assert!(matches!(answer.status, 502..=504), "{answer:?}");
        return Some(false);
    }
    let text = answer.text();
    let expected = match number.is_multiple_of(2) {
        true => text.contains(&format!("\"QUERY_STRING\":\"{said}\"")),
        false => text == format!("client={client}\nnumber={number}\n"),
    };
    assert!(expected, "asked with {said}, answered {text}");
    Some(true)
}

#[track_caller]
fn fpm() -> Fpm {
    Fpm::start(4, "")
}
