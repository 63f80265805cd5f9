//! Lines as bytes. Whatever a client has sent is escaped, so that it can neither begin a line of its own nor reach the
//! terminal of whoever reads the log.

use std::io::Write;
use std::time::SystemTime;

use playhouse_config::model::LogFormat;

use super::entry::{Field, Line};

/// Lines that are missing here.
#[derive(Clone, Copy, Debug)]
pub(super) enum Missing {
    /// The queue was full.
    Dropped(u64),
    /// Writing failed.
    Lost(u64),
}

pub(super) fn line(out: &mut Vec<u8>, format: LogFormat, line: &Line) {
    match format {
        LogFormat::Json => json(out, line),
        LogFormat::Combined => combined(out, line),
    }
}

pub(super) fn missing(out: &mut Vec<u8>, format: LogFormat, missing: Missing, now: SystemTime) {
    let (word, count) = match missing {
        Missing::Dropped(count) => ("dropped", count),
        Missing::Lost(count) => ("lost", count),
    };
    // Writing to a vector does not fail, here and below.
    let _ = match format {
        LogFormat::Json => {
            writeln!(out, "{{\"time\":\"{}\",\"{word}\":{count}}}", humantime::format_rfc3339_millis(now))
        }
        LogFormat::Combined => {
            let _ = out.write_all(b"- - - [");
            apache_time(out, now);
            writeln!(out, "] \"-\" 000 0 \"-\" \"playhouse: {count} lines {word}\"")
        }
    };
}

fn json(out: &mut Vec<u8>, line: &Line) {
    let Line { entry, connection, route, server, tunnel, end, ended } = line;
    let _ = write!(
        out,
        "{{\"time\":\"{}\",\"peer\":\"{}\",\"connection\":{},\"listener\":",
        humantime::format_rfc3339_millis(*ended),
        connection.peer,
        connection.id,
    );
    json_text(out, Some(connection.listener.as_bytes()));
    let _ = write!(out, ",\"scheme\":\"{}\"", connection.scheme());
    if let Some(tls) = connection.tls_version() {
        let _ = out.write_all(b",\"tls\":");
        json_text(out, Some(tls.as_bytes()));
    }
    if let Some(proxied) = &connection.proxied {
        let _ = write!(out, ",\"proxy\":\"{}\"", proxied.by);
    }
    let entry = entry.as_deref();
    let _ = out.write_all(b",\"method\":");
    json_text(out, entry.map(|entry| entry.method.as_str().as_bytes()));
    for (name, field) in [
        ("host", Field::Host),
        ("target", Field::Target),
        ("referer", Field::Referer),
        ("user_agent", Field::UserAgent),
        ("request_id", Field::RequestId),
    ] {
        let _ = write!(out, ",\"{name}\":");
        json_text(out, entry.and_then(|entry| entry.field(field)));
    }
    let _ = match entry {
        Some(entry) => write!(out, ",\"version\":\"{:?}\"", entry.version),
        None => write!(out, ",\"version\":null"),
    };
    let _ = match end.status {
        Some(status) => write!(out, ",\"status\":{}", status.as_u16()),
        None => write!(out, ",\"status\":null"),
    };
    let _ = write!(
        out,
        ",\"outcome\":\"{}\",\"bytes\":{},\"duration_ms\":{:.3},\"route\":",
        end.outcome.as_str(),
        end.bytes_sent,
        end.duration.as_secs_f64() * 1e3,
    );
    json_text(out, route.as_deref().map(|route| route.label().as_bytes()));
    let _ = out.write_all(b",\"server\":");
    json_text(out, server.as_deref().map(|server| server.address().as_bytes()));
    if let Some(tunnel) = tunnel {
        out.extend_from_slice(b",\"tunnel\":{\"protocol\":");
        json_text(out, Some(tunnel.protocol.as_bytes()));
        let _ = write!(
            out,
            ",\"reason\":\"{}\",\"bytes_from_client\":{},\"bytes_to_client\":{},\"frames_from_client\":{},\
             \"frames_to_client\":{}}}",
            tunnel.reason.as_str(),
            tunnel.bytes_from_client,
            tunnel.bytes_to_client,
            tunnel.frames_from_client,
            tunnel.frames_to_client,
        );
    }
    out.extend_from_slice(b"}\n");
}

/// A JSON string, or `null`. Beyond what JSON demands, everything is escaped that a terminal may act on or that
/// reorders what is shown; bytes that are no UTF-8 become U+FFFD.
fn json_text(out: &mut Vec<u8>, text: Option<&[u8]>) {
    let Some(text) = text else { return out.extend_from_slice(b"null") };
    out.push(b'"');
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' | '\\' => out.extend_from_slice(&[b'\\', c as u8]),
                ' '..='~' => out.push(c as u8),
                c if is_unsafe(c) => drop(write!(out, "\\u{:04x}", u32::from(c))),
                c => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
    out.push(b'"');
}

/// C0, DEL, C1; line and paragraph separators; marks that change the direction of text. All below U+10000.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn combined(out: &mut Vec<u8>, line: &Line) {
    let Line { entry, connection, end, ended, .. } = line;
    let _ = write!(out, "{} - - [", connection.peer);
    apache_time(out, *ended);
    out.extend_from_slice(b"] \"");
    let entry = entry.as_deref();
    match entry {
        Some(entry) => {
            let _ = write!(out, "{} ", entry.method);
            apache_text(out, entry.field(Field::Target).unwrap_or(b"-"));
            let _ = write!(out, " {:?}", entry.version);
        }
        None => out.push(b'-'),
    }
    let status = end.status.map_or(0, |status| status.as_u16());
    let _ = write!(out, "\" {status:03} {} \"", end.bytes_sent);
    apache_text(out, entry.and_then(|entry| entry.field(Field::Referer)).unwrap_or(b"-"));
    out.extend_from_slice(b"\" \"");
    apache_text(out, entry.and_then(|entry| entry.field(Field::UserAgent)).unwrap_or(b"-"));
    out.extend_from_slice(b"\"\n");
}

/// As Apache does: quotes and backslashes with a backslash, what is not printable ASCII as `\xhh`.
fn apache_text(out: &mut Vec<u8>, text: &[u8]) {
    for &byte in text {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b' '..=b'~' => out.push(byte),
            byte => drop(write!(out, "\\x{byte:02x}")),
        }
    }
}

/// `10/Oct/2000:13:55:36 +0000`
fn apache_time(out: &mut Vec<u8>, time: SystemTime) {
    // `Tue, 10 Oct 2000 13:55:36 GMT`: of fixed width (RFC 9110 §5.6.7).
    let date = httpdate::fmt_http_date(time);
    let _ = write!(out, "{}/{}/{}:{} +0000", &date[5..7], &date[8..11], &date[12..16], &date[17..25]);
}

#[cfg(test)]
mod tests {
    use super::super::entry::Entry;
    use super::super::entry::tests::{END, exchange};
    use super::*;
    use crate::tunnel::{Reason, Summary};
    use std::sync::Arc;
    use std::time::Duration;

    fn one(format: LogFormat, target: &str, fields: &[(&'static str, &[u8])]) -> String {
        let exchange = exchange(target, fields);
        let mut out = Vec::new();
        let entry = Some(Arc::new(Entry::capture(&exchange)));
        let ended = SystemTime::UNIX_EPOCH + Duration::from_millis(971_186_136_789);
        let (connection, route, server) = (exchange.connection.clone(), None, None);
        let tunnel = exchange.record.tunnel.clone();
        line(&mut out, format, &Line { entry, connection, route, server, tunnel, end: END, ended });
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_json_line_has_all_that_is_known() {
        let text = one(LogFormat::Json, "/a?b=c", &[("host", b"example.org"), ("user-agent", b"curl")]);
        assert_eq!(
            text,
            "{\"time\":\"2000-10-10T13:55:36.789Z\",\"peer\":\"192.0.2.1\",\"connection\":7,\"listener\":\"http\",\
             \"scheme\":\"http\",\"method\":\"GET\",\"host\":\"example.org\",\"target\":\"/a?b=c\",\"referer\":null,\
             \"user_agent\":\"curl\",\"request_id\":null,\"version\":\"HTTP/1.1\",\"status\":200,\
             \"outcome\":\"answered\",\"bytes\":512,\"duration_ms\":1.234,\"route\":null,\"server\":null}\n"
        );
    }

    #[test]
    fn a_line_of_a_tunnel_says_what_went_by_and_why_it_ended() {
        let mut exchange = exchange("/ws", &[]);
        let summary = Summary {
            protocol: "websocket".into(),
            bytes_from_client: 1,
            bytes_to_client: 2,
            frames_from_client: 3,
            frames_to_client: 4,
            reason: Reason::Drain,
        };
        exchange.record.tunnel = Some(Box::new(summary));
        let mut out = Vec::new();
        let line = Line {
            entry: None,
            connection: exchange.connection.clone(),
            route: None,
            server: None,
            tunnel: exchange.record.tunnel.clone(),
            end: END,
            ended: SystemTime::UNIX_EPOCH,
        };
        json(&mut out, &line);
        let text = String::from_utf8(out).unwrap();
        let tunnel = "\"server\":null,\"tunnel\":{\"protocol\":\"websocket\",\"reason\":\"drain\",\
                      \"bytes_from_client\":1,\"bytes_to_client\":2,\"frames_from_client\":3,\"frames_to_client\":4}}\n";
        assert!(text.ends_with(tunnel), "{text}");
    }

    #[test]
    fn a_combined_line_is_what_apache_writes() {
        let text = one(LogFormat::Combined, "/a?b=c", &[("referer", b"http://x/"), ("user-agent", b"curl")]);
        assert_eq!(
            text,
            "192.0.2.1 - - [10/Oct/2000:13:55:36 +0000] \"GET /a?b=c HTTP/1.1\" 200 512 \"http://x/\" \"curl\"\n"
        );
    }

    #[test]
    fn a_client_reaches_neither_the_next_line_nor_the_terminal() {
        // What a field may carry: tab, obs-text; here C1's CSI, a direction mark, and bytes that are no UTF-8.
        let agent = b"\"a\\\tb\xc2\x9b31m\xe2\x80\xae\xff\xc3\xa4";
        let json = one(LogFormat::Json, "/", &[("user-agent", agent)]);
        assert!(json.contains("\"user_agent\":\"\\\"a\\\\\\u0009b\\u009b31m\\u202e\u{fffd}ä\""), "{json}");
        assert_eq!(json.lines().count(), 1);
        serde_json::from_str::<serde_json::Value>(&json).unwrap();
        let combined = one(LogFormat::Combined, "/", &[("user-agent", agent)]);
        assert!(
            combined.ends_with("\"\\\"a\\\\\\x09b\\xc2\\x9b31m\\xe2\\x80\\xae\\xff\\xc3\\xa4\"\n"),
            "{combined}"
        );
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_give_one_valid_line(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..64)) {
            let mut out = Vec::new();
            json_text(&mut out, Some(&bytes));
            let text: String = serde_json::from_slice(&out).unwrap();
            assert_eq!(text, String::from_utf8_lossy(&bytes));
            assert!(std::str::from_utf8(&out).unwrap().chars().all(|c| !is_unsafe(c)));
            out.clear();
            apache_text(&mut out, &bytes);
            assert!(out.iter().all(|byte| (b' '..=b'~').contains(byte)));
        }
    }
}
