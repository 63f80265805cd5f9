//! Which route answers, and what fixed answers and redirects look like.

use crate::harness::{Site, curl};

const ROUTES: [&str; 9] = [
    r#"(path: "/", to: Respond(status: 200, body: "any host\n"))"#,
    r#"(path: "/a/", to: Respond(status: 200, body: "prefix a\n"))"#,
    r#"(path: "/a/b/", to: Respond(status: 200, body: "prefix a/b\n"))"#,
    r#"(path: "/a/b", to: Respond(status: 200, body: "exactly a/b\n"))"#,
    r#"(host: "one.example", path: "/", to: Respond(status: 200, body: "one\n"))"#,
    r#"(host: "*.example", path: "/", to: Respond(status: 200, body: "wildcard\n"))"#,
    r#"(path: "/gone", to: Respond(status: 410, body: "gone\n"), headers: {"cache-control": "no-store"})"#,
    r#"(path: "/old/", to: Redirect(status: 308, location: "https://new.example{uri}"))"#,
    r#"(path: "/nothing", to: Respond(status: 204, body: ""))"#,
];

fn site() -> Site {
    ROUTES.iter().fold(Site::new(), |site, route| site.route(*route))
}

#[test]
fn the_most_specific_route_answers() {
    let site = site().start();
    let ask = |host: &str, target: &str| {
        let field = format!("Host: {host}");
        curl(["--path-as-is", "-H", &field, &site.url("http", target)]).expect(200).text()
    };
    assert_eq!(ask("other.test", "/"), "any host\n");
    assert_eq!(ask("other.test", "/x"), "any host\n");
    assert_eq!(ask("other.test", "/a/x"), "prefix a\n");
    assert_eq!(ask("other.test", "/a/b/x"), "prefix a/b\n");
    assert_eq!(ask("other.test", "/a/b"), "exactly a/b\n");
    assert_eq!(ask("other.test", "/ab"), "any host\n");
    assert_eq!(ask("one.example", "/a/x"), "one\n");
    assert_eq!(ask("ONE.example:8080", "/"), "one\n");
    assert_eq!(ask("one.example.", "/"), "one\n");
    assert_eq!(ask("two.example", "/a/b"), "wildcard\n");
    assert_eq!(ask("example", "/"), "any host\n");
}

#[test]
fn a_path_is_decoded_once_and_normalised_before_it_is_matched() {
    let site = site().start();
    let ask = |target: &str| curl(["--path-as-is", &site.url("http", target)]);
    assert_eq!(ask("/a/%62/x").expect(200).text(), "prefix a/b\n");
    assert_eq!(ask("/x/../a/b/x").expect(200).text(), "prefix a/b\n");
    assert_eq!(ask("/a/./b/x").expect(200).text(), "prefix a/b\n");
    assert_eq!(ask("//a//b//x").expect(200).text(), "prefix a/b\n");
    // Decoded once: what is left is the text `%62`, which no route of ours names.
    assert_eq!(ask("/a/%2562/x").expect(200).text(), "prefix a\n");
    assert_eq!(ask("/a/x/%2e%2e/b/x").expect(200).text(), "prefix a/b\n");
    // Above the root there is nothing (RFC 3986 §5.2.4).
    assert_eq!(ask("/../a/x").expect(200).text(), "prefix a\n");
    assert_eq!(ask("/%2e%2e/%2e%2e/a/x").expect(200).text(), "prefix a\n");
    for hostile in ["/a%00b", "/a%zz", "/a%2", "/a/..%2fb", "/a/%2e%2e%5cb"] {
        ask(hostile).expect(400);
    }
}

#[test]
fn without_a_matching_route_the_answer_is_404() {
    let site = Site::new().route(r#"(path: "/only", to: Respond(status: 200, body: "x"))"#).start();
    curl([&site.url("http", "/other")]).expect(404);
    curl(["--http2-prior-knowledge", &site.url("http", "/other")]).expect(404);
    assert_eq!(site.admin.settled_ledger().answered, 2);
}

#[test]
fn a_fixed_answer_has_its_status_and_fields() {
    let site = site().start();
    let gone = curl([&site.url("http", "/gone")]).expect(410);
    assert_eq!(gone.text(), "gone\n");
    assert_eq!(gone.header("cache-control"), "no-store");
    assert_eq!(gone.header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(gone.header("content-length"), "5");
    assert!(gone.header("date").ends_with(" GMT"), "{gone:?}");
    let nothing = curl([&site.url("http", "/nothing")]).expect(204);
    assert!(!nothing.headers.contains_key("content-length"), "RFC 9110 §8.6: {nothing:?}");
}

#[test]
fn a_redirect_leads_to_the_same_path_elsewhere_and_nowhere_else() {
    let site = site().start();
    let to = |target: &str| {
        let answer = curl(["--path-as-is", &site.url("http", target)]).expect(308);
        answer.header("location").to_owned()
    };
    assert_eq!(to("/old/page?x=1&y=%20"), "https://new.example/old/page?x=1&y=%20");
    assert_eq!(to("//old/page"), "https://new.example/old/page");
    let answer = curl(["--path-as-is", &site.url("http", "/old/%0d%0aSet-Cookie:%20x=1")]);
    assert!(!answer.headers.contains_key("set-cookie"), "{answer:?}");
}

#[test]
fn a_redirect_built_of_the_uri_alone_stays_on_the_site() {
    let site = Site::new().route(r#"(path: "/", to: Redirect(status: 302, location: "{uri}"))"#).start();
    for hostile in ["//evil.example/x", "///evil.example", "/%2fevil.example", "/\\evil.example"] {
        let answer = curl(["--path-as-is", &site.url("http", hostile)]);
        let location = answer.headers.get("location").map(String::as_str).unwrap_or("/");
        assert!(!location.starts_with("//") && !location.starts_with("/\\"), "{hostile} leads to {location}");
    }
}

#[test]
fn a_route_of_one_listener_is_not_on_another() {
    let site = Site::new()
        .listener("http", r#"(bind: "127.0.0.1:0")"#)
        .listener("inner", r#"(bind: "127.0.0.1:0")"#)
        .route(r#"(listeners: ["inner"], path: "/", to: Respond(status: 200, body: "inner\n"))"#)
        .route(r#"(path: "/", to: Respond(status: 200, body: "all\n"))"#)
        .start();
    assert_eq!(curl([&site.url("http", "/")]).expect(200).text(), "all\n");
    assert_eq!(curl([&site.url("inner", "/")]).expect(200).text(), "inner\n");
}

#[test]
fn methods_that_a_fixed_answer_does_not_know_are_answered_all_the_same() {
    let site = site().start();
    curl(["-X", "DELETE", &site.url("http", "/")]).expect(200);
    curl(["--data", "x=1", &site.url("http", "/")]).expect(200);
    let head = curl(["-I", &site.url("http", "/gone")]).expect(410);
    assert_eq!(head.header("content-length"), "5");
    assert!(head.body.is_empty() || head.text().starts_with("HTTP/"), "{head:?}");
}
