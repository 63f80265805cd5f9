//! Early data (0-RTT, RFC 8470) over HTTP/3, from aioquic, which holds the end of its handshake back.

use serde_json::{Value, json};

use crate::harness::eventually;
use crate::http3::Secure;

/// How many requests have been sent to the server behind.
fn at_the_server(secure: &Secure) -> f64 {
    secure.site.admin.metric("playhouse_upstream_requests_total", &[r#"upstream="node""#])
}

fn connections(secure: &Secure) -> f64 {
    secure.site.admin.metric("playhouse_http3_connections_total", &[r#"listener="https""#])
}

fn counted(secure: &Secure) -> [f64; 2] {
    let metric = |name| secure.site.admin.metric(name, &[r#"listener="https""#]);
    [metric("playhouse_early_requests_total"), metric("playhouse_too_early_total")]
}

/// The field of a request as the server has echoed it.
fn early_data(answer: &Value) -> Value {
    let echo: Value = serde_json::from_str(answer[1].as_str().unwrap()).unwrap();
    echo["headers"]["early-data"].clone()
}

#[test]
fn safe_requests_are_answered_before_the_handshake_has_ended_and_others_wait() {
    let secure = Secure::start_with(", early_data: true", |site| site);
    let first = "GET /node/echo,POST /node/echo,GET /node/once,GET /hello";
    let mut client = secure.client("early", &[first, "again,GET /node/echo", "GET /node/echo"]);
    client.ready();
    eventually("all heads are read", || secure.site.admin.ledger().accepted == 5);
    eventually("the safe ones are at the server", || at_the_server(&secure) == 2.0);
    client.tell("");
    // The same session once more: somebody has recorded it.
    eventually("it is there", || connections(&secure) == 3.0);
    assert_eq!(at_the_server(&secure), 3.0);
    client.tell("");
    eventually("another session's is at the server", || at_the_server(&secure) == 5.0);
    client.go_on();
    let said = client.said();
    let [first, again, other] = &said["connections"].as_array().unwrap()[..] else { panic!("{said}") };
    assert_eq!((&first["early"], &first["resumed"]), (&json!(true), &json!(true)), "{said}");
    assert_eq!(early_data(&first["answers"][0]), "1", "{said}");
    assert_eq!(early_data(&first["answers"][1]), Value::Null, "{said}");
    assert_eq!(first["answers"][2], json!([425, "early-data: 1\n"]));
    assert_eq!(first["answers"][3], json!([200, "hello\n"]));
    assert_eq!((&again["early"], &again["resumed"]), (&json!(false), &json!(false)), "{said}");
    assert_eq!(early_data(&again["answers"][0]), Value::Null, "{said}");
    assert_eq!((&other["early"], early_data(&other["answers"][0])), (&json!(true), json!("1")), "{said}");
    secure.all_answered();
    eventually("they are counted", || counted(&secure) == [4.0, 1.0]);
}

#[test]
fn early_data_is_refused_by_default_and_asked_again() {
    let secure = Secure::start_with("", |site| site);
    let mut client = secure.client("early", &["GET /node/echo"]);
    client.ready();
    eventually("it is there", || connections(&secure) == 2.0);
    client.go_on();
    let said = client.said();
    let connection = &said["connections"][0];
    assert_eq!((&connection["early"], &connection["resumed"]), (&json!(false), &json!(true)), "{said}");
    assert_eq!(early_data(&connection["answers"][0]), Value::Null, "{said}");
    secure.all_answered();
    assert_eq!(counted(&secure), [0.0, 0.0]);
}

#[test]
fn requests_that_are_counted_by_an_address_wait_until_it_is_shown() {
    let secure = Secure::start_with(", early_data: true, limits: (rate: (per_second: 1000))", |site| site);
    let mut client = secure.client("early", &["GET /node/echo"]);
    client.ready();
    eventually("its head is read", || secure.site.admin.ledger().accepted == 2);
    assert_eq!(at_the_server(&secure), 0.0);
    client.go_on();
    let said = client.said();
    assert_eq!(said["connections"][0]["early"], true, "{said}");
    assert_eq!(early_data(&said["connections"][0]["answers"][0]), Value::Null, "{said}");
    secure.all_answered();
    assert_eq!(counted(&secure), [0.0, 0.0]);
}
