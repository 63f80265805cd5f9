//! Every metric there is. The reference page is checked against this.

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, from the start of the process.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Buckets, a sum and a count.
    Histogram,
}

impl Kind {
    /// As in a `# TYPE` line.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name in the text format.
    pub name: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// The unit of its values.
    pub unit: &'static str,
    /// Its labels, in their order.
    pub labels: &'static [&'static str],
    /// What it says, in one sentence.
    pub help: &'static str,
}

const fn counter(
    name: &'static str,
    unit: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric { name, kind: Kind::Counter, unit, labels, help }
}

const fn gauge(
    name: &'static str,
    unit: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric { name, kind: Kind::Gauge, unit, labels, help }
}

const fn histogram(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Histogram, unit: "seconds", labels, help }
}

const SERVER: &[&str] = &["upstream", "server"];

/// Every metric, in the order in which they are rendered.
pub const METRICS: &[Metric] = &[
    counter(
        "playhouse_requests_total",
        "requests",
        &["listener", "route", "status", "outcome"],
        "Requests that have ended, by class of the status sent and by outcome.",
    ),
    histogram(
        "playhouse_request_duration_seconds",
        &["listener", "route"],
        "Time from the first byte of a request's head to the last byte of its answer.",
    ),
    counter(
        "playhouse_response_content_bytes_total",
        "bytes",
        &["listener", "route"],
        "Content of answers that was sent, without heads and framing.",
    ),
    gauge(
        "playhouse_tunnels",
        "tunnels",
        &["listener", "route"],
        "WebSockets and other tunnels that are open.",
    ),
    counter(
        "playhouse_tunnels_closed_total",
        "tunnels",
        &["listener", "route", "reason"],
        "Tunnels that have ended, by reason.",
    ),
    counter(
        "playhouse_tunnel_bytes_total",
        "bytes",
        &["listener", "route", "direction"],
        "Bytes that went by tunnels, framing of WebSockets included.",
    ),
    counter(
        "playhouse_tunnel_frames_total",
        "frames",
        &["listener", "route", "direction"],
        "Frames that went by WebSockets, control frames among them.",
    ),
    counter(
        "playhouse_requests_refused_total",
        "requests",
        &["listener", "status"],
        "Requests whose head was malformed, over a limit or too slow, so that no route was taken.",
    ),
    counter(
        "playhouse_panics_total",
        "panics",
        &["listener"],
        "Panics in handlers and bodies; each has cost one request.",
    ),
    counter(
        "playhouse_early_requests_total",
        "requests",
        &["listener"],
        "Requests that came in early data (0-RTT) and were handled before the handshake had ended.",
    ),
    counter(
        "playhouse_too_early_total",
        "requests",
        &["listener"],
        "Requests that were answered with 425: a server wants them only when the handshake has ended.",
    ),
    gauge("playhouse_connections", "connections", &["listener"], "Client connections that are open."),
    counter(
        "playhouse_connections_accepted_total",
        "connections",
        &["listener"],
        "Client connections that were accepted.",
    ),
    counter(
        "playhouse_http3_connections_total",
        "connections",
        &["listener"],
        "QUIC connections that were begun; `playhouse_connections_accepted_total` has them too.",
    ),
    counter(
        "playhouse_http3_retries_total",
        "clients",
        &["listener"],
        "Clients that had to show by a Retry packet that their address is theirs, before a QUIC handshake.",
    ),
    counter(
        "playhouse_connections_refused_total",
        "connections",
        &["listener"],
        "Client connections that were closed at once, because their address had as many as it may have.",
    ),
    counter(
        "playhouse_proxy_headers_refused_total",
        "connections",
        &["listener"],
        "Client connections that were closed for their PROXY header: missing, malformed, late, or of somebody who is not trusted.",
    ),
    counter(
        "playhouse_rate_limited_requests_total",
        "requests",
        &["listener"],
        "Requests that were answered with 429, because their address makes more than it may make.",
    ),
    counter(
        "playhouse_address_table_full_total",
        "decisions",
        &[],
        "Connections and requests that were let through without a limit, because the table of client addresses had no room.",
    ),
    counter(
        "playhouse_handshake_failures_total",
        "connections",
        &["listener"],
        "TLS handshakes that failed.",
    ),
    counter(
        "playhouse_accept_errors_total",
        "errors",
        &["listener"],
        "Errors of accept, such as no free descriptor.",
    ),
    counter(
        "playhouse_upstream_requests_total",
        "requests",
        SERVER,
        "Requests for which the server was chosen, retries included.",
    ),
    counter(
        "playhouse_upstream_responses_total",
        "responses",
        &["upstream", "server", "status"],
        "Answers of the server, by class of status.",
    ),
    counter(
        "playhouse_upstream_failures_total",
        "failures",
        &["upstream", "server", "kind"],
        "Tries at the server that failed, by kind.",
    ),
    counter(
        "playhouse_upstream_retries_total",
        "requests",
        SERVER,
        "Requests that were tried again after the server had failed them.",
    ),
    histogram(
        "playhouse_upstream_first_byte_seconds",
        SERVER,
        "Time from the sent request to the head of the server's answer.",
    ),
    counter(
        "playhouse_upstream_connections_opened_total",
        "connections",
        SERVER,
        "Connections to the server.",
    ),
    counter(
        "playhouse_upstream_connections_reused_total",
        "requests",
        SERVER,
        "Requests sent on a connection that had been idle.",
    ),
    gauge(
        "playhouse_upstream_idle_connections",
        "connections",
        SERVER,
        "Idle connections to the server that are kept.",
    ),
    gauge("playhouse_upstream_in_flight", "requests", SERVER, "Requests that the server is answering."),
    gauge(
        "playhouse_upstream_healthy",
        "boolean",
        SERVER,
        "1 if the server may be chosen, 0 if its health checks fail or it is ejected.",
    ),
    gauge("playhouse_actor_up", "boolean", &["path"], "1 if the actor runs; connections are not among them."),
    counter(
        "playhouse_actor_restarts_total",
        "restarts",
        &["path"],
        "Restarts of the actor, whatever the cause, operators' kills included.",
    ),
    gauge("playhouse_actor_mailbox", "messages", &["path"], "Messages that wait in the actor's mailbox."),
    counter(
        "playhouse_actor_messages_total",
        "messages",
        &[],
        "Messages between actors; a request sends none.",
    ),
    gauge(
        "playhouse_blocked_threads",
        "threads",
        &[],
        "Runtime threads that have not come back from one poll of an actor, as the watchdog sees it.",
    ),
    gauge(
        "playhouse_event_loop_lag_seconds",
        "seconds",
        &[],
        "How much later than asked for the runtime woke a sleeper up, the last time it was looked at.",
    ),
    counter(
        "playhouse_ledger_accepted_total",
        "requests",
        &[],
        "Requests whose first byte was read, on all listeners.",
    ),
    gauge(
        "playhouse_ledger_in_flight",
        "requests",
        &[],
        "Requests that are accepted and have no outcome yet.",
    ),
    counter(
        "playhouse_ledger_ended_total",
        "requests",
        &["outcome"],
        "Requests that have ended, by outcome.",
    ),
    counter("playhouse_access_log_lines_total", "lines", &[], "Lines of the access log that were written."),
    counter(
        "playhouse_access_log_dropped_total",
        "lines",
        &[],
        "Lines of the access log that were dropped because its queue was full.",
    ),
    counter(
        "playhouse_access_log_errors_total",
        "lines",
        &[],
        "Lines of the access log that were lost to an error of writing, such as a full disk.",
    ),
    gauge(
        "playhouse_instances",
        "processes",
        &["state"],
        "Instances of the site, by state; `stuck` are those that are active and send no heartbeat.",
    ),
    gauge(
        "playhouse_instances_wanted",
        "processes",
        &[],
        "Instances that there should be, as the scaler or an operator says.",
    ),
    gauge(
        "playhouse_instance_up",
        "boolean",
        &["instance"],
        "1 if the instance has answered, 0 if its series are missing here because it has not in time.",
    ),
    counter(
        "playhouse_instance_starts_total",
        "processes",
        &[],
        "Instances that the controller has started.",
    ),
    counter(
        "playhouse_instance_failures_total",
        "processes",
        &["cause"],
        "Instances that have ended though nobody asked them to, or did not start.",
    ),
    counter(
        "playhouse_controller_adoptions_total",
        "processes",
        &[],
        "Instances that the controller has taken over from one before it.",
    ),
    gauge(
        "playhouse_memory_pressure",
        "boolean",
        &[],
        "1 if memory keeps the number of instances down, or is about to.",
    ),
    gauge("playhouse_app_processes", "processes", &["app", "state"], "Processes of the app, by state."),
    gauge(
        "playhouse_app_processes_wanted",
        "processes",
        &["app"],
        "Processes of the app that are to serve; 0 while it is stopped for being idle.",
    ),
    counter("playhouse_app_starts_total", "processes", &["app"], "Processes of the app that were started."),
    counter(
        "playhouse_app_failures_total",
        "processes",
        &["app"],
        "Processes of the app that have ended though nobody asked them to, or did not become ready.",
    ),
    gauge(
        "playhouse_app_memory_bytes",
        "bytes",
        &["app"],
        "Resident memory of the app's processes and of what they have started, as it was last looked at.",
    ),
    gauge(
        "playhouse_app_waiting_requests",
        "requests",
        &["app"],
        "Requests that wait for one of the app's processes to be ready.",
    ),
    gauge("playhouse_build_info", "constant", &["version"], "Always 1; the version is in the label."),
    counter("process_cpu_seconds_total", "seconds", &[], "User and system time that the process has used."),
    gauge("process_resident_memory_bytes", "bytes", &[], "Resident memory of the process."),
    gauge("process_virtual_memory_bytes", "bytes", &[], "Virtual memory of the process."),
    gauge("process_open_fds", "descriptors", &[], "Descriptors that the process has open."),
    gauge("process_max_fds", "descriptors", &[], "Descriptors that the process may have open."),
    gauge("process_threads", "threads", &[], "Threads of the process."),
    gauge("process_start_time_seconds", "seconds", &[], "When the process started, in Unix time."),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const PAGE: &str = include_str!("../../../docs/reference/metrics.md");

    #[test]
    fn the_reference_page_has_every_metric_as_it_is() {
        for metric in METRICS {
            let labels = match metric.labels {
                [] => "–".to_owned(),
                labels => labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", "),
            };
            let row = format!(
                "| `{}` | {} | {} | {labels} | {} |",
                metric.name,
                metric.kind.as_str(),
                metric.unit,
                metric.help
            );
            assert!(PAGE.lines().any(|line| line == row), "missing in docs/reference/metrics.md:\n{row}");
        }
    }

    #[test]
    fn the_reference_page_has_no_metric_that_does_not_exist() {
        for line in PAGE.lines() {
            let Some(name) = line.strip_prefix("| `").and_then(|rest| rest.split('`').next()) else {
                continue;
            };
            if name.starts_with("playhouse_") || name.starts_with("process_") {
                assert!(METRICS.iter().any(|metric| metric.name == name), "{name} does not exist");
            }
        }
    }

    #[test]
    fn names_are_unique_and_follow_the_conventions() {
        let mut names = BTreeSet::new();
        for metric in METRICS {
            assert!(names.insert(metric.name), "{} is there twice", metric.name);
            assert!(metric.help.ends_with('.'));
            let total = metric.name.ends_with("_total");
            assert_eq!(total, metric.kind == Kind::Counter, "{}", metric.name);
            assert!(metric.kind != Kind::Histogram || metric.name.ends_with("_seconds"));
        }
    }
}
