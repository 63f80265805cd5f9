//! `/v1/status` of a site with several instances.

use std::sync::Arc;

use super::ask_all;
use super::metrics::STUCK;
use crate::admin::{
    ControllerStatus, InstanceStatus, MemoryStatus, RECENT_EVENTS, ScalerStatus, Status, cpu_seconds,
};
use crate::apps::status::AppStatus;
use crate::control::resident_bytes;
use crate::controller::Controller;
use crate::controller::member::Member;
use crate::controller::scaling::Decision;

/// What the controller knows of its instances, and the sums of what they say of their parts.
pub(super) async fn collect(controller: &Controller) -> Status {
    let fleet = controller.fleet();
    let answers = ask_all(fleet, |client| async move { client.read::<Status>("/v1/status").await }).await;
    let decision = fleet.scaler().decision();
    let tree = controller.tree();
    let pid = std::process::id();
    let in_force = fleet.in_force();
    let settings = fleet.settings();
    let mut status = Status {
        site: in_force.site.name.clone(),
        build: controller.options().build.clone(),
        pid,
        uptime_ms: controller.uptime().as_millis() as u64,
        ready: controller.is_ready(),
        stopping: fleet.is_stopping(),
        admin: controller.admin_addresses(),
        ledger: fleet.accounts().totals(),
        apps: AppStatus::all(fleet.apps()),
        messages: tree.messages(),
        blocked: tree.blocked_threads(),
        events: tree.events().recent(RECENT_EVENTS),
        controller: Some(ControllerStatus { pid, rss_bytes: resident_bytes(), cpu: cpu_seconds() }),
        scaler: Some(ScalerStatus {
            wanted: fleet.wanted(),
            min: settings.min.get(),
            max: settings.max.get(),
            reason: decision.reason.clone(),
            asked: fleet.scale(),
            last_change: decision
                .last_change
                .as_ref()
                .map(|change| format!("from {} to {}: {}", change.from, change.to, change.reason)),
            pressure: decision.pressure,
            refused: decision.refused.clone(),
        }),
        memory: Some(MemoryStatus {
            available: decision.memory.available(),
            pressure: decision.memory_pressure,
        }),
        spread: Some(decision.spread),
        ..Status::default()
    };
    // The addresses are known here, also while nobody serves.
    for (name, address) in controller.addresses() {
        let listener = crate::admin::ListenerStatus { name: name.to_string(), address, ..Default::default() };
        status.listeners.push(listener);
    }
    for (member, answer) in answers {
        let mut own = instance(controller, &member, &decision);
        match answer {
            Ok(page) => status.add(page),
            Err(why) => own.unanswered = Some(why),
        }
        status.instances.push(own);
    }
    status
}

/// From what the instance's last heartbeats say: also of one that answers nothing else.
fn instance(controller: &Controller, member: &Arc<Member>, decision: &Decision) -> InstanceStatus {
    let view = member.view();
    let samples = member.samples();
    let last = samples.last().map(|(_, sample)| sample.clone()).unwrap_or_default();
    let (mut cpu_share, mut requests_per_second) = (None, None);
    if let (Some((from, first)), Some((to, last))) = (samples.first(), samples.last()) {
        let seconds = to.saturating_duration_since(*from).as_secs_f64();
        if seconds > 0.0 {
            cpu_share = Some(last.cpu_us.saturating_sub(first.cpu_us) as f64 / 1e6 / seconds);
            requests_per_second = Some(last.accepted.saturating_sub(first.accepted) as f64 / seconds);
        }
    }
    InstanceStatus {
        id: member.name(),
        pid: member.process().pid(),
        state: if view.stuck { STUCK } else { view.state.as_str() }.to_owned(),
        generation: member.generation(),
        build: member.build(),
        age_ms: member.age().as_millis() as u64,
        connections: last.connections as usize,
        rss_bytes: last.rss_bytes,
        cpu: last.cpu_us as f64 / 1e6,
        cpu_share,
        requests_per_second,
        pressure: decision.loads.iter().find(|load| load.slot == member.slot()).map(|load| load.pressure),
        ledger: controller.fleet().accounts().live(member.slot(), member.generation()),
        unanswered: None,
    }
}
