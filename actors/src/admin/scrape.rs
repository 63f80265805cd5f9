//! `/metrics`: what is counted elsewhere, collected when somebody asks.

use playhouse_serve::metrics::Scrape;

use crate::apps;
use crate::instance::Instance;
use crate::supervision::{Node, SeatState};

/// The site's metrics in Prometheus' text format.
pub(super) fn scrape(instance: &Instance) -> String {
    let site = instance.site();
    let mut scrape = site.metrics.scrape();
    scrape.set("playhouse_build_info", &[("version", instance.build())], 1.0);
    scrape.ledger(&instance.ledger());
    for socket in site.sockets.all() {
        let (labels, counts) = ([("listener", &**socket.name())], socket.counts());
        scrape.set("playhouse_connections", &labels, counts.open as f64);
        scrape.set("playhouse_connections_accepted_total", &labels, counts.accepted as f64);
        if socket.quic().is_some() || counts.http3 > 0 {
            scrape.set("playhouse_http3_connections_total", &labels, counts.http3 as f64);
            scrape.set("playhouse_http3_retries_total", &labels, counts.retries as f64);
        }
        scrape.set("playhouse_connections_refused_total", &labels, counts.refused as f64);
        scrape.set("playhouse_rate_limited_requests_total", &labels, counts.rate_limited as f64);
        scrape.set("playhouse_proxy_headers_refused_total", &labels, counts.headers_refused as f64);
        scrape.set("playhouse_accept_errors_total", &labels, counts.errors as f64);
    }
    let apps = site.apps.all();
    let apps = apps.iter().map(|app| app.upstream().status());
    for upstream in site.upstreams.status().into_iter().chain(apps) {
        for server in upstream.servers {
            let labels = [("upstream", &*upstream.name), ("server", &*server.address)];
            scrape.set("playhouse_upstream_idle_connections", &labels, server.idle as f64);
            scrape.set("playhouse_upstream_in_flight", &labels, server.in_flight as f64);
            let healthy = server.healthy && !server.ejected;
            scrape.set("playhouse_upstream_healthy", &labels, f64::from(u8::from(healthy)));
        }
    }
    apps::status::collect(&mut scrape, instance.apps());
    actors(&mut scrape, &instance.tree().view(false));
    scrape.set("playhouse_actor_messages_total", &[], instance.tree().messages() as f64);
    scrape.set("playhouse_blocked_threads", &[], instance.tree().blocked_threads().len() as f64);
    scrape.set("playhouse_event_loop_lag_seconds", &[], instance.samples().event_loop_lag().as_secs_f64());
    scrape.set("playhouse_address_table_full_total", &[], site.addresses.overflowed() as f64);
    site.access_log.collect(&mut scrape);
    scrape.render()
}

/// The actors of one process.
pub(crate) fn actors(scrape: &mut Scrape<'_>, node: &Node) {
    let labels = [("path", &*node.path)];
    let up = matches!(node.state, SeatState::Running | SeatState::Stopping);
    scrape.set("playhouse_actor_up", &labels, f64::from(u8::from(up)));
    scrape.set("playhouse_actor_restarts_total", &labels, node.restarts as f64);
    scrape.set("playhouse_actor_mailbox", &labels, node.mailbox as f64);
    node.children.iter().for_each(|child| actors(scrape, child));
}
