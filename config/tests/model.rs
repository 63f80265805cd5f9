//! What a valid file becomes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use playhouse_config::model::{
    Address, Bind, ClientTimeouts, Ejection, HostPattern, KeepAlive, Limits, LogDestination, OnReload,
    PathPattern, ScriptServers, Segment, Target, Tunnel, UpstreamProtocol, UpstreamTimeouts, Variable,
};
use playhouse_config::{Site, load, parse};

fn site(fields: &str) -> Site {
    let text = if fields.contains("listeners: {") {
        format!("(name: \"s\", {fields})")
    } else {
        format!("(name: \"s\", listeners: {{\"h\": \"127.0.0.1:0\"}}, {fields})")
    };
    parse(&text, Path::new("/srv/site.ron")).unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn idle_connections_to_programs_are_shared_by_all_instances() {
    let share = |instances: &str, keep_alive: &str, to: &str| {
        let upstreams = format!("upstreams: {{\"u\": (servers: [\"a:1\"], {keep_alive})}}");
        site(&format!("{instances}{upstreams}, routes: [(to: {to})]")).upstreams[0].keep_alive.max_idle
    };
    let (fastcgi, proxy) = ("FastCgi(upstream: \"u\", root: \"r\")", "Proxy(\"u\")");
    let (four, eleven) = ("instances: (max: 4), ", "keep_alive: (max_idle: 11)");
    assert_eq!(share("", eleven, fastcgi), 11);
    assert_eq!(share(four, eleven, fastcgi), 2);
    assert_eq!(share(four, "keep_alive: (max_idle: 0)", fastcgi), 0);
    assert_eq!(share(four, "keep_alive: (timeout: \"1s\")", fastcgi), 0);
    assert_eq!(share(four, eleven, proxy), 11);
}

#[test]
fn an_app_that_routes_to_scripts_name_speaks_fastcgi() {
    let of = |to: &str| {
        let apps = "apps: {\"php\": (command: [\"x\"], health: \"/ping\")}";
        site(&format!("{apps}, routes: [(to: {to})]"))
    };
    let scripts = of("FastCgi(app: \"php\", root: \"public\")");
    let upstream = scripts.apps[0].upstream();
    assert_eq!((upstream.protocol, upstream.keep_alive.max_idle), (UpstreamProtocol::FastCgi, 0));
    let Target::FastCgi(fastcgi) = &scripts.routes[0].to else { panic!() };
    assert_eq!(fastcgi.servers, ScriptServers::App("php".into()));
    let upstream = of("App(\"php\")").apps[0].upstream();
    assert_eq!((upstream.protocol, upstream.keep_alive), (UpstreamProtocol::Http, KeepAlive::default()));
}

#[test]
fn what_is_not_written_has_its_default() {
    let site = site("upstreams: {\"u\": (servers: [\"a:1\"], health: \"/\")}, routes: [(to: Static(\"p\"))]");
    assert_eq!((site.threads, &site.instances), (None, &None));
    assert_eq!(site.drain_timeout, Duration::from_secs(30));
    assert_eq!(site.access_log, None);
    let listener = &site.listeners[0];
    assert!(listener.http2 && listener.tls.is_empty());
    assert_eq!((&listener.limits, &listener.timeouts), (&Limits::default(), &ClientTimeouts::default()));
    let upstream = &site.upstreams[0];
    assert_eq!(upstream.ejection, Some(Ejection::default()));
    assert_eq!(
        (&upstream.timeouts, &upstream.keep_alive),
        (&UpstreamTimeouts::default(), &KeepAlive::default())
    );
    assert_eq!((upstream.retries, upstream.servers[0].weight.get()), (2, 1));
    let health = upstream.health.as_ref().unwrap();
    assert_eq!((health.interval, health.timeout), (Duration::from_secs(5), Duration::from_secs(2)));
    assert_eq!(
        (health.healthy_after.get(), health.unhealthy_after.get(), health.statuses),
        (1, 2, (200, 399))
    );
    assert_eq!(site.routes[0].path, PathPattern::Prefix("/".into()));
    let Target::Static(files) = &site.routes[0].to else { panic!() };
    assert_eq!(files.index, ["index.html"]);
}

#[test]
fn instances_need_no_more_than_how_many_there_may_be() {
    let short = site("instances: (max: 4)").instances.unwrap();
    let long = site(
        "instances: (min: 1, max: 4, ready_timeout: \"10s\", heartbeat_timeout: \"5s\", min_free_memory: \"64MiB\", \
         scaling: (up_at: 0.75, down_at: 0.3, up_after: \"3s\", down_after: \"60s\", cooldown: \"10s\"))",
    );
    assert_eq!(Some(&short), long.instances.as_ref());
    assert_eq!((short.min.get(), short.max.get(), short.slots()), (1, 4, 10));
    let off = site("instances: (min: 2, max: 2, min_free_memory: \"0B\", scaling: (up_at: 1, down_at: 0))");
    let off = off.instances.unwrap();
    assert_eq!((off.min_free_memory, off.scaling.up_at, off.scaling.down_at), (0, 1.0, 0.0));
}

#[test]
fn an_address_may_make_as_many_requests_at_once_as_in_a_second_unless_the_file_says_otherwise() {
    let limits = |written: &str| {
        let text = format!("listeners: {{\"h\": (bind: \"127.0.0.1:0\", limits: ({written}))}}");
        site(&text).listeners.remove(0).limits
    };
    let rate = |limits: &Limits| limits.rate.map(|rate| (rate.per_second.get(), rate.burst.get()));
    let short = limits("rate: (per_second: 50)");
    assert_eq!((rate(&short), short.connections_per_address), (Some((50, 50)), None));
    let long = limits("connections_per_address: 7, rate: (per_second: 1, burst: 3600)");
    assert_eq!(rate(&long), Some((1, 3600)));
    assert_eq!(long.connections_per_address.map(|limit| limit.get()), Some(7));
    assert_eq!(rate(&limits("")), None);
}

#[test]
fn a_byte_order_mark_is_not_part_of_the_text() {
    parse("\u{feff}(name: \"s\", listeners: {\"h\": \"[::1]:0\"})", Path::new("site.ron")).unwrap();
}

#[test]
fn an_empty_record_is_all_defaults() {
    let written = site("listeners: {\"h\": (bind: \"127.0.0.1:0\", limits: (), timeouts: ())}, admin: ()");
    assert_eq!(written, site(""));
}

#[test]
fn relative_paths_are_relative_to_the_file() {
    let site = site(
        "listeners: {\"h\": (bind: \"unix:run/h.sock\", mode: \"0660\", tls: [(cert: \"c.pem\", key: \"/k.pem\")])}, \
         state_dir: \"state\", access_log: \"log/a.log\", admin: (token_file: \"token\"), \
         upstreams: {\"u\": (servers: [\"unix:u.sock\"])}, routes: [(to: Static(\".\"))]",
    );
    assert_eq!(site.listeners[0].bind, Bind::Unix { path: "/srv/run/h.sock".into(), mode: Some(0o660) });
    assert_eq!(site.listeners[0].tls[0].cert, PathBuf::from("/srv/c.pem"));
    assert_eq!(site.listeners[0].tls[0].key, PathBuf::from("/k.pem"));
    assert_eq!(site.state_dir, Some("/srv/state".into()));
    assert_eq!(site.access_log.unwrap().to, LogDestination::File("/srv/log/a.log".into()));
    assert_eq!(site.admin.token_file, Some("/srv/token".into()));
    assert_eq!(site.upstreams[0].servers[0].address, Address::Unix("/srv/u.sock".into()));
    let Target::Static(files) = &site.routes[0].to else { panic!() };
    assert_eq!(files.root, Path::new("/srv/."));
}

#[test]
fn a_loaded_file_does_not_depend_on_the_working_directory() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("site.ron");
    std::fs::write(&file, "(name: \"s\", listeners: {\"h\": \"127.0.0.1:0\"}, state_dir: \"x\")").unwrap();
    assert_eq!(load(&file).unwrap().state_dir, Some(directory.path().join("x")));
}

#[test]
fn a_lone_string_stands_for_the_main_field() {
    let short = site(
        "listeners: {\"h\": \"[::1]:0\"}, admin: \"127.0.0.1:1\", access_log: \"-\", \
         upstreams: {\"u\": (servers: [\"a:1\", (\"b:1\", 2)], health: \"/h\")}, \
         routes: [(path: \"/1\", to: Proxy(\"u\")), (path: \"/2\", to: Static(\"p\")), (path: \"/3\", to: Respond(\"x\")), \
                  (path: \"/4\", to: Redirect(\"/\")), (path: \"/5\", to: Handler(\"n\"))]",
    );
    let long = site(
        "listeners: {\"h\": Listener(bind: \"[::1]:0\")}, admin: (bind: \"127.0.0.1:1\"), access_log: (to: \"-\", format: Json), \
         upstreams: {\"u\": (servers: [(address: \"a:1\"), (address: \"b:1\", weight: Some(2))], health: (path: \"/h\"))}, \
         routes: [(path: \"/1\", to: Proxy(upstream: \"u\")), (path: \"/2\", to: Static(root: \"p\")), \
                  (path: \"/3\", to: Respond(status: 200, body: \"x\")), \
                  (path: \"/4\", to: Redirect(status: 307, location: \"/\")), (path: \"/5\", to: Handler(name: \"n\"))]",
    );
    assert_eq!(short, long);
}

#[test]
fn ejection_is_on_until_it_is_turned_off() {
    let ejection = |written: &str| {
        let site = site(&format!("upstreams: {{\"u\": (servers: [\"a:1\"], ejection: {written})}}"));
        site.upstreams[0].ejection.clone()
    };
    assert_eq!(ejection("Off"), None);
    assert_eq!(ejection("None"), None);
    assert_eq!(ejection("()"), Some(Ejection::default()));
    assert_eq!(ejection("(duration: \"1s\")").unwrap().duration, Duration::from_secs(1));
}

#[test]
fn hosts_are_brought_into_one_form() {
    let host = |written: &str| {
        site(&format!("routes: [(host: {written:?}, to: Handler(\"h\"))]")).routes[0].host.clone()
    };
    assert_eq!(host("Shop.Example."), Some(HostPattern::Exact("shop.example".into())));
    assert_eq!(host("*.Shop.Example"), Some(HostPattern::Wildcard(".shop.example".into())));
    assert_eq!(host("10.0.0.1"), Some(HostPattern::Exact("10.0.0.1".into())));
    assert_eq!(host("[0::1]"), Some(HostPattern::Exact("[::1]".into())));
    assert_eq!(host("::1"), Some(HostPattern::Exact("[::1]".into())));
}

#[test]
fn a_final_slash_makes_a_prefix() {
    let path = |written: &str| {
        site(&format!("routes: [(path: {written:?}, to: Handler(\"h\"))]")).routes[0].path.clone()
    };
    assert_eq!(path("/a b/ü/"), PathPattern::Prefix("/a b/ü/".into()));
    assert_eq!(path("/.well-known/x"), PathPattern::Exact("/.well-known/x".into()));
}

#[test]
fn a_location_is_text_and_variables() {
    let site = site("routes: [(to: Redirect(status: 308, location: \"https://{host}:8443{uri}\"))]");
    let Target::Redirect(redirect) = &site.routes[0].to else { panic!() };
    let expected = [
        Segment::Text("https://".into()),
        Segment::Variable(Variable::Host),
        Segment::Text(":8443".into()),
        Segment::Variable(Variable::Uri),
    ];
    assert_eq!((redirect.status.as_u16(), &redirect.location[..]), (308, &expected[..]));
}

#[test]
fn addresses_that_differ_can_be_bound_together() {
    site(
        "listeners: {\"a\": \"0.0.0.0:1\", \"b\": (bind: \"[::]:1\", only_v6: true), \"c\": \"0.0.0.0:0\", \"d\": \"0.0.0.0:0\"}",
    );
    site("listeners: {\"a\": \"127.0.0.1:1\", \"b\": \"127.0.0.2:1\"}");
    for (one, other) in [
        ("0.0.0.0:1", "127.0.0.1:1"),
        ("[::]:1", "127.0.0.1:1"),
        ("[::]:1", "0.0.0.0:1"),
        ("unix:a", "unix:/srv/a"),
    ] {
        let text = format!("(name: \"s\", listeners: {{\"a\": {one:?}, \"b\": {other:?}}})");
        let errors = parse(&text, Path::new("/srv/site.ron")).unwrap_err();
        assert_eq!(
            errors.as_slice()[0].message,
            "listener \"a\" has this address already; each needs its own"
        );
    }
}

#[test]
fn a_route_has_tunnels_for_websockets_unless_the_file_says_otherwise() {
    let route = |written: &str| {
        let text = format!(
            "upstreams: {{\"u\": (servers: [\"a:1\"])}}, routes: [(path: \"/ws\", to: Proxy(\"u\"){written})]"
        );
        site(&text).routes.remove(0).tunnel
    };
    assert_eq!(route(""), Tunnel::default());
    assert_eq!(route(", tunnel: ()"), Tunnel::default());
    assert_eq!(
        (Tunnel::default().protocols, Tunnel::default().on_reload),
        (vec!["websocket".to_owned()], OnReload::Keep)
    );
    let all = route(
        ", tunnel: (protocols: [\"WebSocket\", \"SPDY/3.1\"], idle: \"5m\", life: \"1day\", ping: \"30s\", on_reload: Close)",
    );
    assert_eq!(all.protocols, ["websocket", "spdy/3.1"]);
    assert_eq!((all.idle, all.life), (Duration::from_secs(300), Some(Duration::from_secs(86_400))));
    assert_eq!((all.ping, all.on_reload), (Some(Duration::from_secs(30)), OnReload::Close));
    assert!(route(", tunnel: (protocols: [])").protocols.is_empty());
}

#[test]
fn an_app_listens_on_what_its_command_names() {
    use playhouse_config::model::Listen;
    let site = site(
        "apps: {\"a\": (command: [\"node\", \"server.js\"]), \"b\": (command: [\"uvicorn\", \"--uds\", \"{socket}\"], dir: \"b\", processes: (2, 4)), \
                \"c\": (command: [\"x\"], env: {\"SOCK\": \"{socket}\"}), \"d\": (command: [\"x\"], listen: Socket)}, \
         routes: [(path: \"/a/\", to: App(\"a\")), (path: \"/b/\", to: App(app: \"b\", strip_prefix: true))]",
    );
    let listens: Vec<_> = site.apps.iter().map(|app| app.listen).collect();
    assert_eq!(listens, [Listen::Port, Listen::Socket, Listen::Socket, Listen::Socket]);
    let (a, b) = (&site.apps[0], &site.apps[1]);
    assert_eq!((a.dir.to_str(), b.dir.to_str()), (Some("/srv"), Some("/srv/b")));
    assert_eq!((a.processes.min.get(), a.processes.max.get()), (1, 1));
    assert_eq!((b.processes.min.get(), b.processes.max.get()), (2, 4));
    assert_eq!((a.ready_timeout, a.stop_timeout), (Duration::from_secs(30), Duration::from_secs(10)));
    let Target::App(to) = &site.routes[1].to else { panic!() };
    assert_eq!((&*to.app, to.strip_prefix, to.preserve_host), ("b", true, true));
}
