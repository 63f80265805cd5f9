//! How an instance is, in figures.

use playhouse_protocol::control::Sample;
use playhouse_serve::net::Listener;
use playhouse_sys::accept_queue;
use rustix::time::{ClockId, clock_gettime};

use super::conversation::Conversation;
use crate::instance::Instance;

/// The next sample.
pub(super) fn take(instance: &Instance, conversation: &Conversation) -> Sample {
    let (number, interval_us) = conversation.next_sample();
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let ledger = instance.ledger();
    let sockets = instance.site().sockets.all();
    let (mut queued, mut queued_alone) = (0, 0);
    for listener in sockets.iter().filter_map(|socket| socket.listener()) {
        let clients = if listener.group().is_some() { &mut queued_alone } else { &mut queued };
        *clients += in_accept_queue(&listener);
    }
    Sample {
        number,
        cpu_us: cpu.tv_sec as u64 * 1_000_000 + cpu.tv_nsec as u64 / 1_000,
        interval_us,
        rss_bytes: resident_bytes(),
        lag_us: instance.samples().take_worst_lag().as_micros() as u64,
        connections: instance.connections() as u64,
        accepted: ledger.accepted,
        in_flight: ledger.in_flight,
        waiting: sockets.iter().map(|socket| socket.counts().waiting as u64).sum(),
        queued,
        queued_alone,
    }
}

/// Clients that the kernel has for a socket; 0 where it does not say.
fn in_accept_queue(listener: &Listener) -> u64 {
    accept_queue(listener.descriptor()).unwrap_or(0).into()
}

/// Resident memory of this process; 0 where `/proc` cannot be read.
pub(crate) fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|statm| statm.split_whitespace().nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}
