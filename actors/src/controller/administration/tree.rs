//! `/v1/tree` of a site with several instances: the controller's own tree, and each instance's beneath its root.

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::ask_all;
use crate::admin::client::ClientError;
use crate::controller::Controller;
use crate::controller::member::Member;
use crate::supervision::{Actor, Node, SeatState, Supervisor};

/// A node whose children are JSON already: what another build says of its actors passes through as it is.
#[derive(Serialize)]
struct Root<'a> {
    path: &'a str,
    kind: &'a str,
    state: SeatState,
    restarts: u64,
    last_cause: Option<&'a str>,
    mailbox: usize,
    age_ms: u64,
    children: Vec<Box<RawValue>>,
}

/// An instance that does not answer.
#[derive(Serialize)]
struct Silent {
    path: String,
    kind: &'static str,
    state: &'static str,
    restarts: u64,
    last_cause: String,
    mailbox: u64,
    age_ms: u64,
    children: [(); 0],
}

pub(super) async fn collect(controller: &Controller, connections: bool) -> Bytes {
    let target = if connections { "/v1/tree?connections=1" } else { "/v1/tree" };
    let answers = ask_all(controller.fleet(), |client| async move { json(&client.get(target).await?) }).await;
    let own = controller.tree().view(connections);
    let mut children: Vec<_> = own.children.iter().filter_map(|child| to_raw_value(child).ok()).collect();
    children.extend(answers.into_iter().filter_map(|(member, answer)| match answer {
        Ok(tree) => Some(tree),
        Err(why) => to_raw_value(&silent(&member, why)).ok(),
    }));
    let Node { path, kind, state, restarts, last_cause, mailbox, age_ms, .. } = &own;
    let root = Root {
        path,
        kind,
        state: *state,
        restarts: *restarts,
        last_cause: last_cause.as_deref(),
        mailbox: *mailbox,
        age_ms: *age_ms,
        children,
    };
    // Strings and numbers: there is always JSON of it.
    serde_json::to_vec(&root).unwrap_or_default().into()
}

fn json(page: &[u8]) -> Result<Box<RawValue>, ClientError> {
    Ok(serde_json::from_slice(page)?)
}

fn silent(member: &Member, why: String) -> Silent {
    Silent {
        path: member.name(),
        kind: <Supervisor as Actor>::KIND,
        state: "silent",
        restarts: 0,
        last_cause: why,
        mailbox: 0,
        age_ms: member.age().as_millis() as u64,
        children: [],
    }
}
