//! Whatever the text, there is a site or there are errors; and what is written is what is read.

mod write;

use std::path::Path;
use std::time::Duration;

use playhouse_config::file::{
    AccessLog, Admin, Ejection, EjectionSettings, FastCgi, Health, Instances, Listener, LogFormat, Named,
    Names, OnReload, Proxy, ProxyProtocol, Route, Scaling, Server, Site, Size, Static, Target, Trust, Tunnel,
    Upstream,
};
use playhouse_config::model::{Balance, Encoding, ProxyVersion};
use playhouse_config::{Builder, Error, parse};
use proptest::bool::weighted as weighted_bool;
use proptest::collection::{btree_map, btree_set, vec};
use proptest::option::{of, weighted};
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};

/// Uses every kind of value that a site file has.
const SITE: &str = r##"// A site.
(
    name: "shop", /* a comment */
    threads: 4, instances: (min: 1, max: 4, min_free_memory: "32MiB", scaling: (up_at: 0.8, up_after: "2s")),
    state_dir: r#"state"#, drain_timeout: "1m 30s",
    admin: (bind: "[::1]:9900", token_file: "token", hosts: ["admin.example"]),
    access_log: (to: "-", format: Combined),
    listeners: {
        "http": "0.0.0.0:8080",
        "https": (bind: "[::]:8443", only_v6: true, tls: [(cert: "site.pem", key: "site.key")], http2: false,
                  limits: (header_bytes: "16KiB", streams: 10), timeouts: (idle: "5s")),
        "edge": Listener(bind: "unix:edge.sock", mode: "0660"),
    },
    upstreams: {
        "api": (servers: ["127.0.0.1:9000", ("api.example:9000", 3), (address: "unix:a.sock", weight: 2)],
                balance: LeastConnections, health: (path: "/healthz", interval: "2s", statuses: (200, 299)),
                ejection: Off, retries: 0, keep_alive: (max_idle: 0)),
        "b": (servers: ["[::1]:1"], health: "/", ejection: (failures: 3), timeouts: (connect: "500ms")),
    },
    routes: [
        (path: "/api/", to: Proxy("api"), max_body: "1MiB", headers: {"X-A": "b", "x-b": "\u{41}\t\x41"}),
        (listeners: ["edge"], host: "*.example.org", to: Proxy(upstream: "b", preserve_host: false)),
        (path: "/old", to: Redirect(status: 301, location: "https://{host}/new{uri}")),
        (path: "/ok", to: Respond(status: Some(200), body: "ok\n")),
        (path: "/own", to: Handler("own"), max_body: None),
        (path: "/ws", to: Proxy("api"), tunnel: (protocols: ["websocket", "SPDY/3.1"], idle: "5m", life: "1day", ping: "30s",
                                                 on_reload: Drain)),
        (path: "/", to: Static(root: "public", follow: ["/usr/share/javascript"], index: [], precompressed: [Br, Zstd, Gzip], cache_control: "no-cache")),
    ],
)
"##;

/// Errors are never empty, in order, and within the text.
fn outcome_is_sound(text: &str) -> Result<(), TestCaseError> {
    let Err(errors) = parse(text, Path::new("site.ron")) else { return Ok(()) };
    prop_assert!(!errors.as_slice().is_empty());
    let lines: Vec<&str> = text.split('\n').collect();
    let mut before = (0, 0);
    for Error { line, column, .. } in &errors {
        let (Some(line), Some(column)) = (*line, *column) else { continue };
        prop_assert!(before <= (line, column), "out of order: {errors}");
        before = (line, column);
        prop_assert!((1..=lines.len()).contains(&line), "no line {line}: {errors}");
        prop_assert!(
            (1..=lines[line - 1].chars().count() + 1).contains(&column),
            "no column {column}: {errors}"
        );
    }
    prop_assert!(!errors.to_string().chars().any(|c| c.is_control() && c != '\n'), "unprintable: {errors:?}");
    Ok(())
}

#[test]
fn the_whole_text_is_a_site() {
    parse(SITE, Path::new("site.ron")).unwrap();
}

#[test]
fn every_prefix_is_an_error() {
    let end = SITE.trim_end().len();
    for (length, _) in SITE.char_indices().take_while(|(length, _)| *length < end) {
        assert!(parse(&SITE[..length], Path::new("site.ron")).is_err(), "{length}");
        outcome_is_sound(&SITE[..length]).unwrap();
    }
}

/// What a change puts in.
fn snippet() -> impl Strategy<Value = String> {
    let tokens = select(vec![
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        "\"",
        "'",
        "r#",
        "b\"",
        "Some(",
        "None",
        "0",
        "-1",
        "1.5",
        "0x",
        "true",
        "Proxy",
        "Off",
        "//",
        "/*",
        "*/",
        "\n",
        "\\",
        "#![enable(unwrap_newtypes)]",
        "()",
        "(1, 2)",
        "{\"a\": 1}",
        "\"\"",
        "99999999999999999999999999999999999999999",
        "inf",
        "..",
        "é",
        "\u{1b}[31m",
        "name: \"x\"",
        "{uri",
        "\u{0}",
    ]);
    prop_oneof![tokens.prop_map(str::to_owned), any::<String>()]
}

proptest! {
    #[test]
    fn a_changed_file_is_a_site_or_errors(
        changes in vec((any::<Index>(), any::<Index>(), snippet()), 1..6),
    ) {
        let mut characters: Vec<char> = SITE.chars().collect();
        for (at, length, snippet) in changes {
            let start = at.index(characters.len());
            let end = start + length.index(characters.len() - start + 1).min(12);
            characters.splice(start..end, snippet.chars());
        }
        outcome_is_sound(&characters.into_iter().collect::<String>())?;
    }

    #[test]
    fn swapped_values_are_a_site_or_errors(from in any::<Index>(), to in any::<Index>()) {
        let mut words: Vec<&str> = SITE.split_inclusive([' ', ',']).collect();
        let (from, to) = (from.index(words.len()), to.index(words.len()));
        words.swap(from, to);
        outcome_is_sound(&words.concat())?;
    }

    #[test]
    fn a_heap_of_tokens_is_a_site_or_errors(tokens in vec(snippet(), 0..40)) {
        outcome_is_sound(&tokens.concat())?;
    }

    #[test]
    fn a_written_site_reads_as_the_site_that_was_built(site in site()) {
        let text = write::site(&site);
        let read = parse(&text, Path::new("/srv/site.ron"));
        let built = Builder::from(site).directory("/srv").build();
        match (read, built) {
            (Ok(read), Ok(built)) => prop_assert_eq!(read, built),
            (Err(read), Err(built)) => {
                let plain = |errors: &playhouse_config::Errors| {
                    let mut errors: Vec<_> = errors.iter().map(|e| (e.field.clone(), e.message.clone())).collect();
                    errors.sort();
                    errors
                };
                prop_assert_eq!(plain(&read), plain(&built), "{}", text);
            }
            (read, built) => prop_assert!(false, "{text}\nread: {read:?}\nbuilt: {built:?}"),
        }
    }
}

/// Valid text nearly always (a site has dozens, and many sites are to be valid), any text otherwise.
fn text(valid: &[&'static str]) -> impl Strategy<Value = String> + use<> {
    prop_oneof![200 => select(valid.to_vec()).prop_map(str::to_owned), 1 => any::<String>()]
}

fn duration() -> impl Strategy<Value = Duration> {
    prop_oneof![100 => (1u64..100_000).prop_map(Duration::from_millis), 1 => Just(Duration::ZERO)]
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![100 => 1u64..1_000, 1 => any::<u64>()]
}

/// Present, but for a few.
fn usually<T: std::fmt::Debug>(value: impl Strategy<Value = T>) -> impl Strategy<Value = Option<T>> {
    weighted(0.98, value)
}

prop_compose! {
    fn site()(
        name in usually(text(&["shop", "a.b-c_d"])), threads in of(number()), drain_timeout in of(duration()),
        instances in of(instances()),
        admin in of((text(&["127.0.0.1:9900", "[::1]:1"]), vec(text(&["a.example"]), 0..2))),
        access_log in of((text(&["-", "access.log"]), select(vec![LogFormat::Json, LogFormat::Combined]))),
        listeners in usually((listener("127.0.0.1:1"), listener("[::1]:0"), listener("unix:a.sock"), text(&["edge"]))),
        upstreams in usually((upstream(), upstream(), text(&["php"]))),
        routes in of(vec(route(), 0..5)),
        distinct in weighted_bool(0.9),
    ) -> Site {
        let mut routes = routes;
        for (index, route) in routes.iter_mut().flatten().enumerate().filter(|_| distinct) {
            route.path = Some(format!("/{index}{}", route.path.as_deref().unwrap_or("/")));
        }
        Site {
            name, threads, instances, drain_timeout, routes, state_dir: None,
            listeners: listeners.map(|(http, https, edge, name)| {
                Named(vec![("http".into(), http), ("https".into(), https), (name, edge)])
            }),
            upstreams: upstreams.map(|(api, php, name)| Named(vec![("api".into(), api), (name, php)])),
            apps: None,
            admin: admin.map(|(bind, hosts)| Admin { bind: Some(bind), token_file: None, hosts: Some(hosts) }),
            access_log: access_log.map(|(to, format)| AccessLog { to: Some(to), format: Some(format) }),
        }
    }
}

prop_compose! {
    fn instances()(
        min in of(1u64..5), max in usually(4u64..70), timeouts in (of(duration()), of(duration())),
        min_free_memory in of(any::<u64>()), scaling in of((of(share()), of(share()), of(duration()))),
    ) -> Instances {
        Instances {
            min, max,
            ready_timeout: timeouts.0,
            heartbeat_timeout: timeouts.1,
            min_free_memory: min_free_memory.map(Size),
            scaling: scaling.map(|(up_at, down_at, cooldown)| {
                Scaling { up_at, down_at, cooldown, ..Scaling::default() }
            }),
        }
    }
}

fn share() -> impl Strategy<Value = f64> {
    prop_oneof![20 => 0.0..1.0, 1 => any::<f64>()]
}

prop_compose! {
    fn listener(valid: &'static str)(
        bind in text(&[valid]), http2 in of(any::<bool>()), http3 in weighted_bool(0.02), stray in weighted_bool(0.02),
        only_v6 in of(any::<bool>()), mode in of(text(&["0660", "600"])),
        proxies in of((any::<bool>(), vec(text(&["10.0.0.0/8", "::1", "192.0.2.1/32"]), 1..3))),
    ) -> Listener {
        let only_v6 = only_v6.filter(|_| stray || valid.starts_with('['));
        let mode = mode.filter(|_| stray || valid.starts_with("unix:"));
        let proxy_protocol = proxies.map(|(required, trusted)| {
            let trust = Trust { trusted: Some(trusted).filter(|_| stray || !valid.starts_with("unix:")) };
            if required { ProxyProtocol::Required(trust) } else { ProxyProtocol::Optional(trust) }
        });
        let http3 = http3.then_some(true);
        Listener { bind: Some(bind), only_v6, mode, http2, http3, proxy_protocol, ..Listener::default() }
    }
}

prop_compose! {
    fn upstream()(
        addresses in usually(btree_set(text(&["127.0.0.1:1", "a.example:2", "[::1]:3", "unix:/s"]), 1..4)),
        weight in of(number()),
        balance in of(select(vec![Balance::RoundRobin, Balance::LeastConnections])),
        proxy_protocol in of(select(vec![ProxyVersion::V1, ProxyVersion::V2])),
        health in of((text(&["/", "/healthz?deep=1"]), of(duration()))),
        ejection in of(of((of(number()), of(duration())))), retries in of(0u64..=10),
    ) -> Upstream {
        let server = |address| Server { address: Some(address), weight };
        Upstream {
            servers: addresses.map(|addresses| addresses.into_iter().map(server).collect()),
            balance,
            proxy_protocol,
            health: health.map(|(path, interval)| Health { path: Some(path), interval, ..Health::default() }),
            ejection: ejection.map(|ejection| match ejection {
                Some((failures, duration)) => Ejection::On(EjectionSettings { failures, duration }),
                None => Ejection::Off,
            }),
            retries,
            ..Upstream::default()
        }
    }
}

prop_compose! {
    fn route()(
        listeners in of(btree_set(text(&["http", "https"]), 1..3)),
        host in of(text(&["a.example", "*.b.example", "A.EXAMPLE.", "::1"])),
        path in of(text(&["/", "/a", "/a/", "/a b/ü/"])),
        to in usually(target()), max_body in of(any::<u64>()),
        headers in of(btree_map(text(&["X-A", "x-b", "Cache-Control"]), text(&["a", "no-store"]), 0..4)),
        tunnel in of(tunnel()), stray in weighted_bool(0.02),
    ) -> Route {
        let tunnel = tunnel.filter(|_| stray || matches!(to, Some(Target::Proxy(_) | Target::Handler(_))));
        Route {
            listeners: listeners.map(|names| names.into_iter().collect()),
            host, path, to,
            max_body: max_body.map(Size),
            headers: headers.map(|fields| Named(fields.into_iter().collect())),
            tunnel,
        }
    }
}

prop_compose! {
    fn tunnel()(
        protocols in of(btree_set(text(&["websocket", "spdy/3.1", "MQTT"]), 0..3)),
        idle in of(duration()), life in of(duration()), ping in of((1u64..100).prop_map(Duration::from_millis)),
        on_reload in of(select(vec![OnReload::Keep, OnReload::Drain, OnReload::Close])),
    ) -> Tunnel {
        Tunnel { protocols: protocols.map(|names| names.into_iter().collect()), idle, life, ping, on_reload }
    }
}

fn target() -> impl Strategy<Value = Target> {
    let files = (
        text(&["public", "/srv"]),
        of(subsequence(vec![Encoding::Zstd, Encoding::Br, Encoding::Gzip], 0..3)),
    );
    let proxy = (text(&["api"]), of(weighted_bool(0.1)), of(any::<bool>()));
    prop_oneof![
        (select(vec![200u16, 404, 503, 204]), text(&["", "ok\n"]))
            .prop_map(|(status, body)| Target::respond(status, body)),
        (select(vec![301u16, 308, 307]), text(&["/", "https://a.example{uri}", "{path}?{query}"]))
            .prop_map(|(status, location)| Target::redirect(status, location)),
        files.prop_map(|(root, precompressed)| {
            Target::Static(Static { root: Some(root.into()), precompressed, ..Static::default() })
        }),
        (text(&["php"]), text(&["/srv", "app"]), of(any::<bool>()), of(vec(text(&[".php"]), 1..3))).prop_map(
            |(upstream, root, front_controller, split)| {
                Target::FastCgi(FastCgi {
                    upstream: Some(upstream),
                    root: Some(root.into()),
                    front_controller,
                    split: split.map(Names),
                    ..FastCgi::default()
                })
            }
        ),
        proxy.prop_map(|(upstream, strip_prefix, preserve_host)| {
            Target::Proxy(Proxy { upstream: Some(upstream), strip_prefix, preserve_host })
        }),
        text(&["own"]).prop_map(Target::handler),
    ]
}
