//! The reference page and the quickstart say what is so.

use std::path::{Path, PathBuf};

use playhouse_config::model::{Bind, Target};
use playhouse_config::{load, parse};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn reference() -> String {
    std::fs::read_to_string(repository().join("docs/reference/site.md")).unwrap()
}

/// Fenced blocks with their info strings.
fn blocks(page: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(info) = line.strip_prefix("```") else { continue };
        let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        blocks.push((info.to_owned(), text.join("\n")));
    }
    blocks
}

#[test]
fn every_example_of_the_reference_is_what_the_page_says() {
    let mut counted = 0;
    let page = reference();
    let mut blocks = blocks(&page).into_iter();
    while let Some((info, text)) = blocks.next() {
        let site = Path::new("site.ron");
        match info.as_str() {
            "ron" => drop(parse(&text, site).unwrap_or_else(|errors| panic!("{text}\n{errors}"))),
            "ron site" => {
                let mut whole = text.clone();
                if !whole.starts_with("listeners:") {
                    whole.push_str("\nlisteners: {\"http\": \"127.0.0.1:8080\"}");
                }
                parse(&format!("(name: \"example\",\n{whole})"), site)
                    .unwrap_or_else(|errors| panic!("{text}\n{errors}"));
            }
            "ron invalid" => {
                let (_, expected) = blocks.next().unwrap();
                assert_eq!(parse(&text, site).unwrap_err().to_string(), expected);
            }
            other => panic!("a block of kind {other:?}, which no test reads"),
        }
        counted += 1;
    }
    assert!(counted >= 8, "{counted} examples were found");
}

#[test]
fn the_reference_has_every_field() {
    // A name like no other makes the message list the fields that there are.
    let text = r#"(
        qqqqqqqqqqqq: 1, admin: (qqqqqqqqqqqq: 1), access_log: (qqqqqqqqqqqq: 1),
        instances: (qqqqqqqqqqqq: 1, scaling: (qqqqqqqqqqqq: 1)),
        listeners: {"l": (qqqqqqqqqqqq: 1, tls: [(qqqqqqqqqqqq: 1)], limits: (qqqqqqqqqqqq: 1), timeouts: (qqqqqqqqqqqq: 1),
                          proxy_protocol: Required(qqqqqqqqqqqq: 1))},
        upstreams: {"u": (qqqqqqqqqqqq: 1, servers: [(qqqqqqqqqqqq: 1)], health: (qqqqqqqqqqqq: 1), ejection: (qqqqqqqqqqqq: 1),
                          timeouts: (qqqqqqqqqqqq: 1), keep_alive: (qqqqqqqqqqqq: 1))},
        apps: {"a": (qqqqqqqqqqqq: 1, limits: (qqqqqqqqqqqq: 1))},
        routes: [(qqqqqqqqqqqq: 1, to: Respond(qqqqqqqqqqqq: 1)), (to: Redirect(qqqqqqqqqqqq: 1)), (to: Static(qqqqqqqqqqqq: 1)),
                 (to: Proxy(qqqqqqqqqqqq: 1)), (to: FastCgi(qqqqqqqqqqqq: 1)), (to: App(qqqqqqqqqqqq: 1)), (to: Handler(qqqqqqqqqqqq: 1))],
    )"#;
    let page = reference();
    let errors = parse(text, Path::new("site.ron")).unwrap_err();
    let listed: Vec<&str> = errors
        .iter()
        .filter_map(|error| error.message.split_once("the fields here are "))
        .map(|(_, f)| f)
        .collect();
    assert_eq!(listed.len(), 26, "{errors}");
    for field in listed.iter().flat_map(|fields| fields.split(", ")) {
        let row = page.lines().any(|line| line.starts_with('|') && line.contains(&format!("`{field}`")));
        let pair = page.contains(&format!("{field}: path")) || page.contains(&format!("({field}: \"address"));
        assert!(
            row || pair || page.contains(&format!(", {field}: 3)")),
            "docs/reference/site.md lacks {field:?}"
        );
    }
}

#[test]
fn the_quickstart_is_a_valid_site() {
    let file = repository().join("examples/quickstart/site.ron");
    let site = load(&file).unwrap();
    assert_eq!(site.name, "quickstart");
    assert_eq!(site.admin.bind, Some("127.0.0.1:9900".parse().unwrap()));
    assert_eq!(site.listeners.len(), 2);
    let http = Bind::Tcp { address: "127.0.0.1:8080".parse().unwrap(), only_v6: false };
    assert_eq!((&*site.listeners[0].name, &site.listeners[0].bind), ("http", &http));
    assert_eq!(site.upstreams[0].servers[0].address.to_string(), "127.0.0.1:9080");
    let files = site.routes.iter().find(|route| matches!(route.to, Target::Static(_))).unwrap();
    let Target::Static(files) = &files.to else { panic!("{files:?}") };
    for name in ["index.html", "style.css", "favicon.svg"] {
        assert!(files.root.join(name).is_file(), "{name}");
    }
}
