//! What a person reads when a site file is wrong: the exact lines.

use std::path::Path;

use playhouse_config::{load, parse};

fn errors(text: &str) -> String {
    match parse(text, Path::new("site.ron")) {
        Ok(_) => panic!("the site is valid:\n{text}"),
        Err(errors) => errors.to_string(),
    }
}

/// A valid site around a part that is wrong.
fn with_listener(fields: &str) -> String {
    format!("(name: \"s\", listeners: {{\n\"http\": ({fields})}})")
}

fn with_upstream(fields: &str) -> String {
    format!("(name: \"s\", listeners: {{\"http\": \"127.0.0.1:1\"}}, upstreams: {{\n\"api\": ({fields})}})")
}

fn with_route(fields: &str) -> String {
    format!(
        "(name: \"s\", listeners: {{\"http\": \"127.0.0.1:1\"}}, upstreams: {{\"api\": (servers: [\"a:1\"])}}, routes: [\n({fields})])"
    )
}

fn with_site(fields: &str) -> String {
    format!("(name: \"s\", listeners: {{\"http\": \"127.0.0.1:1\"}},\n{fields})")
}

fn check(table: &[(&str, &str)], site: fn(&str) -> String) {
    for (fields, expected) in table {
        assert_eq!(errors(&site(fields)), *expected, "for {fields}");
    }
}

#[test]
fn all_errors_of_a_file_come_at_once_in_its_order() {
    let text = r#"(
    nam: "shop",
    drain_timeout: 30,
    instances: (min: 1),
    listeners: {
        "http": (bind: "0.0.0.0:8080", limits: (streams: 0, header_bytes: "9")),
        "http": (bind: "[::]:8081"),
        "admin": (bind: "127.0.0.1:8080", http3: true),
        "quick": (bind: "127.0.0.1:8082", early_data: true),
    },
    upstreams: {
        "api": (servers: [], balance: LeastConections),
    },
    routes: [
        (path: "/api/", to: Proxy("apii")),
        (path: "api", to: App("shop")),
        (path: "/api/", to: Redirect(status: 200, location: "{url}")),
        (path: "/", to: Static(root: "public", indx: [])),
    ],
)"#;
    let expected = r#"site.ron:1:1: name: missing; give the site a name, such as name: "shop"
site.ron:2:5: nam: unknown field; did you mean "name"?
site.ron:3:20: drain_timeout: expected a duration with its unit, such as "30s" or "500ms", found the number 30
site.ron:4:16: instances.max: missing; write how many instances there may be, such as max: 4
site.ron:6:58: listeners.http.limits.streams: 0 is out of range; 1 to 65535 is allowed
site.ron:6:75: listeners.http.limits.header_bytes: expected a size with its unit, such as "64KiB" or "1GiB", found "9"
site.ron:7:9: listeners.http: this name stands here twice; names are unique
site.ron:8:25: listeners.admin.bind: listener "http" has this address already; each needs its own
site.ron:8:50: listeners.admin.http3: HTTP/3 is never without TLS; add tls: [(cert: "…", key: "…")], or leave it out
site.ron:9:55: listeners.quick.early_data: early data is taken over HTTP/3 alone; add http3: true, or leave it out
site.ron:12:26: upstreams.api.servers: missing; an upstream has at least one, such as servers: ["127.0.0.1:9000"]
site.ron:12:39: upstreams.api.balance: there is no LeastConections; did you mean LeastConnections?
site.ron:15:29: routes[0].to: no upstream "apii"; did you mean "api"?
site.ron:16:16: routes[1].path: "api" is no path to match: it begins with "/"
site.ron:16:27: routes[1].to: no app "shop"; the site has none
site.ron:17:9: routes[2]: matches the same as routes[0], "/api/" on all listeners; no request would reach one of them
site.ron:17:46: routes[2].to.status: 200 is no redirect; choose 301 or 308 (for good), 302 or 307 (for now), or 303 (fetch with GET)
site.ron:17:61: routes[2].to.location: no variable {url}; did you mean {uri}?
site.ron:18:48: routes[3].to.indx: unknown field; did you mean "index"?"#;
    assert_eq!(errors(text), expected);
}

#[test]
fn syntax_errors_have_their_place() {
    for (text, expected) in [
        ("", "site.ron:1:1: not RON: unexpected end of RON"),
        ("(name: \"s\",\n  listeners {})", "site.ron:2:13: not RON: expected colon"),
        ("(name: \"s)", "site.ron:1:9: not RON: expected end of string"),
    ] {
        assert_eq!(errors(text), expected);
    }
}

#[test]
fn errors_are_a_typed_list_too() {
    let errors = parse("(name: \"s\",\n listeners: 1)", Path::new("site.ron")).unwrap_err();
    assert_eq!(
        serde_json::to_value(&errors).unwrap(),
        serde_json::json!([{
            "file": "site.ron", "line": 2, "column": 13, "field": "listeners",
            "message": "expected a map in braces, such as {\"name\": …}, found the number 1",
        }])
    );
}

#[test]
fn a_file_that_cannot_be_read_is_one_error() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("none.ron");
    let message = load(&missing).unwrap_err().to_string();
    assert_eq!(
        message,
        format!("{}: cannot be read: No such file or directory (os error 2)", missing.display())
    );
    let binary = directory.path().join("binary.ron");
    std::fs::write(&binary, b"(\xff").unwrap();
    let message = load(&binary).unwrap_err().to_string();
    assert_eq!(message, format!("{}: is not UTF-8: the first wrong byte is at offset 1", binary.display()));
}

#[test]
fn a_hostile_file_has_an_end_to_its_errors() {
    let text = format!("({})", "x: 1, ".repeat(50_000));
    let errors = parse(&text, Path::new("site.ron")).unwrap_err();
    assert_eq!(errors.as_slice().len(), 1_001);
}

#[test]
fn errors_of_the_site_itself() {
    check(
        &[
            ("threads: 0", "site.ron:2:10: threads: 0 is out of range; 1 to 1024 is allowed"),
            ("threads: -1", "site.ron:2:10: threads: expected a whole number, found the number -1"),
            ("drain_timeout: \"0s\"", "site.ron:2:16: drain_timeout: must be longer than zero"),
            ("drain_timeout: \"2y\"", "site.ron:2:16: drain_timeout: is longer than 365 days"),
            (
                "admin: \"0.0.0.0:9900\"",
                "site.ron:2:8: admin.bind: 0.0.0.0:9900 can be reached from other hosts, so reads need a token too; add token_file: \"…\" or bind to 127.0.0.1",
            ),
            (
                "admin: \"127.0.0.1:1\"",
                "site.ron:1:33: listeners.http.bind: the admin interface has this address already; each needs its own",
            ),
            (
                "admin: (hosts: [\"a.example:80\"])",
                "site.ron:2:17: admin.hosts[0]: \"a.example:80\" has a port, and hosts are matched without; write \"a.example\"",
            ),
            (
                "access_log: ()",
                "site.ron:2:13: access_log.to: missing; write \"-\" for standard output, or a path",
            ),
            (
                "access_log: (to: \"-\", format: Jsn)",
                "site.ron:2:31: access_log.format: there is no Jsn; did you mean Json?",
            ),
            (
                "access_log: (to: \"-\", format: \"Json\")",
                "site.ron:2:31: access_log.format: expected one of the words Json, Combined (without quotes), found \"Json\"",
            ),
            (
                "state_dir: \"\"",
                "site.ron:2:12: state_dir: the path is empty; the site's own directory is \".\"",
            ),
            (
                "caches: {}",
                "site.ron:2:1: caches: this build does not have \"caches\" yet; leave the field out",
            ),
            ("threads: 1, threads: 2", "site.ron:2:13: threads: is written twice; keep one of the two"),
            ("routes: {}", "site.ron:2:9: routes: expected a list in brackets, such as […], found a map"),
            (
                "zzz: 1",
                "site.ron:2:1: zzz: unknown field; the fields here are name, threads, instances, state_dir, drain_timeout, admin, access_log, listeners, upstreams, apps, routes",
            ),
        ],
        with_site,
    );
    assert_eq!(
        errors("(name: \"a/b\", listeners: {})"),
        "site.ron:1:8: name: \"a/b\" is no name; names are letters, digits, '-', '_' and '.', begin with a letter or digit and have at most 64 bytes\n\
         site.ron:1:26: listeners: missing; a site has at least one, such as {\"http\": (bind: \"127.0.0.1:8080\")}"
    );
}

#[test]
fn errors_of_instances() {
    check(
        &[
            (
                "min: 0, max: 65",
                "site.ron:2:18: instances.min: 0 is out of range; 1 to 64 is allowed\n\
                 site.ron:2:26: instances.max: 65 is out of range; 1 to 64 is allowed",
            ),
            ("min: 4, max: 2", "site.ron:2:26: instances.max: 2 is less than min, which is 4"),
            (
                "maxx: 2",
                "site.ron:2:12: instances.max: missing; write how many instances there may be, such as max: 4\n\
                 site.ron:2:13: instances.maxx: unknown field; did you mean \"max\"?",
            ),
            ("max: \"2\"", "site.ron:2:18: instances.max: expected a whole number, found \"2\""),
            (
                "max: 2, ready_timeout: \"0s\", heartbeat_timeout: \"999ms\", min_free_memory: 64",
                "site.ron:2:36: instances.ready_timeout: must be longer than zero\n\
                 site.ron:2:61: instances.heartbeat_timeout: is too short; instances are heard from every 500ms, write at least \"1s\"\n\
                 site.ron:2:87: instances.min_free_memory: expected a size with its unit, such as \"64KiB\" or \"1GiB\", found the number 64",
            ),
            (
                "max: 2, scaling: (up_at: 1.5, down_at: NaN, up_after: \"0s\", cool_down: \"1s\")",
                "site.ron:2:38: instances.scaling.up_at: 1.5 is out of range; a share of 0.05 to 1 is allowed\n\
                 site.ron:2:52: instances.scaling.down_at: NaN is out of range; a share of 0 to 1 is allowed\n\
                 site.ron:2:67: instances.scaling.up_after: must be longer than zero\n\
                 site.ron:2:73: instances.scaling.cool_down: unknown field; did you mean \"cooldown\"?",
            ),
            (
                "max: 2, scaling: (up_at: 0.5, down_at: 0.5)",
                "site.ron:2:52: instances.scaling.down_at: 0.5 is not less than up_at, which is 0.5",
            ),
            (
                "max: 2, scaling: (up_at: 0.2)",
                "site.ron:2:30: instances.scaling.down_at: 0.3, the default, is not less than up_at, which is 0.2; write a lower one",
            ),
            (
                "max: 2, scaling: (up_at: \"75%\")",
                "site.ron:2:38: instances.scaling.up_at: expected a number, found \"75%\"",
            ),
        ],
        |fields| with_site(&format!("instances: ({fields})")),
    );
}

#[test]
fn errors_of_listeners() {
    check(
        &[
            (
                "",
                "site.ron:2:9: listeners.http.bind: missing; write the address to listen on, such as \"0.0.0.0:8080\" or \"unix:/path\"",
            ),
            (
                "bind: \"8080\"",
                "site.ron:2:16: listeners.http.bind: \"8080\" has no address; write \"127.0.0.1:8080\" for this host alone, \"0.0.0.0:8080\" or \"[::]:8080\" for all",
            ),
            (
                "bind: 8080",
                "site.ron:2:16: listeners.http.bind: expected a string in quotes, found the number 8080",
            ),
            (
                "bind: \"localhost:80\"",
                "site.ron:2:16: listeners.http.bind: a name cannot be bound to; write \"127.0.0.1:80\"",
            ),
            (
                "bind: \"::1\"",
                "site.ron:2:16: listeners.http.bind: \"::1\" has no port; write it after a colon: \"[::1]:8080\"",
            ),
            (
                "bind: \"/run/a.sock\"",
                "site.ron:2:16: listeners.http.bind: for a Unix socket write \"unix:/run/a.sock\"",
            ),
            (
                "bind: \"unix:/a\", mode: \"999\", only_v6: true",
                "site.ron:2:33: listeners.http.mode: \"999\" is no mode; write three octal digits, such as \"0660\"\n\
                 site.ron:2:49: listeners.http.only_v6: is for IPv6 addresses, and this is a Unix socket; leave it out",
            ),
            (
                "bind: \"1.1.1.1:1\", mode: \"0660\", only_v6: true",
                "site.ron:2:35: listeners.http.mode: is for Unix sockets, and this is a TCP address; leave it out\n\
                 site.ron:2:52: listeners.http.only_v6: is for IPv6 addresses, and this is IPv4; leave it out",
            ),
            (
                "bind: \"unix:/a\", sharing: ReusePort",
                "site.ron:2:36: listeners.http.sharing: ReusePort is for TCP addresses, and this is a Unix socket; leave it out",
            ),
            (
                "bind: \"[::]:1\", proxy_protocol: Required",
                "site.ron:2:42: listeners.http.proxy_protocol.trusted: missing; list the addresses of the proxies, such as trusted: [\"10.0.0.7\", \"10.1.0.0/16\"]",
            ),
            (
                "bind: \"[::]:1\", proxy_protocol: Optional(trusted: [])",
                "site.ron:2:60: listeners.http.proxy_protocol.trusted: is empty, so nobody would be believed; list the addresses of the proxies",
            ),
            (
                "bind: \"unix:/a\", proxy_protocol: Required(trusted: [\"::1\"])",
                "site.ron:2:61: listeners.http.proxy_protocol.trusted: is for TCP addresses, and this is a Unix socket, whose mode says who may connect; leave it out",
            ),
            (
                "bind: \"[::]:1\", proxy_protocol: Required(trusted: [\"10.0.0.1/8\", \"a\", \"::/129\", \"::/+1\", \"::/0\"])",
                "site.ron:2:61: listeners.http.proxy_protocol.trusted[0]: \"10.0.0.1/8\" has bits behind its prefix of 8; make them zero\n\
                 site.ron:2:75: listeners.http.proxy_protocol.trusted[1]: \"a\" is no range of addresses; write it as \"10.0.0.7\", \"10.0.0.0/8\" or \"2001:db8::/32\"\n\
                 site.ron:2:80: listeners.http.proxy_protocol.trusted[2]: \"::/129\" is no range of addresses; write it as \"10.0.0.7\", \"10.0.0.0/8\" or \"2001:db8::/32\"\n\
                 site.ron:2:90: listeners.http.proxy_protocol.trusted[3]: \"::/+1\" is no range of addresses; write it as \"10.0.0.7\", \"10.0.0.0/8\" or \"2001:db8::/32\"",
            ),
            (
                "bind: \"[::]:1\", proxy_protocol: true",
                "site.ron:2:42: listeners.http.proxy_protocol: expected Required or Optional, perhaps with (trusted: […]), found true",
            ),
            (
                "bind: \"[::]:1\", proxy_protocol: Require",
                "site.ron:2:42: listeners.http.proxy_protocol: there is no Require; did you mean Required?",
            ),
            (
                "bind: \"[::]:1\", tls: [(cert: \"a.pem\")]",
                "site.ron:2:32: listeners.http.tls[0].key: missing; name the PEM file of the private key",
            ),
            (
                "bind: \"[::]:1\", tls: []",
                "site.ron:2:31: listeners.http.tls: has no certificate; add (cert: \"…\", key: \"…\"), or leave tls out for cleartext",
            ),
            (
                "bind: \"[::]:1\", timeouts: (head: \"0s\")",
                "site.ron:2:43: listeners.http.timeouts.head: must be longer than zero",
            ),
            (
                "bind: \"[::]:1\", timeouts: (drain_idle: \"31s\")",
                "site.ron:2:49: listeners.http.timeouts.drain_idle: is longer than the site's drain_timeout, which ends everything",
            ),
            (
                "bind: \"[::]:1\", limits: (connections_per_address: 0, rate: ())",
                "site.ron:2:60: listeners.http.limits.connections_per_address: 0 is out of range; 1 to 50000 is allowed\n\
                 site.ron:2:69: listeners.http.limits.rate.per_second: missing; write how many requests a second an address may make, such as per_second: 50",
            ),
            (
                "bind: \"[::]:1\", limits: (rate: (per_second: 2, burst: 7201))",
                "site.ron:2:64: listeners.http.limits.rate.burst: 7201 is out of range; 1 to 7200 is allowed",
            ),
        ],
        with_listener,
    );
    assert_eq!(
        errors("(name: \"s\", listeners: (http: \"1\"))"),
        "site.ron:1:24: listeners: expected a map in braces with quoted names, such as {\"name\": …}, found a record"
    );
    let long = "x".repeat(120);
    assert_eq!(
        errors(&with_listener(&format!("bind: \"unix:/{long}\""))),
        "site.ron:2:16: listeners.http.bind: the socket's path has 121 bytes with the site's directory, the system allows 107; choose a shorter one, such as one in /run"
    );
}

#[test]
fn errors_of_scripts() {
    let site = |to: &str, upstream: &str| {
        format!(
            "(name: \"s\", listeners: {{\"http\": \"127.0.0.1:1\"}}, upstreams: {{\"php\": ({upstream})}},\nroutes: [(to: {to})])"
        )
    };
    let servers = "servers: [\"127.0.0.1:9000\"]";
    for (to, upstream, expected) in [
        (
            "FastCgi(upstream: \"phpp\")",
            servers,
            "site.ron:2:15: routes[0].to.root: missing; name the directory of the scripts\n\
             site.ron:2:15: routes[0].to: no upstream \"phpp\"; did you mean \"php\"?",
        ),
        (
            "FastCgi(upstream: \"php\", root: \"/a\", split: [\"php\"], index: \"a/b\", script_root: \"b\")",
            servers,
            "site.ron:2:60: routes[0].to.split[0]: \"php\" is no suffix of scripts; write a dot and letters, such as \".php\"\n\
             site.ron:2:75: routes[0].to.index[0]: \"a/b\" is no file name; index files lie in the directory itself\n\
             site.ron:2:95: routes[0].to.script_root: is a path on the side of the servers; it begins with \"/\"",
        ),
        (
            "FastCgi(upstream: \"php\", root: \"/a\", params: {\"HTTP_X\": \"1\", \"A-B\": \"2\"})",
            servers,
            "site.ron:2:71: routes[0].to.params.HTTP_X: variables that begin with HTTP_ are the client's fields; choose another name\n\
             site.ron:2:83: routes[0].to.params.A-B: \"A-B\" is no variable; use letters, digits and '_'",
        ),
        (
            "FastCgi(upstream: \"php\", root: \"/a\")), (path: \"/x\", to: Proxy(\"php\")",
            servers,
            "site.ron:1:68: upstreams.php: is named by Proxy and by FastCgi routes; its servers speak one of the two, so make it two upstreams",
        ),
        (
            "FastCgi(upstream: \"php\", root: \"/a\")",
            "servers: [\"127.0.0.1:9000\"], proxy_protocol: V2",
            "site.ron:1:114: upstreams.php.proxy_protocol: is for HTTP, and these servers speak FastCGI, which tells them who the client is; leave it out",
        ),
    ] {
        assert_eq!(errors(&site(to, upstream)), expected, "for {to}");
    }
    let shared =
        site("FastCgi(upstream: \"php\", root: \"/a\")", "servers: [\"a:1\"], keep_alive: (max_idle: 3)");
    assert_eq!(
        errors(&shared.replacen("name:", "instances: (max: 4), name:", 1)),
        "site.ron:1:131: upstreams.php.keep_alive.max_idle: 3 is too few to be shared by 4 instances; write at least 4, or 0"
    );
}

#[test]
fn errors_of_scripts_that_an_app_runs() {
    let site = |to: &str| {
        format!(
            "(name: \"s\", listeners: {{\"http\": \"127.0.0.1:1\"}}, upstreams: {{\"php\": \"a:1\"}},\napps: {{\"fpm\": (command: [\"x\"])}},\nroutes: [(to: {to})])"
        )
        .replace("\"php\": \"a:1\"", "\"php\": (servers: [\"a:1\"])")
    };
    for (to, expected) in [
        (
            "FastCgi(upstream: \"php\", app: \"fpm\", root: \"/a\")",
            "site.ron:3:45: routes[0].to.app: stands beside upstream; scripts are run by one of the two, so leave one out",
        ),
        (
            "FastCgi(root: \"/a\")",
            "site.ron:3:15: routes[0].to.upstream: missing; name an upstream of the site, or an app of it in app",
        ),
        (
            "FastCgi(app: 5, root: \"/a\")",
            "site.ron:3:28: routes[0].to.app: expected a string in quotes, found the number 5",
        ),
        (
            "FastCgi(app: \"fmp\", root: \"/a\")",
            "site.ron:3:15: routes[0].to: no app \"fmp\"; did you mean \"fpm\"?",
        ),
        (
            "FastCgi(app: \"fpm\", root: \"/a\")), (path: \"/x\", to: App(\"fpm\")",
            "site.ron:2:15: apps.fpm: is named by App and by FastCgi routes; its processes speak one of the two, so make it two apps",
        ),
    ] {
        assert_eq!(errors(&site(to)), expected, "for {to}");
    }
}

#[test]
fn errors_of_upstreams() {
    check(
        &[
            (
                "servers: [\"http://a:1\"]",
                "site.ron:2:19: upstreams.api.servers[0]: \"http://a:1\" is a URL; a server is host:port or unix:/path, over cleartext HTTP/1.1",
            ),
            (
                "servers: [\"api\", \"::1\", \"a:0\", \"a_b..c:1\", 5]",
                "site.ron:2:19: upstreams.api.servers[0]: \"api\" has no port; write it after a colon, or unix: before the path of a socket\n\
                 site.ron:2:26: upstreams.api.servers[1]: \"::1\" has no port; write it after a colon: \"[::1]:80\"\n\
                 site.ron:2:33: upstreams.api.servers[2]: \"0\" is no port; ports are 1 to 65535\n\
                 site.ron:2:40: upstreams.api.servers[3]: \"a_b..c\" is neither an IP address (IPv6 in brackets) nor a host name\n\
                 site.ron:2:52: upstreams.api.servers[4]: expected a record (address: …) or a string, found the number 5",
            ),
            (
                "servers: [\"a:1\", (\"A:1\", 0)]",
                "site.ron:2:26: upstreams.api.servers[1]: \"a:1\" stands here twice; for a larger share write (\"a:1\", 2)\n\
                 site.ron:2:34: upstreams.api.servers[1].weight: 0 is out of range; 1 to 65535 is allowed",
            ),
            (
                "servers: [\"a:1\"], health: (path: \"x y\", host: \"a b\", statuses: (500, 200), timeout: \"2\")",
                "site.ron:2:42: upstreams.api.health.path: \"x y\" is no target; it begins with / and is written as in a request, with spaces and the like percent-encoded\n\
                 site.ron:2:55: upstreams.api.health.host: \"a b\" is no host, or host:port\n\
                 site.ron:2:72: upstreams.api.health.statuses: (500, 200) is no range of final statuses; write the first and the last, within 200 to 599\n\
                 site.ron:2:93: upstreams.api.health.timeout: expected a duration with its unit, such as \"30s\" or \"500ms\", found \"2\"",
            ),
            (
                "servers: [\"a:1\"], ejection: On",
                "site.ron:2:37: upstreams.api.ejection: expected Off or a record (failures: …, duration: …), found the word On",
            ),
            (
                "servers: [\"a:1\"], ejection: (failures: 0), keep_alive: (timeout: \"0s\"), retries: 11",
                "site.ron:2:48: upstreams.api.ejection.failures: 0 is out of range; 1 to 1000 is allowed\n\
                 site.ron:2:74: upstreams.api.keep_alive.timeout: must be longer than zero\n\
                 site.ron:2:90: upstreams.api.retries: 11 is out of range; 0 to 10 is allowed",
            ),
        ],
        with_upstream,
    );
}

#[test]
fn errors_of_routes() {
    check(
        &[
            (
                "path: \"/\"",
                "site.ron:2:1: routes[0].to: missing; say what answers: Respond, Redirect, Static, Proxy, FastCgi, App or Handler",
            ),
            ("to: Proxy(\"zzz\")", "site.ron:2:6: routes[0].to: no upstream \"zzz\"; there is \"api\""),
            ("to: Proxi(\"api\")", "site.ron:2:6: routes[0].to: there is no Proxi; did you mean Proxy?"),
            (
                "to: \"api\"",
                "site.ron:2:6: routes[0].to: expected what answers, such as Static(\"public\") or Proxy(\"name\"), found \"api\"",
            ),
            ("to: Proxy", "site.ron:2:6: routes[0].to.upstream: missing; name an upstream of the site"),
            (
                "path: \"/a\", to: Proxy(upstream: \"api\", strip_prefix: true)",
                "site.ron:2:55: routes[0].to.strip_prefix: the route's path is exact and has no prefix to take off; end it with \"/\"",
            ),
            (
                "listeners: [\"htp\"], to: Handler(\"h\")",
                "site.ron:2:14: routes[0].listeners[0]: no listener \"htp\"; did you mean \"http\"?",
            ),
            (
                "listeners: [], to: Handler(\"h\")",
                "site.ron:2:13: routes[0].listeners: is empty, so no request would match; leave it out for all listeners",
            ),
            (
                "host: \"a*.example\", to: Handler(\"h\")",
                "site.ron:2:8: routes[0].host: \"a*.example\" has a wildcard elsewhere than as its whole first label, as in \"*.example.org\"",
            ),
            (
                "host: \"bücher.example\", to: Handler(\"h\")",
                "site.ron:2:8: routes[0].host: \"bücher.example\" is not ASCII; write the name in its xn-- form",
            ),
            (
                "path: \"/a%20b\", to: Handler(\"h\")",
                "site.ron:2:8: routes[0].path: \"/a%20b\" is no path to match: it is matched against the decoded path, so write it decoded, without \"%\"",
            ),
            (
                "path: \"/a/../b\", to: Handler(\"h\")",
                "site.ron:2:8: routes[0].path: \"/a/../b\" is no path to match: it is normalised, so write it without \".\" and \"..\" segments",
            ),
            (
                "path: \"/a/*\", to: Handler(\"h\")",
                "site.ron:2:8: routes[0].path: \"/a/*\" is no path to match: it needs no \"*\": a final \"/\" takes all beneath it",
            ),
            (
                "to: Respond(status: 101)",
                "site.ron:2:22: routes[0].to.status: 101 is no final status; those are 200 to 599",
            ),
            (
                "to: Respond(status: 204, body: \"x\")",
                "site.ron:2:22: routes[0].to.status: an answer with status 204 has no content; leave the body out",
            ),
            (
                "to: Redirect(\"https://x/{uri\")",
                "site.ron:2:15: routes[0].to.location: has a \"{\" without its \"}\"; a brace that is meant literally is %7B",
            ),
            (
                "to: Redirect(\"/{uri}\")",
                "site.ron:2:15: routes[0].to.location: would begin with \"//\", which leads to another host: {uri} and {path} have their own \"/\"; take the first one out",
            ),
            (
                "to: Static(root: \"p\", precompressed: [Br, Br], index: [\"../x\"])",
                "site.ron:2:44: routes[0].to.precompressed[1]: stands here twice; leave one out\n\
                 site.ron:2:57: routes[0].to.index[0]: \"../x\" is no file name; index files lie in the directory itself",
            ),
            (
                "to: Static(\"p\"), headers: {\"X-A\": \"1\", \"x-a\": \"2\", \"Connection\": \"close\", \"a b\": \"c\", \"d\": \"e\\nf\"}",
                "site.ron:2:48: routes[0].headers.x-a: x-a stands here twice (case does not matter); keep one\n\
                 site.ron:2:67: routes[0].headers.Connection: the server itself writes connection; leave it out\n\
                 site.ron:2:83: routes[0].headers[\"a b\"]: \"a b\" is no field name; use letters, digits and '-'\n\
                 site.ron:2:93: routes[0].headers.d: \"e\\nf\" has a character that a field value cannot carry; use visible ASCII",
            ),
            (
                "to: Static(\"p\"), max_body: 5",
                "site.ron:2:29: routes[0].max_body: expected a size with its unit, such as \"64KiB\" or \"1GiB\", found the number 5",
            ),
            (
                "to: Static(\"p\"), cache: ()",
                "site.ron:2:19: routes[0].cache: this build does not have \"cache\" yet; leave the field out",
            ),
        ],
        with_route,
    );
}

#[test]
fn routes_that_share_a_listener_must_not_match_the_same() {
    let site = |one: &str, other: &str| {
        let text = format!(
            "(name: \"s\", listeners: {{\"a\": \"unix:/a\", \"b\": \"unix:/b\"}}, routes: [\n({one} to: Handler(\"h\")),\n({other} to: Handler(\"h\"))])"
        );
        parse(&text, Path::new("site.ron"))
    };
    assert!(site("", "listeners: [\"a\"],").is_ok());
    assert!(site("listeners: [\"a\"],", "listeners: [\"b\"],").is_ok());
    assert!(site("host: \"a.example\",", "host: \"b.example\",").is_ok());
    assert!(site("path: \"/a\",", "path: \"/a/\",").is_ok());
    assert_eq!(
        site("listeners: [\"a\", \"b\"], host: \"A.example\",", "listeners: [\"b\"], host: \"a.example.\",")
            .unwrap_err()
            .to_string(),
        "site.ron:3:1: routes[1]: matches the same as routes[0], \"a.example/\" on a listener of both; no request would reach one of them"
    );
}

#[test]
fn what_an_app_cannot_be_is_said() {
    let of = |app: &str| {
        errors(&format!("(name: \"s\", listeners: {{\"h\": \"127.0.0.1:0\"}}, apps: {{\"a\": ({app})}})"))
    };
    for (app, expected) in [
        (
            "",
            "apps.a.command: missing; write the program and its arguments, such as command: [\"node\", \"server.js\"]",
        ),
        ("command: []", "apps.a.command: missing; write the program"),
        ("command: [\"\"]", "apps.a.command: missing; write the program"),
        ("command: [\"x\", \"{sokcet}\"]", "apps.a.command[1]: no variable {sokcet}; did you mean {socket}?"),
        (
            "command: [\"x\", \"{socket}\"], listen: Port",
            "apps.a.listen: each process listens on a port, and has no {socket}",
        ),
        (
            "command: [\"x\", \"{port}\"], listen: Socket",
            "apps.a.listen: each process listens on a Unix socket, and has no {port}",
        ),
        (
            "command: [\"x\", \"{socket}\"], user: \"web\"",
            "apps.a.user: a user of its own cannot reach sockets",
        ),
        ("command: [\"x\"], user: \"a:b\"", "apps.a.user: \"a:b\" is no name or number of an account"),
        ("command: [\"x\"], processes: 0", "apps.a.processes: 0 is out of range; 1 to 64 is allowed"),
        ("command: [\"x\"], processes: (3, 2)", "apps.a.processes: 2 is less than 3; the fewest come first"),
        (
            "command: [\"x\"], processes: \"2\"",
            "apps.a.processes: expected a number, or the fewest and the most, such as (1, 4), found \"2\"",
        ),
        ("command: [\"x\"], env: {\"A=B\": \"\"}", "is no name of a variable"),
        ("command: [\"x\"], stop_timeout: \"0s\"", "apps.a.stop_timeout: must be longer than zero"),
        ("command: [\"x\"], listen: Pipe", "apps.a.listen: there is no Pipe; choose one of Socket, Port"),
        ("command: [\"x\"], limits: (open_files: 1)", "apps.a.limits.open_files: 1 is out of range"),
        ("command: [\"x\"], healt: \"/\"", "apps.a.healt: unknown field; did you mean \"health\"?"),
    ] {
        let found = of(app);
        assert!(found.contains(expected) && !found.contains('\n'), "{app}: {found}");
    }
    let routed = |more: &str| {
        errors(&format!(
            "(name: \"s\", listeners: {{\"h\": \"127.0.0.1:0\"}}, apps: {{\"blog\": (command: [\"x\"])}}, {more})"
        ))
    };
    let found = routed("routes: [(to: App(\"blgo\"))]");
    assert!(found.contains("routes[0].to: no app \"blgo\"; did you mean \"blog\"?"), "{found}");
}

#[test]
fn an_error_is_not_followed_by_errors_that_it_causes() {
    // The upstream exists although it is wrong, the map is not blamed for what it cannot be asked.
    assert_eq!(
        errors(
            "(name: \"s\", listeners: {\"h\": 5}, upstreams: {\"api\": 5}, routes: [(listeners: [\"h\"], to: Proxy(\"api\"))])"
        ),
        "site.ron:1:30: listeners.h: expected a record (bind: …) or a string, found the number 5\n\
         site.ron:1:53: upstreams.api: expected a record (servers: …), found the number 5"
    );
    assert_eq!(
        errors(
            "(name: 5, listeners: 5, upstreams: 5, routes: [(listeners: [\"h\"], to: Proxy(\"api\")), 5, 6])"
        ),
        "site.ron:1:8: name: expected a string in quotes, found the number 5\n\
         site.ron:1:22: listeners: expected a map in braces, such as {\"name\": …}, found the number 5\n\
         site.ron:1:36: upstreams: expected a map in braces, such as {\"name\": …}, found the number 5\n\
         site.ron:1:86: routes[1]: expected a record (listeners: …), found the number 5\n\
         site.ron:1:89: routes[2]: expected a record (listeners: …), found the number 6"
    );
}
