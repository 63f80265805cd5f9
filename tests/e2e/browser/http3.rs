//! HTTP/3 as a page has it.

use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Browser, Running, pattern, tool};
use crate::http3::Secure;

/// What a certificate's key is known by to Chromium, which over QUIC takes no authority that its user has not installed.
fn key_hash(site: &Running, certificate: &str) -> String {
    let script = "openssl x509 -pubkey -noout -in \"$1\" | openssl pkey -pubin -outform der \
                  | openssl dgst -sha256 -binary | openssl base64 -A";
    let mut command = Command::new(tool("sh", "dash"));
    let output = command.args(["-c", script, "sh"]).arg(site.path(certificate)).output().expect("sh runs");
    String::from_utf8(output.stdout).expect("base64")
}

/// A browser that speaks HTTP/3 with a site from the first request on, and the page to begin with.
fn browser(secure: &Secure) -> (Browser, String) {
    let port = secure.site.address("https").port();
    let flags = [
        "--enable-quic".to_owned(),
        format!("--origin-to-force-quic-on=default.test:{port}"),
        format!("--ignore-certificate-errors-spki-list={}", key_hash(&secure.site, "default.pem")),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    (Browser::start(&flags), format!("https://default.test:{port}/files/page.html"))
}

fn secure() -> Secure {
    let secure = Secure::start_with("", |site| site.field(r#"access_log: (to: "access.log")"#));
    secure.site.write("files/page.html", "<!doctype html><title>Page</title><p>A page</p>");
    secure.site.write("files/big", pattern(10 << 20));
    secure
}

const TRAFFIC: &str = r#"
    const text = async response => {
        if (!response.ok) throw `${response.url}: ${response.status}`;
        return await response.text();
    };
    const all = await Promise.all([...Array(1000).keys()].map(async number => {
        const answer = JSON.parse(await text(await fetch(`/node/echo?${number}`)));
        return answer.url === `/echo?${number}`;
    }));
    const hex = async bytes => [...new Uint8Array(await crypto.subtle.digest("SHA-256", bytes))]
        .map(byte => byte.toString(16).padStart(2, "0")).join("");
    const big = await (await fetch("/files/big")).arrayBuffer();
    const echo = JSON.parse(await text(await fetch("/node/echo", {method: "POST", body: big})));
    const head = await fetch("/hello", {method: "HEAD"});
    const protocols = [...performance.getEntriesByType("resource"), ...performance.getEntriesByType("navigation")]
        .map(entry => entry.nextHopProtocol);
    return {
        answered: all.filter(same => same).length,
        same: [big.byteLength, echo.length, echo.sha256 === await hex(big)],
        head: [head.status, head.headers.get("content-length")],
        protocols: [...new Set(protocols)],
    };
"#;

#[test]
fn a_page_has_a_thousand_requests_at_once_and_ten_mebibytes_either_way() {
    let secure = secure();
    let (browser, page) = browser(&secure);
    browser.open(&page).sees("p", "A page");
    // More than the page may remember by default.
    browser.run("performance.setResourceTimingBufferSize(2000)", &[]);
    let seen = browser.run(TRAFFIC, &[]);
    let length = 10 << 20;
    let expected = json!({
        "answered": 1000, "same": [length, length, true], "head": [200, "6"], "protocols": ["h3"],
    });
    assert_eq!(seen, expected);
    drop(browser);
    let ledger = secure.site.admin.settled_ledger();
    assert_eq!(ledger.accepted, ledger.ended(), "{ledger:?}");
    assert!(ledger.answered >= 1004, "{ledger:?}");
    let log = std::fs::read_to_string(secure.site.path("access.log")).unwrap_or_default();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    assert!(lines.into_iter().all(|line| line["version"] == "HTTP/3.0"), "{log}");
}
