//! What is held of a listener's HTTP/3: a UDP socket per instance, and where packets go among them.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use playhouse_config::model;
use playhouse_protocol::connection_id::ConnectionIds;

use super::given::Given;
use super::prepare::BindErrorKind;
use super::quic::given_group;
use crate::net::{Buckets, KeySource, QuicGroup, Weighted};

/// Where the packets of all listeners go.
#[derive(Debug)]
pub(super) struct Steering {
    buckets: Buckets,
    living: Vec<u32>,
}

/// How connection IDs are made, once that is needed.
#[derive(Debug, Default)]
pub(super) struct Ids {
    pub(super) source: OnceLock<KeySource>,
    ids: OnceLock<ConnectionIds>,
}

impl Default for Steering {
    fn default() -> Self {
        Steering { buckets: Buckets::all_to(1), living: Vec::new() }
    }
}

impl Steering {
    /// From now on first packets go to the `active`, by their weights, and those of connections to the `living`.
    pub(super) fn set(&mut self, active: &[Weighted], living: &[u32]) {
        self.buckets.spread(active);
        self.living = living.to_vec();
    }

    /// Whether it was ever set.
    pub(super) fn is_known(&self) -> bool {
        !self.living.is_empty()
    }

    /// Has the kernel do it. A group that has not all of the slots does without them.
    pub(super) fn apply(&self, group: &QuicGroup, ids: &ConnectionIds) -> io::Result<()> {
        let living: Vec<u32> =
            self.living.iter().copied().filter(|slot| group.socket(*slot).is_some()).collect();
        group.steer(ids, &self.buckets, &living)
    }
}

impl Ids {
    pub(super) fn ids(&self) -> io::Result<&ConnectionIds> {
        match self.ids.get() {
            Some(ids) => Ok(ids),
            None => {
                let ids = self.source.get().cloned().unwrap_or_default().keys()?.ids();
                Ok(self.ids.get_or_init(|| ids))
            }
        }
    }
}

/// The UDP sockets at `local`, and whether they were opened for it.
pub(super) fn open_quic(
    listener: &model::Listener,
    local: SocketAddr,
    running: Option<Arc<QuicGroup>>,
    slots: u32,
    given: &mut Given,
    ids: &Ids,
) -> Result<(Arc<QuicGroup>, bool), BindErrorKind> {
    let only_v6 = matches!(listener.bind, model::Bind::Tcp { only_v6: true, .. });
    let given_group = given_group(listener, given).map_err(BindErrorKind::Unfit)?;
    let running = match running.filter(|running| running.is_at(local, only_v6)) {
        Some(running) if running.sockets().count() >= slots as usize => return Ok((running, false)),
        Some(running) => running,
        None => match given_group {
            Some(group) => Arc::new(group),
            None if given.is_only() => return Err(BindErrorKind::NotGiven),
            None => {
                let ids = ids.ids().map_err(BindErrorKind::Quic)?;
                let group = QuicGroup::bind(local, only_v6, slots, ids).map_err(BindErrorKind::Quic)?;
                return Ok((Arc::new(group), true));
            }
        },
    };
    Ok((Arc::new(running.extended(slots).map_err(BindErrorKind::Quic)?), true))
}
