//! Metrics of a site, in Prometheus' text format: handles made when a route, listener or upstream server is built, and
//! values that are collected when somebody asks ([`Scrape`]).
//!
//! Labels come from the site file only, never from a client. Handles for the same labels are the same counters, so a
//! reload resets nothing; a series is gone when the last handle to it is (its route or server has left the site, and no
//! request that it served is still open). What every metric means is in [`METRICS`].

mod counter;
mod histogram;
mod process;
mod route;
mod scrape;
mod server;
mod table;
mod tunnel;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

pub use route::{ListenerMetrics, RouteMetrics};
pub use scrape::Scrape;
pub use server::{Failure, ServerMetrics};
pub use table::{Kind, METRICS, Metric};
pub(crate) use tunnel::Passed;
pub use tunnel::TunnelMetrics;

use route::Requests;

/// The metrics of one site.
#[derive(Debug, Default)]
pub struct Metrics {
    series: Mutex<Series>,
}

/// What has handles. Weak: a series is kept by who counts in it.
#[derive(Debug, Default)]
struct Series {
    /// By listener, then route.
    requests: BTreeMap<(Arc<str>, Arc<str>), Weak<Requests>>,
    listeners: BTreeMap<Arc<str>, Weak<ListenerMetrics>>,
    /// By upstream, then server.
    servers: BTreeMap<(Arc<str>, Arc<str>), Weak<ServerMetrics>>,
}

impl Metrics {
    /// The handles of a route with this label (`Route::label`) on these listeners, each with its number
    /// (`ConnectionInfo::listener_index`) and name.
    pub fn route(&self, label: &str, listeners: &[(usize, Arc<str>)]) -> Arc<RouteMetrics> {
        let label: Arc<str> = label.into();
        let mut by_listener = Vec::new();
        let mut series = self.series.lock();
        series.requests.retain(|_, requests| requests.strong_count() > 0);
        for (index, listener) in listeners {
            let requests = shared(&mut series.requests, (listener.clone(), label.clone()), Requests::default);
            if by_listener.len() <= *index {
                by_listener.resize(index + 1, None);
            }
            by_listener[*index] = Some(requests);
        }
        Arc::new(RouteMetrics::new(label, by_listener))
    }

    /// The handles of the listener with this name.
    pub fn listener(&self, name: &str) -> Arc<ListenerMetrics> {
        let mut series = self.series.lock();
        series.listeners.retain(|_, listener| listener.strong_count() > 0);
        shared(&mut series.listeners, name.into(), ListenerMetrics::default)
    }

    /// The handles of one server of an upstream; `address` as it is displayed in the site file.
    pub fn server(&self, upstream: &str, address: impl Display) -> Arc<ServerMetrics> {
        let address: Arc<str> = address.to_string().into();
        let mut series = self.series.lock();
        series.servers.retain(|_, server| server.strong_count() > 0);
        shared(&mut series.servers, (upstream.into(), address.clone()), || ServerMetrics::new(address))
    }

    /// Begins a collection: the process's own figures and the build are in it. The caller sets what it knows and
    /// renders.
    pub fn scrape(&self) -> Scrape<'_> {
        Scrape::begin(self)
    }
}

/// The living value for `key`, or a new one.
fn shared<K: Ord, V>(map: &mut BTreeMap<K, Weak<V>>, key: K, new: impl FnOnce() -> V) -> Arc<V> {
    let slot = map.entry(key).or_default();
    slot.upgrade().unwrap_or_else(|| {
        let value = Arc::new(new());
        *slot = Arc::downgrade(&value);
        value
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;
    use crate::application::End;
    use http::StatusCode;
    use std::time::Duration;

    const END: End = End {
        outcome: Outcome::Answered,
        status: Some(StatusCode::OK),
        bytes_sent: 10,
        duration: Duration::from_millis(3),
    };

    #[test]
    fn a_reload_that_keeps_a_route_resets_nothing() {
        let metrics = Metrics::default();
        let listeners = [(0, "http".into())];
        let old = metrics.route("/", &listeners);
        old.observe(0, &END);
        let new = metrics.route("/", &listeners);
        drop(old);
        new.observe(0, &END);
        let text = metrics.scrape().render();
        assert!(
            text.contains(
                "playhouse_requests_total{listener=\"http\",route=\"/\",status=\"2xx\",outcome=\"answered\"} 2\n"
            ),
            "{text}"
        );
        assert!(text.contains("playhouse_response_content_bytes_total{listener=\"http\",route=\"/\"} 20\n"));
    }

    #[test]
    fn series_of_a_removed_route_are_gone_with_its_last_handle() {
        let metrics = Metrics::default();
        let route = metrics.route("/old/", &[(0, "http".into())]);
        route.observe(0, &END);
        assert!(metrics.scrape().render().contains("/old/"));
        drop(route);
        assert!(!metrics.scrape().render().contains("/old/"));
    }

    #[test]
    fn a_listener_that_the_route_does_not_have_is_not_counted() {
        let metrics = Metrics::default();
        let route = metrics.route("/", &[(2, "edge".into())]);
        route.observe(0, &END);
        route.observe(7, &END);
        route.observe(2, &END);
        let text = metrics.scrape().render();
        assert!(
            text.contains("listener=\"edge\",route=\"/\",status=\"2xx\",outcome=\"answered\"} 1\n"),
            "{text}"
        );
    }

    #[test]
    fn one_server_in_two_routes_has_one_set_of_counters() {
        let metrics = Metrics::default();
        let one = metrics.server("api", "127.0.0.1:9000");
        let two = metrics.server("api", "127.0.0.1:9000");
        one.requested();
        two.requested();
        two.failed(Failure::Connect);
        one.answered(StatusCode::OK, Duration::from_millis(1));
        let text = metrics.scrape().render();
        for line in [
            "playhouse_upstream_requests_total{upstream=\"api\",server=\"127.0.0.1:9000\"} 2\n",
            "playhouse_upstream_failures_total{upstream=\"api\",server=\"127.0.0.1:9000\",kind=\"connect\"} 1\n",
            "playhouse_upstream_first_byte_seconds_bucket{upstream=\"api\",server=\"127.0.0.1:9000\",le=\"0.001\"} 1\n",
            "playhouse_upstream_first_byte_seconds_count{upstream=\"api\",server=\"127.0.0.1:9000\"} 1\n",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
}
