//! A fleet that is not there: instances that share a load evenly, and say how they are.

use std::time::Duration;

use playhouse_config::Site;
use playhouse_config::model::Instances;
use playhouse_protocol::control::{Sample, State};
use tokio::time::Instant;

use super::load::Sampled;
use super::memory::Memory;
use super::scaling::{Facts, Host};

/// Between two samples.
pub(super) const TICK: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Simulation {
    pub limits: Instances,
    pub asked: Option<u32>,
    pub instances: Vec<Sampled>,
    /// In CPUs.
    pub load: f64,
    /// Memory for all; each instance takes [`SIZE`] of it.
    pub memory: Option<u64>,
    pub cpus: u32,
    /// Whether those that serve speak.
    pub silent: bool,
    /// Late whatever the load, up to so many instances.
    pub late_up_to: u32,
    next_slot: u32,
}

impl Simulation {
    pub(super) fn new(min: u32, max: u32, load: f64) -> Self {
        Simulation {
            limits: limits(min, max),
            asked: None,
            instances: Vec::new(),
            load,
            memory: None,
            cpus: 64,
            silent: false,
            late_up_to: 0,
            next_slot: 1,
        }
    }

    pub(super) fn serving(&self) -> u32 {
        self.instances.iter().filter(|one| one.serves()).count() as u32
    }

    pub(super) fn facts(&self) -> Facts {
        Facts {
            limits: self.limits.clone(),
            threads: 1,
            asked: self.asked,
            wanted: self.instances.iter().filter(|one| one.is_kept()).count() as u32,
            instances: self.instances.clone(),
        }
    }

    pub(super) fn host(&self) -> Host {
        let used = self.instances.len() as u64 * SIZE;
        let host = self.memory.map(|memory| memory.saturating_sub(used));
        Host { cpus: self.cpus, memory: Memory { host, group: None } }
    }

    /// Starts and ends as a fleet would, at once.
    pub(super) fn want(&mut self, wanted: u32, refused: bool, now: Instant) {
        while self.instances.len() > wanted as usize {
            self.instances.pop();
        }
        while !refused && self.instances.len() < wanted as usize {
            self.instances.push(Sampled {
                slot: self.next_slot,
                state: State::Starting,
                stuck: false,
                since: now,
                samples: Vec::new(),
            });
            self.next_slot += 1;
        }
    }

    /// Half a second has passed: those that have started serve, those that serve have worked and say so.
    pub(super) fn tick(&mut self, now: Instant) {
        let serving = self.serving();
        let each = self.load / f64::from(serving.max(1));
        let late = each > 0.95 || serving <= self.late_up_to;
        for one in &mut self.instances {
            if one.state == State::Starting && now.saturating_duration_since(one.since) >= BOOT {
                (one.state, one.since) = (State::Active, now);
            }
            if one.state != State::Active || self.silent {
                continue;
            }
            let (number, cpu_us) = one.samples.last().map_or((0, 0), |(_, last)| (last.number, last.cpu_us));
            let sample = Sample {
                number: number + 1,
                cpu_us: cpu_us + (each.min(1.0) * TICK.as_micros() as f64) as u64,
                interval_us: TICK.as_micros() as u64,
                rss_bytes: SIZE,
                lag_us: if late { 120_000 } else { 2_000 },
                connections: 10,
                queued: if each > 1.0 { 200 } else { 0 },
                ..Sample::default()
            };
            if one.samples.len() == 16 {
                one.samples.remove(0);
            }
            one.samples.push((now, sample));
        }
    }
}

/// As a site file would say them.
pub(super) fn limits(min: u32, max: u32) -> Instances {
    let site = Site::builder("simulated")
        .listener("http", "127.0.0.1:0")
        .instances((u64::from(min), u64::from(max)))
        .build()
        .unwrap();
    site.instances.unwrap()
}

/// Resident bytes of an instance.
pub(super) const SIZE: u64 = 32 << 20;
/// From an instance's start to its being active.
const BOOT: Duration = Duration::from_millis(800);
