//! Metrics of several processes on one page: Prometheus' text format, read, labelled and put together again.
//!
//! Each page is our own renderer's, but perhaps that of another build. So families that we do not know pass through, and a
//! line that is none of the format is left out rather than let it spoil the page for whoever reads it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;

use playhouse_serve::metrics::METRICS;

/// A page in the making.
#[derive(Debug, Default)]
pub struct Exposition {
    families: HashMap<String, Family>,
    /// Names in the order of their first appearance.
    order: Vec<String>,
    /// What stands before a sample's value already.
    series: HashSet<String>,
}

#[derive(Debug, Default)]
struct Family {
    help: Option<String>,
    kind: Option<String>,
    samples: String,
}

/// The label that says which process a series is of.
const LABEL: &str = "instance";
/// What a label of that name becomes.
const EXPORTED: &str = "exported_instance";

impl Exposition {
    /// Adds a page. With `instance` every series gets that label, before its own. `takes` says which families are wanted.
    pub fn add(&mut self, page: &str, instance: Option<&str>, takes: impl Fn(&str) -> bool) {
        // As this page has it; another may have the same name with another type.
        let mut kinds = BTreeMap::new();
        let mut current = "";
        for line in page.lines() {
            if let Some(comment) = line.strip_prefix('#') {
                let mut words = comment.trim_start().splitn(3, ' ');
                let (Some(word @ ("HELP" | "TYPE")), Some(name)) = (words.next(), words.next()) else {
                    continue;
                };
                if !is_name(name) {
                    continue;
                }
                current = name;
                let text = words.next().unwrap_or_default();
                if word == "TYPE" && KINDS.contains(&text) {
                    kinds.insert(name, text);
                }
                if takes(name) {
                    let family = self.family(name);
                    match word {
                        "HELP" => _ = family.help.get_or_insert_with(|| text.to_owned()),
                        _ if KINDS.contains(&text) => _ = family.kind.get_or_insert_with(|| text.to_owned()),
                        _ => {}
                    }
                }
                continue;
            }
            let Some(sample) = Sample::parse(line) else { continue };
            let name = family_of(sample.name, current, kinds.get(current).copied());
            if takes(name) {
                let kind = kinds.get(name).copied();
                self.sample(name, kind, &sample, instance);
            }
        }
    }

    fn sample(&mut self, name: &str, kind: Option<&str>, sample: &Sample<'_>, instance: Option<&str>) {
        let series = sample.series(instance);
        // The first page that has a family says what type it is; a histogram's lines beneath a counter would spoil it.
        if self.family(name).kind.as_deref() != kind || self.series.contains(&series) {
            return;
        }
        // Writing to a string does not fail.
        let _ = writeln!(self.family(name).samples, "{series} {}", sample.value);
        self.series.insert(series);
    }

    fn family(&mut self, name: &str) -> &mut Family {
        if !self.families.contains_key(name) {
            self.order.push(name.to_owned());
            self.families.insert(name.to_owned(), Family::default());
        }
        self.families.entry(name.to_owned()).or_default()
    }

    /// The page: our own families in the order of [`METRICS`], then others; each in one piece, with its type once.
    pub fn render(self) -> String {
        let known = METRICS.iter().map(|metric| metric.name);
        let others = self.order.iter().map(String::as_str);
        let mut text = String::new();
        let mut done = HashSet::new();
        for name in known.chain(others) {
            let Some(family) = self.families.get(name) else { continue };
            if family.samples.is_empty() || !done.insert(name) {
                continue;
            }
            if let Some(help) = &family.help {
                let _ = writeln!(text, "# HELP {name} {help}");
            }
            if let Some(kind) = &family.kind {
                let _ = writeln!(text, "# TYPE {name} {kind}");
            }
            text.push_str(&family.samples);
        }
        text
    }
}

/// The family that a sample belongs to: the one it stands beneath, where its name allows that.
fn family_of<'a>(sample: &'a str, current: &'a str, kind: Option<&str>) -> &'a str {
    let suffixes: &[&str] = match kind {
        Some("histogram") => &["_bucket", "_sum", "_count"],
        Some("summary") => &["_sum", "_count"],
        _ => &[],
    };
    match sample.strip_prefix(current) {
        Some(suffix) if !current.is_empty() && suffixes.contains(&suffix) => current,
        _ => sample,
    }
}

/// One line with a value.
#[derive(Debug, PartialEq)]
struct Sample<'a> {
    name: &'a str,
    /// Names, and values as they are written: escaped.
    labels: Vec<(&'a str, &'a str)>,
    /// And a timestamp, where there is one.
    value: &'a str,
}

impl<'a> Sample<'a> {
    fn parse(line: &'a str) -> Option<Sample<'a>> {
        let end = line.find(['{', ' ', '\t'])?;
        let (name, mut rest) = line.split_at(end);
        if !is_name(name) {
            return None;
        }
        rest = rest.trim_start();
        let mut labels = Vec::new();
        if let Some(inner) = rest.strip_prefix('{') {
            rest = inner.trim_start();
            while !rest.starts_with('}') {
                let (label, after) = rest.split_once('=')?;
                let label = label.trim();
                let quoted = after.trim_start().strip_prefix('"')?;
                let end = closing_quote(quoted)?;
                if !is_label(label) || labels.iter().any(|(other, _)| *other == label) {
                    return None;
                }
                labels.push((label, &quoted[..end]));
                rest = quoted[end + 1..].trim_start();
                match rest.strip_prefix(',') {
                    Some(after) => rest = after.trim_start(),
                    None if rest.starts_with('}') => {}
                    None => return None,
                }
            }
            rest = &rest[1..];
        }
        let value = rest.trim();
        let mut words = value.split_ascii_whitespace();
        words.next()?.parse::<f64>().ok()?;
        if let Some(timestamp) = words.next() {
            timestamp.parse::<i64>().ok()?;
        }
        let has = |name| labels.iter().any(|(label, _)| *label == name);
        (words.next().is_none() && !(has(LABEL) && has(EXPORTED))).then_some(Sample { name, labels, value })
    }

    /// What stands before the value.
    fn series(&self, instance: Option<&str>) -> String {
        let mut text = self.name.to_owned();
        let mut separator = '{';
        // As Prometheus does with the label of a target that has one of the same name.
        let renamed = |label| if instance.is_some() && label == LABEL { EXPORTED } else { label };
        let own = instance.map(|instance| (LABEL, instance));
        for (label, value) in
            own.into_iter().chain(self.labels.iter().map(|(label, value)| (renamed(*label), *value)))
        {
            text.push(separator);
            separator = ',';
            let _ = write!(text, "{label}=\"{value}\"");
        }
        if separator == ',' {
            text.push('}');
        }
        text
    }
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

fn is_name(name: &str) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
    name.starts_with(first) && name.chars().all(|c| first(c) || c.is_ascii_digit())
}

fn is_label(label: &str) -> bool {
    is_name(label) && !label.contains(':')
}

const KINDS: [&str; 5] = ["counter", "gauge", "histogram", "summary", "untyped"];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn merged(pages: &[(&str, Option<&str>)]) -> String {
        let mut exposition = Exposition::default();
        for (page, instance) in pages {
            exposition.add(page, *instance, |_| true);
        }
        exposition.render()
    }

    const ONE: &str = "# HELP playhouse_connections Client connections that are open.\n\
        # TYPE playhouse_connections gauge\n\
        playhouse_connections{listener=\"http\"} 3\n\
        # HELP process_threads Threads of the process.\n\
        # TYPE process_threads gauge\n\
        process_threads 4\n";

    #[test]
    fn families_are_in_one_piece_and_every_series_says_whose_it_is() {
        let two = ONE.replace(" 3\n", " 5\n");
        let text = merged(&[(ONE, Some("1")), (&two, Some("2")), ("playhouse_instances_wanted 2\n", None)]);
        assert_eq!(
            text.lines().filter(|line| !line.starts_with("# HELP")).collect::<Vec<_>>(),
            [
                "# TYPE playhouse_connections gauge",
                "playhouse_connections{instance=\"1\",listener=\"http\"} 3",
                "playhouse_connections{instance=\"2\",listener=\"http\"} 5",
                "playhouse_instances_wanted 2",
                "# TYPE process_threads gauge",
                "process_threads{instance=\"1\"} 4",
                "process_threads{instance=\"2\"} 4",
            ]
        );
    }

    #[test]
    fn histograms_stay_whole_and_escapes_are_kept() {
        let page = "# TYPE h histogram\nh_bucket{path=\"a\\\"}b\\\\\",le=\"+Inf\"} 2\nh_sum{path=\"\"} 0.5\nh_count 2\nh_total 1\n";
        let text = merged(&[(page, Some("1"))]);
        assert_eq!(
            text,
            "# TYPE h histogram\nh_bucket{instance=\"1\",path=\"a\\\"}b\\\\\",le=\"+Inf\"} 2\n\
             h_sum{instance=\"1\",path=\"\"} 0.5\nh_count{instance=\"1\"} 2\nh_total{instance=\"1\"} 1\n"
        );
    }

    #[test]
    fn another_builds_families_pass_and_what_is_malformed_does_not() {
        let page = "# TYPE of_a_later_build counter\nof_a_later_build{a=\"1\",} 1 1700000000000\n\n# a comment\n\
            no_value\nbad{a=1} 1\nbad{a=\"1\" 1\nbad{a=\"x\"}\n9bad 1\nbad{b:c=\"\"} 1\nbad{a=\"1\",a=\"2\"} 1\nbad 1 2 3\nbad x\n";
        let text = merged(&[(page, Some("7"))]);
        assert_eq!(
            text,
            "# TYPE of_a_later_build counter\nof_a_later_build{instance=\"7\",a=\"1\"} 1 1700000000000\n"
        );
    }

    #[test]
    fn a_family_has_the_type_of_the_first_and_no_series_twice() {
        let old = "# TYPE x counter\nx 1\n";
        let new = "# TYPE x histogram\nx_bucket{le=\"+Inf\"} 1\nx_count 1\nx_sum 1\n";
        assert_eq!(merged(&[(old, Some("1")), (new, Some("2"))]), "# TYPE x counter\nx{instance=\"1\"} 1\n");
        assert_eq!(merged(&[(old, Some("1")), (old, Some("1"))]), "# TYPE x counter\nx{instance=\"1\"} 1\n");
        let own = merged(&[("x{instance=\"a\"} 1\n", Some("1"))]);
        assert_eq!(own, "x{instance=\"1\",exported_instance=\"a\"} 1\n");
    }

    #[test]
    fn only_wanted_families_are_taken() {
        let mut exposition = Exposition::default();
        exposition.add(ONE, Some("1"), |name| !name.starts_with("playhouse_"));
        let text = exposition.render();
        assert!(!text.contains("playhouse_connections") && text.contains("process_threads{"), "{text}");
    }

    proptest! {
        /// Whatever an instance says, the page is one that can be read again, and says the same then.
        #[test]
        fn the_page_is_always_well_formed(page in "([#a-z_{}=\", \\\\0-9\n]|TYPE |HELP |counter|gauge){0,200}") {
            let text = merged(&[(&page, Some("1"))]);
            let samples = text.lines().filter(|line| !line.starts_with('#'));
            for line in samples {
                prop_assert!(Sample::parse(line).is_some(), "{line:?} of {page:?}");
            }
            prop_assert_eq!(merged(&[(&text, None)]), text);
        }
    }
}
