//! `/metrics` of a site with several instances.

use std::collections::BTreeMap;

use playhouse_protocol::control::State;
use playhouse_serve::metrics::Metrics;

use super::ask_all;
use crate::admin::exposition::Exposition;
use crate::admin::scrape;
use crate::controller::Controller;

/// The controller's own series, those of the site, and those of each instance with its number.
pub(super) async fn collect(controller: &Controller) -> String {
    let answers = ask_all(controller.fleet(), |client| async move { client.get("/metrics").await }).await;
    let up: Vec<_> = answers.iter().map(|(member, answer)| (member.slot(), answer.is_ok())).collect();
    let own = own(controller, &up);
    let mut page = Exposition::default();
    page.add(&own, None, is_of_the_site);
    page.add(&own, Some(controller.tree().root().name()), |family| !is_of_the_site(family));
    for (member, answer) in &answers {
        if let Ok(text) = answer {
            let slot = member.slot().to_string();
            page.add(&String::from_utf8_lossy(text), Some(&slot), |family| !is_of_the_site(family));
        }
    }
    page.render()
}

/// Whether a family is about the site, so that it has no label for a process: what instances say of it is left out.
fn is_of_the_site(family: &str) -> bool {
    [
        "playhouse_ledger_",
        "playhouse_instance",
        "playhouse_controller_",
        "playhouse_memory_pressure",
        "playhouse_app_",
    ]
    .iter()
    .any(|prefix| family.starts_with(prefix))
}

fn own(controller: &Controller, up: &[(u32, bool)]) -> String {
    let fleet = controller.fleet();
    let metrics = Metrics::default();
    let mut scrape = metrics.scrape();
    scrape.set("playhouse_build_info", &[("version", &*controller.options().build)], 1.0);
    scrape.ledger(&fleet.accounts().totals());
    let tree = controller.tree();
    scrape::actors(&mut scrape, &tree.view(false));
    scrape.set("playhouse_actor_messages_total", &[], tree.messages() as f64);
    scrape.set("playhouse_blocked_threads", &[], tree.blocked_threads().len() as f64);

    let mut states: BTreeMap<&str, u32> = [State::Starting, State::Ready, State::Active, State::Draining]
        .iter()
        .map(|state| (state.as_str(), 0))
        .collect();
    states.insert(STUCK, 0);
    for view in fleet.views() {
        *states.entry(if view.stuck { STUCK } else { view.state.as_str() }).or_default() += 1;
    }
    for (state, count) in states {
        scrape.set("playhouse_instances", &[("state", state)], count.into());
    }
    for (slot, answers) in up {
        let slot = slot.to_string();
        scrape.set("playhouse_instance_up", &[("instance", &slot)], f64::from(u8::from(*answers)));
    }
    crate::apps::status::collect(&mut scrape, fleet.apps());
    let decision = fleet.scaler().decision();
    scrape.set("playhouse_instances_wanted", &[], fleet.wanted().into());
    scrape.set("playhouse_memory_pressure", &[], f64::from(u8::from(decision.memory_pressure)));
    let starts = fleet.start_report();
    scrape.set("playhouse_instance_starts_total", &[], starts.started as f64);
    scrape.set("playhouse_controller_adoptions_total", &[], starts.adopted as f64);
    let mut failures: BTreeMap<&str, u64> = CAUSES.iter().map(|cause| (*cause, 0)).collect();
    failures.extend(starts.failures);
    for (cause, count) in failures {
        scrape.set("playhouse_instance_failures_total", &[("cause", cause)], count as f64);
    }
    scrape.render()
}

/// What an active instance is that sends no heartbeat; it is counted as nothing else.
pub(super) const STUCK: &str = "stuck";

/// There from the start, so that a rate over them exists.
const CAUSES: [&str; 5] = ["crash", "exit", "operator", "start", "stuck"];
