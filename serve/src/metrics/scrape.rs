//! One collection, and the text it becomes.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::histogram::{LABELS, Snapshot};
use super::table::{METRICS, Metric};
use super::{Metrics, process};
use crate::ledger::{OUTCOMES, Totals};

/// A collection of what is known only when somebody asks: gauges, and counters that others keep. Nothing of it outlives
/// the answer, so the values of a listener or server that has gone are gone with it.
#[derive(Debug)]
pub struct Scrape<'a> {
    metrics: &'a Metrics,
    page: Page,
}

impl<'a> Scrape<'a> {
    pub(super) fn begin(metrics: &'a Metrics) -> Self {
        let mut scrape = Scrape { metrics, page: Page::default() };
        process::collect(&mut scrape);
        scrape
    }

    /// Sets one value. `name` and the labels, in their order, are as in [`METRICS`]; anything else is a mistake of the
    /// program: it panics in a debug build and is left out of the answer in others.
    pub fn set(&mut self, name: &'static str, labels: &[(&'static str, &str)], value: f64) {
        let known = METRICS.iter().any(|metric| {
            metric.name == name && metric.labels.iter().eq(labels.iter().map(|(label, _)| label))
        });
        debug_assert!(known, "{name} with {labels:?} is not in METRICS");
        if known {
            let values: Vec<&str> = labels.iter().map(|(_, value)| *value).collect();
            self.page.sample(name, &values, value);
        }
    }

    /// Sets the ledger's totals.
    pub fn ledger(&mut self, totals: &Totals) {
        self.set("playhouse_ledger_accepted_total", &[], totals.accepted as f64);
        self.set("playhouse_ledger_in_flight", &[], totals.in_flight as f64);
        for outcome in OUTCOMES {
            let labels = [("outcome", outcome.as_str())];
            self.set("playhouse_ledger_ended_total", &labels, totals.ended_as(outcome) as f64);
        }
    }

    /// The text, to be sent as [`CONTENT_TYPE`](Self::CONTENT_TYPE). Metrics without a value are left out.
    pub fn render(mut self) -> String {
        let page = &mut self.page;
        let series = self.metrics.series.lock();
        for ((listener, route), requests) in &series.requests {
            if let Some(requests) = requests.upgrade() {
                requests.render(page, listener, route);
            }
        }
        for (listener, handles) in &series.listeners {
            if let Some(handles) = handles.upgrade() {
                handles.render(page, listener);
            }
        }
        for ((upstream, _), server) in &series.servers {
            if let Some(server) = server.upgrade() {
                server.render(page, upstream);
            }
        }
        drop(series);
        self.page.finish()
    }

    /// The media type of [`render`](Self::render)'s text.
    pub const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";
}

/// Samples, gathered by metric.
#[derive(Debug, Default)]
pub(super) struct Page {
    families: BTreeMap<&'static str, String>,
}

impl Page {
    /// Adds a sample; the labels' values are in the table's order.
    pub(super) fn sample(&mut self, name: &'static str, labels: &[&str], value: impl std::fmt::Display) {
        let Some(metric) = find(name) else { return };
        let text = self.families.entry(metric.name).or_default();
        line(text, metric, "", labels, None, value);
    }

    /// Adds a histogram's samples, cumulated.
    pub(super) fn histogram(&mut self, name: &'static str, labels: &[&str], snapshot: &Snapshot) {
        let Some(metric) = find(name) else { return };
        let text = self.families.entry(metric.name).or_default();
        let mut count = 0;
        for (bucket, bound) in snapshot.buckets.iter().zip(LABELS.into_iter().chain(["+Inf"])) {
            count += bucket;
            line(text, metric, "_bucket", labels, Some(bound), count);
        }
        line(text, metric, "_sum", labels, None, snapshot.nanoseconds as f64 / 1e9);
        line(text, metric, "_count", labels, None, count);
    }

    fn finish(self) -> String {
        let mut text = String::new();
        for metric in METRICS {
            let Some(samples) = self.families.get(metric.name) else { continue };
            let _ = writeln!(text, "# HELP {} {}", metric.name, metric.help);
            let _ = writeln!(text, "# TYPE {} {}", metric.name, metric.kind.as_str());
            text.push_str(samples);
        }
        text
    }
}

fn find(name: &str) -> Option<&'static Metric> {
    let metric = METRICS.iter().find(|metric| metric.name == name);
    debug_assert!(metric.is_some(), "{name} is not in METRICS");
    metric
}

fn line(
    text: &mut String,
    metric: &Metric,
    suffix: &str,
    labels: &[&str],
    le: Option<&str>,
    value: impl std::fmt::Display,
) {
    text.push_str(metric.name);
    text.push_str(suffix);
    let labels = metric.labels.iter().copied().zip(labels.iter().copied()).chain(le.map(|le| ("le", le)));
    let mut separator = '{';
    for (label, value) in labels {
        text.push(separator);
        separator = ',';
        text.push_str(label);
        text.push_str("=\"");
        escape(text, value);
        text.push('"');
    }
    if separator == ',' {
        text.push('}');
    }
    let _ = writeln!(text, " {value}");
}

/// A label's value may hold anything; backslash, quote and line feed are escaped.
fn escape(text: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_stands_beneath_its_type() {
        let metrics = Metrics::default();
        let _route = metrics.route("/", &[(0, "http".into())]);
        let _listener = metrics.listener("http");
        let _server = metrics.server("api", "127.0.0.1:1");
        let mut scrape = metrics.scrape();
        scrape.ledger(&Totals { accepted: 3, answered: 2, in_flight: 1, ..Totals::default() });
        scrape.set("playhouse_connections", &[("listener", "http")], 12.0);
        let text = scrape.render();

        let mut family = "";
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                family = rest.split(' ').next().unwrap();
            } else if !line.starts_with('#') {
                assert!(line.starts_with(family), "{line} stands beneath {family}");
                assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
            }
        }
        assert!(text.contains("playhouse_connections{listener=\"http\"} 12\n"), "{text}");
        assert!(text.contains("playhouse_ledger_ended_total{outcome=\"answered\"} 2\n"));
        assert!(text.contains("playhouse_ledger_in_flight 1\n"));
    }

    #[test]
    fn label_values_are_escaped() {
        let metrics = Metrics::default();
        let mut scrape = metrics.scrape();
        scrape.set("playhouse_actor_up", &[("path", "a\"b\\c\nd")], 1.0);
        assert!(scrape.render().contains("playhouse_actor_up{path=\"a\\\"b\\\\c\\nd\"} 1\n"));
    }

    #[test]
    fn buckets_are_cumulative_and_end_in_the_count() {
        let mut snapshot = Snapshot::default();
        snapshot.buckets[0] = 2;
        snapshot.buckets[16] = 1;
        let mut page = Page::default();
        page.histogram("playhouse_request_duration_seconds", &["http", "/"], &snapshot);
        let text = page.finish();
        assert!(text.contains("le=\"0.0005\"} 2\n"));
        assert!(text.contains("le=\"60\"} 2\n"));
        assert!(text.contains("le=\"+Inf\"} 3\n"));
        assert!(text.contains("_count{listener=\"http\",route=\"/\"} 3\n"));
    }
}
