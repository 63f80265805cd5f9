//! The access log: a line for each request, whatever clients put into it.

use serde_json::Value;

use crate::harness::{Running, Site, eventually};

fn site(format: &str) -> Running {
    Site::new()
        .field(format!("access_log: (to: \"access.log\", format: {format})"))
        .file("public/hello.txt", "hello\n")
        .route(r#"(path: "/", to: Static(root: "public"))"#)
        .start()
}

/// The log's lines, once there are so many.
fn lines(site: &Running, count: usize) -> Vec<String> {
    let read = || std::fs::read_to_string(site.path("access.log")).unwrap_or_default();
    eventually("the lines are written", || read().lines().count() >= count);
    read().lines().map(str::to_owned).collect()
}

#[test]
fn a_json_line_says_what_was_asked_and_how_it_went() {
    let site = site("Json");
    let mut wire = site.wire();
    wire.send("GET /hello.txt?a=b HTTP/1.1\r\nHost: shop.test\r\nUser-Agent: tester\r\nReferer: http://from.test/\r\n\r\n");
    assert_eq!(wire.response().status, 200);
    wire.send("GET /missing HTTP/1.1\r\nHost: shop.test\r\n\r\n");
    assert_eq!(wire.response().status, 404);
    let lines = lines(&site, 2);
    let first: Value =
        serde_json::from_str(&lines[0]).unwrap_or_else(|error| panic!("{error}: {}", lines[0]));
    let text = lines[0].as_str();
    for part in ["GET", "/hello.txt?a=b", "shop.test", "tester", "127.0.0.1", "http://from.test/"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert_eq!(first["status"], 200, "{first}");
    assert_eq!(first["outcome"], "answered", "{first}");
    assert_eq!(serde_json::from_str::<Value>(&lines[1]).unwrap()["status"], 404);
}

#[test]
fn every_request_of_the_ledger_leaves_a_line() {
    let site = site("Json");
    for _ in 0..20 {
        crate::harness::curl(["--http2-prior-knowledge", &site.url("http", "/hello.txt")]).expect(200);
    }
    for bytes in ["GET / HTTP/1.1\r\n\r\n", "nonsense\r\n\r\n"] {
        let mut wire = site.wire();
        wire.send(bytes);
        assert_eq!(wire.response().status, 400);
    }
    assert_eq!(lines(&site, 22).len(), 22);
    assert_eq!(site.admin.settled_ledger().accepted, 22);
}

#[test]
fn nothing_that_a_client_sends_breaks_a_line_or_reaches_a_terminal() {
    let attacks: &[&[u8]] = &[
        b"GET /\" HTTP/1.1\r\nHost: x\r\nUser-Agent: \"quoted\" \\ back\r\n\r\n",
        b"GET /%0a%0dfake HTTP/1.1\r\nHost: x\r\nUser-Agent: tab\there\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nUser-Agent: \xff\xfe\x80\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nUser-Agent: \xc2\x9b31m\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nReferer: </script>\",\"status\":200,\"x\":\"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nUser-Agent: - - [x] \"GET / HTTP/1.1\" 200 1\r\n\r\n",
        b"GET /\x1b[31m HTTP/1.1\r\nHost: x\r\nUser-Agent: red\r\n\r\n",
        b"G\x1b[2J / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: \x1b]0;title\x07\r\n\r\n",
    ];
    for format in ["Json", "Combined"] {
        let site = site(format);
        for bytes in attacks {
            let mut wire = site.wire();
            wire.send(bytes);
            wire.response();
        }
        let lines = lines(&site, attacks.len());
        assert_eq!(lines.len(), attacks.len(), "{lines:#?}");
        let raw = std::fs::read(site.path("access.log")).unwrap();
        let controls = raw.iter().filter(|byte| (**byte < 0x20 && **byte != b'\n') || **byte == 0x7f).count();
        assert_eq!(controls, 0, "{lines:#?}");
        let text = String::from_utf8(raw).expect("the log is UTF-8");
        assert!(
            !text.chars().any(|c| c.is_control() && c != '\n'),
            "C1 controls are escaped too: {lines:#?}"
        );
        for line in &lines {
            match format {
                "Json" => {
                    let entry: Value =
                        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
                    assert!(entry.is_object(), "{line}");
                }
                _ => is_combined(line),
            }
        }
    }
}

/// `ADDRESS - USER [TIME] "REQUEST" STATUS BYTES "REFERER" "AGENT"`, quotes inside escaped.
fn is_combined(line: &str) {
    let mut rest = line;
    let mut until = |end: &str| {
        let (part, after) = rest.split_once(end).unwrap_or_else(|| panic!("no {end:?} in {line}"));
        rest = after;
        part.to_owned()
    };
    until(" ");
    until(" ");
    until(" [");
    until("] \"");
    let mut quoted = || {
        let mut escaped = false;
        let end = rest.char_indices().find(|(_, c)| {
            let ends = *c == '"' && !escaped;
            escaped = *c == '\\' && !escaped;
            ends
        });
        let (end, _) = end.unwrap_or_else(|| panic!("no closing quote in {line}"));
        rest = &rest[end + 1..];
    };
    quoted();
    rest = rest.strip_prefix(' ').unwrap_or_else(|| panic!("{line}"));
    for _ in 0..2 {
        let (number, after) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
        assert!(number == "-" || number.parse::<u64>().is_ok(), "{line}");
        rest = after;
    }
    for _ in 0..2 {
        rest = rest.trim_start_matches(' ').strip_prefix('"').unwrap_or_else(|| panic!("{line}"));
        let mut escaped = false;
        let end = rest.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        rest = &rest[end.unwrap_or_else(|| panic!("no closing quote in {line}")) + 1..];
    }
    assert!(rest.is_empty(), "{rest:?} is left of {line}");
}

#[test]
fn a_log_that_was_moved_away_is_opened_again_at_a_reload() {
    let site = site("Combined");
    let ask = || {
        let mut wire = site.wire();
        wire.send("GET /hello.txt HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(wire.response().status, 200);
    };
    ask();
    assert_eq!(lines(&site, 1).len(), 1);
    std::fs::rename(site.path("access.log"), site.path("access.log.1")).unwrap();
    site.reload();
    ask();
    assert_eq!(lines(&site, 1).len(), 1);
}

#[test]
fn a_log_that_cannot_be_written_holds_no_request_up() {
    let site = Site::new()
        .field("access_log: (to: \"/dev/full\", format: Json)")
        .route(r#"(path: "/", to: Respond(status: 200, body: "hello"))"#)
        .start();
    let mut wire = site.wire();
    for _ in 0..2_000 {
        wire.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(wire.response().status, 200);
    }
    assert_eq!(site.admin.settled_ledger().answered, 2_000);
}

#[test]
fn standard_output_is_a_log_too() {
    let site = Site::new()
        .field("access_log: (to: \"-\", format: Combined)")
        .route(r#"(path: "/", to: Respond(status: 200, body: "hello"))"#)
        .start();
    let mut wire = site.wire();
    wire.send("GET /stdout HTTP/1.1\r\nHost: x\r\n\r\n");
    wire.response();
    eventually("the line is there", || {
        site.process.stdout().iter().any(|line| line.contains("GET /stdout HTTP/1.1"))
    });
}
