//! Instance processes: how many, and when there are more or fewer.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::Resolver;
use crate::error::At;
use crate::file;
use crate::model::{Instances, Scaling};

/// Most instances: their slots and sockets are numbered, and no host that this is for has more CPUs to give them.
const MAX_INSTANCES: u64 = 64;
/// Default of `ready_timeout`.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// Default of `heartbeat_timeout`.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(5);
/// Two heartbeats: with less, one that comes late on a busy host would be the end of an instance.
const MIN_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(1);
/// Default of `min_free_memory`.
const MIN_FREE_MEMORY: u64 = 64 << 20;
/// Lowest `up_at`: an idle instance has a load above nothing too.
const MIN_UP_AT: f64 = 0.05;

impl Resolver<'_, '_> {
    pub(super) fn instances(&mut self, raw: Option<&file::Instances>, at: &At) -> Option<Option<Instances>> {
        let Some(raw) = raw else { return Some(None) };
        let min = self.count_or(raw.min, 1u32, &at.field("min"), 1..=MAX_INSTANCES);
        let max_at = at.field("max");
        let max =
            self.required(raw.max, &max_at, "missing; write how many instances there may be, such as max: 4");
        let max = match max {
            Some(max) => self.count_or(Some(max), 1u32, &max_at, 1..=MAX_INSTANCES),
            None => None,
        };
        if let (Some(min), Some(max)) = (min, max)
            && max < min
        {
            self.report.error(&max_at, format!("{max} is less than min, which is {min}"));
        }
        let ready_timeout = self.duration(raw.ready_timeout, READY_TIMEOUT, &at.field("ready_timeout"));
        let heartbeat_at = at.field("heartbeat_timeout");
        let heartbeat_timeout = match self.duration(raw.heartbeat_timeout, HEARTBEAT_TIMEOUT, &heartbeat_at) {
            Some(timeout) if timeout < MIN_HEARTBEAT_TIMEOUT => self.refuse(
                &heartbeat_at,
                "is too short; instances are heard from every 500ms, write at least \"1s\"",
            ),
            timeout => timeout,
        };
        let scaling = self.scaling(raw.scaling.as_ref(), &at.field("scaling"));
        Some(Some(Instances {
            min: NonZeroU32::new(min?)?,
            max: NonZeroU32::new(max?)?,
            ready_timeout: ready_timeout?,
            heartbeat_timeout: heartbeat_timeout?,
            min_free_memory: raw.min_free_memory.map_or(MIN_FREE_MEMORY, |size| size.0),
            scaling: scaling?,
        }))
    }

    fn scaling(&mut self, raw: Option<&file::Scaling>, at: &At) -> Option<Scaling> {
        let default = Scaling::default();
        let Some(raw) = raw else { return Some(default) };
        let down_at = at.field("down_at");
        let up = self.share(raw.up_at, default.up_at, &at.field("up_at"), MIN_UP_AT..=1.0);
        let down = self.share(raw.down_at, default.down_at, &down_at, 0.0..=1.0);
        if let (Some(up), Some(down)) = (up, down)
            && down >= up
        {
            let message = if raw.down_at.is_some() {
                format!("{down} is not less than up_at, which is {up}")
            } else {
                format!("{down}, the default, is not less than up_at, which is {up}; write a lower one")
            };
            self.report.error(&down_at, message);
        }
        let up_after = self.duration(raw.up_after, default.up_after, &at.field("up_after"));
        let down_after = self.duration(raw.down_after, default.down_after, &at.field("down_after"));
        let cooldown = self.duration(raw.cooldown, default.cooldown, &at.field("cooldown"));
        Some(Scaling {
            up_at: up?,
            down_at: down?,
            up_after: up_after?,
            down_after: down_after?,
            cooldown: cooldown?,
        })
    }

    /// A share in a range, or the default.
    fn share(
        &mut self,
        value: Option<f64>,
        default: f64,
        at: &At,
        range: RangeInclusive<f64>,
    ) -> Option<f64> {
        let value = value.unwrap_or(default);
        // What is no number is in no range.
        if range.contains(&value) {
            return Some(value);
        }
        let message =
            format!("{value} is out of range; a share of {} to {} is allowed", range.start(), range.end());
        self.refuse(at, message)
    }
}
