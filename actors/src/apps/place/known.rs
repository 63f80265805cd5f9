//! A process as others know it: whoever comes after this process finds it written down, instances send it requests and hold
//! what it writes to.

use std::os::fd::OwnedFd;
use std::time::Duration;

use playhouse_protocol::control::{AppProcess, AppServer};
use tokio::time::Instant;

use super::{Left, Phase, Place, remove};
use crate::apps::record::{self, Record, Stage};
use crate::control::crash::crash_point;
use crate::control::process::{self, Process};

impl Place {
    /// Writes down where it is in its life.
    pub(super) fn note(&self) {
        if !self.is_kept {
            return;
        }
        let (socket, port) = record::parts(&self.address);
        let process = self.process.get();
        let record = Record {
            app: self.settings.name.to_string(),
            place: self.number,
            pid: process.map_or(0, Process::pid),
            started: process.map_or(0, Process::started),
            boot: process::boot_id(),
            socket,
            port,
            fingerprint: self.fingerprint.clone(),
            generation: self.generation,
            stage: Stage::of(self.phase()),
        };
        record::note(&record, &self.directory);
    }

    /// Which process it is, once it was started and until nothing is left of it.
    pub fn identity(&self) -> Option<AppProcess> {
        let process = self.process.get().filter(|_| self.phase() != Phase::Gone)?;
        let app = self.settings.name.to_string();
        Some(AppProcess { app, place: self.number, pid: process.pid(), started: process.started() })
    }

    /// The process as others send requests to it.
    pub(in crate::apps) fn as_server(&self) -> Option<AppServer> {
        let AppProcess { place, pid, started, .. } = self.identity()?;
        let (socket, port) = record::parts(&self.address);
        Some(AppServer { place, pid, started, socket, port, healthy: self.server.is_healthy() })
    }

    /// Duplicates of the read ends of its standard output and error, for others to hold; `None` where they cannot be had.
    pub fn pipes(&self) -> Option<Vec<OwnedFd>> {
        self.pipes.get()?.iter().map(|pipe| pipe.try_clone().ok()).collect()
    }

    /// Whether requests are sent from other processes.
    pub(in crate::apps) fn has_audience(&self) -> bool {
        self.audience.is_some()
    }

    /// Requests in flight, wherever they were sent from.
    pub fn in_flight(&self) -> usize {
        self.server.in_flight() + self.load_elsewhere().0
    }

    /// Requests so far, tries of one request counted each.
    pub fn requests(&self) -> u64 {
        self.server.requests() + self.load_elsewhere().1
    }

    fn load_elsewhere(&self) -> (usize, u64) {
        match (&self.audience, self.identity()) {
            (Some(audience), Some(process)) => audience.load(&process),
            _ => (0, 0),
        }
    }

    /// It was taken out of service, which was said to all in this generation.
    pub(in crate::apps) fn note_left(&self, generation: u64) {
        *self.left.lock() = Left { generation, reached: None };
        crash_point("app-leave");
    }

    /// Whether nobody can send it another request: everybody has known for so long that it is not in service.
    pub(in crate::apps) fn is_left_alone(&self, long: Duration) -> bool {
        let Some(audience) = &self.audience else { return self.phase_for().1 >= long };
        let mut left = self.left.lock();
        if left.reached.is_none() && audience.has_reached_all(left.generation) {
            left.reached = Some(Instant::now());
        }
        left.reached.is_some_and(|reached| reached.elapsed() >= long)
    }

    /// Nothing is left of it.
    pub(super) fn remove_record(&self) {
        if self.is_kept {
            remove(&record::path(&self.directory, &self.settings.name, self.number));
        }
    }
}
