//! HTTP/3, asked for by aioquic.

use std::io::Write;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{
    Algorithm, Answer, Authority, Process, Real, Running, Site, curl, eventually, pattern, playhouse, tool,
};

/// A site with HTTP/3 at `https`, and a node server at `/node/`.
pub struct Secure {
    pub site: Running,
    node: Real,
}

const TLS: &str = r#"bind: "127.0.0.1:0", tls: [(cert: "default.pem", key: "default.key")]"#;

impl Secure {
    fn start() -> Self {
        Self::start_with("", |site| site)
    }

    /// With more fields of the listener, and of the site.
    pub fn start_with(fields: &str, change: impl FnOnce(Site) -> Site) -> Self {
        let (authority, node) = (Authority::new(), Real::node());
        let listener = format!("({TLS}, http3: true{fields})");
        let site = Site::new()
            .listener("https", listener)
            .upstream("node", format!(r#"(servers: ["{}"])"#, node.address))
            .route(r#"(path: "/hello", to: Respond(status: 200, body: "hello\n"))"#)
            .route(r#"(path: "/files/", to: Static(root: "files"))"#)
            .route(r#"(path: "/node/", to: Proxy(upstream: "node", strip_prefix: true))"#);
        authority.write(&site.path("."), "default", &["default.test"], Algorithm::Ecdsa);
        std::fs::create_dir(site.path("files")).unwrap();
        let site = change(site).file("authority.pem", authority.pem()).start();
        Secure { site, node }
    }

    pub fn client(&self, scenario: &str, arguments: &[&str]) -> Client {
        Client::start(&self.site, scenario, arguments)
    }

    /// What a scenario says that needs nothing of us.
    #[track_caller]
    pub fn run(&self, scenario: &str, arguments: &[&str]) -> Value {
        self.client(scenario, arguments).said()
    }

    /// Waits until every request has its outcome; none was lost on our side.
    #[track_caller]
    pub fn all_answered(&self) {
        let ledger = self.site.admin.settled_ledger();
        assert_eq!(ledger.accepted, ledger.answered, "{ledger:?}");
    }
}

/// A scenario of `upstreams/h3_client.py`.
pub struct Client {
    process: Process,
    go_on: std::io::PipeWriter,
}

impl Client {
    fn start(site: &Running, scenario: &str, arguments: &[&str]) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/upstreams/h3_client.py");
        let port = site.address("https").port().to_string();
        let mut command = Command::new(tool("python3", "python3-venv"));
        command.arg(script).arg(port).arg(site.path("authority.pem")).arg(scenario).args(arguments);
        let (input, go_on) = std::io::pipe().unwrap();
        Client { process: Process::start_reading("an HTTP/3 client", &mut command, input.into()), go_on }
    }

    /// Waits until it is our turn.
    #[track_caller]
    pub fn ready(&mut self) {
        self.process.line("that it is ready", |line| (line == "ready").then_some(()));
    }

    pub fn go_on(&mut self) {
        self.go_on.write_all(b"\n").unwrap();
    }

    /// Says something to it.
    pub fn go_on_with(&mut self, line: &str) {
        writeln!(self.go_on, "{line}").unwrap();
    }

    /// Says something to it, and waits until it is our turn again.
    #[track_caller]
    pub fn tell(&mut self, line: &str) {
        let times = |process: &Process| process.stdout().iter().filter(|line| *line == "ready").count();
        let before = times(&self.process);
        self.go_on_with(line);
        eventually("the client goes on", || times(&self.process) > before || self.process.ended().is_some());
    }

    /// Its result.
    #[track_caller]
    pub fn said(mut self) -> Value {
        let status = self.process.wait();
        let result = self.process.stdout().pop().and_then(|line| serde_json::from_str(&line).ok());
        result.unwrap_or_else(|| panic!("{status}: {}", self.process.output()))
    }
}

pub fn sha256(site: &Running, path: &str) -> String {
    let output = Command::new(tool("sha256sum", "coreutils")).arg(site.path(path)).output().unwrap();
    String::from_utf8_lossy(&output.stdout).split(' ').next().unwrap_or_default().to_owned()
}

#[test]
fn requests_are_answered_as_over_tcp() {
    let secure = Secure::start_with("", |site| site.field(r#"access_log: (to: "access.log")"#));
    let said = secure.run("basics", &[]);
    assert_eq!(said["hello"], json!([200, "hello\n"]), "{said}");
    assert_eq!(said["fields"]["content-length"], "6");
    assert!(said["fields"]["date"].is_string());
    assert!(said["fields"]["alt-svc"].is_null(), "{said}");
    assert_eq!(said["head"], json!([200, 0, "6"]));
    assert_eq!(said["missing"], 404);

    let said = secure.run("echo", &[]);
    let echo = &said["echo"];
    assert_eq!((&echo["method"], &echo["url"]), (&json!("GET"), &json!("/echo?a=b")), "{said}");
    let headers = &echo["headers"];
    assert_eq!(headers["cookie"], "a=1; b=2");
    assert_eq!(headers["x-forwarded-for"], "127.0.0.1");
    assert_eq!(headers["x-forwarded-proto"], "https");
    assert_eq!(headers["via"], "3 playhouse");
    assert_eq!(said["trailers"], json!([["x-checksum", "abc123"]]));
    assert_eq!(said["hints"], json!(["103", "200"]));
    secure.all_answered();
    let labels = [r#"listener="https""#];
    assert_eq!(secure.site.admin.metric("playhouse_http3_connections_total", &labels), 2.0);
    eventually("all six are in the log", || {
        let log = std::fs::read_to_string(secure.site.path("access.log")).unwrap_or_default();
        log.lines().filter(|line| line.contains(r#""version":"HTTP/3.0""#)).count() == 6
    });
}

#[test]
fn large_content_goes_both_ways() {
    let secure = Secure::start();
    let said = secure.run("upload", &[&(10 << 20).to_string()]);
    assert_eq!(said, json!({"status": 200, "same": true}));
    secure.site.write("files/big", pattern(20 << 20));
    let said = secure.run("download", &["/files/big"]);
    assert_eq!(said["sha256"], sha256(&secure.site, "files/big"), "{said}");
    secure.all_answered();
}

#[test]
fn a_thousand_requests_at_once_go_through_the_stream_limit() {
    let secure = Secure::start_with(", limits: (streams: 20)", |site| site);
    assert_eq!(secure.run("many", &["1000"]), json!({"answered": 1000}));
    let ledger = secure.site.admin.settled_ledger();
    assert_eq!((ledger.accepted, ledger.answered), (1000, 1000), "{ledger:?}");
}

#[test]
fn a_connection_lives_on_when_its_client_moves() {
    let secure = Secure::start();
    secure.site.write("files/big", pattern(5 << 20));
    let said = secure.run("migrate", &["/files/big"]);
    assert_eq!(said["ports"], 4, "{said}");
    assert_eq!(said["status"], json!([200, 200]));
    assert_eq!(said["sha256"], sha256(&secure.site, "files/big"));
    assert_eq!(secure.site.admin.metric("playhouse_http3_connections_total", &[r#"listener="https""#]), 1.0);
    secure.all_answered();
}

#[test]
fn requests_that_are_given_up_end_upstream_too() {
    let secure = Secure::start();
    assert_eq!(secure.run("cancel", &["10"]), json!({"status": 200}));
    let ledger = secure.site.admin.settled_ledger();
    assert_eq!((ledger.client_gone, ledger.answered), (10, 1), "{ledger:?}");
    eventually("the upstream server has seen it", || {
        curl([&*format!("http://{}/cancelled", secure.node.address)]).text() == "10"
    });
}

#[test]
fn what_breaks_the_protocol_is_turned_away_with_its_code() {
    let secure = Secure::start();
    // DATA before HEADERS; a field section that needs a dynamic table; no pseudo-header fields at all.
    let cases = [("000178", "closed 0x105"), ("0103000080", "closed 0x200"), ("01020000", "reset 0x10e")];
    for (frames, end) in cases {
        assert_eq!(secure.run("raw", &[frames]), json!({"error": end}), "{frames}");
    }
    let ledger = secure.site.admin.settled_ledger();
    assert_eq!((ledger.accepted, ledger.rejected), (3, 3), "{ledger:?}");
}

#[test]
fn a_killed_connection_costs_only_itself() {
    let secure = Secure::start();
    let mut victim = secure.client("held", &["3"]);
    victim.ready();
    let connections = || secure.site.admin.paths().into_iter().filter(|path| is_connection(path));
    let first = connections().next().unwrap();
    let mut other = secure.client("follow", &[]);
    other.ready();
    assert_eq!(connections().count(), 2);
    let killed = secure.site.playhouse(&["kill", &first]);
    assert!(killed.status.success(), "{killed:?}");
    victim.go_on();
    let said = victim.said();
    assert_eq!(said, json!({"cut": 3, "code": 0x102}));
    other.go_on();
    assert_eq!(other.said(), json!({"status": [200, 200]}));
    assert_eq!(secure.site.admin.settled_ledger().killed, 3);
}

/// Aioquic's: so many connections, with four requests each.
pub fn load(secure: &Secure, connections: u64) -> Client {
    let mut load = secure.client("load", &[&connections.to_string(), "4"]);
    load.ready();
    load
}

/// Waits for that many more answers.
#[track_caller]
pub fn moves(secure: &Secure, answers: u64) {
    let before = secure.site.admin.ledger().answered;
    eventually("requests are answered", || secure.site.admin.ledger().answered >= before + answers);
}

/// What a load says that has failed.
pub fn failures(said: &Value) -> u64 {
    let failed = said["failed"].as_object().expect("what has failed");
    failed.values().map(|count| count.as_u64().expect("a count")).sum()
}

/// The ledger has what the client has. An answer counts as one when the client has acknowledged it: whatever is killed before
/// counts as killed, and may have arrived.
#[track_caller]
pub fn balances(secure: &Secure, said: &Value) {
    let ledger = secure.site.admin.settled_ledger();
    assert_eq!(ledger.accepted, ledger.ended(), "{ledger:?}");
    let (answered, failed) = (said["answered"].as_u64().unwrap(), failures(said));
    assert!(ledger.answered <= answered + failed, "{ledger:?} {said}");
    assert!(ledger.answered + ledger.killed + ledger.client_gone >= answered, "{ledger:?} {said}");
    assert!(ledger.accepted <= answered + failed + said["unsent"].as_u64().unwrap(), "{ledger:?} {said}");
}

#[test]
fn connections_that_are_killed_under_load_cost_what_they_had_in_flight() {
    let secure = Secure::start();
    let mut load = load(&secure, 4);
    let mut cut = 0;
    for how in ["kill", "panic", "stop", "kill", "stall=200ms", "panic", "stop"] {
        moves(&secure, 100);
        let mut paths = secure.site.admin.paths().into_iter();
        let Some(victim) = paths.find(|path| is_connection(path)) else { continue };
        // It may have ended meanwhile.
        if secure.site.admin.try_kill(&victim, how).status >= 300 {
            continue;
        }
        cut += u64::from(matches!(how, "kill" | "panic"));
        if !how.starts_with("stall") {
            eventually("the connection is gone", || secure.site.admin.node(&victim).is_none());
        }
    }
    moves(&secure, 200);
    load.go_on();
    let said = load.said();
    assert!(failures(&said) <= cut * 4, "{said}");
    let resets = |why: &String| why.contains("0x102");
    assert!(said["failed"].as_object().unwrap().keys().all(resets), "{said}");
    balances(&secure, &said);
}

#[test]
fn shards_that_are_killed_under_load_cost_their_connections_alone() {
    let secure = Secure::start();
    let mut load = load(&secure, 4);
    for how in ["kill", "panic", "kill"] {
        moves(&secure, 100);
        secure.site.admin.kill_and_see_it_back("instance-1/connections/shard-0", how);
        secure.site.admin.kill_and_see_it_back("instance-1/listeners/https:h3", how);
    }
    moves(&secure, 200);
    load.go_on();
    let said = load.said();
    assert!(failures(&said) <= 3 * (4 * 4 + 4), "{said}");
    balances(&secure, &said);
}

/// Whether it is a connection of the site's own listeners.
fn is_connection(path: &str) -> bool {
    path.starts_with("instance-1/connections/shard-") && path.matches('/').count() == 3
}

#[test]
fn killing_the_acceptors_loses_nobody() {
    let secure = Secure::start();
    let mut clients: Vec<_> = (0..4).map(|_| secure.client("follow", &[])).collect();
    for acceptor in ["https:h3", "https"] {
        secure.site.admin.kill_and_see_it_back(&format!("instance-1/listeners/{acceptor}"), "kill");
    }
    clients.extend((0..4).map(|_| secure.client("follow", &[])));
    clients.iter_mut().for_each(Client::ready);
    secure.site.admin.kill_and_see_it_back("instance-1/listeners/https:h3", "panic");
    for mut client in clients {
        client.go_on();
        assert_eq!(client.said(), json!({"status": [200, 200]}));
    }
    secure.all_answered();
}

#[test]
fn a_stop_answers_what_is_in_flight() {
    let mut secure = Secure::start();
    let mut client = secure.client("drain", &["20"]);
    client.ready();
    secure.site.stop();
    client.go_on();
    let said = client.said();
    assert_eq!((&said["answered"], &said["code"]), (&json!(20), &json!(0x100)), "{said}");
    assert_eq!(said["goaways"][0], (1_u64 << 62) - 4);
    assert!(secure.site.process.wait().success());
}

#[test]
fn tcp_says_where_http3_is_until_it_is_not() {
    let mut secure = Secure::start();
    let address = secure.site.address("https");
    let ask = |site: &Running| {
        let authority = site.path("authority.pem");
        let to = format!("default.test:443:{address}");
        let options =
            ["--cacert", authority.to_str().unwrap(), "--connect-to", &to, "https://default.test/hello"];
        let http1 = curl([&["--http1.1"], &options[..]].concat()).expect(200);
        let http2 = curl([&["--http2"], &options[..]].concat()).expect(200);
        let alternative = |answer: &Answer| answer.headers.get("alt-svc").cloned();
        assert_eq!(alternative(&http1), alternative(&http2));
        alternative(&http1)
    };
    let said = Some(format!("h3=\":{}\"; ma=86400", address.port()));
    assert_eq!(ask(&secure.site), said);
    let mut client = secure.client("follow", &[]);
    client.ready();
    let set = |secure: &mut Secure, http3: bool| {
        let listener = format!("({TLS}, http3: {http3})");
        secure.site.edit(|site| site.listener("https", listener)).reload();
    };
    set(&mut secure, false);
    assert_eq!(ask(&secure.site), None);
    assert!(secure.site.admin.node("instance-1/listeners/https:h3").is_none());
    // Those who are in stay.
    client.go_on();
    assert_eq!(client.said(), json!({"status": [200, 200]}));
    set(&mut secure, true);
    assert_eq!(ask(&secure.site), said);
    assert_eq!(secure.run("basics", &[])["hello"], json!([200, "hello\n"]));
    secure.all_answered();
}

#[test]
fn a_websocket_goes_over_a_stream_and_is_closed_at_a_frame_when_the_site_drains() {
    let upstream = Real::websockets();
    let server = format!(r#"(servers: ["{}"])"#, upstream.address);
    let mut secure = Secure::start_with("", |site| {
        site.upstream("ws", server).route(r#"(path: "/ws/", to: Proxy("ws"))"#)
    });
    assert_eq!(secure.run("websocket", &["/hello"]), json!({"status": 501}));
    let mut client = secure.client("websocket", &["/ws/echo"]);
    client.ready();
    secure.site.stop();
    client.go_on();
    let said = client.said();
    assert_eq!(said, json!({"status": 200, "offered": 1, "echo": "\u{81}\u{5}hello", "close": [0x88, 1001]}));
    assert!(secure.site.process.wait().success());
}

#[test]
fn a_new_certificate_is_shown_from_then_on() {
    let secure = Secure::start();
    assert_eq!(secure.run("basics", &[])["missing"], 404);
    let other = Authority::new();
    other.write(&secure.site.path("."), "default", &["default.test"], Algorithm::Ecdsa);
    eventually("the new certificate is shown", || secure.run("basics", &[]).get("failed").is_some());
    secure.site.write("authority.pem", other.pem());
    assert_eq!(secure.run("basics", &[])["missing"], 404);
}

#[test]
fn who_has_not_shown_an_address_uses_up_no_ones_share() {
    let secure = Secure::start_with(", limits: (connections_per_address: 1)", |site| site);
    let mut first = secure.client("follow", &[]);
    first.ready();
    let labels = [r#"listener="https""#];
    assert_eq!(secure.site.admin.metric("playhouse_http3_retries_total", &labels), 1.0);
    assert!(secure.run("basics", &[])["failed"].is_string());
    first.go_on();
    assert_eq!(first.said(), json!({"status": [200, 200]}));
    eventually("its place is free", || secure.run("basics", &[])["missing"] == 404);
}

#[test]
fn http3_is_refused_where_it_cannot_be() {
    let cases = [
        (r#"(bind: "127.0.0.1:0", http3: true)"#, "HTTP/3 is never without TLS"),
        (r#"(bind: "unix:x.sock", tls: [(cert: "a", key: "b")], http3: true)"#, "HTTP/3 goes over UDP"),
        (
            r#"(bind: "127.0.0.1:0", tls: [(cert: "a", key: "b")], http3: true, proxy_protocol: Required(trusted: ["::1"]))"#,
            "PROXY headers are read on TCP alone",
        ),
    ];
    for (listener, error) in cases {
        let site = Site::new().listener("https", listener);
        let output = playhouse().arg("check").arg(site.write()).output().unwrap();
        let text =
            String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && text.contains(error), "{text}");
    }
}
