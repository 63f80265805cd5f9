//! What holds of every message, and of everything that is none.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::*;

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[ -~]{0,40}", any::<String>()]
}

fn ticket_key() -> impl Strategy<Value = TicketKey> {
    ("[0-9a-f]{32}", "[0-9a-f]{64}", any::<u64>()).prop_map(|(name, secret, made_unix_ms)| TicketKey {
        name,
        secret,
        made_unix_ms,
    })
}

fn state() -> impl Strategy<Value = State> {
    // `Unknown` is what others send, never what is sent.
    prop_oneof![
        Just(State::Starting),
        Just(State::Ready),
        Just(State::Active),
        Just(State::Draining),
        Just(State::Gone)
    ]
}

fn hello() -> impl Strategy<Value = Hello> {
    let who = (any::<u32>(), any::<u32>(), text(), any::<u32>(), any::<u64>(), text());
    let what = (any::<u32>(), any::<u64>(), any::<u64>(), option::of(state()), vec(ticket_key(), 0..3));
    (who, what).prop_map(|((major, minor, build, pid, started, site), rest)| {
        let (slot, generation, revision, state, ticket_keys) = rest;
        let version = Version { major, minor };
        Hello { version, build, pid, started, site, slot, generation, revision, state, ticket_keys }
    })
}

fn site_text() -> impl Strategy<Value = SiteText> {
    (text(), text(), any::<u64>()).prop_map(|(path, text, revision)| SiteText {
        path: path.into(),
        text,
        revision,
    })
}

fn passed() -> impl Strategy<Value = Vec<Passed>> {
    let one = (text(), any::<u32>(), any::<u32>());
    vec(one.prop_map(|(listener, slot, descriptor)| Passed { listener, slot, descriptor }), 0..4)
}

fn server_health() -> impl Strategy<Value = ServerHealth> {
    (text(), text(), any::<u64>()).prop_map(|(upstream, server, ejected_until_unix_ms)| ServerHealth {
        upstream,
        server,
        ejected_until_unix_ms,
    })
}

fn app_process() -> impl Strategy<Value = AppProcess> {
    (text(), any::<u32>(), any::<u32>(), any::<u64>()).prop_map(|(app, place, pid, started)| AppProcess {
        app,
        place,
        pid,
        started,
    })
}

fn apps_state() -> impl Strategy<Value = AppsState> {
    let server = (any::<[u32; 2]>(), any::<u64>(), option::of(text()), any::<u16>(), any::<bool>());
    let server = server.prop_map(|([place, pid], started, socket, port, healthy)| AppServer {
        place,
        pid,
        started,
        socket: socket.map(Into::into),
        port,
        healthy,
    });
    let app = (text(), any::<bool>(), vec(server, 0..3));
    let app = app.prop_map(|(name, expected, servers)| AppState { name, expected, servers });
    (any::<u64>(), vec(app, 0..3), vec(app_process(), 0..3))
        .prop_map(|(generation, apps, processes)| AppsState { generation, apps, processes })
}

fn apps_load() -> impl Strategy<Value = AppsLoad> {
    let server = any::<([u32; 2], [u64; 2])>()
        .prop_map(|([place, pid], [in_flight, requests])| AppServerLoad { place, pid, in_flight, requests });
    let app = (text(), any::<u64>(), vec(server, 0..3));
    let app = app.prop_map(|(name, waiting, servers)| AppLoad { name, waiting, servers });
    (any::<u64>(), vec(app, 0..3)).prop_map(|(generation, apps)| AppsLoad { generation, apps })
}

fn sample() -> impl Strategy<Value = Sample> {
    any::<[u64; 11]>().prop_map(|numbers| {
        let [
            number,
            cpu_us,
            interval_us,
            rss_bytes,
            lag_us,
            connections,
            accepted,
            in_flight,
            waiting,
            queued,
            queued_alone,
        ] = numbers;
        Sample {
            number,
            cpu_us,
            interval_us,
            rss_bytes,
            lag_us,
            connections,
            accepted,
            in_flight,
            waiting,
            queued,
            queued_alone,
        }
    })
}

fn to_instance() -> impl Strategy<Value = ToInstance> {
    prop_oneof![
        hello().prop_map(ToInstance::Hello),
        passed().prop_map(|sockets| ToInstance::Sockets { sockets }),
        (site_text(), passed()).prop_map(|(site, sockets)| ToInstance::Configure { site, sockets }),
        vec(ticket_key(), 0..3).prop_map(|keys| ToInstance::TicketKeys { keys }),
        Just(ToInstance::Activate),
        any::<(u64, bool)>().prop_map(|(deadline_ms, last)| ToInstance::Drain { deadline_ms, last }),
        Just(ToInstance::GiveSockets),
        server_health().prop_map(ToInstance::ServerHealth),
        apps_state().prop_map(ToInstance::Apps),
        vec(app_process(), 0..3).prop_map(|processes| ToInstance::AppOutputs { processes }),
        Just(ToInstance::GiveAppOutputs),
    ]
}

fn to_controller() -> impl Strategy<Value = ToController> {
    let names = || vec(text(), 0..3);
    let configured = (any::<u64>(), names(), names(), names());
    prop_oneof![
        hello().prop_map(ToController::Hello),
        configured.prop_map(|(revision, listeners_added, listeners_removed, listeners_changed)| {
            ToController::Configured { revision, listeners_added, listeners_removed, listeners_changed }
        }),
        (any::<u64>(), text()).prop_map(|(revision, error)| ToController::Refused { revision, error }),
        state().prop_map(|state| ToController::State { state }),
        sample().prop_map(ToController::Sample),
        (passed(), any::<bool>()).prop_map(|(sockets, more)| ToController::Sockets { sockets, more }),
        server_health().prop_map(ToController::ServerHealth),
        apps_load().prop_map(ToController::AppsLoad),
        (vec(app_process(), 0..3), any::<bool>())
            .prop_map(|(processes, more)| ToController::AppOutputs { processes, more }),
    ]
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((text(), inner), 0..4).prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

/// Puts a field of a later version into every object of a message.
fn extend(value: &mut Value, name: &str, field: &Value) {
    match value {
        Value::Object(object) => {
            object.values_mut().for_each(|value| extend(value, name, field));
            object.insert(format!("later_{name}"), field.clone());
        }
        Value::Array(array) => array.iter_mut().for_each(|value| extend(value, name, field)),
        _ => {}
    }
}

fn survives<M>(message: &M, name: &str, field: &Value) -> Result<(), TestCaseError>
where
    M: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let bytes = encode(message).unwrap();
    prop_assert!(!bytes.contains(&b'\n'));
    prop_assert_eq!(enveloped(&bytes).unwrap(), None);
    prop_assert_eq!(&decode::<M>(&bytes).unwrap(), message);
    let mut value: Value = serde_json::from_slice(&bytes).unwrap();
    extend(&mut value, name, field);
    prop_assert_eq!(&decode::<M>(value.to_string().as_bytes()).unwrap(), message);
    Ok(())
}

/// Reads bytes as everything that they might be meant for: what the fuzz target does too.
fn read(bytes: &[u8]) {
    let _ = enveloped(bytes);
    let _ = decode::<ToInstance>(bytes);
    let _ = decode::<ToController>(bytes);
}

proptest! {
    #[test]
    fn messages_to_an_instance_survive_and_ignore_later_fields(
        message in to_instance(), name in text(), field in json()
    ) {
        survives(&message, &name, &field)?;
    }

    #[test]
    fn messages_to_a_controller_survive_and_ignore_later_fields(
        message in to_controller(), name in text(), field in json()
    ) {
        survives(&message, &name, &field)?;
    }

    #[test]
    fn a_type_of_a_later_version_is_unknown_and_no_error(
        kind in text(), fields in vec((text(), json()), 0..4)
    ) {
        let mut object: Map<String, Value> = fields.into_iter().collect();
        object.insert("type".into(), format!("later_{kind}").into());
        let bytes = serde_json::to_vec(&object).unwrap();
        prop_assert_eq!(decode::<ToInstance>(&bytes).unwrap(), ToInstance::Unknown);
        prop_assert_eq!(decode::<ToController>(&bytes).unwrap(), ToController::Unknown);
    }

    #[test]
    fn arbitrary_bytes_are_read_without_a_panic(bytes in vec(any::<u8>(), 0..512)) {
        read(&bytes);
    }

    #[test]
    fn arbitrary_json_is_read_without_a_panic(value in json(), kind in "[a-z_]{0,14}") {
        read(value.to_string().as_bytes());
        if let Value::Object(mut object) = value {
            object.insert("type".into(), kind.into());
            read(Value::Object(object).to_string().as_bytes());
        }
    }

    #[test]
    fn broken_messages_are_read_without_a_panic(
        message in to_instance(),
        answer in to_controller(),
        edits in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        for mut bytes in [encode(&message).unwrap(), encode(&answer).unwrap()] {
            for (place, byte) in &edits {
                let place = place.index(bytes.len());
                bytes[place] = *byte;
            }
            read(&bytes);
            read(&bytes[..cut.index(bytes.len())]);
        }
    }
}

#[test]
fn deep_nesting_is_an_error_and_costs_no_stack() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        for depth in [100_000, 200] {
            let nested = format!("{}1{}", open.repeat(depth), close.repeat(depth));
            let field = format!(r#"{{"type":"activate","later":{nested}}}"#);
            read(nested.as_bytes());
            assert!(decode::<ToInstance>(field.as_bytes()).is_err());
        }
    }
}
