//! Numbers, and how they are shown: the median and the spread, and ratios within each round.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::scenario::Scenario;

/// All that was measured on a day.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// In UTC.
    pub date: String,
    /// Where and with what.
    pub machine: Machine,
    /// In the order in which they were measured.
    pub scenarios: Vec<Measured>,
}

/// One scenario.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Which.
    pub scenario: Scenario,
    /// What the values are.
    pub unit: Unit,
    /// Of each slice.
    pub seconds: u64,
    /// In the order of each round.
    pub variants: Vec<VariantSlices>,
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// CPU time of the whole process tree, user and system.
    CpuMicrosPerRequest,
    /// Growth of resident memory.
    BytesPerConnection,
}

/// The slices of one variant, one per round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VariantSlices {
    /// Its name.
    pub variant: String,
    /// In the order of the rounds.
    pub slices: Vec<Slice>,
}

/// One variant in one round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// In the scenario's unit.
    pub value: f64,
    /// Requests a second, where there were requests.
    pub per_second: Option<f64>,
    /// What the generator counted as errors.
    pub errors: u64,
}

/// Median, least and greatest.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Results {
    /// Reads a file that [`save`](Results::save) wrote.
    ///
    /// # Errors
    /// It cannot be read or is something else.
    pub fn read(file: &Path) -> Result<Results> {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        serde_json::from_str(&text).with_context(|| file.display().to_string())
    }

    /// Writes `DIR/DATE.json`, with those scenarios of the same day that were not measured again. Gives the file.
    ///
    /// # Errors
    /// The directory cannot be written, or holds something else under that name.
    pub fn save(mut self, dir: &Path) -> Result<PathBuf> {
        fs::create_dir_all(dir)?;
        let file = dir.join(format!("{}.json", self.date));
        if file.exists() {
            let mut before = Results::read(&file)?.scenarios;
            before.retain(|old| self.scenarios.iter().all(|new| new.scenario != old.scenario));
            before.append(&mut self.scenarios);
            self.scenarios = before;
        }
        fs::write(&file, serde_json::to_string_pretty(&self)? + "\n")?;
        Ok(file)
    }

    /// Tables for people.
    pub fn markdown(&self) -> String {
        let Machine { cpu, cpus, memory_mib, kernel, programs } = &self.machine;
        let mut out = format!(
            "{}, {cpu}, {cpus} CPUs, {memory_mib} MiB, Linux {kernel}; {}.\n",
            self.date,
            programs.join(", ")
        );
        for measured in &self.scenarios {
            out.push('\n');
            measured.markdown(&mut out);
        }
        out
    }
}

impl Measured {
    fn markdown(&self, out: &mut String) {
        let rounds = self.variants.first().map_or(0, |variant| variant.slices.len());
        let (unit, digits) = match self.unit {
            Unit::CpuMicrosPerRequest => ("CPU µs/request", 2),
            Unit::BytesPerConnection => ("bytes/connection", 0),
        };
        let against: Vec<&VariantSlices> = self
            .variants
            .iter()
            .filter(|v| matches!(v.variant.as_str(), "nginx" | "hyper" | "haproxy"))
            .collect();
        // Writing into a String does not fail.
        let mut line = |args: std::fmt::Arguments| {
            let _ = out.write_fmt(args);
        };
        line(format_args!("### `{}`: {}\n\n", self.scenario.name(), self.scenario.describe()));
        match self.unit {
            Unit::CpuMicrosPerRequest => {
                line(format_args!("Slices of {} s in {rounds} round(s).\n\n", self.seconds))
            }
            Unit::BytesPerConnection => {
                line(format_args!("A fresh process in each of {rounds} round(s).\n\n"))
            }
        }
        line(format_args!("| variant | {unit} | requests/s |"));
        for other in &against {
            line(format_args!(" × {} |", other.variant));
        }
        line(format_args!("\n|---|---|---|{}\n", "---|".repeat(against.len())));
        for variant in &self.variants {
            let errors: u64 = variant.slices.iter().map(|slice| slice.errors).sum();
            let name = if errors > 0 {
                format!("{} ({errors} errors)", variant.variant)
            } else {
                variant.variant.clone()
            };
            line(format_args!(
                "| {name} | {} |",
                show(spread(variant.slices.iter().map(|s| s.value)), digits)
            ));
            line(format_args!(" {} |", show(spread(variant.slices.iter().filter_map(|s| s.per_second)), 0)));
            for other in &against {
                let ratios =
                    variant.slices.iter().zip(&other.slices).map(|(ours, theirs)| ours.value / theirs.value);
                let shown =
                    if other.variant == variant.variant { "1".into() } else { show(spread(ratios), 2) };
                line(format_args!(" {shown} |"));
            }
            line(format_args!("\n"));
        }
    }
}

fn spread(values: impl Iterator<Item = f64>) -> Option<Spread> {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let median = match values.len() {
        0 => return None,
        n if n % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    };
    Some(Spread { median, min: values[0], max: values[values.len() - 1] })
}

fn show(spread: Option<Spread>, digits: usize) -> String {
    match spread {
        Some(Spread { median, min, max }) => format!("{median:.digits$} ({min:.digits$}–{max:.digits$})"),
        None => "–".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slices(variant: &str, values: &[f64]) -> VariantSlices {
        let slice = |value: &f64| Slice { value: *value, per_second: Some(1000.0), errors: 0 };
        VariantSlices { variant: variant.into(), slices: values.iter().map(slice).collect() }
    }

    #[test]
    fn the_median_is_in_the_middle_and_the_spread_around_it() {
        assert_eq!(spread([3.0, 1.0, 2.0].into_iter()), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(spread([4.0, 1.0].into_iter()), Some(Spread { median: 2.5, min: 1.0, max: 4.0 }));
        assert_eq!(spread([].into_iter()), None);
    }

    #[test]
    fn ratios_are_taken_within_each_round() {
        let measured = Measured {
            scenario: Scenario::Static1k,
            unit: Unit::CpuMicrosPerRequest,
            seconds: 3,
            // The machine ran at half its speed in the second round.
            variants: vec![slices("playhouse", &[8.0, 16.0, 8.0]), slices("nginx", &[10.0, 20.0, 10.0])],
        };
        let mut out = String::new();
        measured.markdown(&mut out);
        assert!(
            out.contains("| playhouse | 8.00 (8.00–16.00) | 1000 (1000–1000) | 0.80 (0.80–0.80) |"),
            "{out}"
        );
        assert!(out.contains("| nginx | 10.00 (10.00–20.00) | 1000 (1000–1000) | 1 |"), "{out}");
    }

    #[test]
    fn a_second_run_of_a_day_replaces_what_it_measured_again() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::this(&[]);
        let run = |scenario, value| Results {
            date: "2026-11-30".into(),
            machine: machine.clone(),
            scenarios: vec![Measured {
                scenario,
                unit: Unit::CpuMicrosPerRequest,
                seconds: 3,
                variants: vec![slices("nginx", &[value])],
            }],
        };
        run(Scenario::Static1k, 1.0).save(dir.path()).unwrap();
        run(Scenario::Proxied, 2.0).save(dir.path()).unwrap();
        let file = run(Scenario::Static1k, 3.0).save(dir.path()).unwrap();
        let read = Results::read(&file).unwrap();
        let values: Vec<_> =
            read.scenarios.iter().map(|m| (m.scenario, m.variants[0].slices[0].value)).collect();
        assert_eq!(values, [(Scenario::Proxied, 2.0), (Scenario::Static1k, 3.0)]);
    }
}
