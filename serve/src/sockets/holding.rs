//! What is held of one listener: a socket, or one per instance.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use playhouse_config::model::{self, Sharing};

use super::given::Given;
use super::prepare::{BACKLOG, BindErrorKind, Opened, open};
use crate::net::{BoundSocket, ReusePortGroup, Weighted};

#[derive(Debug)]
pub(super) enum Holding {
    /// One that all instances accept from.
    Shared(BoundSocket),
    /// One per slot.
    PerSlot(ReusePortGroup),
}

impl Holding {
    /// Duplicates to be passed on, with their slots; 0 is none.
    pub(super) fn duplicates(&self) -> io::Result<Vec<(u32, OwnedFd)>> {
        match self {
            Holding::Shared(socket) => Ok(vec![(0, socket.try_clone_descriptor()?)]),
            Holding::PerSlot(group) => {
                let duplicate =
                    |(slot, socket): (u32, &BoundSocket)| Ok((slot, socket.try_clone_descriptor()?));
                group.sockets().map(duplicate).collect()
            }
        }
    }

    pub(super) fn steer(&self, active: &[Weighted]) -> io::Result<()> {
        let Holding::PerSlot(group) = self else { return Ok(()) };
        let active: Vec<_> =
            active.iter().copied().filter(|(slot, _)| group.socket(*slot).is_some()).collect();
        if active.is_empty() { Ok(()) } else { group.steer(&active) }
    }

    /// Whether both are of the same sockets, even if one has more of them.
    pub(super) fn is_same(&self, other: &Holding) -> bool {
        match (self.first(), other.first()) {
            (Some(one), Some(other)) => one.is_same_socket(other),
            _ => false,
        }
    }

    pub(super) fn address(&self) -> String {
        self.first().map(|socket| socket.address().to_owned()).unwrap_or_default()
    }

    /// Where it listens on TCP.
    pub(super) fn local(&self) -> Option<SocketAddr> {
        self.first()?.local()
    }

    pub(super) fn keep_file(&self) {
        if let Holding::Shared(socket) = self {
            socket.keep_file();
        }
    }

    pub(super) fn remove_file(&self) {
        if let Holding::Shared(socket) = self {
            socket.remove_file();
        }
    }

    pub(super) fn set_mode(&self, mode: u32) -> io::Result<()> {
        match self {
            Holding::Shared(socket) => socket.set_mode(mode),
            Holding::PerSlot(_) => Ok(()),
        }
    }

    fn first(&self) -> Option<&BoundSocket> {
        match self {
            Holding::Shared(socket) => Some(socket),
            Holding::PerSlot(group) => group.socket(1),
        }
    }
}

/// What is held for a listener from now on, and whether it was opened for it.
pub(super) fn open_to_hold(
    listener: &model::Listener,
    running: Option<Arc<Holding>>,
    slots: u32,
    given: &mut Given,
) -> Result<(Arc<Holding>, bool), BindErrorKind> {
    let is_shared = matches!(running.as_deref(), Some(Holding::Shared(_)));
    if listener.sharing == Sharing::ReusePort && slots > 0 && !is_shared && !given.has(&listener.name, 0) {
        match open_group(listener, running.clone(), slots, given) {
            // One socket for all does as well, only less evenly.
            Err(BindErrorKind::Bind(error)) if error.kind() == io::ErrorKind::Unsupported => {
                tracing::warn!(listener = %listener.name, %error, "its socket is inherited instead");
            }
            result => return result,
        }
    }
    open_shared(listener, running, given)
}

fn open_group(
    listener: &model::Listener,
    running: Option<Arc<Holding>>,
    slots: u32,
    given: &mut Given,
) -> Result<(Arc<Holding>, bool), BindErrorKind> {
    let given_sockets = given.take_slots(&listener.name);
    let running = running.filter(|running| {
        let same = |given: &OwnedFd| running.first().is_some_and(|first| first.is_same_socket(given));
        given_sockets.first().is_none_or(same)
    });
    let (group, is_new) = match running.as_deref() {
        Some(Holding::PerSlot(group)) if group.sockets().count() >= slots as usize => {
            return Ok((running.ok_or(BindErrorKind::NotGiven)?, false));
        }
        Some(Holding::PerSlot(group)) => (group.extended(slots, BACKLOG).map_err(BindErrorKind::Bind)?, true),
        _ if !given_sockets.is_empty() => {
            let group = ReusePortGroup::from_descriptors(given_sockets, &listener.bind);
            let group = group.map_err(BindErrorKind::Unfit)?;
            (group.extended(slots, BACKLOG).map_err(BindErrorKind::Bind)?, true)
        }
        _ if given.is_only() => return Err(BindErrorKind::NotGiven),
        _ => (ReusePortGroup::bind(&listener.bind, slots, BACKLOG).map_err(BindErrorKind::Bind)?, true),
    };
    Ok((Arc::new(Holding::PerSlot(group)), is_new))
}

fn open_shared(
    listener: &model::Listener,
    running: Option<Arc<Holding>>,
    given: &mut Given,
) -> Result<(Arc<Holding>, bool), BindErrorKind> {
    let socket = match running.as_deref() {
        Some(Holding::Shared(socket)) => Some(socket),
        _ => None,
    };
    let socket = match open(listener, socket, given)? {
        Opened::Running => return Ok((running.ok_or(BindErrorKind::NotGiven)?, false)),
        Opened::Bound(socket) | Opened::Given { socket, borrowed: true } => socket,
        Opened::Given { mut socket, borrowed: false } => match socket.own_file(&listener.bind) {
            Ok(()) => {
                // Not even where this is refused: others listen.
                socket.keep_file();
                socket
            }
            Err(error) => {
                tracing::warn!(listener = %listener.name, %error, "socket file lost: bound anew");
                return open_shared(listener, running, given);
            }
        },
    };
    Ok((Arc::new(Holding::Shared(socket)), true))
}
