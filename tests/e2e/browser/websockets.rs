//! WebSockets as a page has them: over HTTP/1.1, and over HTTP/2 on the connection that the page came by.

use serde_json::{Value, json};

use crate::harness::{Algorithm, Authority, Browser, Real, Running, Site, eventually_some};

/// A page to be on, and a proxied WebSocket server beside it, over both versions.
fn site(server: &Real) -> Running {
    let site = Site::new()
        .field(r#"access_log: (to: "access.log")"#)
        .field(r#"drain_timeout: "30s""#)
        .listener("http", r#"(bind: "127.0.0.1:0")"#)
        .listener("https", r#"(bind: "127.0.0.1:0", tls: [(cert: "chat.pem", key: "chat.key")])"#)
        .server("chat", server.address)
        .file("public/index.html", "<!doctype html><title>Chat</title><p>A chat</p>")
        .route(r#"(path: "/", to: Static(root: "public"))"#)
        .route(r#"(path: "/ws/", to: Proxy("chat"))"#);
    Authority::new().write(&site.path("."), "chat", &["chat.test"], Algorithm::Ecdsa);
    site.start()
}

/// By listener: the page's address, that of its WebSockets, and what the log says of these.
fn ways(site: &Running) -> [(String, String, &'static str, u16); 2] {
    let port = |listener| site.address(listener).port();
    let (http, https) = (port("http"), port("https"));
    [
        (format!("http://chat.test:{http}/"), format!("ws://chat.test:{http}/ws/"), "HTTP/1.1", 101),
        (format!("https://chat.test:{https}/"), format!("wss://chat.test:{https}/ws/"), "HTTP/2.0", 200),
    ]
}

/// The access log's lines about tunnels, once there are so many.
#[track_caller]
fn logged(site: &Running, count: usize) -> Vec<Value> {
    eventually_some("the tunnels are in the log", || {
        let text = std::fs::read_to_string(site.path("access.log")).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let tunnels: Vec<Value> = lines.filter(|line| line.get("tunnel").is_some()).collect();
        (tunnels.len() >= count).then_some(tunnels)
    })
}

const ECHO: &str = r#"
    const [url, subprotocol] = arguments;
    const socket = new WebSocket(url, subprotocol);
    socket.binaryType = "arraybuffer";
    const event = name => new Promise((resolve, reject) => {
        socket.addEventListener(name, resolve, {once: true});
        if (name !== "close") socket.addEventListener("close", close => reject(`closed ${close.code}`), {once: true});
    });
    await event("open");
    let seen = 0;
    const echo = async message => {
        const answer = event("message");
        socket.send(message);
        const {data} = await answer;
        if (typeof message === "string" ? data !== message : !same(new Uint8Array(data), message))
            throw `another message came back: ${message.length}, ${data.length ?? data.byteLength}`;
        seen += 1;
    };
    const same = (one, other) =>
        one.length === other.length && one.every((byte, index) => byte === other[index]);
    for (const length of [0, 1, 125, 126, 65535, 65536, 1 << 20, 16 << 20]) {
        await echo("ü".repeat(length / 2));
        // Some that compresses well, and some that does not at all.
        await echo(new Uint8Array(length));
        const noise = new Uint8Array(length);
        for (let at = 0; at < length; at += 65536) crypto.getRandomValues(noise.subarray(at, at + 65536));
        await echo(noise);
    }
    const closed = event("close");
    socket.close(3001, "enough");
    const {code, wasClean} = await closed;
    return {seen, code, wasClean, protocol: socket.protocol, extension: socket.extensions.split(";")[0]};
"#;

#[test]
fn a_page_exchanges_messages_of_every_size_over_either_version() {
    let server = Real::websockets();
    let (site, browser) = (site(&server), Browser::start(&[]));
    for (index, (page, socket, version, status)) in ways(&site).into_iter().enumerate() {
        browser.open(&page).sees("p", "A chat");
        let seen = browser.run(ECHO, &[format!("{socket}echo").into(), "chat".into()]);
        let expected = json!({"seen": 24, "code": 3001, "wasClean": true, "protocol": "chat",
                              "extension": "permessage-deflate"});
        assert_eq!(seen, expected, "{version}");
        let line = logged(&site, index + 1).remove(index);
        assert_eq!((&line["version"], &line["status"]), (&version.into(), &status.into()), "{line}");
        assert_eq!((&line["outcome"], &line["tunnel"]["reason"]), (&"answered".into(), &"client".into()));
    }
    // Over HTTP/2 the WebSocket was on the page's own connection.
    let log = std::fs::read_to_string(site.path("access.log")).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of = |target: &str| {
        let line = lines.clone().find(|line| line["scheme"] == "https" && line["target"] == target);
        line.unwrap_or_else(|| panic!("no {target} in {log}"))["connection"].clone()
    };
    assert_eq!(of("/"), of("/ws/echo"));
}

#[test]
fn a_page_is_told_what_the_server_closes_with_and_what_is_refused() {
    let server = Real::websockets();
    let (site, browser) = (site(&server), Browser::start(&[]));
    let closed = "const socket = new WebSocket(arguments[0]);
        const {code, wasClean, reason} = await new Promise(resolve => { socket.onclose = resolve; });
        return {code, wasClean, reason};";
    for (page, socket, ..) in ways(&site) {
        browser.open(&page);
        let bye = browser.run(closed, &[format!("{socket}bye").into()]);
        assert_eq!(bye, json!({"code": 4001, "wasClean": true, "reason": "bye"}));
        // No WebSocket is there.
        let refused = browser.run(closed, &[format!("{}elsewhere", socket.trim_end_matches("ws/")).into()]);
        assert_eq!((&refused["code"], &refused["wasClean"]), (&1006.into(), &false.into()));
        // The page goes on by the same connection.
        browser.open(&page).sees("p", "A chat");
    }
}

#[test]
fn a_drain_is_a_clean_close_with_1001_for_every_page() {
    let server = Real::websockets();
    let (mut site, browser) = (site(&server), Browser::start(&[]));
    let ways = ways(&site);
    browser.open(&ways[1].0);
    let begun = browser.run(
        "window.closes = [];
         for (const url of arguments)
            for (let number = 0; number < 10; number++) {
                const socket = new WebSocket(url);
                socket.onmessage = ({data}) => { if (socket.readyState === 1) socket.send(data); };
                closes.push(new Promise(resolve => {
                    socket.onclose = ({code, wasClean}) => resolve(`${code} ${wasClean}`);
                }));
                await new Promise((resolve, reject) => { socket.onopen = resolve; socket.onerror = reject; });
                socket.send(number);
            }
         return closes.length;",
        &[format!("{}echo", ways[1].1).into()],
    );
    assert_eq!(begun, 10);
    // A page that came in the clear has its own.
    let other = Browser::start(&[]);
    other.open(&ways[0].0);
    let begun = other.run(
        "const socket = new WebSocket(arguments[0]);
         window.ended = new Promise(resolve => {
            socket.onclose = ({code, wasClean}) => resolve(`${code} ${wasClean}`);
         });
         return await new Promise(resolve => { socket.onopen = () => resolve(true); socket.onerror = () => resolve(false); });",
        &[format!("{}echo", ways[0].1).into()],
    );
    assert_eq!(begun, true);
    site.stop();
    let closes = browser.run("return await Promise.all(closes)", &[]);
    assert_eq!(closes, Value::from(vec!["1001 true"; 10]));
    assert_eq!(other.run("return await ended", &[]), "1001 true");
    assert_eq!(site.process.wait().code(), Some(0), "{}", site.process.output());
    for line in logged(&site, 11) {
        assert_eq!(
            (&line["outcome"], &line["tunnel"]["reason"]),
            (&"answered".into(), &"drain".into()),
            "{line}"
        );
    }
}
